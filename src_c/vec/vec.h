/* SPDX-License-Identifier: MIT
 * The vector vocabulary: every vec_<isa>.h defines exactly this list, for float or for double
 * (FA_REAL_BITS 32 or 64). One operation is one to three instructions. This file holds what the
 * instruction sets share; it defines no function.
 *
 *   real, vec, vmask, LANES        element, vector, result of a comparison, elements of a vector
 *   v_load v_store                 aligned to the vector
 *   v_loadu v_storeu               any address
 *   v_load_bytes(p, n)             the first n bytes at p, fewer than a vector has, then zeros;
 *                                  reads no others
 *   v_store_bytes(p, n, a)         the first n bytes of a, fewer than it has, and no others
 *   v_splat(x)                     all lanes x
 *   v_add v_sub v_mul v_div        IEEE, round to nearest
 *   v_fma(a, b, c)                 a * b + c, rounded once where the machine can
 *   v_max(a, b) v_min(a, b)        b when either is NaN
 *   v_abs(a)                       clears the sign
 *   v_gt(a, b) v_eq(a, b)          comparisons, false for NaN
 *   v_negative(a)                  lanes whose sign bit is set, -0 included
 *   v_select(mask, a, b)           a where mask, else b
 *   v_any(mask) v_all(mask)        some lane, every lane
 *   v_pow2(x, &n)                  n = x rounded to an integer, returns 2^n;
 *                                  x in [POW2_MIN, 100], and 2^POW2_MIN is returned as 0
 *   v_transpose(rows)              LANES x LANES, in place
 *   v_repeat(n, p)                 lane i is p[i % n], p any address, n divides LANES
 *   v_stretch(n, p)                lane i is p[i / n]
 *   v_regroup(n, rows)             LANES / n vectors, transposed in groups of n: LANES or a half or
 *                                  a quarter of it (or 1)
 *   v_swap(n, a)                   lane i is lane i ^ n of a, n a power of two below LANES
 *   v_zip(&a, &b)                  lanes of both by turns: their first halves in a, the rest in b
 *   v_sum_groups(n, rows)          of n vectors: lanes r * n ... r * n + n - 1 of rows[k] added up
 *                                  are lane k * LANES / n + r; rows are used up
 *   v_shift_bits(a)                the bits of each lane, one to the left
 *   v_flags(bytes)                 32 bytes as 32 bits, set where not zero, the first lowest
 *
 * where it is one of the machine's own operations, as HAS_LIMIT says,
 *
 *   v_limit(a, most)               the nearest number of no more size; not of infinities and NaN
 *
 * and for float,
 *
 *   v_greatest(a)                  the greatest lane, where none is NaN
 *
 * and numbers in memory at any address:
 *
 *   v_from_half v_from_bfloat v_from_int8 v_from_e4m3 v_from_e5m2    LANES of them, exactly
 *   v_to_half v_to_bfloat                                rounded to nearest even, NaN stays NaN
 *   v_pair_halves(a, b) v_pair_bfloats(a, b)             so rounded, those of b in the upper halves
 *   v_e4m3_to_half v_e5m2_to_half                        HALVES_RUN of them, exactly: only where
 *                                                        floats are the sooner there that way
 *
 *   NO_MAXIMUM                     m of a row that has seen no key: low, but finite, so that
 *                                  -inf - m is -inf and not NaN
 */
#ifndef FA_VEC_H
#define FA_VEC_H

#include <stdint.h>
#include <string.h>

#include "../platform.h"

#if FA_REAL_BITS == 32
typedef float real;
typedef uint32_t real_bits;
#define MANTISSA_BITS 23
#define POW2_MIN (-127.0f)
/* 1.5 * 2^23 + 127: adding it leaves round(x) + 127, a biased exponent, in the low bits. */
#define POW2_MAGIC 12583039.0f
#define NO_MAXIMUM (-3.402823466e38f)
/* e4m3 moved into the fields of a half has the wrong bias: 15 instead of 7. */
#define E4M3_FACTOR 256.0f
#elif FA_REAL_BITS == 64
typedef double real;
typedef uint64_t real_bits;
#define MANTISSA_BITS 52
#define POW2_MIN (-1023.0)
#define POW2_MAGIC 6755399441056767.0 /* 1.5 * 2^52 + 1023 */
#define NO_MAXIMUM (-1.7976931348623157e308)
#else
#error FA_REAL_BITS must be 32 or 64
#endif

/* Keeps numbers that several instructions take in a register. GCC 12 lets each read them, and the
 * cache serves no more than a line in a cycle, or puts them on the stack first. */
#if defined(__x86_64__) && !defined(FA_EMULATED)
#define FA_KEEP_VECTOR(numbers) __asm__("" : "+v"(numbers))
#define FA_KEEP_MASK(mask) __asm__("" : "+k"(mask))
#else
#define FA_KEEP_VECTOR(numbers) ((void)(numbers))
#define FA_KEEP_MASK(mask) ((void)(mask))
#endif

#endif
