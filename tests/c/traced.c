/* SPDX-License-Identifier: MIT
 * One call on the instrumented core; prints "thread begin end stage" for every event.
 */
#include <stdio.h>
#include <stdlib.h>

#include "profile.h"

enum { HEADS = 4, QUERIES = 100, DEPTH = 16 };

static fa_tensor tensor(float *data)
{
    fa_tensor made = {.data = data};
    made.head = QUERIES * DEPTH * sizeof *data;
    made.row = DEPTH * sizeof *data;
    made.column = sizeof *data;
    return made;
}

int main(int count, char **words)
{
    float *data[4];
    for (int n = 0; n < 4; ++n) {
        data[n] = malloc(HEADS * QUERIES * DEPTH * sizeof *data[n]);
        for (int i = 0; i < HEADS * QUERIES * DEPTH; ++i) data[n][i] = (float)(i % 7) / 7;
    }
    fa_args args = {.size = sizeof args, .dtype = FA_FLOAT32, .kv_dtype = FA_FLOAT32};
    args.q_heads = args.kv_heads = HEADS;
    args.queries = args.keys = QUERIES;
    args.depth = args.value_depth = DEPTH;
    args.scale = 0.25;
    args.left = args.right = -1;
    args.causal = 1;
    args.threads = count > 1 ? atoi(words[1]) : 1;
    args.q = tensor(data[0]), args.k = tensor(data[1]), args.v = tensor(data[2]);
    args.out = tensor(data[3]);
    fa_profile_start();
    if (fa_attention(&args) != FA_OK) return 1;
    for (int thread = 0; thread < args.threads; ++thread) {
        int64_t events;
        const fa_event *event = fa_profile_events(thread, &events);
        for (int64_t n = 0; n < events; ++n)
            printf("%d %lld %lld %lld\n", thread, (long long)event[n].begin,
                   (long long)event[n].end, (long long)event[n].stage);
    }
    return 0;
}
