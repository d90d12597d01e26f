/* SPDX-License-Identifier: MIT
 * The C library alone, on every instruction set that runs here, against a plain float64 loop.
 * For machines that only an emulator has: no Python, no NumPy. Prints "N passed, N failed".
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "fastattn.h"
#include "tensors.h"

enum {
    PROBLEMS = 320,
    MAX = 140,
    MAX_LONG = 1300,
    TILES = 144,
    LAST_KEYS = 64,
    MASKED_KEYS = 350,
    SPOILED_BYTES = 4 * 1024 * 1024
};

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

/* An element of k or v, through the pages if there are any. */
static double key_at(const problem *p, const fa_tensor *t, int64_t batch, int64_t head, int64_t j,
                     int64_t column)
{
    const fa_args *a = &p->args;
    const fa_tensor *scale = t == &a->k ? &a->k_scale : &a->v_scale;
    if (a->block_table) { /* where a page is a batch */
        batch = a->block_table[batch * a->table_width + j / a->page_keys];
        j %= a->page_keys;
    }
    const double stored = get(at(t, batch, head, j, column), a->kv_dtype, 0);
    return scale->data ? stored * get(at(scale, batch, head, j, 0), FA_FLOAT32, 0) : stored;
}

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
    for (int b = 0; b < 2; ++b) {
        p->begin[b] = draw(3) ? 0 : draw((uint32_t)p->keys + 1);
        p->end[b] = draw(3) ? p->keys : draw((uint32_t)p->keys + 1);
        p->offset[b] = (int64_t)draw(80) - 40;
    }
    a->kv_begin = p->begin, a->kv_end = p->end, a->q_offset = p->offset;
    for (int n = 0; n < 8; ++n) p->sinks[n] = uniform();
    for (int n = 0; n < 16; ++n) p->alibi[n] = uniform() * 0.2;
    a->sinks = draw(3) ? NULL : p->sinks;
    a->alibi = draw(3) ? NULL : p->alibi;
    const fa_dtype mask_dtype = draw(2) ? FA_BOOL : dtype;
    if (!a->block_table && draw(2)) set_up_mask(p, mask_dtype);
}

static void make_tiny(const fa_tensor *t, int64_t count)
{
    for (int64_t n = 0; n < count; ++n) ((uint16_t *)t->data)[n] &= 0x807f;
}

static void make_small(const fa_tensor *t, int64_t count, int power)
{
    uint16_t *words = t->data;
    for (int64_t n = 0; n < count; ++n)
        words[n] = (words[n] >> 7 & 0xff) > power ? words[n] - (power << 7) : words[n] & 0x8000;
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
    static const int depths[] = {33, 64, 96};
    static const fa_dtype stored[] = {FA_BFLOAT16, FA_INT8, FA_FLOAT8_E4M3, FA_FLOAT8_E5M2};
    const fa_dtype type = FA_BFLOAT16, kv_type = n % 4 ? type : stored[n / 4 % 4];
    const int numbers = kv_type == type ? n % NUMBERS : 0, mask = n / 48 % 3;
    const int heads = rows[n % 4] == FEW ? 2 : 1;
    *p = (problem){.batch = 1, .q_heads = heads, .kv_heads = heads, .bshd = 1, .unit = 1};
    p->queries = rows[n % 4], p->depth = p->value_depth = depths[n / 4 % 3];
    p->keys = keys[n % 4];
    p->offset[0] = p->keys - p->queries, p->end[0] = p->keys;
    fa_args *a = &p->args;
    *a = (fa_args){.size = sizeof(fa_args), .dtype = type, .kv_dtype = kv_type};
    a->q_heads = a->kv_heads = heads, a->left = a->right = -1;
    a->queries = p->queries, a->keys = p->keys, a->depth = a->value_depth = p->depth;
    a->q = tensor(type, 1, heads, p->queries, p->depth, p->bshd);
    a->k = tensor(kv_type, 1, heads, p->keys, p->depth, p->bshd);
    a->v = tensor(kv_type, 1, heads, p->keys, p->depth, p->bshd);
    if (kv_type != type) a->k_scale = scales(p, &a->k, p->depth);
    if (kv_type != type) a->v_scale = scales(p, &a->v, p->depth);
    a->out = tensor(type, 1, heads, p->queries, p->depth, p->bshd);
    a->lse = malloc((size_t)rows_of(p) * sizeof(float));
    a->scale = numbers == TINY_PRODUCTS                          ? 0x1p126
               : numbers == TINY_QUERIES || numbers == TINY_KEYS ? 0x1p125
                                                                 : 0.5;
    a->causal = n / 12 % 2, a->softcap = n / 24 % 2 ? 5 : 0;
    if (p->queries == TWO_TILES && draw(3)) a->left = 25 + draw(32);
    if (mask) set_up_mask(p, mask == 1 ? FA_BOOL : type);
    const int64_t last = p->keys - 1 - draw(LAST_KEYS);
    const int64_t q_count = heads * p->queries * p->depth, k_count = heads * p->keys * p->depth;
    if (numbers == TINY_QUERIES) make_tiny(&a->q, q_count);
    if (numbers == TINY_KEYS) make_tiny(&a->k, k_count);
    if (numbers == TINY_PRODUCTS) make_small(&a->q, q_count, 60), make_small(&a->k, k_count, 67);
    if (numbers == TINY_VALUES) make_tiny(&a->v, k_count), p->unit = 0x1p-128;
    if (numbers == INFINITE_KEY) put_infinity(a->k.data, type, last * p->depth);
    if (numbers == INFINITE_VALUE) put_infinity(a->v.data, type, last * p->depth);
}

/* The score of one pair, or -inf. */
static double score(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const fa_args *a = &p->args;
    const int64_t position = i + p->offset[b], kv_head = h / (p->q_heads / p->kv_heads);
    double s = 0;
    if (j < p->begin[b] || j >= p->end[b] || (a->causal && j > position)) return -INFINITY;
    if (a->left >= 0 && j < position - a->left) return -INFINITY;
    if (a->right >= 0 && j > position + a->right) return -INFINITY;
    for (int64_t d = 0; d < p->depth; ++d)
        s += get(at(&a->q, b, h, i, d), a->dtype, 0) * key_at(p, &a->k, b, kv_head, j, d);
    s *= a->scale;
    if (a->softcap > 0) s = a->softcap * tanh(s / a->softcap);
    if (a->alibi) s -= a->alibi[b * p->q_heads + h] * fabs((double)(position - j));
    if (!a->mask.data) return s;
    const char *mask = at(&a->mask, b, h, i, j);
    if (a->mask_dtype == FA_BOOL) return *mask ? s : -INFINITY;
    const double added = get(mask, a->dtype, 0);
    return added == -INFINITY ? added : s + added;
}

/* Where the n-th row's own is: what it should be, and its lse behind it. */
static double *expected_of(const problem *p, int64_t n)
{
    return p->expected + n * (p->value_depth + 1);
}

static void expect_row(const problem *p, int64_t n)
{
    const fa_args *a = &p->args;
    const int64_t b = batch_of(p, n), h = head_of(p, n), i = n % p->queries;
    double *expected = expected_of(p, n);
    const int64_t kv_head = h / (p->q_heads / p->kv_heads);
    double weights[MAX_LONG], sum = a->sinks ? exp(a->sinks[h]) : 0;
    for (int64_t j = 0; j < p->keys; ++j) sum += weights[j] = exp(score(p, b, h, i, j));
    for (int64_t d = 0; d < p->value_depth; ++d) {
        expected[d] = 0;
        for (int64_t j = 0; j < p->keys; ++j)
            if (weights[j] != 0) expected[d] += weights[j] * key_at(p, &a->v, b, kv_head, j, d);
        if (sum > 0) expected[d] /= sum;
    }
    expected[p->value_depth] = isinf(sum) ? NAN : log(sum); /* infinity less the maximum */
}

static void expect(problem *p)
{
    p->expected = malloc((size_t)(rows_of(p) * (p->value_depth + 1)) * sizeof(double));
    for (int64_t n = 0; n < rows_of(p); ++n) expect_row(p, n);
}

static double apart(double x, double y) { return x == y || (x != x && y != y) ? 0 : fabs(x - y); }

/* Largest error of a row, lse included. */
static double row_error(const problem *p, int64_t n)
{
    const fa_args *a = &p->args;
    const fa_dtype real = a->dtype == FA_FLOAT64 ? FA_FLOAT64 : FA_FLOAT32;
    const int64_t b = batch_of(p, n), h = head_of(p, n), i = n % p->queries;
    const double *expected = expected_of(p, n);
    double worst = apart(get(a->lse, real, n), expected[p->value_depth]) / 10;
    for (int64_t d = 0; d < p->value_depth; ++d) {
        const double error =
            apart(get(at(&a->out, b, h, i, d), a->dtype, 0), expected[d]) / p->unit;
        worst = error > worst || error != error ? error : worst;
    }
    return worst;
}

/* Of averages of values below 4. 16 bits are rounded once at the end. Where bfloat16 are multiplied
 * as such, so are probabilities, from a polynomial with an error of 1e-4, and their sum. Where
 * float16 are, in two pieces, 2^-18 of a probability are left out, and its smaller piece times that
 * of the value, which are 2^-9 each. */
static double tolerance(fa_dtype dtype)
{
    switch (dtype) {
    case FA_FLOAT64: return 2e-13;
    case FA_FLOAT32: return 2e-5;
    case FA_FLOAT16: return 4 * (0x1p-12 + 2 * 0x1p-18) + 2e-5;
    default: return 4 * (0x1p-9 + 2 * (0x1p-9 + 1e-4)) + 2e-5;
    }
}

static size_t out_bytes(const problem *p)
{
    return (size_t)(rows_of(p) * p->value_depth * size_of(p->args.dtype));
}

static size_t lse_bytes(const problem *p)
{
    return (size_t)(rows_of(p) * (p->args.dtype == FA_FLOAT64 ? 8 : 4));
}

/* What is allocated next will mostly lie where this did, and holds NaN until it is written. */
static void spoil_memory(void)
{
    static void *(*volatile fill)(void *, int, size_t) = memset; /* or it is left out */
    void *memory = malloc(SPOILED_BYTES);
    if (memory) fill(memory, 0xff, SPOILED_BYTES);
    free(memory);
}

/* Where nothing is written, no number stays. */
static int compute(problem *p, int threads)
{
    spoil_memory();
    memset(p->args.out.data, 0xff, out_bytes(p));
    memset(p->args.lse, 0xff, lse_bytes(p));
    p->args.threads = threads;
    const uint64_t control = set_control(ODD_CONTROL);
    const fa_status status = fa_attention(&p->args);
    return (set_control(control) & ODD_CONTROL) == ODD_CONTROL && status == FA_OK;
}

/* Whether some threads, which may share one row's keys, find what is there, to the bit. */
static int repeats(problem *p, int threads)
{
    const fa_args *a = &p->args;
    const size_t numbers = out_bytes(p), sums = lse_bytes(p);
    char *before = malloc(numbers + sums);
    memcpy(before, a->out.data, numbers);
    memcpy(before + numbers, a->lse, sums);
    const int same = compute(p, threads) && !memcmp(before, a->out.data, numbers) &&
                     !memcmp(before + numbers, a->lse, sums);
    free(before);
    return same;
}

static int check(problem *p, const char *isa)
{
    const double allowed = tolerance(p->args.dtype);
    p->args.isa = isa;
    if (!compute(p, 1)) return 0;
    for (int64_t n = 0; n < rows_of(p); ++n)
        if (!(row_error(p, n) <= allowed)) return 0;
    return repeats(p, 2 + (int)draw(2));
}

static void tear_down(problem *p)
{
    void *all[] = {p->args.q.data,    p->args.k.data, p->args.v.data,       p->args.out.data,
                   p->args.mask.data, p->args.lse,    p->args.k_scale.data, p->args.v_scale.data,
                   p->table,          p->expected};
    for (size_t n = 0; n < sizeof all / sizeof *all; ++n) free(all[n]);
}

int main(void)
{
    static const fa_dtype kinds[] = {FA_FLOAT32, FA_BFLOAT16, FA_FLOAT64, FA_FLOAT16};
    int passed = 0, failed = 0;
    printf("default: %s\n", fa_isa_default());
    for (int n = 0; n < PROBLEMS + TILES; ++n) {
        problem p;
        if (n < PROBLEMS) set_up(&p, kinds[n % 4], n % 8 >= 4);
        else set_up_tiles(&p, n - PROBLEMS);
        expect(&p);
        for (int isa = 0; fa_isa_name(isa); ++isa) {
            if (fa_isa_missing(isa)) continue;
            if (check(&p, fa_isa_name(isa))) ++passed;
            else ++failed, printf("problem %d fails on %s\n", n, fa_isa_name(isa));
        }
        tear_down(&p);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || passed < PROBLEMS + TILES;
}
