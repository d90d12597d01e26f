/* SPDX-License-Identifier: MIT
 * The vocabulary on AVX-512 (F, BW, DQ, VL): 16 floats or 8 doubles.
 */
#include <immintrin.h>

#include "vec.h"

#if !defined(__AVX512F__) && !defined(FA_EMULATED)
#error build this file for AVX-512
#endif

#if FA_REAL_BITS == 32
typedef __m512 vec;
typedef __mmask16 vmask;
enum { LANES = 16 };
#define V(name) _mm512_##name##_ps
#define V_MASK(name) _mm512_##name##_ps_mask
#else
typedef __m512d vec;
typedef __mmask8 vmask;
enum { LANES = 8 };
#define V(name) _mm512_##name##_pd
#define V_MASK(name) _mm512_##name##_pd_mask
#endif

FA_INLINE vec v_load(const real *p) { return V(load)(p); }
FA_INLINE void v_store(real *p, vec a) { V(store)(p, a); }
FA_INLINE vec v_loadu(const real *p) { return V(loadu)(p); }
FA_INLINE void v_storeu(real *p, vec a) { V(storeu)(p, a); }
FA_INLINE vec v_splat(real x) { return V(set1)(x); }
FA_INLINE vec v_add(vec a, vec b) { return V(add)(a, b); }
FA_INLINE vec v_sub(vec a, vec b) { return V(sub)(a, b); }
FA_INLINE vec v_mul(vec a, vec b) { return V(mul)(a, b); }
FA_INLINE vec v_div(vec a, vec b) { return V(div)(a, b); }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return V(fmadd)(a, b, c); }
FA_INLINE vec v_max(vec a, vec b) { return V(max)(a, b); }
FA_INLINE vec v_min(vec a, vec b) { return V(min)(a, b); }
FA_INLINE vec v_abs(vec a) { return V(abs)(a); }
FA_INLINE vmask v_gt(vec a, vec b) { return V_MASK(cmp)(a, b, _CMP_GT_OQ); }
FA_INLINE vmask v_eq(vec a, vec b) { return V_MASK(cmp)(a, b, _CMP_EQ_OQ); }
FA_INLINE vec v_select(vmask mask, vec a, vec b) { return V(mask_blend)(mask, b, a); }
FA_INLINE int v_any(vmask mask) { return mask != 0; }
FA_INLINE int v_all(vmask mask) { return mask == (vmask)((1u << LANES) - 1); }

#if FA_REAL_BITS == 32
FA_INLINE vmask v_negative(vec a) { return _mm512_movepi32_mask(_mm512_castps_si512(a)); }

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(biased), MANTISSA_BITS));
}

/* Pairs within 128-bit quarters first, then the quarters: 4 steps of 16 shuffles. */
FA_INLINE void v_transpose(vec r[LANES])
{
    vec a[LANES];
    FA_UNROLL_FOR (int i = 0; i < 8; ++i) {
        a[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) {
        r[4 * i] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm512_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm512_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) {
        a[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xdd);
    }
}

FA_INLINE vec v_shift_bits(vec a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 1));
}
#else
FA_INLINE vmask v_negative(vec a) { return _mm512_movepi64_mask(_mm512_castpd_si512(a)); }

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(biased), MANTISSA_BITS));
}

FA_INLINE void v_transpose(vec r[LANES])
{
    vec a[LANES];
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) {
        a[2 * i] = _mm512_unpacklo_pd(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_pd(r[2 * i], r[2 * i + 1]);
    }
    FA_UNROLL_FOR (int i = 0; i < 2; ++i) {
        r[i] = _mm512_shuffle_f64x2(a[i], a[i + 2], 0x88);
        r[i + 2] = _mm512_shuffle_f64x2(a[i], a[i + 2], 0xdd);
        r[i + 4] = _mm512_shuffle_f64x2(a[i + 4], a[i + 6], 0x88);
        r[i + 6] = _mm512_shuffle_f64x2(a[i + 4], a[i + 6], 0xdd);
    }
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) a[i] = r[i], a[i + 4] = r[i + 4];
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_f64x2(a[i], a[i + 4], 0x88);
        r[i + 4] = _mm512_shuffle_f64x2(a[i], a[i + 4], 0xdd);
    }
}

FA_INLINE vec v_shift_bits(vec a)
{
    return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(a), 1));
}
#endif

FA_INLINE uint32_t v_flags(const uint8_t *p)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)p);
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256()));
}
#undef V
#undef V_MASK
