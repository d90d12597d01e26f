/* SPDX-License-Identifier: MIT
 * What differs between compilers. Macros only: this header is included by files that are compiled
 * with different instruction sets, so it must not define a function (see kernels.h).
 */
#ifndef FA_PLATFORM_H
#define FA_PLATFORM_H

#if defined(_MSC_VER) && !defined(__clang__)
#define FA_INLINE static __forceinline
#define FA_NOINLINE static __declspec(noinline)
#define FA_RESTRICT __restrict
#define FA_UNROLL_FOR for
#define FA_ALIGNED(bytes) __declspec(align(bytes))
#define FA_UNLIKELY(condition) (condition)
#define FA_PREFETCH(address) ((void)(address))
#define FA_PREFETCH_FAR(address) ((void)(address))
#define FA_KEEP(pointer) ((void)(pointer))
#define FA_IN_ORDER(a, b) ((void)(a), (void)(b))
#else
#define FA_INLINE static inline __attribute__((always_inline, unused))
#define FA_NOINLINE static __attribute__((noinline))
#define FA_RESTRICT restrict
#define FA_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define FA_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
/* For reading, into every cache, or all but the first, which rows that lie apart by a power of two
 * would overflow. */
#define FA_PREFETCH(address) __builtin_prefetch(address, 0, 3)
#define FA_PREFETCH_FAR(address) __builtin_prefetch(address, 0, 2)
/* Keeps an address in a register, where the compiler would spread it over many and run out. */
#define FA_KEEP(pointer) __asm__("" : "+r"(pointer))
/* What is read from here on, and asked for at two addresses, stays behind what was before. */
#define FA_IN_ORDER(a, b) __asm__ volatile("" : "+r"(a), "+r"(b) : : "memory")
/* Tile loops must be unrolled completely, or their accumulators live in memory. */
#if defined(__clang__)
#define FA_UNROLL_FOR _Pragma("clang loop unroll(full)") for
#else
#define FA_UNROLL_FOR _Pragma("GCC unroll 16") for
#endif
#endif

/* One cache line, and the widest vector: every scratch array starts at a multiple of it. */
#define FA_LINE 64

#endif
