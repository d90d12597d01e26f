/* SPDX-License-Identifier: MIT
 * Random numbers of any type, and tensors of them.
 */
#ifndef TENSORS_H
#define TENSORS_H

#include <math.h>
#include <stdlib.h>

#include "fastattn.h"

static uint64_t state = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % below;
}

static double uniform(void) { return draw(1u << 24) / (double)(1u << 24) * 2 - 1; }

static int64_t size_of(fa_dtype dtype)
{
    switch (dtype) {
    case FA_FLOAT32: return 4;
    case FA_FLOAT64: return 8;
    case FA_FLOAT16:
    case FA_BFLOAT16: return 2;
    default: return 1;
    }
}

/* A number of so many bits of exponent (of this bias) and mantissa, by the definition; E4M3 has no
 * infinity. */
static double decode(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double fraction = (bits & ((1u << mantissa_bits) - 1)) / (double)(1u << mantissa_bits);
    double size = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    if (exponent > 2 * bias && exponent_bits != 4) size = fraction > 0 ? NAN : INFINITY;
    if (exponent_bits == 4 && (bits & 0x7f) == 0x7f) size = NAN;
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -size : size;
}

/* Random bits of such a number, of size below 4; denormal, too, if exponents are few. */
static uint32_t random_bits(int exponent_bits, int mantissa_bits)
{
    const uint32_t bias = (1u << (exponent_bits - 1)) - 1;
    const uint32_t sign = draw(2) << (exponent_bits + mantissa_bits);
    return sign | (bias + 1 - draw(bias < 16 ? bias + 2 : 12)) << mantissa_bits |
           draw(1u << mantissa_bits);
}

static double get(const void *data, fa_dtype dtype, int64_t index)
{
    switch (dtype) {
    case FA_FLOAT32: return ((const float *)data)[index];
    case FA_FLOAT64: return ((const double *)data)[index];
    case FA_FLOAT16: return decode(((const uint16_t *)data)[index], 5, 10);
    case FA_BFLOAT16: return decode(((const uint16_t *)data)[index], 8, 7);
    case FA_FLOAT8_E4M3: return decode(((const uint8_t *)data)[index], 4, 3);
    case FA_FLOAT8_E5M2: return decode(((const uint8_t *)data)[index], 5, 2);
    default: return ((const int8_t *)data)[index];
    }
}

static void fill(void *data, fa_dtype dtype, int64_t index)
{
    switch (dtype) {
    case FA_FLOAT32: ((float *)data)[index] = (float)uniform() * 2; break;
    case FA_FLOAT64: ((double *)data)[index] = uniform() * 2; break;
    case FA_FLOAT16: ((uint16_t *)data)[index] = (uint16_t)random_bits(5, 10); break;
    case FA_BFLOAT16: ((uint16_t *)data)[index] = (uint16_t)random_bits(8, 7); break;
    case FA_FLOAT8_E4M3: ((uint8_t *)data)[index] = (uint8_t)random_bits(4, 3); break;
    case FA_FLOAT8_E5M2: ((uint8_t *)data)[index] = (uint8_t)random_bits(5, 2); break;
    default: ((int8_t *)data)[index] = (int8_t)(draw(7) - 3); break;
    }
}

static void put_infinity(void *data, fa_dtype dtype, int64_t index)
{
    switch (dtype) {
    case FA_FLOAT32: ((float *)data)[index] = -INFINITY; break;
    case FA_FLOAT64: ((double *)data)[index] = -INFINITY; break;
    case FA_FLOAT16: ((uint16_t *)data)[index] = 0xfc00; break;
    default: ((uint16_t *)data)[index] = 0xff80; break;
    }
}

static fa_tensor tensor(fa_dtype dtype, int64_t batch, int64_t heads, int64_t rows, int64_t columns,
                        int bshd)
{
    const int64_t size = size_of(dtype), count = batch * heads * rows * columns;
    fa_tensor t = {.column = size};
    t.row = size * columns * (bshd ? heads : 1);
    t.head = size * columns * (bshd ? 1 : rows);
    t.lead[0] = size * columns * rows * heads;
    t.data = malloc((size_t)(count * size));
    for (int64_t n = 0; n < count; ++n) fill(t.data, dtype, n);
    return t;
}

static void *at(const fa_tensor *t, int64_t batch, int64_t head, int64_t row, int64_t column)
{
    return (char *)t->data + batch * t->lead[0] + head * t->head + row * t->row +
           column * t->column;
}

#endif
