/* SPDX-License-Identifier: MIT
 * arm64 Advanced SIMD with BFMMLA beside it, which multiplies bfloat16. What is not a product of
 * bfloat16 is what isa/neon.c is.
 */
#include "../vec/vec_neon.h"

#if !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#error build this file for bfloat16
#endif

#include "neon_tiles.inc"
#include "../kernels/shared.inc"
#include "../mmla/unit.inc"

extern const fa_unit fa_unit_neon_bf16;
const fa_unit fa_unit_neon_bf16 = {.wide = WIDE_MATRIX};
