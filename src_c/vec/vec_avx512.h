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
#define QUARTERS(a, b, which) _mm512_shuffle_f32x4(a, b, which)
#else
typedef __m512d vec;
typedef __mmask8 vmask;
enum { LANES = 8 };
#define V(name) _mm512_##name##_pd
#define V_MASK(name) _mm512_##name##_pd_mask
#define QUARTERS(a, b, which) _mm512_shuffle_f64x2(a, b, which)
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

/* In classes of numbers, 0x99 is NaN and infinities; of the range, 2 is the lesser of two sizes. */
#define HAS_LIMIT 1
FA_INLINE vec v_limit(vec a, real most)
{
    const vmask limited = (vmask)~V_MASK(fpclass)(a, 0x99);
    return V(mask_range)(a, limited, a, v_splat(most), 2);
}

FA_INLINE void v_regroup(const int n, vec *r)
{
    if (n == LANES) return;
    const vec a = QUARTERS(r[0], r[1], 0x44), b = QUARTERS(r[0], r[1], 0xee);
    if (n == LANES / 2) {
        r[0] = a, r[1] = b;
    } else if (n == LANES / 4) {
        const vec c = QUARTERS(r[2], r[3], 0x44), d = QUARTERS(r[2], r[3], 0xee);
        r[0] = QUARTERS(a, c, 0x88), r[1] = QUARTERS(a, c, 0xdd);
        r[2] = QUARTERS(b, d, 0x88), r[3] = QUARTERS(b, d, 0xdd);
    }
}

#if FA_REAL_BITS == 32
FA_INLINE vmask v_negative(vec a) { return _mm512_movepi32_mask(_mm512_castps_si512(a)); }

FA_INLINE float v_greatest(vec a)
{
    const __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(a), 1);
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm256_castpd_ps(upper));
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

FA_INLINE vec v_load_bytes(const void *p, int64_t n)
{
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p));
}

FA_INLINE void v_store_bytes(void *p, int64_t n, vec a)
{
    _mm512_mask_storeu_epi8(p, ((__mmask64)1 << n) - 1, _mm512_castps_si512(a));
}

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(biased), MANTISSA_BITS));
}

FA_INLINE vec v_swap(const int n, vec a)
{
    return n == 8   ? QUARTERS(a, a, 0x4e)
           : n == 4 ? QUARTERS(a, a, 0xb1)
           : n == 2 ? _mm512_shuffle_ps(a, a, 0x4e)
                    : _mm512_shuffle_ps(a, a, 0xb1);
}

FA_INLINE void v_zip(vec *a, vec *b)
{
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const vec x = *a;
    *a = _mm512_permutex2var_ps(x, first, *b);
    *b = _mm512_permutex2var_ps(x, last, *b);
}

/* Four vectors, quarter by quarter, 4 x 4. */
FA_INLINE void turn_fours(vec *r)
{
    const vec a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    const vec c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    r[0] = _mm512_shuffle_ps(a, c, 0x44), r[1] = _mm512_shuffle_ps(a, c, 0xee);
    r[2] = _mm512_shuffle_ps(b, d, 0x44), r[3] = _mm512_shuffle_ps(b, d, 0xee);
}

/* Pairs within 128-bit quarters first, then the quarters: 4 steps of 16 shuffles. */
FA_INLINE void v_transpose(vec r[LANES])
{
    vec a[LANES];
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) turn_fours(r + 4 * i);
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

FA_INLINE vec v_repeat(const int n, const real *p)
{
    double two;
    if (n == 16) return _mm512_loadu_ps(p);
    if (n == 8) return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
    if (n == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    if (n == 1) return v_splat(*p);
    memcpy(&two, p, sizeof two);
    return _mm512_castpd_ps(_mm512_set1_pd(two));
}

FA_INLINE vec v_stretch(const int n, const real *p)
{
    const __m512i by_2 = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i by_4 = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i by_8 = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    double two;
    if (n == 16) return v_splat(*p);
    if (n == 1) return _mm512_loadu_ps(p);
    if (n == 2) return _mm512_permutexvar_ps(by_2, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
    if (n == 4) return _mm512_permutexvar_ps(by_4, _mm512_castps128_ps512(_mm_loadu_ps(p)));
    memcpy(&two, p, sizeof two);
    return _mm512_permutexvar_ps(by_8, _mm512_castpd_ps(_mm512_set1_pd(two)));
}

/* Each step adds halves and puts two vectors into one, within 128-bit quarters first: for n = 16,
 * 30 shuffles, where a transpose has 64. */
FA_INLINE vec v_sum_groups(const int n, vec *r)
{
    const __m512i of_2 = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m512i of_4 = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i of_8 = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    if (n == 1) return r[0];
    FA_UNROLL_FOR (int i = 0; i < n / 2; ++i)
        r[i] = v_add(_mm512_shuffle_ps(r[2 * i], r[2 * i + 1], 0x88),
                     _mm512_shuffle_ps(r[2 * i], r[2 * i + 1], 0xdd));
    if (n == 2) return _mm512_permutexvar_ps(of_2, r[0]);
    FA_UNROLL_FOR (int i = 0; i < n / 4; ++i)
        r[i] = v_add(_mm512_shuffle_ps(r[2 * i], r[2 * i + 1], 0x88),
                     _mm512_shuffle_ps(r[2 * i], r[2 * i + 1], 0xdd));
    if (n == 4) return _mm512_permutexvar_ps(of_4, r[0]);
    FA_UNROLL_FOR (int i = 0; i < n / 8; ++i)
        r[i] = v_add(_mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0x88),
                     _mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0xdd));
    if (n == 8) return _mm512_permutexvar_ps(of_8, r[0]);
    return v_add(_mm512_shuffle_f32x4(r[0], r[1], 0x88), _mm512_shuffle_f32x4(r[0], r[1], 0xdd));
}

FA_INLINE vec v_shift_bits(vec a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 1));
}
#else
FA_INLINE vmask v_negative(vec a) { return _mm512_movepi64_mask(_mm512_castpd_si512(a)); }

FA_INLINE vec v_load_bytes(const void *p, int64_t n)
{
    return _mm512_castsi512_pd(_mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p));
}

FA_INLINE void v_store_bytes(void *p, int64_t n, vec a)
{
    _mm512_mask_storeu_epi8(p, ((__mmask64)1 << n) - 1, _mm512_castpd_si512(a));
}

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(biased), MANTISSA_BITS));
}

FA_INLINE vec v_swap(const int n, vec a)
{
    const __m512 pairs = _mm512_castpd_ps(a);
    return n == 4   ? QUARTERS(a, a, 0x4e)
           : n == 2 ? QUARTERS(a, a, 0xb1)
                    : _mm512_castps_pd(_mm512_shuffle_ps(pairs, pairs, 0x4e));
}

FA_INLINE void v_zip(vec *a, vec *b)
{
    const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i last = _mm512_add_epi64(first, _mm512_set1_epi64(4));
    const vec x = *a;
    *a = _mm512_permutex2var_pd(x, first, *b);
    *b = _mm512_permutex2var_pd(x, last, *b);
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

FA_INLINE vec v_repeat(const int n, const real *p)
{
    if (n == 8) return _mm512_loadu_pd(p);
    if (n == 4) return _mm512_broadcast_f64x4(_mm256_loadu_pd(p));
    return n == 2 ? _mm512_broadcast_f64x2(_mm_loadu_pd(p)) : v_splat(*p);
}

FA_INLINE vec v_stretch(const int n, const real *p)
{
    const __m512i by_2 = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
    const __m512i by_4 = _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1);
    if (n == 8) return v_splat(*p);
    if (n == 1) return _mm512_loadu_pd(p);
    if (n == 2) return _mm512_permutexvar_pd(by_2, _mm512_castpd256_pd512(_mm256_loadu_pd(p)));
    return _mm512_permutexvar_pd(by_4, _mm512_castpd128_pd512(_mm_loadu_pd(p)));
}

FA_INLINE vec v_sum_groups(const int n, vec *r)
{
    const __m512i of_2 = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i of_4 = _mm512_setr_epi64(0, 2, 1, 3, 4, 6, 5, 7);
    if (n == 1) return r[0];
    FA_UNROLL_FOR (int i = 0; i < n / 2; ++i)
        r[i] = v_add(_mm512_unpacklo_pd(r[2 * i], r[2 * i + 1]),
                     _mm512_unpackhi_pd(r[2 * i], r[2 * i + 1]));
    if (n == 2) return _mm512_permutexvar_pd(of_2, r[0]);
    FA_UNROLL_FOR (int i = 0; i < n / 4; ++i)
        r[i] = v_add(_mm512_shuffle_f64x2(r[2 * i], r[2 * i + 1], 0x88),
                     _mm512_shuffle_f64x2(r[2 * i], r[2 * i + 1], 0xdd));
    if (n == 4) return _mm512_permutexvar_pd(of_4, r[0]);
    return v_add(_mm512_shuffle_f64x2(r[0], r[1], 0x88), _mm512_shuffle_f64x2(r[0], r[1], 0xdd));
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

#if FA_REAL_BITS == 32
FA_INLINE vec v_from_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
FA_INLINE void v_to_half(void *p, vec a)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

FA_INLINE vec v_pair_halves(vec a, vec b)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i pairs = _mm512_or_si512(
        lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(32)), 16));
    const __m256i first = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    const __m256i second = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(_mm512_castsi256_si512(first), pairs,
                                                         _mm512_castsi256_si512(second)));
}

FA_INLINE vec v_from_bfloat(const void *p)
{
    const __m512i upper =
        _mm512_setr_epi32(0, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16, 7 << 16, 8 << 16,
                          9 << 16, 10 << 16, 11 << 16, 12 << 16, 13 << 16, 14 << 16, 15 << 16);
    const __m512i bits = _mm512_castsi256_si512(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, upper, bits));
}

/* Rounded, in the upper halves. */
FA_INLINE __m512i bfloat_bits(vec a)
{
    const __m512i bits = _mm512_castps_si512(a), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 number = V_MASK(cmp)(a, a, _CMP_ORD_Q);
    return _mm512_mask_add_epi32(quiet, number, bits, half);
}

FA_INLINE void v_to_bfloat(void *p, vec a)
{
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bfloat_bits(a), 16)));
}

FA_INLINE vec v_pair_bfloats(vec a, vec b)
{
    const __m512i low = _mm512_srli_epi32(bfloat_bits(a), 16);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi16(low, 0xaaaaaaaa, bfloat_bits(b)));
}

FA_INLINE vec v_from_int8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

FA_INLINE vec v_from_e5m2(const void *p)
{
    const __m256i bits = _mm256_cvtepu8_epi16(_mm_loadu_si128(p));
    return _mm512_cvtph_ps(_mm256_slli_epi16(bits, 8));
}

/* Seen as a signed number, a byte brings its sign along to the upper bits. */
FA_INLINE vec v_from_e4m3(const void *p)
{
    const __m256i size = _mm256_set1_epi16(0x7f), bits = _mm256_cvtepi8_epi16(_mm_loadu_si128(p));
    const __m256i equal = _mm256_cmpeq_epi16(_mm256_and_si256(bits, size), size);
    const __m256i half =
        _mm256_and_si256(_mm256_slli_epi16(bits, 7), _mm256_set1_epi16((short)0xbfff));
    return v_mul(_mm512_cvtph_ps(_mm256_or_si256(half, _mm256_srli_epi16(equal, 1))),
                 v_splat(E4M3_FACTOR));
}
#endif
#undef V
#undef V_MASK
