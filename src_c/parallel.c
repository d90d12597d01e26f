/* SPDX-License-Identifier: MIT */
#include "parallel.h"

#include "fastattn.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* libgomp's threads do not survive a fork, and its child waits for them for ever. So a child of a
 * process that has run a parallel region computes alone. */
#if defined(_OPENMP) && !defined(_WIN32)
#include <pthread.h>

static volatile int forked;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

static void in_child(void) { forked = 1; }
static void watch(void) { pthread_atfork(0, 0, in_child); }
static void watch_forks(void) { pthread_once(&watched, watch); }
static int alone(void) { return forked; }
#else
static void watch_forks(void) {}
static int alone(void) { return 0; }
#endif

#ifdef _OPENMP
int fa_has_openmp(void) { return 1; }

int fa_max_threads(void)
{
    const int setting = omp_get_max_threads(), processors = omp_get_num_procs();
    if (alone()) return 1;
    return setting < processors ? setting : processors;
}
#else
int fa_has_openmp(void) { return 0; }
int fa_max_threads(void) { return 1; }
#endif

int fa_threads_for(int wanted)
{
    if (alone() || !fa_has_openmp()) return 1;
    return wanted > 0 ? wanted : fa_max_threads();
}

void fa_parallel_for(int64_t tasks, int threads, fa_task *run, void *context)
{
    if (threads > tasks) threads = (int)tasks;
    if (threads <= 1 || alone()) {
        for (int64_t task = 0; task < tasks; ++task) run(context, task, 0);
        return;
    }
#ifdef _OPENMP
    watch_forks();
    int64_t next = 0;
#pragma omp parallel num_threads(threads) default(none) shared(next, tasks, run, context)
    {
        const int thread = omp_get_thread_num();
        for (;;) {
            int64_t task;
#pragma omp atomic capture
            task = next++;
            if (task >= tasks) break;
            run(context, task, thread);
        }
    }
#else
    watch_forks();
#endif
}
