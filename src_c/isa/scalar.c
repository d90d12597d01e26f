/* SPDX-License-Identifier: MIT
 * Plain C, one lane: 3 queries x 4 keys fit the 16 registers of any 64-bit machine.
 */
#define FA_ISA scalar
#include "../vec/vec_scalar.h"

enum { MAX_VECTORS = 3, MAX_TILE_KEYS = 4, MAX_TILE_FEATURES = 4, KEY_BLOCK = 64 };
#define TILE_KEYS(vectors) 4
#define TILE_FEATURES(vectors) 4
enum { MAX_THIN_ROWS = LANES, THIN_SUMS = 8, THIN_FACTORS = 8 };
enum { APART = 1, APART_CONVERTED = 1, APART_FLOAT8 = 1 };
enum { NEAR_GROUPS = 4, DENSE_SCORES = 0, HEADS_IN_ORDER = 0, COPIES_CROWDED = 0 };
enum { SINGLE_FLOATS = 1, SHORT_ROWS = 0, BYTES_AHEAD = 10240 };
#include "../kernels/all.inc"
