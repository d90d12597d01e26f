/* SPDX-License-Identifier: MIT
 * Calls from inside an OpenMP region, each asking for threads of its own: the same bits everywhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fastattn.h"

enum { HEADS = 4, ROWS = 130, DEPTH = 32, SIZE = HEADS * ROWS * DEPTH, CALLS = 40 };

static float q[SIZE], k[SIZE], v[SIZE], expected[SIZE], got[CALLS][SIZE];

static fa_tensor tensor(float *data)
{
    const int64_t size = sizeof(float);
    return (fa_tensor){.data = data,
                       .lead = {SIZE * size},
                       .head = ROWS * DEPTH * size,
                       .row = DEPTH * size,
                       .column = size};
}

static fa_status attend(float *out, int threads)
{
    const fa_args args = {.size = sizeof(fa_args),
                          .dtype = FA_FLOAT32,
                          .kv_dtype = FA_FLOAT32,
                          .lead_rank = 1,
                          .lead_shape = {1},
                          .q_heads = HEADS,
                          .kv_heads = HEADS,
                          .queries = ROWS,
                          .keys = ROWS,
                          .depth = DEPTH,
                          .value_depth = DEPTH,
                          .q = tensor(q),
                          .k = tensor(k),
                          .v = tensor(v),
                          .out = tensor(out),
                          .scale = 0.2,
                          .causal = 1,
                          .left = -1,
                          .right = -1,
                          .threads = threads};
    return fa_attention(&args);
}

int main(void)
{
    int passed = 0;
    for (int n = 0; n < SIZE; ++n) {
        q[n] = (float)(n * 37 % 101) / 50 - 1;
        k[n] = (float)(n * 53 % 103) / 51 - 1;
        v[n] = (float)(n * 71 % 107) / 53 - 1;
    }
    if (attend(expected, 1) != FA_OK) return 1;
#pragma omp parallel for num_threads(4) schedule(dynamic) reduction(+ : passed)
    for (int call = 0; call < CALLS; ++call) {
        const fa_status status = attend(got[call], 1 + call % 4);
        passed += status == FA_OK && !memcmp(got[call], expected, sizeof expected);
    }
    printf("%d passed, %d failed\n", passed, CALLS - passed);
    return passed != CALLS;
}
