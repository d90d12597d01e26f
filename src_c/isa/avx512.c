/* SPDX-License-Identifier: MIT
 * AVX-512, 32 registers: 16 accumulators, 4 query vectors and broadcasts at full width. A tile of
 * 64 rows is as fast as one of 48 with 24 accumulators, and divides the usual lengths and mask
 * blocks.
 */
#define FA_ISA avx512
#include "../vec/vec_avx512.h"

enum { MAX_VECTORS = 4, MAX_TILE_KEYS = 8, MAX_TILE_FEATURES = 16, KEY_BLOCK = 64 };
#define TILE_KEYS(vectors) ((vectors) == 4 ? 4 : 8)
#define TILE_FEATURES(vectors) ((vectors) == 4 ? 4 : (vectors) == 1 ? 16 : 8)
enum { MAX_THIN_ROWS = LANES, THIN_SUMS = 24, THIN_FACTORS = 24, APART = 4, APART_CONVERTED = 5 };
#include "../kernels/all.inc"
