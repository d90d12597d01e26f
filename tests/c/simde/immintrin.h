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

#include "../tiles.h"

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

/* 128-bit quarters: two of a, then two of b, two bits of the control each. */
static inline simde__m512 quarters(simde__m512 a, simde__m512 b, int control)
{
    simde__m512_private x = simde__m512_to_private(a), y = simde__m512_to_private(b), r;
    for (int n = 0; n < 4; ++n) r.m128[n] = (n < 2 ? x : y).m128[control >> 2 * n & 3];
    return simde__m512_from_private(r);
}

static inline simde__m512d quarters_64(simde__m512d a, simde__m512d b, int control)
{
    simde__m512d_private x = simde__m512d_to_private(a), y = simde__m512d_to_private(b), r;
    for (int n = 0; n < 4; ++n) r.m128d[n] = (n < 2 ? x : y).m128d[control >> 2 * n & 3];
    return simde__m512d_from_private(r);
}

/* Conversions between widths, by halves. */
static inline simde__m512 from_halves(__m256i halves)
{
    simde__m512_private wide;
    wide.m256[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    wide.m256[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    return simde__m512_from_private(wide);
}

static inline __m256i to_halves(simde__m512 a, const int rounding)
{
    (void)rounding;
    simde__m512_private wide = simde__m512_to_private(a);
    return _mm256_set_m128i(_mm256_cvtps_ph(wide.m256[1], 0), _mm256_cvtps_ph(wide.m256[0], 0));
}

static inline simde__m512i widen_u16(__m256i from)
{
    simde__m512i_private wide;
    uint16_t some[16];
    _mm256_storeu_si256((__m256i *)some, from);
    for (int n = 0; n < 16; ++n) wide.u32[n] = some[n];
    return simde__m512i_from_private(wide);
}

static inline simde__m512i widen_i8(__m128i from)
{
    simde__m512i_private wide;
    int8_t some[16];
    _mm_storeu_si128((__m128i *)some, from);
    for (int n = 0; n < 16; ++n) wide.i32[n] = some[n];
    return simde__m512i_from_private(wide);
}

static inline __m256i narrow_u32(simde__m512i a)
{
    simde__m512i_private wide = simde__m512i_to_private(a);
    uint16_t some[16];
    for (int n = 0; n < 16; ++n) some[n] = (uint16_t)wide.u32[n];
    return _mm256_loadu_si256((const __m256i *)some);
}

static inline __m128i narrow_u8(simde__m512i a)
{
    simde__m512i_private wide = simde__m512i_to_private(a);
    uint8_t some[16];
    for (int n = 0; n < 16; ++n) some[n] = (uint8_t)wide.u32[n];
    return _mm_loadu_si128((const __m128i *)some);
}

static inline simde__m512i shift_i32(simde__m512i a, unsigned count)
{
    simde__m512i_private wide = simde__m512i_to_private(a);
    for (int n = 0; n < 16; ++n) wide.i32[n] >>= count;
    return simde__m512i_from_private(wide);
}

static inline simde__m512 from_i32(simde__m512i a)
{
    simde__m512i_private from = simde__m512i_to_private(a);
    simde__m512_private to;
    for (int n = 0; n < 16; ++n) to.f32[n] = (float)from.i32[n];
    return simde__m512_from_private(to);
}

/* ---- bfloat16 ---- */

static inline simde__mmask32 greater_u16(simde__m512i a, simde__m512i b)
{
    simde__m512i_private x = simde__m512i_to_private(a), y = simde__m512i_to_private(b);
    simde__mmask32 mask = 0;
    for (int n = 0; n < 32; ++n) mask |= (simde__mmask32)(x.u16[n] > y.u16[n]) << n;
    return mask;
}

static inline simde__mmask16 greater_u32(simde__m512i a, simde__m512i b)
{
    simde__m512i_private x = simde__m512i_to_private(a), y = simde__m512i_to_private(b);
    simde__mmask16 mask = 0;
    for (int n = 0; n < 16; ++n) mask |= (simde__mmask16)((x.u32[n] > y.u32[n]) << n);
    return mask;
}

static inline simde__mmask8 unequal_i64(simde__m512i a, simde__m512i b)
{
    simde__m512i_private x = simde__m512i_to_private(a), y = simde__m512i_to_private(b);
    simde__mmask8 mask = 0;
    for (int n = 0; n < 8; ++n) mask |= (simde__mmask8)((x.u64[n] != y.u64[n]) << n);
    return mask;
}

/* What is out of range, NaN as well, becomes the smallest number. */
static inline simde__m512i truncate_i32(simde__m512 a)
{
    simde__m512_private from = simde__m512_to_private(a);
    simde__m512i_private to;
    for (int n = 0; n < 16; ++n) {
        const float x = from.f32[n];
        to.i32[n] = x >= -0x1p31f && x < 0x1p31f ? (int32_t)x : INT32_MIN;
    }
    return simde__m512i_from_private(to);
}

static inline simde__m512i round_i32(simde__m512 a)
{
    simde__m512_private from = simde__m512_to_private(a);
    for (int n = 0; n < 16; ++n) from.f32[n] = rintf(from.f32[n]);
    return truncate_i32(simde__m512_from_private(from));
}

/* Reads nothing of what the mask leaves out. */
static inline simde__m512i load_u16(simde__mmask32 mask, const void *from)
{
    simde__m512i_private to;
    for (int n = 0; n < 32; ++n) {
        to.u16[n] = 0;
        if (mask >> n & 1) memcpy(&to.u16[n], (const char *)from + 2 * n, 2);
    }
    return simde__m512i_from_private(to);
}

/* The same of bytes and of floats. */
static inline simde__m512i load_u8(simde__mmask64 mask, const void *from)
{
    simde__m512i_private to;
    for (int n = 0; n < 64; ++n) to.u8[n] = mask >> n & 1 ? ((const uint8_t *)from)[n] : 0;
    return simde__m512i_from_private(to);
}

static inline __m256i load_u8_half(uint32_t mask, const void *from)
{
    return simde_mm512_castsi512_si256(load_u8(mask, from));
}

static inline simde__m512 load_f32(simde__mmask16 mask, const float *from)
{
    simde__m512_private to;
    for (int n = 0; n < 16; ++n) to.f32[n] = mask >> n & 1 ? from[n] : 0;
    return simde__m512_from_private(to);
}

static inline float greatest_f32(simde__m512 a)
{
    simde__m512_private x = simde__m512_to_private(a);
    for (int n = 1; n < 16; ++n) x.f32[0] = x.f32[n] > x.f32[0] ? x.f32[n] : x.f32[0];
    return x.f32[0];
}

static inline int sum_i32(simde__m512i a)
{
    simde__m512i_private x = simde__m512i_to_private(a);
    for (int n = 1; n < 16; ++n) x.u32[0] += x.u32[n];
    return x.i32[0];
}

static inline float least_f32(simde__m512 a)
{
    simde__m512_private x = simde__m512_to_private(a);
    for (int n = 1; n < 16; ++n) x.f32[0] = x.f32[n] < x.f32[0] ? x.f32[n] : x.f32[0];
    return x.f32[0];
}

/* x - floor(x), rounded down as well: it is below 1, and -0 of a whole number. */
static inline simde__m512 above_floor(simde__m512 a, const int rounding)
{
    (void)rounding;
    simde__m512_private x = simde__m512_to_private(a);
    for (int n = 0; n < 16; ++n) {
        const double exact = x.f32[n] - floor(x.f32[n]);
        float r = exact == 0 ? -0.0f : (float)exact;
        if (r > exact || r == 1) r = nextafterf(r, 0);
        x.f32[n] = isinf(x.f32[n]) ? 0 : r;
    }
    return simde__m512_from_private(x);
}

/* a * 2^floor(b), a neither 0 nor infinite. SIMDe's rounds the power, and takes denormals for 0. */
static inline simde__m512 scale_lanes(simde__mmask16 mask, simde__m512 a, simde__m512 b)
{
    simde__m512_private x = simde__m512_to_private(a), y = simde__m512_to_private(b);
    for (int n = 0; n < 16; ++n)
        x.f32[n] = mask >> n & 1 ? (float)(x.f32[n] * exp2(floor(y.f32[n]))) : 0;
    return simde__m512_from_private(x);
}

static inline float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static inline float add_product(float sum, uint32_t a, uint32_t b)
{
    const float x = flush(simde_uint32_as_float32(a)), y = flush(simde_uint32_as_float32(b));
    return flush(fmaf(x, y, flush(sum)));
}

/* Upper products first; denormals are 0. SIMDe's are the other way round, and keep them. */
static inline simde__m512 add_products(simde__m512 sum, simde__m512i a, simde__m512i b)
{
    simde__m512_private r = simde__m512_to_private(sum);
    simde__m512i_private x = simde__m512i_to_private(a), y = simde__m512i_to_private(b);
    for (int n = 0; n < 16; ++n) {
        const uint32_t upper = 0xffff0000;
        r.f32[n] = add_product(r.f32[n], x.u32[n] & upper, y.u32[n] & upper);
        r.f32[n] = add_product(r.f32[n], x.u32[n] << 16, y.u32[n] << 16);
    }
    return simde__m512_from_private(r);
}

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
#define _mm256_maskz_loadu_epi8 load_u8_half
#define _mm512_maskz_loadu_epi8 load_u8
#define _mm512_maskz_loadu_ps load_f32
#define _mm512_reduce_max_ps greatest_f32
#define _mm512_reduce_min_ps least_f32
#define _mm512_reduce_add_epi32 sum_i32
#define _mm512_reduce_ps above_floor
#define _mm512_maskz_scalef_ps scale_lanes
#define _mm512_dpbf16_ps add_products
#define _mm512_dpbusd_epi32 simde_mm512_dpbusd_epi32
#define _mm512_abs_epi32 simde_mm512_abs_epi32
#define _mm512_add_epi32 simde_mm512_add_epi32
#define _mm512_and_si512 simde_mm512_and_si512
#define _mm512_mask_add_epi32 simde_mm512_mask_add_epi32
#define _mm512_or_si512 simde_mm512_or_si512
#define _mm512_set1_epi32 simde_mm512_set1_epi32
#define _mm512_srli_epi32 simde_mm512_srli_epi32
#define _mm512_andnot_si512 simde_mm512_andnot_si512
#define _mm512_castsi256_si512 simde_mm512_castsi256_si512
#define _mm512_fmsub_ps simde_mm512_fmsub_ps
#define _mm512_inserti64x4 simde_mm512_inserti64x4
#define _mm512_load_si512 simde_mm512_load_si512
#define _mm512_loadu_si512 simde_mm512_loadu_si512
#define _mm512_mask_test_epi16_mask simde_mm512_mask_test_epi16_mask
#define _mm512_mask_test_epi32_mask simde_mm512_mask_test_epi32_mask
#define _mm512_set1_epi16 simde_mm512_set1_epi16
#define _mm512_sllv_epi32 simde_mm512_sllv_epi32
#define _mm512_srl_epi32 simde_mm512_srl_epi32
#define _mm512_store_si512 simde_mm512_store_si512
#define _mm512_sub_epi16 simde_mm512_sub_epi16
#define _mm512_sub_epi32 simde_mm512_sub_epi32
#define _mm512_ternarylogic_epi32 simde_mm512_ternarylogic_epi32
#define _mm512_test_epi32_mask simde_mm512_test_epi32_mask
#define _mm512_xor_si512 simde_mm512_xor_si512
#define _mm512_abs_pd simde_mm512_abs_pd
#define _mm512_abs_ps simde_mm512_abs_ps
#define _mm512_add_pd simde_mm512_add_pd
#define _mm512_add_ps simde_mm512_add_ps
#define _mm512_broadcast_f32x4 simde_mm512_broadcast_f32x4
#define _mm512_broadcast_f32x8 simde_mm512_broadcast_f32x8
#define _mm512_broadcast_f64x2 simde_mm512_broadcast_f64x2
#define _mm512_broadcast_f64x4 simde_mm512_broadcast_f64x4
#define _mm512_castpd128_pd512 simde_mm512_castpd128_pd512
#define _mm512_castpd256_pd512 simde_mm512_castpd256_pd512
#define _mm512_castpd_ps simde_mm512_castpd_ps
#define _mm512_castpd_si512 simde_mm512_castpd_si512
#define _mm512_castps128_ps512 simde_mm512_castps128_ps512
#define _mm512_castps256_ps512 simde_mm512_castps256_ps512
#define _mm512_castps_si512 simde_mm512_castps_si512
#define _mm512_castsi512_pd simde_mm512_castsi512_pd
#define _mm512_castsi512_ps simde_mm512_castsi512_ps
#define _mm512_cmp_pd_mask simde_mm512_cmp_pd_mask
#define _mm512_cmp_ps_mask simde_mm512_cmp_ps_mask
#define _mm512_cmpeq_epi32_mask simde_mm512_cmpeq_epi32_mask
#define _mm512_cmpeq_epi64_mask simde_mm512_cmpeq_epi64_mask
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
#define _mm512_mask_ternarylogic_epi32 simde_mm512_mask_ternarylogic_epi32
#define _mm512_max_epu8 simde_mm512_max_epu8
#define _mm512_movepi8_mask simde_mm512_movepi8_mask
#define _mm512_permutex2var_epi16 simde_mm512_permutex2var_epi16
#define _mm512_permutex2var_epi8 simde_mm512_permutex2var_epi8
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

#endif
