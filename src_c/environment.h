/* SPDX-License-Identifier: MIT
 * Floating point as C begins: round to nearest, denormal numbers are numbers, nothing traps.
 * Callers may have it otherwise, and threads keep what they were made with.
 */
#ifndef FA_ENVIRONMENT_H
#define FA_ENVIRONMENT_H

#if defined(__x86_64__)
/* Of a short call <fenv.h> would take a tenth: it has the registers of the x87, too. */
typedef unsigned fa_environment;

enum { FA_DEFAULT_CONTROL = 0x1f80, FA_EXCEPTION_FLAGS = 0x3f };

static inline int fa_is_default(fa_environment control)
{
    return (control & ~(unsigned)FA_EXCEPTION_FLAGS) == FA_DEFAULT_CONTROL;
}

static inline fa_environment fa_enter_default(void)
{
    const unsigned before = __builtin_ia32_stmxcsr();
    if (!fa_is_default(before)) __builtin_ia32_ldmxcsr(FA_DEFAULT_CONTROL);
    return before;
}

static inline void fa_leave_default(fa_environment before)
{
    if (!fa_is_default(before)) __builtin_ia32_ldmxcsr(before);
}
#elif defined(__aarch64__)
#include <stdint.h>

/* The default of <fenv.h> leaves bits of FPCR alone that it calls reserved: one has halves without
 * NaN. */
typedef uint64_t fa_environment;

static inline void fa_leave_default(fa_environment before)
{
    if (before) __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
}

static inline fa_environment fa_enter_default(void)
{
    const uint64_t by_default = 0;
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before) : : "memory");
    if (before) __asm__ volatile("msr fpcr, %0" : : "r"(by_default) : "memory");
    return before;
}
#else
#include <fenv.h>

typedef fenv_t fa_environment;

static inline fa_environment fa_enter_default(void)
{
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}

static inline void fa_leave_default(fa_environment before) { fesetenv(&before); }
#endif

#endif
