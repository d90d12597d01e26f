/* SPDX-License-Identifier: MIT
 * What SIMDe lacks, or does in another way than the CPU: see immintrin.h.
 */
#ifndef FA_SIMDE_FUNCTIONS_H
#define FA_SIMDE_FUNCTIONS_H

#include <math.h>
#include <string.h>

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

/* Without the sign: SIMDe leaves that of -0. */
static inline simde__m512 size_f32(simde__m512 a)
{
    const simde__m512i rest = simde_mm512_set1_epi32(0x7fffffff);
    return simde_mm512_castsi512_ps(simde_mm512_and_si512(simde_mm512_castps_si512(a), rest));
}

static inline simde__m512d size_f64(simde__m512d a)
{
    const simde__m512i rest = simde_mm512_set1_epi64(INT64_MAX);
    return simde_mm512_castsi512_pd(simde_mm512_and_si512(simde_mm512_castpd_si512(a), rest));
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

/* ---- fp8 ---- */

static inline simde__mmask64 no_bits_i8(simde__m512i a, simde__m512i b)
{
    return ~simde_mm512_test_epi8_mask(a, b);
}

/* ---- bfloat16 ---- */

static inline simde__mmask32 greater_u16(simde__m512i a, simde__m512i b)
{
    simde__m512i_private x = simde__m512i_to_private(a), y = simde__m512i_to_private(b);
    simde__mmask32 mask = 0;
    for (int n = 0; n < 32; ++n) mask |= (simde__mmask32)(x.u16[n] > y.u16[n]) << n;
    return mask;
}

static inline simde__m512i upper_words(simde__m512i a, simde__m512i b)
{
    simde__m512i_private x = simde__m512i_to_private(a), y = simde__m512i_to_private(b);
    for (int n = 0; n < 32; ++n) x.u16[n] = (uint16_t)((uint32_t)x.u16[n] * y.u16[n] >> 16);
    return simde__m512i_from_private(x);
}

static inline simde__m512i shift_words(simde__mmask32 mask, simde__m512i a, unsigned count)
{
    simde__m512i_private x = simde__m512i_to_private(a);
    for (int n = 0; n < 32; ++n) x.u16[n] = (uint16_t)(mask >> n & 1 ? x.u16[n] >> count : 0);
    return simde__m512i_from_private(x);
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

/* Of the classes of numbers, only these are told apart: NaN, infinity, -infinity. */
static inline int class_of(double x)
{
    if (isnan(x)) return 0x81;
    return isinf(x) ? x > 0 ? 0x08 : 0x10 : 0;
}

static inline simde__mmask16 of_class_f32(simde__m512 a, int classes)
{
    simde__m512_private x = simde__m512_to_private(a);
    simde__mmask16 mask = 0;
    for (int n = 0; n < 16; ++n)
        mask |= (simde__mmask16)((class_of((double)x.f32[n]) & classes) != 0) << n;
    return mask;
}

static inline simde__mmask8 of_class_f64(simde__m512d a, int classes)
{
    simde__m512d_private x = simde__m512d_to_private(a);
    simde__mmask8 mask = 0;
    for (int n = 0; n < 8; ++n) mask |= (simde__mmask8)((class_of(x.f64[n]) & classes) != 0) << n;
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

static inline void store_u8(void *to, simde__mmask64 mask, simde__m512i from)
{
    const simde__m512i_private bytes = simde__m512i_to_private(from);
    for (int n = 0; n < 64; ++n)
        if (mask >> n & 1) ((uint8_t *)to)[n] = bytes.u8[n];
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

/* All lanes together: `step` takes the next one, `other`, into `all`. */
#define FOLD(name, type, vector, lane, step)                                                       \
    static inline type name(simde__##vector a)                                                     \
    {                                                                                              \
        const simde__##vector##_private x = simde__##vector##_to_private(a);                       \
        __typeof__(x.lane[0] + 0) all = x.lane[0];                                                 \
        for (int n = 1; n < 16; ++n) {                                                             \
            const __typeof__(x.lane[0] + 0) other = x.lane[n];                                     \
            all = step;                                                                            \
        }                                                                                          \
        return (type)all;                                                                          \
    }
FOLD(least_f32, float, m512, f32, other < all ? other : all)
FOLD(sum_f32, float, m512, f32, all + other)
FOLD(greatest_u32, uint32_t, m512i, u32, other > all ? other : all)
FOLD(least_u32, uint32_t, m512i, u32, other < all ? other : all)
FOLD(sum_i32, int, m512i, u32, all + other)

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

#endif
