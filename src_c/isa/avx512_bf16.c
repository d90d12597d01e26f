/* SPDX-License-Identifier: MIT
 * AVX-512 with VDPBF16PS beside it, which multiplies bfloat16. What is not a product of bfloat16 is
 * what isa/avx512.c is.
 */
#include "../vec/vec_avx512.h"

#if !defined(__AVX512BF16__) && !defined(FA_EMULATED)
#error build this file for AVX512-BF16
#endif

#include "avx512_tiles.inc"
#include "../kernels/shared.inc"
#include "../dot/unit.inc"

extern const fa_unit fa_unit_avx512_bf16;
const fa_unit fa_unit_avx512_bf16 = {.wide = WIDE_MATRIX, .thin = THIN_MATRIX};
