/* SPDX-License-Identifier: MIT
 * The one table of instruction sets.
 */
#ifndef FA_DISPATCH_H
#define FA_DISPATCH_H

#include "fastattn.h"
#include "kernels.h"

/* The kernels of an instruction set (NULL: the default one), or NULL if they cannot run here; and
 * the unit beside them, maybe one that has nothing. */
const fa_kernels *fa_kernels_for(const char *isa, fa_dtype dtype, const fa_unit **unit);

#endif
