/* SPDX-License-Identifier: MIT
 * The only room that knows OpenMP.
 */
#ifndef FA_PARALLEL_H
#define FA_PARALLEL_H

#include <stdint.h>

typedef void fa_task(void *context, int64_t task, int thread);

/* Runs tasks 0 ... tasks - 1 in ascending order of start, each on whichever of `threads` threads
 * is free (0 <= thread < threads). Inside another parallel region, and in a forked child, fewer. */
void fa_parallel_for(int64_t tasks, int threads, fa_task *run, void *context);

/* How many threads a call that asks for `wanted` (0: the default) should prepare for. */
int fa_threads_for(int wanted);

#endif
