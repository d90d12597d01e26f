/* SPDX-License-Identifier: MIT
 * AMX in portable C (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
 * TDPBF16PS and TDPBSSD): eight tiles of each thread, 16 rows of 64 bytes, as amx/tiles.inc asks
 * for. Whoever uses a tile before LDTILECFG or after TILERELEASE is stopped, as the CPU would.
 */
#ifndef FA_TILES_H
#define FA_TILES_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { EMULATED_ROWS = 16, EMULATED_WORDS = 16 };

static _Thread_local struct {
    int configured;
    uint32_t tile[8][EMULATED_ROWS][EMULATED_WORDS];
} emulated;

static inline void *tile_of(int n)
{
    if (!emulated.configured) abort();
    return emulated.tile[n];
}

static inline void tile_configure(const void *shapes)
{
    const uint8_t *byte = shapes;
    for (int n = 0; n < 8; ++n) /* all tiles are whole */
        if (byte[0] != 1 || byte[16 + 2 * n] != 64 || byte[17 + 2 * n] || byte[48 + n] != 16)
            abort();
    memset(&emulated, 0, sizeof emulated);
    emulated.configured = 1;
}

static inline void tile_release(void) { emulated.configured = 0; }

static inline void tile_load(int n, const void *from, long stride)
{
    char *to = tile_of(n);
    for (int row = 0; row < EMULATED_ROWS; ++row)
        memcpy(to + 64 * row, (const char *)from + row * stride, 64);
}

static inline void tile_store(int n, void *to, long stride)
{
    const char *from = tile_of(n);
    for (int row = 0; row < EMULATED_ROWS; ++row)
        memcpy((char *)to + row * stride, from + 64 * row, 64);
}

static inline void tile_zero(int n) { memset(tile_of(n), 0, 64 * EMULATED_ROWS); }

/* Denormals are 0, as operands and as results. */
static inline float normal_or_0(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static inline float upper_half(uint32_t pair)
{
    float x;
    pair &= 0xffff0000;
    memcpy(&x, &pair, sizeof x);
    return normal_or_0(x);
}

/* Even and odd elements of a row are summed apart, then added to what the tile holds. */
static inline void tile_multiply_bfloats(int to, int left, int right)
{
    float(*sums)[EMULATED_WORDS] = tile_of(to);
    uint32_t(*a)[EMULATED_WORDS] = tile_of(left), (*b)[EMULATED_WORDS] = tile_of(right);
    for (int row = 0; row < EMULATED_ROWS; ++row) {
        float even[EMULATED_WORDS] = {0}, odd[EMULATED_WORDS] = {0};
        for (int k = 0; k < EMULATED_WORDS; ++k) {
            const float first = upper_half(a[row][k] << 16), second = upper_half(a[row][k]);
            for (int n = 0; n < EMULATED_WORDS; ++n) {
                even[n] = normal_or_0(fmaf(first, upper_half(b[k][n] << 16), even[n]));
                odd[n] = normal_or_0(fmaf(second, upper_half(b[k][n]), odd[n]));
            }
        }
        for (int n = 0; n < EMULATED_WORDS; ++n) {
            const float both = normal_or_0(even[n] + odd[n]);
            sums[row][n] = normal_or_0(normal_or_0(sums[row][n]) + both);
        }
    }
}

static inline void tile_multiply_bytes(int to, int left, int right)
{
    uint32_t(*sums)[EMULATED_WORDS] = tile_of(to);
    int8_t(*a)[64] = tile_of(left), (*b)[64] = tile_of(right);
    for (int row = 0; row < EMULATED_ROWS; ++row)
        for (int k = 0; k < EMULATED_WORDS; ++k)
            for (int n = 0; n < 64; ++n)
                sums[row][n / 4] += (uint32_t)(a[row][4 * k + n % 4] * b[k][n]);
}

#endif
