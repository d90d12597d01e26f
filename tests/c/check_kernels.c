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
#include "problems.h"

enum { PROBLEMS = 320, TILES = 144, PIECES = 24, SPOILED_BYTES = 4 * 1024 * 1024 };

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
 * of the value, which are 2^-9 each. Where two pieces are all of float32 that is asked for, 2^-17
 * of a probability are, and of a value; where one is, values are bfloat16, and so are
 * probabilities. */
static double tolerance(const fa_args *a)
{
    static const double of_float32[] = {2e-5, 4 * (2 * 0x1p-17 + 0x1p-16) + 2e-5,
                                        4 * 2 * (0x1p-9 + 1e-4) + 2e-5};
    switch (a->dtype) {
    case FA_FLOAT64: return 2e-13;
    case FA_FLOAT32: return of_float32[a->precision];
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
    const double allowed = tolerance(&p->args);
    p->args.isa = isa;
    if (!compute(p, 1)) return 0;
    for (int64_t n = 0; n < rows_of(p); ++n)
        if (!(row_error(p, n) <= allowed)) return 0;
    return repeats(p, 2 + (int)draw(2));
}

int main(void)
{
    static const fa_dtype kinds[] = {FA_FLOAT32, FA_BFLOAT16, FA_FLOAT64, FA_FLOAT16};
    int passed = 0, failed = 0;
    printf("default: %s\n", fa_isa_default());
    for (int n = 0; n < PROBLEMS + TILES + PIECES; ++n) {
        problem p;
        if (n < PROBLEMS) set_up(&p, kinds[n % 4], n % 8 >= 4);
        else if (n < PROBLEMS + TILES) set_up_tiles(&p, n - PROBLEMS);
        else set_up_pieces(&p, n - PROBLEMS - TILES);
        expect(&p);
        for (int isa = 0; fa_isa_name(isa); ++isa) {
            if (fa_isa_missing(isa)) continue;
            if (check(&p, fa_isa_name(isa))) ++passed;
            else ++failed, printf("problem %d fails on %s\n", n, fa_isa_name(isa));
        }
        tear_down(&p);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || passed < PROBLEMS + TILES + PIECES;
}
