/* SPDX-License-Identifier: MIT
 * Rows of tiles and blocks between memory and kernels: which they are, and copies of those that
 * kernels cannot use where they lie.
 */
#include <math.h>
#include <string.h>

#include "numbers.h"
#include "worker.h"

int64_t fa_query_of(const fa_worker *worker, int64_t row) { return row / worker->plan->group; }

int64_t fa_head_of(const fa_worker *worker, const fa_worker_tile *tile, int64_t row)
{
    return tile->kv_head * worker->plan->group + row % worker->plan->group;
}

void fa_point_queries(const fa_plan *plan, const fa_sequence *sequence, const fa_tensor *tensor,
                      int64_t kv_head, int64_t row_begin, int count, void **rows)
{
    const int64_t group = plan->group;
    fa_rows first;
    fa_set_rows(&first, plan, tensor, sequence, kv_head * group, 0, FA_REAL);
    int64_t head = row_begin % group;
    const int64_t query = row_begin / group;
    char *row = first.base + head * tensor->head + query * tensor->row;
    const int64_t next_query = tensor->row - (group - 1) * tensor->head;
    for (int r = 0; r < count; ++r) {
        rows[r] = row;
        if (++head == group) head = 0, row += next_query;
        else row += tensor->head;
    }
}

void fa_worker_point(const fa_worker *worker, const fa_worker_tile *tile, const fa_tensor *tensor,
                     int count, void **rows)
{
    const int own = (int)smaller(count, tile->rows.rows);
    fa_point_queries(worker->plan, &worker->sequence, tensor, tile->kv_head, tile->rows.row_begin,
                     own, rows);
    for (int r = own; r < count; ++r) rows[r] = rows[r - 1];
}

/* ---- one row ---- */

static void bring_row(const fa_worker *worker, const fa_rows *source, const void *row,
                      const float *scale, char *to)
{
    if (source->columns > 1 && source->column_stride != source->element) {
        fa_rows_gather(source, row, worker->elements);
        row = worker->elements;
    }
    worker->plan->kernels->widen(source->storage, &row, 1, source->columns, scale, to);
}

static void send_row(const fa_worker *worker, const fa_rows *target, const void *from, char *row)
{
    const int contiguous = target->column_stride == target->element;
    const fa_kernels *kernels = worker->plan->kernels;
    kernels->narrow(target->storage, from, target->columns, contiguous ? row : worker->elements);
    if (!contiguous) fa_rows_scatter(target, row, worker->elements);
}

/* ---- queries and outputs ---- */

/* worker->rows = the tile's queries, as they lie, or copied where their elements are apart; how
 * they are stored. */
static fa_storage point_queries(fa_worker *worker, const fa_worker_tile *tile)
{
    const fa_plan *plan = worker->plan;
    const fa_args *args = plan->args;
    fa_worker_point(worker, tile, &args->q, tile->rows.rows, worker->rows);
    if (!plan->q_scattered) return plan->q_storage;
    fa_rows source;
    fa_set_rows(&source, plan, &args->q, &worker->sequence, 0, args->depth, plan->q_storage);
    char *copy = worker->copy;
    for (int r = 0; r < tile->rows.rows; ++r, copy += args->depth * plan->kernels->real_size) {
        bring_row(worker, &source, worker->rows[r], NULL, copy);
        worker->rows[r] = copy;
    }
    return FA_REAL;
}

void fa_worker_pack_rows(fa_worker *worker, fa_worker_tile *tile)
{
    const fa_plan *plan = worker->plan;
    const fa_storage storage = point_queries(worker, tile);
    plan->kernels->pack(&tile->state, storage, (const void *const *)worker->rows, tile->rows.rows,
                        plan->factor);
    tile->packed = 1;
}

void fa_worker_pack_panels(fa_worker *worker, fa_worker_tile *tile)
{
    const fa_plan *plan = worker->plan;
    const fa_matrix *matrix = worker->sequence.matrix;
    fa_tile *state = &tile->state;
    state->q_panels = NULL;
    if (!matrix) return;
    const fa_storage storage = point_queries(worker, tile);
    state->q_panels = tile->q_panels;
    state->factor = plan->factor;
    if (!matrix->pack_queries(state, storage, (const void *const *)worker->rows, tile->rows.rows))
        state->q_panels = NULL;
}

static void write_lse(const fa_worker *worker, const fa_worker_tile *tile)
{
    const fa_args *args = worker->plan->args;
    const fa_sequence *sequence = &worker->sequence;
    const int size = worker->plan->kernels->real_size;
    const int64_t batch = args->cu_q ? 0 : sequence->index;
    for (int r = 0; r < tile->rows.rows; ++r) {
        const int64_t row = tile->rows.row_begin + r;
        const int64_t head = batch * args->q_heads + fa_head_of(worker, tile, row);
        const double m = fa_get(tile->state.m, r, size), l = fa_get(tile->state.l, r, size);
        const double lse = l == 0 ? -INFINITY : (m + log2(l)) / FA_LOG2E;
        const int64_t query = sequence->query_row + fa_query_of(worker, row);
        fa_put(args->lse, head * args->queries + query, lse, size);
    }
}

void fa_worker_write(fa_worker *worker, fa_worker_tile *tile)
{
    const fa_plan *plan = worker->plan;
    const fa_tensor *out = &plan->args->out;
    const int64_t row_bytes = plan->value_depth * plan->kernels->real_size;
    if (plan->args->lse) write_lse(worker, tile);
    if (plan->weights) return;
    fa_worker_point(worker, tile, out, tile->rows.rows, worker->rows);
    if (!plan->out_scattered) {
        plan->kernels->finish(&tile->state, plan->q_storage, worker->rows, tile->rows.rows);
        return;
    }
    void *rows[FA_MAX_WIDTH];
    fa_rows target;
    fa_set_rows(&target, plan, out, &worker->sequence, 0, plan->value_depth, plan->q_storage);
    for (int r = 0; r < tile->rows.rows; ++r) rows[r] = worker->copy + r * row_bytes;
    plan->kernels->finish(&tile->state, FA_REAL, rows, tile->rows.rows);
    for (int r = 0; r < tile->rows.rows; ++r) send_row(worker, &target, rows[r], worker->rows[r]);
}

/* ---- keys and values ---- */

void fa_worker_scales(const fa_rows *source, int64_t first, int count, float *scales)
{
    if (source->table) {
        for (int n = 0; n < count; ++n) scales[n] = *(const float *)fa_rows_at(source, first + n);
        return;
    }
    const char *at = source->base + first * source->row_stride;
    if (source->row_stride == 0) { /* one of a head: a loop of its own that compilers see through */
        const float scale = *(const float *)at;
        for (int n = 0; n < count; ++n) scales[n] = scale;
        return;
    }
    if (source->row_stride == (int64_t)sizeof *scales) {
        memcpy(scales, at, (size_t)count * sizeof *scales);
        return;
    }
    for (int n = 0; n < count; ++n) scales[n] = *(const float *)(at + n * source->row_stride);
}

void fa_worker_bring(fa_worker *worker, const fa_rows *source, int64_t first, int count,
                     int64_t end, const float *scales, char *copy, const void **rows)
{
    const int64_t row_bytes = source->columns * worker->plan->kernels->real_size;
    const int padded = count + FA_ROW_PADDING;
    const int most = count + FA_KEY_PADDING + worker->sequence.rows_ahead;
    const int64_t next = smaller(end - first, most);
    fa_rows_point(source, first, next, rows);
    for (int64_t n = next; n < padded; ++n) rows[n] = rows[n - 1];
    if (!copy) return;
    if (source->column_stride == source->element) {
        worker->plan->kernels->widen(source->storage, rows, count, source->columns, scales, copy);
    } else {
        for (int n = 0; n < count; ++n)
            bring_row(worker, source, rows[n], scales ? scales + n : NULL, copy + n * row_bytes);
    }
    for (int n = 0; n < count; ++n) rows[n] = copy + n * row_bytes;
    for (int n = count; n < padded; ++n) rows[n] = rows[count - 1];
}
