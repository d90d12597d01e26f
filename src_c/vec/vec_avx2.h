/* SPDX-License-Identifier: MIT
 * The vocabulary on AVX2 and FMA: 8 floats or 4 doubles.
 */
#include <immintrin.h>

#include "vec.h"

#if !defined(__AVX2__)
#error build this file for AVX2 and FMA
#endif

#if FA_REAL_BITS == 32
typedef __m256 vec;
enum { LANES = 8 };
#define V(name) _mm256_##name##_ps
#else
typedef __m256d vec;
enum { LANES = 4 };
#define V(name) _mm256_##name##_pd
#endif
typedef vec vmask;

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
FA_INLINE vec v_abs(vec a) { return V(andnot)(v_splat((real)-0.0), a); }
FA_INLINE vmask v_gt(vec a, vec b) { return V(cmp)(a, b, _CMP_GT_OQ); }
FA_INLINE vmask v_eq(vec a, vec b) { return V(cmp)(a, b, _CMP_EQ_OQ); }
FA_INLINE vmask v_negative(vec a) { return a; }
FA_INLINE vec v_select(vmask mask, vec a, vec b) { return V(blendv)(b, a, mask); }
FA_INLINE int v_any(vmask mask) { return V(movemask)(mask) != 0; }
FA_INLINE int v_all(vmask mask) { return V(movemask)(mask) == (1 << LANES) - 1; }

#define HAS_LIMIT 0
FA_INLINE vec v_swap(const int n, vec a)
{
    if (n == LANES / 2) return V(permute2f128)(a, a, 1);
#if FA_REAL_BITS == 32
    if (n == 2) return V(shuffle)(a, a, 0x4e);
    return V(shuffle)(a, a, 0xb1);
#else
    return V(shuffle)(a, a, 5);
#endif
}

FA_INLINE void v_zip(vec *a, vec *b)
{
    const vec low = V(unpacklo)(*a, *b), high = V(unpackhi)(*a, *b);
    *a = V(permute2f128)(low, high, 0x20);
    *b = V(permute2f128)(low, high, 0x31);
}

/* Words by a mask; what is left of one is put together. */
FA_INLINE vec v_load_bytes(const void *p, int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i words = _mm256_set1_epi32((int)n / 4);
    const unsigned char *rest = (const unsigned char *)p + n / 4 * 4;
    __m256i bits = _mm256_maskload_epi32(p, _mm256_cmpgt_epi32(words, lane));
    if (n % 4) {
        int last = n % 2 ? rest[n % 4 - 1] << (n % 4 - 1) * 8 : 0;
        if (n % 4 > 1) last |= rest[0] | rest[1] << 8;
        const __m256i here = _mm256_cmpeq_epi32(words, lane);
        bits = _mm256_or_si256(bits, _mm256_and_si256(here, _mm256_set1_epi32(last)));
    }
    vec a;
    memcpy(&a, &bits, sizeof a);
    return a;
}

/* Rows often end with half a vector. */
FA_INLINE void v_store_bytes(void *p, int64_t n, vec a)
{
    char *to = p;
    const char *from = (const char *)&a;
    if (n >= (int64_t)sizeof a / 2) {
        memcpy(to, from, sizeof a / 2);
        if (n == (int64_t)sizeof a / 2) return;
        to += sizeof a / 2, from += sizeof a / 2, n -= (int64_t)sizeof a / 2;
    }
    memcpy(to, from, (size_t)n);
}

#if FA_REAL_BITS == 32
FA_INLINE float v_greatest(vec a)
{
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(biased), MANTISSA_BITS));
}

FA_INLINE void v_transpose(vec r[LANES])
{
    vec a[LANES], b[LANES];
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) {
        a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    FA_UNROLL_FOR (int i = 0; i < 2; ++i) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    FA_UNROLL_FOR (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

FA_INLINE vec v_repeat(const int n, const real *p)
{
    double two;
    if (n == 8) return _mm256_loadu_ps(p);
    if (n == 4) return _mm256_broadcast_ps((const __m128 *)p);
    if (n == 1) return v_splat(*p);
    memcpy(&two, p, sizeof two);
    return _mm256_castpd_ps(_mm256_set1_pd(two));
}

FA_INLINE vec v_stretch(const int n, const real *p)
{
    const __m256i by_2 = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256i by_4 = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    double two;
    if (n == 8) return v_splat(*p);
    if (n == 1) return _mm256_loadu_ps(p);
    if (n == 2) return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), by_2);
    memcpy(&two, p, sizeof two);
    return _mm256_permutevar8x32_ps(_mm256_castpd_ps(_mm256_set1_pd(two)), by_4);
}

FA_INLINE void v_regroup(const int n, vec *r)
{
    const vec first = r[0];
    if (n == 4) {
        r[0] = _mm256_permute2f128_ps(first, r[1], 0x20);
        r[1] = _mm256_permute2f128_ps(first, r[1], 0x31);
    } else if (n == 2) {
        const __m256d w = _mm256_castps_pd(first), x = _mm256_castps_pd(r[1]);
        const __m256d y = _mm256_castps_pd(r[2]), z = _mm256_castps_pd(r[3]);
        const vec a = _mm256_castpd_ps(_mm256_unpacklo_pd(w, x));
        const vec b = _mm256_castpd_ps(_mm256_unpackhi_pd(w, x));
        const vec c = _mm256_castpd_ps(_mm256_unpacklo_pd(y, z));
        const vec d = _mm256_castpd_ps(_mm256_unpackhi_pd(y, z));
        r[0] = _mm256_permute2f128_ps(a, c, 0x20);
        r[1] = _mm256_permute2f128_ps(b, d, 0x20);
        r[2] = _mm256_permute2f128_ps(a, c, 0x31);
        r[3] = _mm256_permute2f128_ps(b, d, 0x31);
    }
}

/* Sums within each half first: of n rows, n / 2 or n / 4 vectors. */
FA_INLINE vec v_sum_groups(const int n, vec *r)
{
    if (n == 1) return r[0];
    FA_UNROLL_FOR (int i = 0; i < n / 2; ++i) r[i] = _mm256_hadd_ps(r[2 * i], r[2 * i + 1]);
    if (n == 2) return _mm256_permutevar8x32_ps(r[0], _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
    FA_UNROLL_FOR (int i = 0; i < n / 4; ++i) r[i] = _mm256_hadd_ps(r[2 * i], r[2 * i + 1]);
    if (n == 4) return _mm256_permutevar8x32_ps(r[0], _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return v_add(_mm256_permute2f128_ps(r[0], r[1], 0x20),
                 _mm256_permute2f128_ps(r[0], r[1], 0x31));
}

FA_INLINE vec v_shift_bits(vec a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 1));
}
#else
FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = v_add(x, v_splat(POW2_MAGIC));
    *n = v_sub(biased, v_splat(POW2_MAGIC));
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(biased), MANTISSA_BITS));
}

FA_INLINE void v_transpose(vec r[LANES])
{
    vec a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    vec c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20);
    r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31);
    r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

FA_INLINE vec v_repeat(const int n, const real *p)
{
    if (n == 4) return _mm256_loadu_pd(p);
    return n == 2 ? _mm256_broadcast_pd((const __m128d *)p) : v_splat(*p);
}

FA_INLINE vec v_stretch(const int n, const real *p)
{
    if (n == 4) return v_splat(*p);
    if (n == 1) return _mm256_loadu_pd(p);
    return _mm256_permute4x64_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), 0x50);
}

FA_INLINE void v_regroup(const int n, vec *r)
{
    const vec first = r[0];
    if (n == 1) v_transpose(r);
    if (n != 2) return;
    r[0] = _mm256_permute2f128_pd(first, r[1], 0x20);
    r[1] = _mm256_permute2f128_pd(first, r[1], 0x31);
}

FA_INLINE vec v_sum_groups(const int n, vec *r)
{
    if (n == 1) return r[0];
    const vec a = _mm256_hadd_pd(r[0], r[1]);
    if (n == 2) return _mm256_permute4x64_pd(a, 0xd8);
    const vec b = _mm256_hadd_pd(r[2], r[3]);
    return v_add(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
}

FA_INLINE vec v_shift_bits(vec a)
{
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a), 1));
}
#endif

FA_INLINE uint32_t v_flags(const uint8_t *p)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)p);
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256()));
}

#if FA_REAL_BITS == 32
FA_INLINE vec v_from_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
FA_INLINE void v_to_half(void *p, vec a)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

FA_INLINE vec v_pair_halves(vec a, vec b)
{
    const __m128i first = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    const __m128i second = _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
    return _mm256_castsi256_ps(
        _mm256_set_m128i(_mm_unpackhi_epi16(first, second), _mm_unpacklo_epi16(first, second)));
}

FA_INLINE vec v_from_bfloat(const void *p)
{
    const __m128i low = _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7);
    const __m128i high =
        _mm_setr_epi8(-1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    const __m256i bits = _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(bits, _mm256_set_m128i(high, low)));
}

/* Rounded, in the upper halves. */
FA_INLINE __m256i bfloat_bits(vec a)
{
    const __m256i bits = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i number = _mm256_castps_si256(V(cmp)(a, a, _CMP_ORD_Q));
    return _mm256_blendv_epi8(quiet, _mm256_add_epi32(bits, half), number);
}

FA_INLINE void v_to_bfloat(void *p, vec a)
{
    __m256i out = _mm256_srli_epi32(bfloat_bits(a), 16);
    out = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0x08);
    _mm_storeu_si128(p, _mm256_castsi256_si128(out));
}

FA_INLINE vec v_pair_bfloats(vec a, vec b)
{
    const __m256i low = _mm256_srli_epi32(bfloat_bits(a), 16);
    return _mm256_castsi256_ps(_mm256_blend_epi16(low, bfloat_bits(b), 0xaa));
}

FA_INLINE vec v_from_int8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}

FA_INLINE vec v_from_e5m2(const void *p)
{
    const __m128i bytes = _mm_loadl_epi64(p);
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes));
}

/* Into the fields of a half: sign, sign, 7 bits, of which the second sign goes. */
FA_INLINE vec v_from_e4m3(const void *p)
{
    const __m128i bits = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(p)), 7);
    const __m128i nan = _mm_cmpeq_epi16(_mm_or_si128(bits, _mm_set1_epi16((short)0xc000)),
                                        _mm_set1_epi16((short)0xff80));
    const __m128i half = _mm_or_si128(_mm_and_si128(bits, _mm_set1_epi16((short)0xbfff)), nan);
    return v_mul(_mm256_cvtph_ps(half), v_splat(E4M3_FACTOR));
}

/* Floats come from halves in a register at one vector a cycle on Zen 3, and from halves in memory
 * at two: there no unit has to move numbers from one end of the vector to the other. One vector by
 * itself is sooner in words, as above. */
#define HALVES_RUN 32
FA_INLINE void v_put_halves(void *to, __m256i low, __m256i high, const int shift)
{
    const __m256i first = _mm256_slli_epi16(_mm256_unpacklo_epi8(low, high), shift),
                  second = _mm256_slli_epi16(_mm256_unpackhi_epi8(low, high), shift);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256((__m256i *)to + 1, _mm256_permute2x128_si256(first, second, 0x31));
}

FA_INLINE void v_e5m2_to_half(const void *p, void *to)
{
    v_put_halves(to, _mm256_setzero_si256(), _mm256_loadu_si256(p), 0);
}

/* The 8 bits of a half above the lowest 7, which are zero, and without the sign: the exponent has
 * a bias that is greater by 8; 0 and the 7 numbers that are not normal have a difference each. */
FA_INLINE __m256i v_size_of_e4m3(__m256i bytes)
{
    const __m256i add = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 47, 54, 57, 60, 61, 62, 63, 64, 0, 0, 0, 0, 0, 0, 0));
    const __m256i size = _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f));
    const __m256i nan = _mm256_cmpeq_epi8(size, _mm256_set1_epi8(0x7f));
    const __m256i which = _mm256_min_epu8(size, _mm256_set1_epi8(8));
    return _mm256_or_si256(_mm256_add_epi8(size, _mm256_shuffle_epi8(add, which)), nan);
}

FA_INLINE void v_e4m3_to_half(const void *p, void *to)
{
    const __m256i bytes = _mm256_loadu_si256(p);
    const __m256i sign = _mm256_cmpgt_epi8(_mm256_setzero_si256(), bytes);
    v_put_halves(to, v_size_of_e4m3(bytes), sign, 7);
}
#endif
#undef V
