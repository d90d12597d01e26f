/* SPDX-License-Identifier: MIT
 * Arguments that make no sense are refused, with nothing written; those that hardly do are taken.
 * Prints what fails, and "N passed, N failed".
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "fastattn.h"

enum { HEADS = 2, QUERIES = 4, KEYS = 64, DEPTH = 8, PAGE = 16, PAGES = KEYS / PAGE };
enum { ROWS = HEADS * QUERIES, SIZE = ROWS * DEPTH, WEIGHTS = ROWS * KEYS };

/* Results lie in the middle of what may be written by mistake. */
static float q[SIZE], k[KEYS * DEPTH], v[KEYS * DEPTH], weights[WEIGHTS], out[3 * SIZE],
    lse[3 * ROWS], untouched[3 * SIZE];
static int32_t table[PAGES];
static char mask[QUERIES * KEYS];
static int passed, failed;

static void check(int fine, const char *what)
{
    if (fine) ++passed;
    else ++failed, printf("%s\n", what);
}

static fa_tensor tensor(float *data, int64_t rows, int64_t columns)
{
    const int64_t size = sizeof *data;
    return (fa_tensor){
        .data = data, .head = rows * columns * size, .row = columns * size, .column = size};
}

static fa_args arguments(void)
{
    fa_args args = {.size = sizeof args, .scale = 0.3, .left = -1, .right = -1, .threads = 1};
    args.q_heads = HEADS, args.kv_heads = 1, args.queries = QUERIES, args.keys = KEYS;
    args.depth = args.value_depth = DEPTH;
    args.q = tensor(q, QUERIES, DEPTH);
    args.k = tensor(k, KEYS, DEPTH), args.v = tensor(v, KEYS, DEPTH);
    args.out = tensor(out + SIZE, QUERIES, DEPTH), args.lse = lse + ROWS;
    return args;
}

/* Pages in order: the keys lie as they do without. */
static void add_pages(fa_args *args, int64_t keys)
{
    args->block_table = table, args->keys = keys;
    args->table_width = args->pages = PAGES, args->page_keys = PAGE;
    args->k.page = args->v.page = PAGE * args->k.row;
}

static void add_mask(fa_args *args)
{
    args->mask = (fa_tensor){.data = mask, .row = KEYS, .column = 1};
    args->mask_dtype = FA_BOOL;
}

static fa_status attend(const fa_args *args)
{
    memset(out, 0xff, sizeof out);
    memset(lse, 0xff, sizeof lse);
    return fa_attention(args);
}

static int written(const float *from, int64_t count)
{
    return memcmp(from, untouched, (size_t)count * sizeof *from) != 0;
}

static void refused(const fa_args *args, const char *what)
{
    const fa_status status = attend(args);
    check(status == FA_INVALID && !written(out, 3 * SIZE) && !written(lse, 3 * ROWS), what);
}

static void taken(const fa_args *args, const char *what)
{
    const int fine = attend(args) == FA_OK && !written(out, SIZE) && !written(lse, ROWS);
    check(fine && !written(out + 2 * SIZE, SIZE) && !written(lse + 2 * ROWS, ROWS), what);
}

/* ---- versions, types, options ---- */

static void check_options(void)
{
    const int64_t falling[] = {0, 0};
    fa_args args = arguments();
    args.size = 0, refused(&args, "size 0");
    args.size = 1, refused(&args, "size 1");
    args.size = sizeof args + 8, refused(&args, "size of a later version");
    args = arguments(), args.scale = NAN, refused(&args, "scale NaN");
    args = arguments(), args.softcap = INFINITY, refused(&args, "softcap infinite");
    args = arguments(), args.mask = args.q, args.mask_dtype = FA_INT8;
    refused(&args, "mask of int8");
    args = arguments(), args.threads = -1, refused(&args, "threads < 0");
    args = arguments(), args.q.data = NULL, refused(&args, "q without data");
    args = arguments(), args.v.data = NULL, refused(&args, "v without data");
    args = arguments(), args.out.data = NULL, refused(&args, "out without data");
    check(fa_attention(NULL) == FA_INVALID, "no arguments at all");
    args = arguments(), args.q_heads = -1, refused(&args, "q_heads < 0");
    args = arguments(), args.lead_rank = 1, args.lead_shape[0] = -1;
    refused(&args, "lead_shape < 0");
    args = arguments(), args.cu_q = args.cu_k = falling, args.sequences = -1;
    refused(&args, "sequences < 0");
}

/* ---- pages ---- */

static void check_pages(void)
{
    static const int64_t keys[] = {KEYS, 0, -1, PAGE, 1 << 20};
    float expected[SIZE], expected_weights[WEIGHTS];
    for (int64_t n = 0; n < 5; ++n) {
        fa_args args = arguments();
        add_mask(&args);
        attend(&args);
        memcpy(expected, out + SIZE, sizeof expected);
        add_pages(&args, keys[n]);
        taken(&args, "a mask of pages");
        check(!memcmp(out + SIZE, expected, sizeof expected), "a mask of pages is all read");

        args = arguments();
        args.out = tensor(weights, QUERIES, KEYS);
        fa_attention_weights(&args);
        memcpy(expected_weights, weights, sizeof weights);
        add_pages(&args, keys[n]);
        memset(weights, 0xff, sizeof weights);
        check(fa_attention_weights(&args) == FA_OK, "weights of pages");
        check(!memcmp(weights, expected_weights, sizeof weights), "weights of pages, all of them");
    }

    /* No key, so no page: not even the one that an empty range lies in. */
    const int32_t unused[PAGES] = {-1};
    const int64_t within = 1;
    fa_args args = arguments();
    add_pages(&args, 0), args.block_table = unused, args.kv_begin = args.kv_end = &within;
    taken(&args, "an empty range of keys in an unused page");
}

/* ---- packed sequences ---- */

static void check_packs(void)
{
    static const int64_t queries[] = {0, 2, QUERIES}, keys[] = {0, 20, KEYS};
    static const int64_t wrong[][3] = {{0, 2, KEYS + 1}, {-2, 2, 4},        {0, 3, 2},
                                       {5, 2, 4},        {0, 2, INT64_MAX}, {INT64_MIN, 2, 4},
                                       {0, INT64_MIN, 4}};
    static const int64_t right[][3] = {{0, 0, QUERIES}, {1, 2, 2}, {2, 2, 2}};
    fa_args args = arguments();
    args.sequences = 2, args.cu_k = keys;
    for (int n = 0; n < 7; ++n) args.cu_q = wrong[n], refused(&args, "cu_q of rows there are not");
    for (int n = 0; n < 3; ++n) args.cu_q = right[n], taken(&args, "cu_q of some rows");
    args.cu_q = queries;
    for (int n = 0; n < 7; ++n) args.cu_k = wrong[n], refused(&args, "cu_k of rows there are not");
    for (int n = 0; n < 3; ++n) args.cu_k = right[n], taken(&args, "cu_k of some rows");
    args.sequences = 0, args.cu_q = args.cu_k = wrong[0], taken(&args, "no sequences");

    args = arguments(), args.sequences = 1, args.cu_q = queries + 1;
    add_pages(&args, 0), taken(&args, "packed queries, keys in pages");
    args.cu_q = wrong[1], refused(&args, "cu_q of rows there are not, keys in pages");
}

/* ---- positions ---- */

static int sees_nothing(void)
{
    for (int n = 0; n < ROWS; ++n)
        if (lse[ROWS + n] != -INFINITY) return 0;
    return 1;
}

static void check_positions(void)
{
    const int64_t far = (int64_t)1 << 53, last = INT64_MAX;
    const int64_t wrong[] = {far + 1, -far - 1, INT64_MAX, INT64_MIN, INT64_MIN + KEYS};
    fa_args args = arguments();
    args.causal = 1;
    for (int n = 0; n < 5; ++n) args.q_offset = &wrong[n], refused(&args, "q_offset too far");
    const int64_t before = -far;
    args.q_offset = &before, taken(&args, "causal, far before the keys");
    check(sees_nothing(), "nothing is seen from far before the keys");
    args = arguments(), args.q_offset = &far, args.left = 3, taken(&args, "far behind the keys");
    check(sees_nothing(), "nothing is seen from far behind the keys");
    for (int causal = 0; causal < 2; ++causal) { /* differences that would not fit */
        args = arguments(), args.kv_begin = &last, args.q_offset = causal ? &far : &before;
        args.causal = causal, args.left = 3, taken(&args, "kv_begin behind all keys");
        check(sees_nothing(), "nothing is seen of no keys");
    }
    args = arguments(), args.left = args.right = INT64_MAX,
    taken(&args, "a window of all there is");
    check(!sees_nothing(), "a window of all there is");
}

/* ---- sizes ---- */

static void check_size(size_t field, const char *what)
{
    static const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2, (int64_t)1 << 58};
    for (int n = 0; n < 5; ++n) {
        fa_args args = arguments();
        args.lead_rank = 2, args.lead_shape[0] = args.lead_shape[1] = 1;
        memcpy((char *)&args + field, &wrong[n], sizeof *wrong);
        refused(&args, what);
    }
}

static void check_sizes(void)
{
    const int64_t few = 10, many = (int64_t)1 << 40;
    check_size(offsetof(fa_args, queries), "queries"), check_size(offsetof(fa_args, keys), "keys");
    check_size(offsetof(fa_args, depth), "depth");
    check_size(offsetof(fa_args, value_depth), "value_depth");
    check_size(offsetof(fa_args, q_heads), "q_heads");
    check_size(offsetof(fa_args, lead_shape), "lead_shape");
    fa_args args = arguments();
    args.lead_rank = 2, args.lead_shape[0] = args.lead_shape[1] = (int64_t)1 << 32;
    refused(&args, "a product of lead_shape");
    args = arguments(), args.lead_rank = 1, args.lead_shape[0] = many;
    args.q_heads = args.kv_heads = (int64_t)1 << 62, refused(&args, "a product of heads");
    args = arguments(), add_pages(&args, 0), args.table_width = args.page_keys = (int64_t)1 << 32;
    refused(&args, "a product of table_width");
    args = arguments(), add_pages(&args, 0), args.page_keys = INT64_MAX;
    refused(&args, "page_keys"), args.cu_q = &few, refused(&args, "page_keys of no sequences");
    args.cu_q = NULL, args.table_width = 0, refused(&args, "page_keys of an empty table");

    /* Nothing to do, and rows that repeat: strides of 0 hold more of them than memory. */
    args = arguments(), args.queries = 0, taken(&args, "no queries");
    args = arguments(), args.q_heads = 0, taken(&args, "no heads");
    args = arguments(), args.keys = 0, taken(&args, "no keys");
    args = arguments(), args.lead_rank = 2, args.lead_shape[0] = many, taken(&args, "no batches");
    args = arguments(), add_pages(&args, 0), args.table_width = 0, taken(&args, "no pages");
    args = arguments(), args.k.row = args.v.row = 0, args.keys = many, args.kv_end = &few;
    taken(&args, "as many keys as one wants");
    add_mask(&args), args.q.row = args.out.row = 0, args.queries = many;
    check(attend(&args) == FA_NO_MEMORY && !written(out, 3 * SIZE), "a mask of too many blocks");
}

/* ---- addresses ---- */

/* Not even of whole numbers: a struct of a caller may be packed. */
static void check_addresses(void)
{
    static char memory[KEYS * DEPTH * sizeof(float) + 1];
    float expected[SIZE];
    fa_args args = arguments();
    attend(&args);
    memcpy(expected, out + SIZE, sizeof expected);
    fa_tensor *const inputs[] = {&args.q, &args.k, &args.v};
    for (int n = 0; n < 3; ++n) {
        args = arguments();
        memcpy(memory + 1, inputs[n]->data, n ? KEYS * DEPTH * sizeof(float) : sizeof q);
        inputs[n]->data = memory + 1, taken(&args, "numbers at an odd address");
        check(!memcmp(out + SIZE, expected, sizeof expected), "the numbers at an odd address");
    }
    args = arguments(), args.out.data = memory + 1;
    check(attend(&args) == FA_OK && !memcmp(memory + 1, expected, sizeof expected),
          "results at an odd address");
}

/* ---- weights ---- */

static void check_weights(void)
{
    float expected[WEIGHTS];
    fa_args args = arguments();
    args.out = tensor(weights, QUERIES, KEYS), fa_attention_weights(&args);
    memcpy(expected, weights, sizeof weights);
    args.v = (fa_tensor){0};
    for (int depth = 0; depth >= -DEPTH; depth -= DEPTH) { /* no value at all, or nonsense */
        args.value_depth = depth;
        memset(weights, 0xff, sizeof weights);
        check(fa_attention_weights(&args) == FA_OK, "weights without v");
        check(!memcmp(weights, expected, sizeof weights), "weights do not depend on v");
    }
    args.out.column *= 2, args.keys = 2, memset(weights, 0xff, sizeof weights);
    check(fa_attention_weights(&args) == FA_INVALID, "weights that lie apart");
    check(isnan(weights[0]), "nothing is written of weights that lie apart");
    args.keys = 1, check(fa_attention_weights(&args) == FA_OK, "one weight lies apart from none");
}

/* ---- combinations that only C can ask for ---- */

static void check_types(void)
{
    static const fa_dtype wrong[][2] = {{FA_FLOAT64, FA_FLOAT32},  {FA_FLOAT16, FA_BFLOAT16},
                                        {FA_BFLOAT16, FA_FLOAT32}, {FA_INT8, FA_INT8},
                                        {FA_BOOL, FA_BOOL},        {FA_FLOAT32, FA_FLOAT64}};
    for (int n = 0; n < 6; ++n) {
        fa_args args = arguments();
        args.dtype = wrong[n][0], args.kv_dtype = wrong[n][1], refused(&args, "types");
    }
    fa_args args = arguments();
    args.dtype = args.kv_dtype = FA_FLOAT64, add_mask(&args), args.mask_dtype = FA_FLOAT16;
    refused(&args, "a mask of float16 with float64");
}

static void check_counts(void)
{
    fa_args args = arguments();
    args.kv_heads = 0, refused(&args, "kv_heads 0");
    args.kv_heads = -1, refused(&args, "kv_heads < 0");
    args.q_heads = 3, args.kv_heads = 2, refused(&args, "3 heads of 2");
    args = arguments(), args.depth = 0, refused(&args, "depth 0");
    args = arguments(), args.value_depth = 0, refused(&args, "value_depth 0");
    args = arguments(), args.lead_rank = -1, refused(&args, "lead_rank < 0");
    args.lead_rank = FA_MAX_LEAD + 1, refused(&args, "lead_rank too high");
    args = arguments(), args.precision = (fa_precision)3, refused(&args, "precision");
    args = arguments(), args.left = -2, refused(&args, "left");
    args = arguments(), args.right = -2, refused(&args, "right");
    args = arguments(), args.softcap = -1, refused(&args, "softcap < 0");
    args = arguments(), args.k.data = NULL, refused(&args, "k without data");
    args = arguments(), add_pages(&args, 0), args.page_keys = 0, refused(&args, "page_keys 0");
    args = arguments(), add_pages(&args, 0), args.table_width = -1, refused(&args, "table_width");
}

static void check_packs_alone(void)
{
    static const int64_t cuts[] = {0, QUERIES}, keys[] = {0, KEYS};
    fa_args args = arguments();
    args.cu_q = cuts, args.sequences = 1, refused(&args, "cu_q without cu_k");
    args.cu_k = keys, taken(&args, "cu_q and cu_k");
    args.lead_rank = 1, args.lead_shape[0] = 1, refused(&args, "cu_q and leading axes");
    args.lead_rank = 0, add_mask(&args), refused(&args, "cu_q and a mask");
    args.mask.data = NULL, args.out = tensor(weights, QUERIES, KEYS);
    check(fa_attention_weights(&args) == FA_INVALID, "weights of packs");
}

static void check_key_ranges(void)
{
    static const int64_t behind = KEYS + 1, before = -1, from = PAGE + 2, to = 2 * PAGE - 2;
    int32_t used[PAGES] = {INT32_MAX, 1, INT32_MAX, INT32_MAX};
    float expected[SIZE];
    fa_args args = arguments();
    args.kv_end = &behind, refused(&args, "kv_end behind the keys");
    args.kv_end = &before, refused(&args, "kv_end < 0");
    args = arguments(), args.kv_begin = &before, refused(&args, "kv_begin < 0");

    args = arguments(), add_pages(&args, 0), args.kv_begin = &from, args.kv_end = &to;
    attend(&args);
    memcpy(expected, out + SIZE, sizeof expected);
    args.block_table = used, taken(&args, "pages that no key is in");
    check(!memcmp(out + SIZE, expected, sizeof expected), "pages that no key is in do not count");
    used[1] = -1, refused(&args, "a page < 0");
    used[1] = PAGES, refused(&args, "a page that there is not");
}

/* A caller of the first version: what lies behind its struct is not looked at. */
static void check_oldest(void)
{
    fa_args args = arguments();
    args.size = offsetof(fa_args, isa) + sizeof args.isa;
    memset((char *)&args + args.size, 0x7f, sizeof args - args.size);
    taken(&args, "the first version");
    args.size -= 1, refused(&args, "a size before it");
}

/* One that is no number says nothing of the keys that other heads of its group see. */
static void check_slopes(void)
{
    enum { MANY = 400 };
    static float zeros[3 * MANY], rising[MANY], means[3 * MANY];
    fa_args args = arguments();
    for (int n = 0; n < MANY; ++n) rising[n] = (float)n;
    args.q_heads = 3, args.queries = args.keys = MANY, args.depth = args.value_depth = 1;
    args.q = tensor(zeros, MANY, 1), args.k = args.v = tensor(rising, MANY, 1);
    args.out = tensor(means, MANY, 1), args.lse = NULL;
    args.alibi = (const double[]){0.05, NAN, 8}, args.causal = 1;
    const int fine = fa_attention(&args) == FA_OK && isnan(means[2 * MANY - 1]);
    check(fine && fabs(MANY - 1 - means[MANY - 1] - 1 / expm1(0.05)) < 1e-3, "a slope of NaN");
}

int main(void)
{
    setbuf(stdout, NULL); /* what failed before a crash is seen */
    for (int n = 0; n < SIZE; ++n) q[n] = (float)(n * 37 % 101) / 50 - 1;
    for (int n = 0; n < KEYS * DEPTH; ++n) {
        k[n] = (float)(n * 53 % 103) / 51 - 1;
        v[n] = (float)(n * 71 % 107) / 53 - 1;
    }
    for (int n = 0; n < PAGES; ++n) table[n] = n;
    for (int n = 0; n < QUERIES * KEYS; ++n) mask[n] = n * 7919 % 13 < 6;
    memset(untouched, 0xff, sizeof untouched);
    check_options();
    check_pages();
    check_packs();
    check_positions();
    check_sizes();
    check_addresses();
    check_weights();
    check_types();
    check_counts();
    check_packs_alone();
    check_key_ranges();
    check_oldest();
    check_slopes();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
