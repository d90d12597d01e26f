/* SPDX-License-Identifier: MIT
 * One call of fa_attention, for valgrind to count: instructions ISA Hq Hkv Sq Sk D causal
 */
#include <stdlib.h>

#include "fastattn.h"

static fa_tensor tensor(int64_t heads, int64_t rows, int64_t depth)
{
    const int64_t count = heads * rows * depth;
    float *data = malloc((size_t)count * sizeof *data);
    for (int64_t i = 0; i < count; ++i) data[i] = (float)(i * 37 % 101) / 50 - 1;
    fa_tensor made = {.data = data};
    made.head = rows * depth * (int64_t)sizeof *data;
    made.row = depth * (int64_t)sizeof *data;
    made.column = sizeof *data;
    return made;
}

int main(int count, char **words)
{
    if (count != 8) return 2;
    fa_args args = {.size = sizeof args, .dtype = FA_FLOAT32, .kv_dtype = FA_FLOAT32};
    args.isa = words[1];
    args.q_heads = atoi(words[2]);
    args.kv_heads = atoi(words[3]);
    args.queries = atoi(words[4]);
    args.keys = atoi(words[5]);
    args.depth = args.value_depth = atoi(words[6]);
    args.causal = atoi(words[7]);
    args.scale = 0.125;
    args.left = args.right = -1;
    args.threads = 1;
    args.q = tensor(args.q_heads, args.queries, args.depth);
    args.k = tensor(args.kv_heads, args.keys, args.depth);
    args.v = tensor(args.kv_heads, args.keys, args.depth);
    args.out = tensor(args.q_heads, args.queries, args.depth);
    return fa_attention(&args) == FA_OK ? 0 : 1;
}
