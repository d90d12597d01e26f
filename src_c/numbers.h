/* SPDX-License-Identifier: MIT
 * Small integer arithmetic.
 */
#ifndef FA_NUMBERS_H
#define FA_NUMBERS_H

#include <stdint.h>

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

#endif
