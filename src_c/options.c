/* SPDX-License-Identifier: MIT
 * How the scores of a tile and block differ from scaled products, in the units of the kernels.
 */
#include "numbers.h"
#include "worker.h"

/* Lanes past the last row are like it. */
static void repeat_last(void *array, int rows, int width, int size)
{
    const double last = fa_get(array, rows - 1, size);
    for (int r = rows; r < width; ++r) fa_put(array, r, last, size);
}

/* Key bounds of each row, from the block's first key on. */
static void set_bounds(fa_worker *worker, const fa_worker_tile *tile, int64_t first, int keys)
{
    const fa_positions *positions = &worker->sequence.positions;
    const int64_t group = worker->plan->group;
    const int size = worker->plan->kernels->real_size, rows = tile->rows.rows;
    const int width = tile->rows.vectors * worker->plan->kernels->lanes;
    int64_t query = fa_query_of(worker, tile->rows.row_begin);
    int64_t head = tile->rows.row_begin - query * group;
    fa_range range = fa_allowed(positions, query);
    for (int r = 0; r < rows; ++r) {
        fa_put(worker->begin, r, (double)smaller(larger(range.begin - first, 0), keys), size);
        fa_put(worker->end, r, (double)smaller(larger(range.end - first, 0), keys), size);
        if (r + 1 == rows || ++head < group) continue;
        head = 0;
        range = fa_allowed(positions, ++query);
    }
    repeat_last(worker->begin, rows, width, size);
    repeat_last(worker->end, rows, width, size);
}

static void set_slopes(fa_worker *worker, const fa_worker_tile *tile)
{
    const fa_args *args = worker->plan->args;
    const int size = worker->plan->kernels->real_size;
    const int64_t group = worker->plan->group;
    const double *slopes =
        args->alibi + worker->sequence.index * args->q_heads + fa_head_of(worker, tile, 0);
    int64_t head = tile->rows.row_begin % group;
    for (int r = 0; r < tile->rows.rows; ++r) {
        fa_put(worker->slope, r, fa_held(slopes[head], size) * FA_LOG2E, size);
        if (++head == group) head = 0;
    }
}

static void set_alibi(fa_worker *worker, const fa_worker_tile *tile, int64_t first)
{
    const int64_t group = worker->plan->group, row = tile->rows.row_begin;
    const int size = worker->plan->kernels->real_size, rows = tile->rows.rows;
    const int width = tile->rows.vectors * worker->plan->kernels->lanes;
    int64_t left = group - row % group;
    int64_t position = fa_query_of(worker, row) + worker->sequence.positions.offset - first;
    if (worker->slope_of != tile) {
        set_slopes(worker, tile);
        repeat_last(worker->slope, rows, width, size);
        worker->slope_of = tile;
    }
    for (int r = 0; r < rows; ++r) {
        fa_put(worker->position, r, (double)position, size);
        if (--left == 0) left = group, ++position;
    }
    repeat_last(worker->position, rows, width, size);
}

static void set_mask(fa_worker *worker, const fa_worker_tile *tile, int64_t first)
{
    const fa_tensor *mask = &worker->plan->args->mask;
    const int width = tile->rows.vectors * worker->plan->kernels->lanes;
    if (worker->mask_of != tile) {
        fa_worker_point(worker, tile, mask, width, (void **)worker->mask_rows);
        worker->mask_of = tile;
        worker->mask_first = 0;
    }
    const int64_t step = (first - worker->mask_first) * mask->column;
    for (int r = 0; r < width; ++r) worker->mask_rows[r] += step;
    worker->mask_first = first;
}

static fa_mask_type mask_type(fa_dtype dtype)
{
    switch (dtype) {
    case FA_FLOAT32: return FA_MASK_FLOAT32;
    case FA_FLOAT64: return FA_MASK_FLOAT64;
    case FA_FLOAT16: return FA_MASK_HALF;
    case FA_BFLOAT16: return FA_MASK_BFLOAT;
    default: return FA_MASK_BOOL;
    }
}

const fa_modifiers *fa_worker_modifiers(fa_worker *worker, const fa_worker_tile *tile,
                                        int64_t first, int keys, int masked)
{
    const fa_args *args = worker->plan->args;
    fa_modifiers *modifiers = &worker->modifiers;
    const int bounded = first < tile->span.full_begin || first + keys > tile->span.full_end;
    if (!bounded && !masked && !args->alibi && !(args->softcap > 0)) return NULL;
    *modifiers = (fa_modifiers){.cap = args->softcap};
    if (bounded) {
        set_bounds(worker, tile, first, keys);
        modifiers->begin = worker->begin;
        modifiers->end = worker->end;
    }
    if (args->alibi) {
        set_alibi(worker, tile, first);
        modifiers->slope = worker->slope;
        modifiers->position = worker->position;
    }
    if (masked) {
        set_mask(worker, tile, first);
        modifiers->mask_rows = worker->mask_rows;
        modifiers->mask_stride = args->mask.column;
        modifiers->mask = mask_type(args->mask_dtype);
    }
    return modifiers;
}
