/* SPDX-License-Identifier: MIT
 * AVX2 and FMA, 16 registers: 12 accumulators, 3 query vectors and a broadcast at full width.
 */
#define FA_ISA avx2
#include "../vec/vec_avx2.h"

enum { MAX_VECTORS = 3, MAX_TILE_KEYS = 8, MAX_TILE_FEATURES = 8, KEY_BLOCK = 96 };
#define TILE_KEYS(vectors) ((vectors) == 3 ? 4 : (vectors) == 2 ? 6 : 8)
#define TILE_FEATURES(vectors) ((vectors) == 1 ? 8 : 4)
enum { MAX_THIN_ROWS = LANES, THIN_SUMS = 12, THIN_FACTORS = 16 };
enum { APART = 2, APART_CONVERTED = 8, APART_FLOAT8 = 6 };
enum { NEAR_GROUPS = 1, DENSE_SCORES = 2, HEADS_IN_ORDER = 1, COPIES_CROWDED = 1 };
enum { SINGLE_FLOATS = 0, SHORT_ROWS = 0, BYTES_AHEAD = 16384 };
/* 12 of three groups would leave registers for their queries and a key only, and GCC 12 keeps one
 * in memory: then each product waits for it. */
#define THIN_SUMS_OF_THREE 9
#if FA_REAL_BITS == 32
#define MANY_THIN_ROWS(storage) ((storage) == FA_HALF || (storage) == FA_BFLOAT ? 12 : 10)
enum { WIDEST_THIN = MAX_THIN_ROWS };
#define BY_HALVES(storage, groups) ((storage) == FA_E4M3 || ((storage) == FA_E5M2 && (groups) == 1))
#endif
#include "../kernels/all.inc"
#if FA_REAL_BITS == 32
#include "../madd/unit.inc"

extern const fa_unit fa_unit_avx2;
const fa_unit fa_unit_avx2 = {.thin = THIN_MATRIX};
#endif
