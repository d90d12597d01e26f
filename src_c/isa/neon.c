/* SPDX-License-Identifier: MIT */
#define FA_ISA neon
#include "../vec/vec_neon.h"
#include "neon_tiles.inc"
#include "../kernels/all.inc"
