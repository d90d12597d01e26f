/* SPDX-License-Identifier: MIT
 * arm64 Advanced SIMD, 32 registers: 24 accumulators, 3 query vectors and a broadcast.
 */
#define FA_ISA neon
#include "../vec/vec_neon.h"

enum { MAX_VECTORS = 3, MAX_TILE_KEYS = 12, MAX_TILE_FEATURES = 16, KEY_BLOCK = 64 };
#define TILE_KEYS(vectors) ((vectors) == 3 ? 8 : 12)
#define TILE_FEATURES(vectors) ((vectors) == 1 ? 16 : 8)
enum { MAX_THIN_ROWS = LANES, THIN_SUMS = 24, THIN_FACTORS = 24, APART = 4, APART_CONVERTED = 4 };
#include "../kernels/all.inc"
