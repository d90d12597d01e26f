/* SPDX-License-Identifier: MIT
 * One block on the diagonal of a causal mask, whose rows come from memory: prints how many lines of
 * later keys and values there are, and how many of them the kernels ask for.
 */
#include <stdio.h>

#include "platform.h"
static void note(const void *address);
#undef FA_PREFETCH_FAR
#define FA_PREFETCH_FAR(address) note(address)
#include "isa/scalar.c"

enum {
    KEYS = KEY_BLOCK,
    DEPTH = 64,
    WIDTH = MAX_VECTORS * LANES,
    LINES = sizeof(real[DEPTH]) / FA_LINE
};

static real later[2 * KEYS][DEPTH]; /* keys, then values */
static char asked[2 * KEYS * LINES];

static void note(const void *address)
{
    const char *at = address, *first = (const char *)later;
    if (at >= first && at < first + sizeof later) asked[(at - first) / FA_LINE] = 1;
}

int main(void)
{
    static real numbers[DEPTH], q[DEPTH * WIDTH], o[DEPTH * WIDTH], m[WIDTH], l[WIDTH];
    static real s[(KEYS + FA_KEY_PADDING) * WIDTH], begin[WIDTH], end[WIDTH];
    const void *rows[KEYS + FA_ROW_PADDING], *ahead[2][KEYS + FA_KEY_PADDING];
    for (int j = 0; j < KEYS + FA_ROW_PADDING; ++j) rows[j] = numbers;
    for (int j = 0; j < KEYS + FA_KEY_PADDING; ++j)
        for (int n = 0; n < 2; ++n) ahead[n][j] = later[n * KEYS + (j < KEYS ? j : KEYS - 1)];
    for (int i = 0; i < WIDTH; ++i) end[i] = (real)(KEYS * (i + 1) / WIDTH);
    const fa_modifiers modifiers = {.begin = begin, .end = end};
    const fa_block block = {.keys = KEYS,
                            .k = rows,
                            .v = rows,
                            .k_ahead = ahead[0],
                            .v_ahead = ahead[1],
                            .ahead_element = sizeof(real),
                            .from_memory = 1,
                            .modifiers = &modifiers};
    fa_tile tile = {.vectors = MAX_VECTORS, .depth = DEPTH, .value_depth = DEPTH};
    tile.q = q, tile.o = o, tile.m = m, tile.l = l, tile.s = s;
    fa_kernels_scalar_f32.begin(&tile, NULL);
    fa_kernels_scalar_f32.update(&tile, &block);
    int count = 0;
    for (int n = 0; n < 2 * KEYS * LINES; ++n) count += asked[n];
    printf("%d %d\n", 2 * KEYS * LINES, count);
    return 0;
}
