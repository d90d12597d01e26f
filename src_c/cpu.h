/* SPDX-License-Identifier: MIT
 * What this machine and its operating system can run.
 */
#ifndef FA_CPU_H
#define FA_CPU_H

/* Each returns NULL when the level can run here, or why it cannot; on its own architecture only. */
const char *fa_cpu_lacks_nothing(void);
const char *fa_cpu_lacks_avx2(void);
const char *fa_cpu_lacks_avx512(void);
const char *fa_cpu_lacks_avx512_bf16(void);
const char *fa_cpu_lacks_amx(void);
const char *fa_cpu_lacks_neon_bf16(void);

/* The system gives a process the tile registers when it asks for them. Whether it did. */
int fa_cpu_permits_all(void);
int fa_cpu_permits_amx(void);

#endif
