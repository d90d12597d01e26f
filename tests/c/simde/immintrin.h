/* SPDX-License-Identifier: MIT
 * Found before the compiler's own: AVX-512 in portable C, and AMX (../tiles.h), so that their
 * kernels are tested on machines without. SIMDe has nearly all of what they use; the rest is below.
 */
#ifndef FA_SIMDE_H
#define FA_SIMDE_H

#include <math.h>
#include <string.h>

#include_next <immintrin.h>
#include <simde/x86/avx512.h>
#include <simde/x86/gfni.h>

#include "../tiles.h"
#include "functions.h"

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig tile_configure
#define _tile_release tile_release
#define _tile_loadd tile_load
#define _tile_stream_loadd tile_load
#define _tile_stored tile_store
#define _tile_zero tile_zero
#define _tile_dpbf16ps tile_multiply_bfloats
#define _tile_dpbssd tile_multiply_bytes

#define __m512 simde__m512
#define __m512d simde__m512d
#define __m512i simde__m512i
#define __m512bh simde__m512i
#define __mmask64 simde__mmask64
#define __mmask32 simde__mmask32
#define __mmask16 simde__mmask16
#define __mmask8 simde__mmask8
#define _mm512_shuffle_f32x4 quarters
#define _mm512_shuffle_f64x2 quarters_64
#define _mm512_shuffle_i64x2(a, b, control)                                                        \
    simde_mm512_castps_si512(                                                                      \
        quarters(simde_mm512_castsi512_ps(a), simde_mm512_castsi512_ps(b), control))
#define _mm512_cvtph_ps from_halves
#define _mm512_cvtps_ph to_halves
#define _mm512_cvtepu16_epi32 widen_u16
#define _mm512_cvtepi8_epi32 widen_i8
#define _mm512_cvtepi32_epi16 narrow_u32
#define _mm512_cvtepi32_epi8 narrow_u8
#define _mm512_srai_epi32 shift_i32
#define _mm512_cvtepi32_ps from_i32
#define _mm512_cmpgt_epu16_mask greater_u16
#define _mm512_cmpgt_epu32_mask greater_u32
#define _mm512_cmpneq_epi64_mask unequal_i64
#define _mm512_cvttps_epi32 truncate_i32
#define _mm512_cvtss_f32(a) (simde__m512_to_private(a).f32[0])
#define _mm512_cvtps_epi32 round_i32
#define _mm512_maskz_loadu_epi16 load_u16
#define _mm512_maskz_permutexvar_epi16(mask, order, x)                                             \
    simde_mm512_maskz_mov_epi16(mask, simde_mm512_permutexvar_epi16(order, x))
#define _mm256_maskz_loadu_epi8 load_u8_half
#define _mm512_maskz_loadu_epi8 load_u8
#define _mm512_mask_storeu_epi8 store_u8
#define _mm512_maskz_loadu_ps load_f32
#define _mm512_reduce_min_ps least_f32
#define _mm512_reduce_add_epi32 sum_i32
#define _mm512_reduce_add_ps sum_f32
#define _mm512_reduce_max_epu32 greatest_u32
#define _mm512_reduce_min_epu32 least_u32
#define _mm512_reduce_ps above_floor
#define _mm512_maskz_scalef_ps scale_lanes
#define _mm512_dpbf16_ps add_products
#define _mm512_dpbusd_epi32 simde_mm512_dpbusd_epi32
#define _mm512_max_epu32 simde_mm512_max_epu32
#define _mm512_min_epu32 simde_mm512_min_epu32
#define _mm512_max_epu16 simde_mm512_max_epu16
#define _mm512_min_epu16 simde_mm512_min_epu16
#define _mm512_packus_epi16 simde_mm512_packus_epi16
#define _mm512_packus_epi32 simde_mm512_packus_epi32
#define _mm512_shuffle_epi8 simde_mm512_shuffle_epi8
#define _mm512_broadcast_i32x4 simde_mm512_broadcast_i32x4
#define _mm512_avg_epu16 simde_mm512_avg_epu16
#define _mm512_slli_epi16 simde_mm512_slli_epi16
#define _mm512_srli_epi16 simde_mm512_srli_epi16
#define _mm512_mask_test_epi16_mask simde_mm512_mask_test_epi16_mask
#define _mm512_test_epi16_mask simde_mm512_test_epi16_mask
#define _mm512_maskz_mov_epi16 simde_mm512_maskz_mov_epi16
#define _mm512_set1_epi64 simde_mm512_set1_epi64
#define _mm512_testn_epi8_mask no_bits_i8
#define _mm512_permutexvar_epi16 simde_mm512_permutexvar_epi16
#define _mm512_permutexvar_epi8 simde_mm512_permutexvar_epi8
#define _mm512_mask_permutexvar_epi8 simde_mm512_mask_permutexvar_epi8
#define _mm512_mask_sub_epi8 simde_mm512_mask_sub_epi8
#define _mm512_gf2p8affine_epi64_epi8 simde_mm512_gf2p8affine_epi64_epi8
#define _mm512_mask_gf2p8affine_epi64_epi8 simde_mm512_mask_gf2p8affine_epi64_epi8
#define _mm512_add_epi16 simde_mm512_add_epi16
#define _mm512_movepi16_mask simde_mm512_movepi16_mask
#define _mm512_roundscale_ps simde_mm512_roundscale_ps
#define _mm512_mulhi_epu16 upper_words
#define _mm512_maskz_srli_epi16 shift_words
#define _mm512_abs_epi32 simde_mm512_abs_epi32
#define _mm512_add_epi32 simde_mm512_add_epi32
#define _mm512_and_si512 simde_mm512_and_si512
#define _mm512_mask_add_epi32 simde_mm512_mask_add_epi32
#define _mm512_or_si512 simde_mm512_or_si512
#define _mm512_set1_epi32 simde_mm512_set1_epi32
#define _mm512_srli_epi32 simde_mm512_srli_epi32
#define _mm512_andnot_si512 simde_mm512_andnot_si512
#define _mm512_castsi512_si256 simde_mm512_castsi512_si256
#define _mm512_extracti64x4_epi64 simde_mm512_extracti64x4_epi64
#define _mm512_castsi256_si512 simde_mm512_castsi256_si512
#define _mm512_fmsub_ps simde_mm512_fmsub_ps
#define _mm512_inserti64x4 simde_mm512_inserti64x4
#define _mm512_maskz_inserti64x4 simde_mm512_maskz_inserti64x4
#define _mm512_load_si512 simde_mm512_load_si512
#define _mm512_loadu_si512 simde_mm512_loadu_si512
#define _mm512_set1_epi16 simde_mm512_set1_epi16
#define _mm512_sllv_epi32 simde_mm512_sllv_epi32
#define _mm512_srl_epi32 simde_mm512_srl_epi32
#define _mm512_store_si512 simde_mm512_store_si512
#define _mm512_sub_epi16 simde_mm512_sub_epi16
#define _mm512_sub_epi32 simde_mm512_sub_epi32
#define _mm512_ternarylogic_epi32 simde_mm512_ternarylogic_epi32
#define _mm512_test_epi32_mask simde_mm512_test_epi32_mask
#define _mm512_xor_si512 simde_mm512_xor_si512
#define _mm512_abs_pd size_f64
#define _mm512_abs_ps size_f32
#define _mm512_add_pd simde_mm512_add_pd
#define _mm512_add_ps simde_mm512_add_ps
#define _mm512_broadcast_f32x4 simde_mm512_broadcast_f32x4
#define _mm512_broadcast_f32x8 simde_mm512_broadcast_f32x8
#define _mm512_broadcast_f64x2 simde_mm512_broadcast_f64x2
#define _mm512_broadcast_f64x4 simde_mm512_broadcast_f64x4
#define _mm512_castpd128_pd512 simde_mm512_castpd128_pd512
#define _mm512_castpd256_pd512 simde_mm512_castpd256_pd512
#define _mm512_castpd_ps simde_mm512_castpd_ps
#define _mm512_castps_pd simde_mm512_castps_pd
#define _mm512_castps512_ps256 simde_mm512_castps512_ps256
#define _mm512_extractf64x4_pd simde_mm512_extractf64x4_pd
#define _mm512_castpd_si512 simde_mm512_castpd_si512
#define _mm512_castps128_ps512 simde_mm512_castps128_ps512
#define _mm512_castps256_ps512 simde_mm512_castps256_ps512
#define _mm512_castps_si512 simde_mm512_castps_si512
#define _mm512_castsi512_pd simde_mm512_castsi512_pd
#define _mm512_castsi512_ps simde_mm512_castsi512_ps
#define _mm512_cmp_pd_mask simde_mm512_cmp_pd_mask
#define _mm512_cmp_ps_mask simde_mm512_cmp_ps_mask
#define _mm512_div_pd simde_mm512_div_pd
#define _mm512_div_ps simde_mm512_div_ps
#define _mm512_fmadd_pd simde_mm512_fmadd_pd
#define _mm512_fmadd_ps simde_mm512_fmadd_ps
#define _mm512_load_pd simde_mm512_load_pd
#define _mm512_load_ps simde_mm512_load_ps
#define _mm512_loadu_pd simde_mm512_loadu_pd
#define _mm512_loadu_ps simde_mm512_loadu_ps
#define _mm512_mask_blend_pd simde_mm512_mask_blend_pd
#define _mm512_mask_blend_ps simde_mm512_mask_blend_ps
#define _mm512_max_pd simde_mm512_max_pd
#define _mm512_max_ps simde_mm512_max_ps
#define _mm512_min_pd simde_mm512_min_pd
#define _mm512_min_ps simde_mm512_min_ps
#define _mm512_movepi32_mask simde_mm512_movepi32_mask
#define _mm512_movepi64_mask simde_mm512_movepi64_mask
#define _mm512_mul_pd simde_mm512_mul_pd
#define _mm512_mul_ps simde_mm512_mul_ps
#define _mm512_permutexvar_pd simde_mm512_permutexvar_pd
#define _mm512_permutexvar_ps simde_mm512_permutexvar_ps
#define _mm512_set1_pd simde_mm512_set1_pd
#define _mm512_set1_ps simde_mm512_set1_ps
#define _mm512_setr_epi32 simde_mm512_setr_epi32
#define _mm512_setr_epi64 simde_mm512_setr_epi64
#define _mm512_setzero_si512 simde_mm512_setzero_si512
#define _mm512_shuffle_ps simde_mm512_shuffle_ps
#define _mm512_slli_epi32 simde_mm512_slli_epi32
#define _mm512_slli_epi64 simde_mm512_slli_epi64
#define _mm512_store_pd simde_mm512_store_pd
#define _mm512_store_ps simde_mm512_store_ps
#define _mm512_storeu_pd simde_mm512_storeu_pd
#define _mm512_storeu_ps simde_mm512_storeu_ps
#define _mm512_sub_pd simde_mm512_sub_pd
#define _mm512_sub_ps simde_mm512_sub_ps
#define _mm512_unpackhi_pd simde_mm512_unpackhi_pd
#define _mm512_unpackhi_ps simde_mm512_unpackhi_ps
#define _mm512_unpacklo_pd simde_mm512_unpacklo_pd
#define _mm512_unpacklo_ps simde_mm512_unpacklo_ps
#define _mm512_abs_epi8 simde_mm512_abs_epi8
#define _mm512_add_epi8 simde_mm512_add_epi8
#define _mm512_cmpgt_epu8_mask simde_mm512_cmpgt_epu8_mask
#define _mm512_insertf32x4 simde_mm512_insertf32x4
#define _mm512_mask_mov_epi8 simde_mm512_mask_mov_epi8
#define _mm512_mask_mov_epi16 simde_mm512_mask_mov_epi16
#define _mm512_mask_ternarylogic_epi32 simde_mm512_mask_ternarylogic_epi32
#define _mm512_max_epu8 simde_mm512_max_epu8
#define _mm512_movepi8_mask simde_mm512_movepi8_mask
#define _mm512_permutex2var_epi16 simde_mm512_permutex2var_epi16
#define _mm512_permutex2var_epi8 simde_mm512_permutex2var_epi8
#define _mm512_maskz_permutex2var_epi8 simde_mm512_maskz_permutex2var_epi8
#define _mm512_set1_epi8 simde_mm512_set1_epi8
#define _mm512_unpackhi_epi8 simde_mm512_unpackhi_epi8
#define _mm512_unpacklo_epi8 simde_mm512_unpacklo_epi8
#define _mm512_permutex2var_ps simde_mm512_permutex2var_ps
#define _mm512_unpacklo_epi16 simde_mm512_unpacklo_epi16
#define _mm512_unpackhi_epi16 simde_mm512_unpackhi_epi16
#define _mm512_permutexvar_epi32 simde_mm512_permutexvar_epi32
#define _mm512_permutexvar_epi64 simde_mm512_permutexvar_epi64
#define _mm512_castsi512_si128 simde_mm512_castsi512_si128
#define _mm512_broadcastq_epi64 simde_mm512_broadcastq_epi64
#define _mm512_sub_epi64 simde_mm512_sub_epi64
#define _mm512_add_epi64 simde_mm512_add_epi64
#define _mm512_permutex2var_pd simde_mm512_permutex2var_pd
#define _mm512_mask_range_ps simde_mm512_mask_range_ps
#define _mm512_mask_range_pd simde_mm512_mask_range_pd
#define _mm512_fpclass_ps_mask of_class_f32
#define _mm512_fpclass_pd_mask of_class_f64

#endif
