/* SPDX-License-Identifier: MIT
 * arm64 Advanced SIMD with BFMMLA beside it, which multiplies bfloat16. What is not a product of
 * bfloat16 is what isa/neon.c is.
 */
#define FA_ISA neon_bf16
#include "../vec/vec_neon.h"

#if !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#error build this file for bfloat16
#endif

#include "neon_tiles.inc"
#define FA_UNIT "../mmla/unit.inc"
#include "../kernels/all.inc"
