/* SPDX-License-Identifier: MIT
 * Takes the place of src_c/cpu.c: emulated instruction sets run everywhere.
 */
#include "cpu.h"

#include <stddef.h>

const char *fa_cpu_lacks_nothing(void) { return NULL; }
const char *fa_cpu_lacks_avx2(void) { return NULL; }
const char *fa_cpu_lacks_avx512(void) { return NULL; }
const char *fa_cpu_lacks_avx512_bf16(void) { return NULL; }
const char *fa_cpu_lacks_amx(void) { return NULL; }
int fa_cpu_permits_amx(void) { return 1; }
int fa_cpu_permits_all(void) { return 1; }
