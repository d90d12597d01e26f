/* SPDX-License-Identifier: MIT */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "parallel.h"

#include <stdlib.h>

#include "environment.h"
#include "fastattn.h"

static void run_alone(int64_t tasks, fa_task *run, void *context)
{
    for (int64_t task = 0; task < tasks; ++task)
        run(context, task, task + 1 < tasks ? task + 1 : -1, 0);
}

#if defined(FA_HAVE_THREADS)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

enum {
    JOBS = 16,         /* calls that can have helpers at the same time; further ones run alone */
    MAX_HELPERS = 255, /* of all calls together */
    SPIN_NANOSECONDS = 50000,
    LISTS = 8, /* of tasks, at most: see work() */
};

/* state of a job: members | seats * SEAT | OPEN | TAKEN. A helper takes a seat and becomes a member
 * in one step; it leaves as a member. No seat is given twice, so it numbers its thread. */
enum { SEAT = 1 << 12, OPEN = 1 << 24, TAKEN = 1 << 25, MEMBERS = SEAT - 1 };

typedef struct {
    _Alignas(64) atomic_int state;
    int seats;
    fa_task *run;
    void *context;
    int64_t tasks;
    int lists;
    struct {
        _Alignas(64) atomic_llong next;
    } list[LISTS];
} job;

static job jobs[JOBS];
static atomic_uint opened; /* counts jobs that were opened: what idle helpers look at */
static atomic_int sleepers, helpers;
static atomic_int caller_cpu; /* where the last job was opened */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Tasks are dealt out in turn, and who has none left takes those of others. So equal calls one
 * after the other find most of what they wrote in the caches of their own core, and the threads of
 * short ones do not wait for each other's counter. */
static void work(job *at, int thread)
{
    const int sharing = (at->seats + at->lists) / at->lists; /* threads of a list */
    for (int n = 0; n < at->lists; ++n) {
        const int list = (thread + n) % at->lists; /* its own one first */
        atomic_llong *next = &at->list[list].next;
        while (list + atomic_load_explicit(next, memory_order_relaxed) < at->tasks) {
            const int64_t turn = atomic_fetch_add_explicit(next, at->lists, memory_order_relaxed);
            const int64_t task = list + turn, after = task + sharing * at->lists;
            if (task < at->tasks)
                at->run(at->context, task, after < at->tasks ? after : -1, thread);
        }
    }
}

/* ---- a helper ---- */

static void help(job *at)
{
    int state = atomic_load_explicit(&at->state, memory_order_acquire);
    while (state & OPEN && (state & ~OPEN & ~TAKEN) >= SEAT) {
        if (!atomic_compare_exchange_weak(&at->state, &state, state - SEAT + 1)) continue;
        const int seats = (state & ~OPEN & ~TAKEN) / SEAT;
        work(at, at->seats - seats + 1);
        atomic_fetch_sub_explicit(&at->state, 1, memory_order_release);
        return;
    }
}

/* ---- who runs where ----
 *
 * A kernel in a virtual machine takes a halted CPU for a busy one, and wakes a helper behind its
 * caller on the caller's CPU: it would start when the work is done. So sleeping helpers are kept
 * off the CPU that the last call came from, and moved when a call comes from another one; but only
 * among those that the thread that made them could use, and that the main thread may. */

#if defined(__linux__)
static atomic_int thread_ids[MAX_HELPERS];
static cpu_set_t inherited[MAX_HELPERS]; /* CPUs of those that have an id */

static void note_helper(intptr_t index)
{
    if (sched_getaffinity(0, sizeof inherited[index], &inherited[index])) return;
    atomic_store(&thread_ids[index], (int)syscall(SYS_gettid));
}

static void forget_helpers(void)
{
    for (int n = 0; n < MAX_HELPERS; ++n) atomic_store(&thread_ids[n], 0);
}

static void keep_off(int cpu, int helper)
{
    const pid_t thread = atomic_load(&thread_ids[helper]);
    cpu_set_t allowed;
    if (!thread || cpu < 0 || sched_getaffinity(getpid(), sizeof allowed, &allowed)) return;
    CPU_AND(&allowed, &allowed, &inherited[helper]);
    CPU_CLR((size_t)cpu, &allowed);
    if (CPU_COUNT(&allowed)) sched_setaffinity(thread, sizeof allowed, &allowed);
}

static void keep_off_the_caller(int helper) { keep_off(atomic_load(&caller_cpu), helper); }

static void clear_the_way(void)
{
    enum { FEW = 16 }; /* where there are more CPUs than that, one more or less is no matter */
    const int cpu = sched_getcpu(), count = atomic_load(&helpers);
    if (cpu < 0 || atomic_exchange(&caller_cpu, cpu) == cpu || count > FEW) return;
    for (int n = 0; n < count && atomic_load(&sleepers); ++n) keep_off(cpu, n);
}
#else
static void note_helper(intptr_t index) { (void)index; }
static void forget_helpers(void) {}
static void keep_off_the_caller(int helper) { (void)helper; }
static void clear_the_way(void) {}
#endif

static void wait_for_job(int helper, unsigned seen)
{
    const int64_t end = now() + SPIN_NANOSECONDS;
    do {
        for (int turn = 0; turn < 32; ++turn) {
            if (atomic_load(&opened) != seen) return;
            relax();
        }
    } while (now() < end);
    keep_off_the_caller(helper);
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&sleepers, 1);
    while (atomic_load(&opened) == seen) pthread_cond_wait(&wake, &mutex);
    atomic_fetch_sub(&sleepers, 1);
    pthread_mutex_unlock(&mutex);
}

static void *helper(void *index)
{
    unsigned seen = 0;
    note_helper((intptr_t)index);
    fa_enter_default(); /* not what its creator had: see attention.c */
    for (;;) {
        wait_for_job((int)(intptr_t)index, seen);
        seen = atomic_load(&opened);
        for (int n = 0; n < JOBS; ++n) help(&jobs[n]);
    }
    return NULL;
}

/* ---- fork: threads do not survive it; the child starts with an empty pool ---- */

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void in_parent(void) { pthread_mutex_unlock(&mutex); }

static void in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&wake, NULL);
    for (int n = 0; n < JOBS; ++n) atomic_store(&jobs[n].state, 0);
    atomic_store(&sleepers, 0);
    atomic_store(&helpers, 0);
    forget_helpers();
}

static int watching; /* without it, a child would wait for locks of threads that it does not have */
static void watch_forks(void) { watching = !pthread_atfork(before_fork, in_parent, in_child); }

/* ---- a caller ---- */

/* Helpers take no signals, which are for the program's own threads, but for what a thread does
 * itself: blocked, such a signal would end the program without asking the handler it has (Python's
 * faulthandler; a sanitizer; a program that answers for pages of a file). */
static void signals_of_others(sigset_t *set)
{
    static const int OWN[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    sigfillset(set);
    for (size_t n = 0; n < sizeof OWN / sizeof *OWN; ++n) sigdelset(set, OWN[n]);
}

static void hire(int wanted)
{
    sigset_t others, before;
    pthread_once(&watched, watch_forks);
    if (!watching) return;
    pthread_mutex_lock(&mutex);
    signals_of_others(&others);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    while (atomic_load(&helpers) < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, helper, (void *)(intptr_t)atomic_load(&helpers)))
            break; /* fewer will do */
        pthread_detach(thread);
        atomic_fetch_add(&helpers, 1);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&mutex);
}

static job *take_job(void)
{
    for (int n = 0; n < JOBS; ++n) {
        int nobody = 0;
        if (atomic_compare_exchange_strong(&jobs[n].state, &nobody, TAKEN)) return &jobs[n];
    }
    return NULL;
}

static void open_job(job *at)
{
    clear_the_way();
    atomic_store_explicit(&at->state, TAKEN | OPEN | at->seats * SEAT, memory_order_release);
    atomic_fetch_add(&opened, 1);
    const int asleep = atomic_load(&sleepers);
    if (asleep == 0) return;
    /* No more than there are seats: after one call of many threads, each of two would wake all. */
    pthread_mutex_lock(&mutex);
    if (at->seats >= asleep) pthread_cond_broadcast(&wake);
    else
        for (int n = 0; n < at->seats; ++n) pthread_cond_signal(&wake);
    pthread_mutex_unlock(&mutex);
}

/* No helper comes in any more; those that are in finish their task. */
static void close_job(job *at)
{
    atomic_fetch_and(&at->state, ~OPEN);
    for (int turn = 0; atomic_load_explicit(&at->state, memory_order_acquire) & MEMBERS; ++turn) {
        if (turn < 4096) relax();
        else sched_yield();
    }
    atomic_store_explicit(&at->state, 0, memory_order_release);
}

void fa_parallel_for(int64_t tasks, int threads, fa_task *run, void *context)
{
    if (threads > tasks) threads = (int)tasks;
    job *at = threads > 1 ? take_job() : NULL;
    if (!at) {
        run_alone(tasks, run, context);
        return;
    }
    if (atomic_load(&helpers) < threads - 1) hire(threads - 1);
    at->seats = threads - 1;
    at->run = run;
    at->context = context;
    at->tasks = tasks;
    at->lists = threads < LISTS ? threads : LISTS;
    for (int n = 0; n < at->lists; ++n)
        atomic_store_explicit(&at->list[n].next, 0, memory_order_relaxed);
    open_job(at);
    work(at, 0);
    close_job(at);
}

/* ---- how many ---- */

static int processors(void)
{
#if defined(__linux__)
    cpu_set_t allowed;
    /* Of the main thread: the answer holds for all, so not that of whoever asks first. */
    if (sched_getaffinity(getpid(), sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int fa_has_threads(void) { return 1; }

/* Asked once, like OpenMP does: the answer takes a system call. */
int fa_max_threads(void)
{
    static atomic_int known;
    int count = atomic_load_explicit(&known, memory_order_relaxed);
    if (count) return count;
    const char *setting = getenv("OMP_NUM_THREADS");
    const long wished = setting ? strtol(setting, NULL, 10) : 0;
    count = processors();
    if (wished > 0 && wished < count) count = (int)wished;
    atomic_store_explicit(&known, count, memory_order_relaxed);
    return count;
}

/* Each has memory of its own: no more than there will be. */
int fa_threads_for(int wanted)
{
    if (wanted < 1) wanted = fa_max_threads();
    return wanted < MAX_HELPERS ? wanted : MAX_HELPERS;
}

#else
int fa_has_threads(void) { return 0; }
int fa_max_threads(void) { return 1; }

int fa_threads_for(int wanted)
{
    (void)wanted;
    return 1;
}

void fa_parallel_for(int64_t tasks, int threads, fa_task *run, void *context)
{
    (void)threads;
    run_alone(tasks, run, context);
}
#endif
