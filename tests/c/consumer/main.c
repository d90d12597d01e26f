/* SPDX-License-Identifier: MIT
 * A program of somebody who installed the wheel: attention of two heads, one number a line.
 */
#include <fastattn.h>
#include <stdio.h>

enum { HEADS = 2, QUERIES = 3, KEYS = 5, DEPTH = 4 };

/* (heads, rows, DEPTH), C-contiguous */
static fa_tensor tensor(float *data, int64_t rows)
{
    const int64_t size = sizeof(float);
    return (fa_tensor){
        .data = data, .head = rows * DEPTH * size, .row = DEPTH * size, .column = size};
}

static void fill(float *data, int count, int step)
{
    for (int n = 0; n < count; ++n) data[n] = (float)(n * step % 17 - 8) / 8;
}

int main(void)
{
    static float q[HEADS * QUERIES * DEPTH], k[HEADS * KEYS * DEPTH], v[HEADS * KEYS * DEPTH];
    static float out[HEADS * QUERIES * DEPTH];
    fill(q, HEADS * QUERIES * DEPTH, 3);
    fill(k, HEADS * KEYS * DEPTH, 5);
    fill(v, HEADS * KEYS * DEPTH, 7);
    const fa_args args = {.size = sizeof args,
                          .dtype = FA_FLOAT32,
                          .q_heads = HEADS,
                          .kv_heads = HEADS,
                          .queries = QUERIES,
                          .keys = KEYS,
                          .depth = DEPTH,
                          .value_depth = DEPTH,
                          .q = tensor(q, QUERIES),
                          .k = tensor(k, KEYS),
                          .v = tensor(v, KEYS),
                          .out = tensor(out, QUERIES),
                          .scale = 0.5,
                          .causal = 1,
                          .left = -1,
                          .right = -1};
    const fa_status status = fa_attention(&args);
    for (int n = 0; n < HEADS * QUERIES * DEPTH; ++n) printf("%a\n", out[n]);
    return status == FA_OK ? 0 : 1;
}
