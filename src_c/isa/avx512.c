/* SPDX-License-Identifier: MIT */
#define FA_ISA avx512
#include "../vec/vec_avx512.h"
#include "avx512_tiles.inc"
#include "../kernels/all.inc"
