/* SPDX-License-Identifier: MIT
 * AVX-512 with the matrix unit beside it: AMX (tiles of bfloat16), which multiplies pieces of
 * numbers. What is not a product of pieces is what isa/avx512.c is.
 */
#define FA_ISA amx
#include "../vec/vec_avx512.h"

#if !defined(__AMX_BF16__) && !defined(__AMXBF16__)
#error build this file for AMX
#endif

enum { MAX_VECTORS = 4, MAX_TILE_KEYS = 8, MAX_TILE_FEATURES = 16, KEY_BLOCK = 64 };
#define TILE_KEYS(vectors) ((vectors) == 4 ? 4 : 8)
#define TILE_FEATURES(vectors) ((vectors) == 4 ? 4 : (vectors) == 1 ? 16 : 8)
enum { MAX_THIN_ROWS = LANES, THIN_SUMS = 24, THIN_FACTORS = 24, APART = 4, APART_CONVERTED = 5 };
#define FA_AMX (FA_REAL_BITS == 32)
#include "../kernels/all.inc"
