/* SPDX-License-Identifier: MIT
 * The only room that knows threads.
 *
 * A pool of our own instead of an OpenMP region, because of how a region ends: every thread of the
 * team has to arrive, also one that found no task left, and one that the machine has taken off its
 * core arrives a time slice later. Measured beside another busy process, a call of 20 us took 8 ms.
 * Here a call waits only for helpers that are in the middle of a task. Idle helpers spin for some
 * microseconds, not milliseconds, so that the threads of a BLAS find the cores free.
 */
#ifndef FA_PARALLEL_H
#define FA_PARALLEL_H

#include <stdint.h>

/* next: what the thread probably runs after it, or < 0. */
typedef void fa_task(void *context, int64_t task, int64_t next, int thread);

/* Runs tasks 0 ... tasks - 1, each on the caller or on a helper that is free (0 <= thread <
 * threads; the caller is 0). Every thread starts its own in ascending order, and then those that
 * others have left: what comes last is small if the longest tasks come first. Returns when all have
 * run. threads: at most what fa_threads_for returns. */
void fa_parallel_for(int64_t tasks, int threads, fa_task *run, void *context);

/* How many threads a call that asks for `wanted` (0: the default) should prepare for. */
int fa_threads_for(int wanted);

#endif
