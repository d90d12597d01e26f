/* SPDX-License-Identifier: MIT
 * Problems at random, and those that matrix units and their limits are for.
 */
#ifndef PROBLEMS_H
#define PROBLEMS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fastattn.h"
#include "tensors.h"

enum { MAX = 140, MAX_LONG = 1300, LAST_KEYS = 64, MASKED_KEYS = 350 };

typedef struct {
    int64_t batch, q_heads, kv_heads, queries, keys, depth, value_depth, offset[2], begin[2],
        end[2];
    double sinks[8], alibi[16], *expected, unit; /* of values: they are below 4 units */
    fa_args args;
    int bshd; /* heads inside the sequence */
    int32_t *table;
} problem;

/* Rows are counted through all batch entries and heads. */
static int64_t rows_of(const problem *p) { return p->batch * p->q_heads * p->queries; }
static int64_t batch_of(const problem *p, int64_t n) { return n / p->queries / p->q_heads; }
static int64_t head_of(const problem *p, int64_t n) { return n / p->queries % p->q_heads; }

/* K and V in pages, the last page first. */
static void set_up_pages(problem *p)
{
    fa_args *a = &p->args;
    a->page_keys = 1 + draw(40);
    a->table_width = (p->keys + a->page_keys - 1) / a->page_keys;
    a->pages = p->batch * a->table_width;
    a->keys = a->table_width * a->page_keys;
    p->table = malloc((size_t)a->pages * sizeof *p->table);
    for (int64_t n = 0; n < a->pages; ++n) p->table[n] = (int32_t)(a->pages - 1 - n);
    a->block_table = p->table;
    a->k = tensor(a->kv_dtype, a->pages, p->kv_heads, a->page_keys, p->depth, p->bshd);
    a->v = tensor(a->kv_dtype, a->pages, p->kv_heads, a->page_keys, p->value_depth, p->bshd);
    a->k.page = a->k.lead[0], a->v.page = a->v.lead[0];
}

/* Of the rows of k or v. Integers are then any there are; times their scales they are below 4. */
static fa_tensor scales(const problem *p, const fa_tensor *of, int64_t columns)
{
    const fa_args *a = &p->args;
    const int64_t batch = a->pages ? a->pages : p->batch, keys = a->pages ? a->page_keys : p->keys;
    const int64_t rows = batch * p->kv_heads * keys;
    const int integers = a->kv_dtype == FA_INT8;
    fa_tensor t = tensor(FA_FLOAT32, batch, p->kv_heads, keys, 1, p->bshd);
    t.page = t.lead[0];
    for (int64_t n = 0; n < rows; ++n) ((float *)t.data)[n] /= integers ? 64 : 2;
    for (int64_t n = 0; integers && n < rows * columns; ++n)
        ((int8_t *)of->data)[n] = (int8_t)((int)draw(256) - 128);
    return t;
}

/* At random, a third of it forbids; some of the last keys all may see, or none. */
static void set_up_mask(problem *p, fa_dtype mask_dtype)
{
    const int64_t begin = p->keys - draw(MASKED_KEYS), end = begin + draw(MASKED_KEYS);
    const int alike = draw(2) == 0;
    fa_args *a = &p->args;
    a->mask_dtype = mask_dtype;
    a->mask = tensor(a->dtype, 1, 1, p->queries, p->keys, 0);
    a->mask.lead[0] = a->mask.head = 0;
    for (int64_t n = 0; n < p->queries * p->keys; ++n) {
        const int64_t key = n % p->keys;
        const int allowed = key >= begin && key < end ? alike : draw(3) != 0;
        if (mask_dtype == FA_BOOL) ((char *)a->mask.data)[n] = (char)allowed;
        else if (!allowed) put_infinity(a->mask.data, a->dtype, n);
    }
    if (mask_dtype == FA_BOOL) a->mask.row = p->keys, a->mask.column = 1;
}

/* All three are given, or only one is; sequences may lie far from each other. */
static void set_up_positions(problem *p)
{
    enum { BEGIN = 1, END = 2, OFFSET = 4, ALL = 7 };
    fa_args *a = &p->args;
    const int given = draw(3) ? 1 << draw(3) : ALL;
    a->kv_begin = given & BEGIN ? p->begin : NULL;
    a->kv_end = given & END || a->block_table ? p->end : NULL;
    a->q_offset = given & OFFSET ? p->offset : NULL;
    for (int b = 0; b < 2; ++b) {
        p->begin[b] = !a->kv_begin || !draw(3) ? 0 : draw((uint32_t)p->keys + 1);
        p->end[b] = !a->kv_end || draw(2) ? p->keys : draw((uint32_t)p->keys + 1);
        p->offset[b] = a->q_offset ? (int64_t)draw(80) - 40 : p->end[b] - p->queries;
        if (a->q_offset && draw(2)) p->offset[b] += draw((uint32_t)p->keys);
    }
}

static void set_up(problem *p, fa_dtype dtype, int is_long)
{
    static const fa_dtype stored[] = {FA_INT8,    FA_FLOAT8_E4M3, FA_FLOAT8_E5M2,
                                      FA_FLOAT32, FA_FLOAT16,     FA_BFLOAT16};
    const uint32_t kinds = dtype == FA_FLOAT32 ? 6 : 3;
    const fa_dtype kv_dtype = dtype == FA_FLOAT64 || draw(2) ? dtype : stored[draw(kinds)];
    *p = (problem){.unit = 1};
    p->batch = 1 + draw(2), p->kv_heads = 1 + draw(2), p->q_heads = p->kv_heads * (1 + draw(4));
    p->queries = 1 + draw(is_long ? 5 : MAX), p->keys = 1 + draw(is_long ? MAX_LONG : MAX);
    p->depth = 1 + draw(70), p->value_depth = 1 + draw(70), p->bshd = (int)draw(2);
    fa_args *a = &p->args;
    *a = (fa_args){.size = sizeof(fa_args), .dtype = dtype, .kv_dtype = kv_dtype, .lead_rank = 1};
    a->lead_shape[0] = p->batch, a->q_heads = p->q_heads, a->kv_heads = p->kv_heads;
    a->queries = p->queries, a->keys = p->keys, a->depth = p->depth;
    a->value_depth = p->value_depth;
    a->q = tensor(dtype, p->batch, p->q_heads, p->queries, p->depth, p->bshd);
    if (draw(3)) {
        a->k = tensor(kv_dtype, p->batch, p->kv_heads, p->keys, p->depth, p->bshd);
        a->v = tensor(kv_dtype, p->batch, p->kv_heads, p->keys, p->value_depth, p->bshd);
    } else {
        set_up_pages(p);
    }
    if (size_of(kv_dtype) == 1 && draw(2)) a->k_scale = scales(p, &a->k, p->depth);
    if (size_of(kv_dtype) == 1 && draw(2)) a->v_scale = scales(p, &a->v, p->value_depth);
    a->out = tensor(dtype, p->batch, p->q_heads, p->queries, p->value_depth, p->bshd);
    a->lse = malloc((size_t)(rows_of(p) * 8));
    a->scale = uniform(), a->softcap = draw(3) ? 0 : 1 + 4 * fabs(uniform());
    const int64_t left = (int64_t)draw(120) - 40, right = (int64_t)draw(120) - 40;
    a->causal = draw(2) == 0, a->left = left < 0 ? -1 : left, a->right = right < 0 ? -1 : right;
    set_up_positions(p);
    for (int n = 0; n < 8; ++n) p->sinks[n] = uniform();
    for (int n = 0; n < 16; ++n) p->alibi[n] = uniform() * 0.2;
    a->sinks = draw(3) ? NULL : p->sinks;
    a->alibi = draw(3) ? NULL : p->alibi;
    const fa_dtype mask_dtype = draw(2) ? FA_BOOL : dtype;
    if (!a->block_table && draw(2)) set_up_mask(p, mask_dtype);
}

/* One sequence of p's sizes, whose heads lie together. */
static void set_up_sequence(problem *p, fa_dtype type, fa_dtype kv_type)
{
    fa_args *a = &p->args;
    p->batch = 1, p->bshd = 1, p->unit = 1, p->value_depth = p->depth;
    p->offset[0] = p->keys - p->queries, p->end[0] = p->keys;
    *a = (fa_args){.size = sizeof(fa_args), .dtype = type, .kv_dtype = kv_type, .scale = 0.5};
    a->q_heads = p->q_heads, a->kv_heads = p->kv_heads, a->left = a->right = -1;
    a->queries = p->queries, a->keys = p->keys, a->depth = a->value_depth = p->depth;
    a->q = tensor(type, 1, p->q_heads, p->queries, p->depth, p->bshd);
    a->k = tensor(kv_type, 1, p->kv_heads, p->keys, p->depth, p->bshd);
    a->v = tensor(kv_type, 1, p->kv_heads, p->keys, p->depth, p->bshd);
    a->out = tensor(type, 1, p->q_heads, p->queries, p->depth, p->bshd);
    a->lse = malloc((size_t)rows_of(p) * sizeof(float));
}

static int64_t count_of(const problem *p, const fa_tensor *t)
{
    return t == &p->args.q ? rows_of(p) * p->depth : p->kv_heads * p->keys * p->depth;
}

static void make_tiny(const problem *p, const fa_tensor *t, fa_dtype type)
{
    const uint8_t kept = type == FA_FLOAT8_E4M3 ? 0x87 : 0x83;
    for (int64_t n = 0; n < count_of(p, t); ++n)
        if (type == FA_BFLOAT16) ((uint16_t *)t->data)[n] &= 0x807f;
        else ((uint8_t *)t->data)[n] &= kept;
}

static void make_small(const problem *p, const fa_tensor *t, int power)
{
    uint16_t *words = t->data;
    for (int64_t n = 0; n < count_of(p, t); ++n)
        words[n] = (words[n] >> 7 & 0xff) > power ? words[n] - (power << 7) : words[n] & 0x8000;
}

/* To numbers that are bfloat16 as well. */
static void round_floats(const problem *p, const fa_tensor *t)
{
    float *x = t->data;
    for (int64_t n = 0; n < count_of(p, t); ++n) x[n] = nearbyintf(x[n] * 64) / 64;
}

/* Only denormal numbers; or one that is none, at a key that the first queries may not see. */
static void set_up_fp8(problem *p, int n)
{
    enum { TINY = 1, NO_NUMBER, NUMBERS };
    fa_args *a = &p->args;
    const int is_e4m3 = a->kv_dtype == FA_FLOAT8_E4M3, power = is_e4m3 ? 6 : 14;
    if (n % NUMBERS == TINY) {
        make_tiny(p, &a->k, a->kv_dtype), a->scale = ldexp(a->scale, power);
        make_tiny(p, &a->v, a->kv_dtype), p->unit = ldexp(1, -power - 2);
    } else if (n % NUMBERS == NO_NUMBER) {
        const int64_t key = p->keys - 1 - draw((uint32_t)p->queries - 1);
        if (n % 2) *(uint8_t *)at(&a->k, 0, 0, key, 0) = 0x7f;
        else *(uint8_t *)at(&a->v, 0, 0, key, 0) = is_e4m3 ? 0x7f : 0x7c; /* infinity */
    }
}

/* What integers are for: a great feature of one query, or of all, that no key has, beside which the
 * lowest digits of the others count; or, power 0, great scales of values of zeros, which may not
 * take bits from the others. */
static void set_up_int8(problem *p, int power)
{
    fa_args *a = &p->args;
    const int64_t feature = draw((uint32_t)p->depth), rows = p->kv_heads * p->keys;
    const int64_t one = draw((uint32_t)rows_of(p));
    float *k_scale = a->k_scale.data, *v_scale = a->v_scale.data;
    const int all = (int)draw(2);
    for (int64_t n = 0; n < rows_of(p); ++n)
        if (all || n == one)
            ((uint16_t *)a->q.data)[n * p->depth + feature] = (uint16_t)((127 + power) << 7);
    for (int64_t n = 0; n < rows; ++n) {
        const int great = !power && n / p->kv_heads % 8 == 5;
        ((int8_t *)a->k.data)[n * p->depth + feature] = 0;
        if (great) memset((int8_t *)a->v.data + n * p->depth, 0, (size_t)p->depth);
        k_scale[n] = -fabsf(k_scale[n]);
        v_scale[n] = great ? 0x1p14f : (0x1p-6f + fabsf(v_scale[n])) / 2; /* not far apart */
    }
    if (power) a->scale = -a->scale;
}

/* What a unit for bfloat16 multiplies, in whole tiles and of few rows, by bytes with scales as
 * well: all shapes with all modifiers; and, 6 times of 9, what it must not. Scores are so large
 * that few keys count. One tile has so many keys that threads share them; of two, the windows may
 * begin where what a thread brings at a time ends. Few rows have two heads that lie together, which
 * one thread takes in turns, and several one each. The last keys of 64 rows belong to two short
 * blocks, of which causal tiles that have a thread of their own see one or both. */
static void set_up_tiles(problem *p, int n)
{
    enum {
        TINY_QUERIES = 3,
        TINY_KEYS,
        TINY_PRODUCTS,
        TINY_VALUES,
        INFINITE_KEY,
        INFINITE_VALUE,
        NUMBERS,
        FEW = 5,
        ONE_TILE = 17,
        TWO_TILES = 40
    };
    static const int rows[] = {FEW, ONE_TILE, TWO_TILES, 64}, keys[] = {340, 700, 1088, 340};
    static const int depths[] = {33, 64, 96}, powers[] = {24, 0, 12, 0};
    static const fa_dtype stored[] = {FA_BFLOAT16, FA_INT8, FA_FLOAT8_E4M3, FA_FLOAT8_E5M2};
    const fa_dtype type = FA_BFLOAT16, kv_type = n % 4 ? type : stored[n / 4 % 4];
    const int numbers = kv_type == type ? n % NUMBERS : 0, mask = n / 48 % 3;
    const int heads = rows[n % 4] == FEW ? 2 : 1;
    *p =
        (problem){.q_heads = heads, .kv_heads = heads, .queries = rows[n % 4], .keys = keys[n % 4]};
    if (kv_type != type && draw(2)) p->queries = TWO_TILES;
    p->depth = depths[n / 4 % 3];
    set_up_sequence(p, type, kv_type);
    fa_args *a = &p->args;
    if (kv_type != type) a->k_scale = scales(p, &a->k, p->depth);
    if (kv_type != type) a->v_scale = scales(p, &a->v, p->depth);
    a->scale = numbers == TINY_PRODUCTS                          ? 0x1p126
               : numbers == TINY_QUERIES || numbers == TINY_KEYS ? 0x1p125
                                                                 : 0.5;
    a->causal = n / 12 % 2, a->softcap = n / 24 % 2 ? 5 : 0;
    if (p->queries == TWO_TILES && draw(3)) a->left = 25 + draw(32);
    if (mask) set_up_mask(p, mask == 1 ? FA_BOOL : type);
    const int64_t last = p->keys - 1 - draw(LAST_KEYS);
    if (numbers == TINY_QUERIES) make_tiny(p, &a->q, type);
    if (numbers == TINY_KEYS) make_tiny(p, &a->k, type);
    if (numbers == TINY_PRODUCTS) make_small(p, &a->q, 60), make_small(p, &a->k, 67);
    if (numbers == TINY_VALUES) make_tiny(p, &a->v, type), p->unit = 0x1p-128;
    if (numbers == INFINITE_KEY) put_infinity(a->k.data, type, last * p->depth);
    if (numbers == INFINITE_VALUE) put_infinity(a->v.data, type, last * p->depth);
    if (kv_type == FA_INT8 && n / 16 % 2) set_up_int8(p, powers[n / 32 % 4]);
    if (kv_type == FA_FLOAT8_E4M3 || kv_type == FA_FLOAT8_E5M2) set_up_fp8(p, n / 16);
}

/* What such a unit multiplies in two pieces of bfloat16, or in three, or in one that float32 is
 * rounded to: with bfloat16 nothing is. Two heads of a group; once in a while a key or a value that
 * pieces do not carry. */
static void set_up_pieces(problem *p, int n)
{
    enum { INFINITE_KEY = 4, INFINITE_VALUE, NUMBERS };
    static const fa_precision precisions[] = {FA_HIGHEST, FA_HIGHEST, FA_HIGH, FA_MEDIUM};
    const fa_dtype type = n % 4 ? FA_FLOAT32 : FA_FLOAT16;
    const int numbers = n / 4 % NUMBERS, mask = n / 4 % 3;
    *p = (problem){.q_heads = 2, .kv_heads = 1, .queries = n / 4 % 2 ? 32 : 35};
    p->depth = draw(2) ? 64 : 96;
    p->keys = 33000 / p->depth + draw(100); /* fewer numbers are not worth three pieces */
    set_up_sequence(p, type, type);
    fa_args *a = &p->args;
    a->precision = precisions[n % 4], a->causal = (int)draw(2);
    if (a->precision == FA_MEDIUM)
        round_floats(p, &a->q), round_floats(p, &a->k), round_floats(p, &a->v);
    if (mask) set_up_mask(p, mask == 1 ? FA_BOOL : type);
    const int64_t last = p->keys - 1 - draw(LAST_KEYS);
    if (numbers == INFINITE_KEY) put_infinity(a->k.data, type, last * p->depth);
    if (numbers == INFINITE_VALUE) put_infinity(a->v.data, type, last * p->depth);
}

static void tear_down(problem *p)
{
    void *all[] = {p->args.q.data,    p->args.k.data, p->args.v.data,       p->args.out.data,
                   p->args.mask.data, p->args.lse,    p->args.k_scale.data, p->args.v_scale.data,
                   p->table,          p->expected};
    for (size_t n = 0; n < sizeof all / sizeof *all; ++n) free(all[n]);
}

#endif
