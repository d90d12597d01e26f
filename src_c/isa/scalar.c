/* SPDX-License-Identifier: MIT
 * Plain C, one lane: 3 queries x 4 keys fit the 16 registers of any 64-bit machine.
 */
#define FA_ISA scalar
#include "../vec/vec_scalar.h"

enum { MAX_VECTORS = 3, MAX_TILE_KEYS = 4, MAX_TILE_FEATURES = 4, KEY_BLOCK = 64 };
#define TILE_KEYS(vectors) 4
#define TILE_FEATURES(vectors) 4
enum { MAX_THIN_ROWS = LANES, THIN_SUMS = 4, THIN_ROWS = 1 };
#include "../kernels/all.inc"
