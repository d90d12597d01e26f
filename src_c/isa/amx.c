/* SPDX-License-Identifier: MIT
 * AVX-512 with the matrix unit beside it: AMX (tiles of bfloat16), which multiplies pieces of
 * numbers. What is not a product of pieces is what isa/avx512.c is.
 */
#include "../vec/vec_avx512.h"

#if !defined(__AMX_BF16__) && !defined(__AMXBF16__) && !defined(FA_EMULATED)
#error build this file for AMX
#endif

#include "avx512_tiles.inc"
#include "../kernels/shared.inc"
#include "../amx/unit.inc"

extern const fa_unit fa_unit_amx;
const fa_unit fa_unit_amx = {.wide = WIDE_MATRIX, .thin = THIN_MATRIX};
