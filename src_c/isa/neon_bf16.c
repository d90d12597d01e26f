/* SPDX-License-Identifier: MIT
 * arm64 Advanced SIMD with BFMMLA beside it, which multiplies bfloat16. What is not a product of
 * bfloat16 is what isa/neon.c is.
 */
#define FA_ISA neon_bf16
#include "../vec/vec_neon.h"

#if !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#error build this file for bfloat16
#endif

enum { MAX_VECTORS = 3, MAX_TILE_KEYS = 12, MAX_TILE_FEATURES = 16, KEY_BLOCK = 64 };
#define TILE_KEYS(vectors) ((vectors) == 3 ? 8 : 12)
#define TILE_FEATURES(vectors) ((vectors) == 1 ? 16 : 8)
enum { MAX_THIN_ROWS = LANES, THIN_SUMS = 24, THIN_FACTORS = 24, APART = 4, APART_CONVERTED = 4 };
#define FA_MMLA (FA_REAL_BITS == 32)
#include "../kernels/all.inc"
