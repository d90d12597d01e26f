/* SPDX-License-Identifier: MIT
 * Floating point as a caller may have it: denormal numbers are 0, rounding is upwards, and on ARM
 * halves know no NaN.
 */
#include <stdint.h>

#if defined(__x86_64__)
enum { ODD_CONTROL = 0xdfc0 };

static inline uint64_t set_control(uint64_t control)
{
    const uint64_t before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((unsigned)control);
    return before;
}
#elif defined(__aarch64__)
enum { ODD_CONTROL = 1 << 26 | 1 << 24 | 1 << 22 };

static inline uint64_t set_control(uint64_t control)
{
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, %1" : "=&r"(before) : "r"(control) : "memory");
    return before;
}
#else
enum { ODD_CONTROL = 0 };

static inline uint64_t set_control(uint64_t control) { return control; }
#endif
