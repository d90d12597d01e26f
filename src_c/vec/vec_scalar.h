/* SPDX-License-Identifier: MIT
 * The vocabulary with one lane: the reference that every other instruction set is compared with.
 */
#include "vec.h"

typedef real vec;
typedef int vmask;
enum { LANES = 1 };

FA_INLINE vec v_load(const real *p) { return *p; }
FA_INLINE void v_store(real *p, vec a) { *p = a; }
FA_INLINE vec v_loadu(const real *p)
{
    vec a;
    memcpy(&a, p, sizeof a);
    return a;
}
FA_INLINE void v_storeu(real *p, vec a) { memcpy(p, &a, sizeof a); }

FA_INLINE vec v_load_bytes(const void *p, int64_t n)
{
    const unsigned char *from = p;
    real_bits bits = 0;
    vec a;
    for (int64_t at = 0; at < n; ++at) bits |= (real_bits)from[at] << at * 8;
    memcpy(&a, &bits, sizeof a);
    return a;
}
FA_INLINE void v_store_bytes(void *p, int64_t n, vec a) { memcpy(p, &a, (size_t)n); }

FA_INLINE vec v_splat(real x) { return x; }
FA_INLINE vec v_add(vec a, vec b) { return a + b; }
FA_INLINE vec v_sub(vec a, vec b) { return a - b; }
FA_INLINE vec v_mul(vec a, vec b) { return a * b; }
FA_INLINE vec v_div(vec a, vec b) { return a / b; }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return a * b + c; }
FA_INLINE vec v_max(vec a, vec b) { return a > b ? a : b; }
FA_INLINE vec v_min(vec a, vec b) { return a < b ? a : b; }
FA_INLINE vec v_abs(vec a) { return a < 0 ? -a : a + 0; }
FA_INLINE real v_greatest(vec a) { return a; }
FA_INLINE vmask v_gt(vec a, vec b) { return a > b; }
FA_INLINE vmask v_eq(vec a, vec b) { return a == b; }
FA_INLINE vec v_select(vmask mask, vec a, vec b) { return mask ? a : b; }
FA_INLINE int v_any(vmask mask) { return mask; }
FA_INLINE int v_all(vmask mask) { return mask; }

FA_INLINE vmask v_negative(vec a)
{
    real_bits bits;
    memcpy(&bits, &a, sizeof bits);
    return (int)(bits >> (FA_REAL_BITS - 1));
}

FA_INLINE vec v_pow2(vec x, vec *n)
{
    vec biased = x + POW2_MAGIC, power;
    real_bits bits;
    memcpy(&bits, &biased, sizeof bits);
    bits <<= MANTISSA_BITS;
    memcpy(&power, &bits, sizeof power);
    *n = biased - POW2_MAGIC;
    return power;
}

#define HAS_LIMIT 0
FA_INLINE vec v_swap(int n, vec a) { return (void)n, a; }
FA_INLINE void v_zip(vec *a, vec *b) { (void)a, (void)b; }
FA_INLINE void v_transpose(vec rows[LANES]) { (void)rows; }
FA_INLINE vec v_repeat(int n, const real *p) { return p[n - 1]; }
FA_INLINE vec v_stretch(int n, const real *p) { return p[n - 1]; }
FA_INLINE void v_regroup(int n, vec *rows) { (void)n, (void)rows; }
FA_INLINE vec v_sum_groups(int n, vec *rows) { return rows[n - 1]; }

FA_INLINE vec v_shift_bits(vec a)
{
    real_bits bits;
    memcpy(&bits, &a, sizeof bits);
    bits <<= 1;
    memcpy(&a, &bits, sizeof a);
    return a;
}

/* Eight bytes at a time: nonzero bytes become 1, then a multiplication gathers them (the first byte
 * is the lowest: little endian, like every machine this runs on). */
FA_INLINE uint32_t v_flags(const uint8_t *p)
{
    uint32_t flags = 0;
    for (int n = 0; n < 32; n += 8) {
        uint64_t bytes;
        memcpy(&bytes, p + n, sizeof bytes);
        bytes |= bytes >> 4;
        bytes |= bytes >> 2;
        bytes |= bytes >> 1;
        bytes &= 0x0101010101010101u;
        flags |= (uint32_t)(bytes * 0x0102040810204080u >> 56) << n;
    }
    return flags;
}

#if FA_REAL_BITS == 32
FA_INLINE float v_of_bits(uint32_t bits)
{
    float a;
    memcpy(&a, &bits, sizeof a);
    return a;
}

FA_INLINE uint32_t v_bits_of(float a)
{
    uint32_t bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
}

FA_INLINE vec v_of_half(uint32_t half)
{
    const uint32_t size = (half & 0x7fff) << 13, sign = (half & 0x8000) << 16;
    /* The exponent's bias goes from 15 to 127 by a product, which is right for denormals too. */
    float a = v_of_bits(size) * 0x1p112f;
    if (size >= 0x0f800000) a = v_of_bits(size | 0x7f800000);
    return v_of_bits(v_bits_of(a) | sign);
}

FA_INLINE vec v_from_half(const void *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return v_of_half(half);
}

FA_INLINE void v_to_half(void *p, vec a)
{
    const uint32_t bits = v_bits_of(a), size = bits & 0x7fffffff;
    uint32_t half;
    if (size > 0x7f800000) half = 0x7e00 | (size >> 13 & 0x3ff); /* NaN */
    else if (size >= 0x477ff000) half = 0x7c00;                  /* rounds to infinity */
    else if (size < 0x38800000)                                  /* a denormal: 1 ulp = 2^-24 */
        half = v_bits_of(v_of_bits(size) + 0.5f) - 0x3f000000;
    else half = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    const uint16_t out = (uint16_t)(half | bits >> 16 >> 15 << 15);
    memcpy(p, &out, sizeof out);
}

FA_INLINE vec v_from_bfloat(const void *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return v_of_bits((uint32_t)bits << 16);
}

FA_INLINE void v_to_bfloat(void *p, vec a)
{
    const uint32_t bits = v_bits_of(a);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint16_t out = (uint16_t)((a == a ? rounded : bits | 0x400000) >> 16);
    memcpy(p, &out, sizeof out);
}

FA_INLINE vec v_pair_halves(vec a, vec b)
{
    uint16_t both[2];
    v_to_half(both, a), v_to_half(both + 1, b);
    return v_loadu((const real *)both);
}

FA_INLINE vec v_pair_bfloats(vec a, vec b)
{
    uint16_t both[2];
    v_to_bfloat(both, a), v_to_bfloat(both + 1, b);
    return v_loadu((const real *)both);
}

FA_INLINE vec v_from_int8(const void *p) { return *(const int8_t *)p; }
FA_INLINE vec v_from_e5m2(const void *p) { return v_of_half((uint32_t) * (const uint8_t *)p << 8); }

FA_INLINE vec v_from_e4m3(const void *p)
{
    const uint32_t bits = *(const uint8_t *)p, size = bits & 0x7f;
    return v_of_half(size << 7 | (bits ^ size) << 8 | (size == 0x7f ? 0x7fff : 0)) * E4M3_FACTOR;
}
#endif
