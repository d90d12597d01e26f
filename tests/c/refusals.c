/* SPDX-License-Identifier: MIT
 * Preloaded, it stands between the core and the system, and refuses what it is told to: memory,
 * threads, notice of a fork, answers about the machine. Requests of others it passes on.
 */
#define _GNU_SOURCE /* RTLD_NEXT, dladdr, cpu_set_t */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MEMORY = 1, THREADS = 2, FORKS = 4, MACHINE = 8 };

static atomic_int kinds, asked, first, last, refused, kept;

/* From now on, of the requests of these kinds that the core makes: those from `from` up to, but not
 * including, `to`. */
void refuse(int which, int from, int to)
{
    atomic_store(&first, from), atomic_store(&last, to);
    atomic_store(&asked, 0), atomic_store(&refused, 0), atomic_store(&kept, 0);
    atomic_store(&kinds, which);
}

/* How many were refused since; and how much memory the core was given and has not returned. */
int count_refused(void) { return atomic_load(&refused); }
int count_kept(void) { return atomic_load(&kept); }

__attribute__((constructor)) static void begin(void)
{
    const char *from_the_start = getenv("REFUSED");
    if (from_the_start) refuse(atoi(from_the_start), 0, 1 << 30);
}

static int is_core(const void *caller)
{
    Dl_info found;
    if (!dladdr(caller, &found) || !found.dli_fname) return 0;
    const char *slash = strrchr(found.dli_fname, '/');
    return slash && !strncmp(slash, "/_core.", 7);
}

static int refuses(int kind, const void *caller)
{
    if (!(atomic_load(&kinds) & kind) || !is_core(caller)) return 0;
    const int n = atomic_fetch_add(&asked, 1);
    if (n < atomic_load(&first) || n >= atomic_load(&last)) return 0;
    atomic_fetch_add(&refused, 1);
    return 1;
}

#define REFUSES(kind) refuses(kind, __builtin_return_address(0))

/* The function that this one stands before, which POSIX lets be taken for data. */
#define NEXT(name)                                                                                 \
    static __typeof__(name) *next;                                                                 \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name)

void *malloc(size_t size)
{
    NEXT(malloc);
    if (REFUSES(MEMORY)) return errno = ENOMEM, NULL;
    if (atomic_load(&kinds) & MEMORY && is_core(__builtin_return_address(0)))
        atomic_fetch_add(&kept, 1);
    return next(size);
}

void free(void *memory)
{
    NEXT(free);
    if (memory && atomic_load(&kinds) & MEMORY && is_core(__builtin_return_address(0)))
        atomic_fetch_sub(&kept, 1);
    next(memory);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    NEXT(pthread_create);
    return REFUSES(THREADS) ? EAGAIN : next(thread, attributes, run, argument);
}

/* What pthread_atfork is made of. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *of)
{
    NEXT(__register_atfork);
    return REFUSES(FORKS) ? ENOMEM : next(prepare, parent, child, of);
}

int sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set)
{
    NEXT(sched_getaffinity);
    return REFUSES(MACHINE) ? (errno = EINVAL, -1) : next(thread, size, set);
}

int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t *set)
{
    NEXT(sched_setaffinity);
    return REFUSES(MACHINE) ? (errno = EPERM, -1) : next(thread, size, set);
}

int sched_getcpu(void)
{
    NEXT(sched_getcpu);
    return REFUSES(MACHINE) ? (errno = ENOSYS, -1) : next();
}

long sysconf(int name)
{
    NEXT(sysconf);
    return REFUSES(MACHINE) ? -1 : next(name);
}

long syscall(long number, ...)
{
    NEXT(syscall);
    va_list words;
    long word[6];
    va_start(words, number);
    for (int n = 0; n < 6; ++n) word[n] = va_arg(words, long);
    va_end(words);
    if (REFUSES(MACHINE)) return errno = ENOSYS, -1;
    return next(number, word[0], word[1], word[2], word[3], word[4], word[5]);
}
