/* SPDX-License-Identifier: MIT
 * The vocabulary with one lane: the reference that every other instruction set is compared with.
 */
#include "vec.h"

typedef real vec;
typedef int vmask;
enum { LANES = 1 };

FA_INLINE vec v_load(const real *p) { return *p; }
FA_INLINE void v_store(real *p, vec a) { *p = a; }
FA_INLINE vec v_loadu(const real *p) { return *p; }
FA_INLINE void v_storeu(real *p, vec a) { *p = a; }
FA_INLINE vec v_splat(real x) { return x; }
FA_INLINE vec v_add(vec a, vec b) { return a + b; }
FA_INLINE vec v_sub(vec a, vec b) { return a - b; }
FA_INLINE vec v_mul(vec a, vec b) { return a * b; }
FA_INLINE vec v_div(vec a, vec b) { return a / b; }
FA_INLINE vec v_fma(vec a, vec b, vec c) { return a * b + c; }
FA_INLINE vec v_max(vec a, vec b) { return a > b ? a : b; }
FA_INLINE vec v_min(vec a, vec b) { return a < b ? a : b; }
FA_INLINE vec v_abs(vec a) { return a < 0 ? -a : a + 0; }
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

FA_INLINE void v_transpose(vec rows[LANES]) { (void)rows; }

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
