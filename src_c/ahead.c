/* SPDX-License-Identifier: MIT
 * What is asked for long before it is needed, and comes from memory while a thread computes: for
 * each key at hand a later one (sequence.rows_ahead), or one of the next block of all heads that
 * take turns, and where the task has none left, what the thread's next task begins with. Without
 * that its queries would come when they are packed, for which short tasks wait long.
 */
#include <string.h>

#include "numbers.h"
#include "worker.h"

void fa_worker_expect(fa_worker *worker, int64_t next)
{
    worker->next_task = next;
    if (next >= 0)
        worker->next_share = fa_share_of_task(worker->plan, next, &worker->next_sequence);
}

/* Rows of a list that are left to be filled. */
typedef struct {
    const void **rows;
    int64_t count;
} space;

static int64_t next_head(const fa_worker *worker)
{
    return worker->next_share.kv_head + worker->head % worker->next_share.heads;
}

static void expect_queries(const fa_worker *worker, int64_t row, int64_t end, space *with)
{
    const fa_plan *plan = worker->plan;
    const int64_t some = smaller(with->count, end - row);
    if (some <= 0) return;
    fa_point_queries(plan, &worker->next_sequence, &plan->args->q, next_head(worker), row,
                     (int)some, (void **)with->rows);
    with->rows += some, with->count -= some;
}

static void expect_keys(const fa_worker *worker, const fa_tensor *tensor, int64_t begin,
                        space *with)
{
    const fa_plan *plan = worker->plan;
    const fa_sequence *sequence = &worker->next_sequence;
    const int64_t some = smaller(with->count, sequence->positions.end - begin);
    if (some <= 0) return;
    fa_rows source;
    fa_set_rows(&source, plan, tensor, sequence, next_head(worker), 0, plan->kv_storage);
    fa_rows_point(&source, begin, some, with->rows);
    with->rows += some, with->count -= some;
}

/* Queries of all tiles, as many as there is space for, and then keys. */
static void expect_next(const fa_worker *worker, space *k, space *v)
{
    const fa_plan *plan = worker->plan;
    const fa_share *share = &worker->next_share;
    const fa_sequence *sequence = &worker->next_sequence;
    const fa_tile_rows first = fa_tile_at(&sequence->tiling, share->first_tile);
    const fa_tile_rows last =
        share->tiles > 1 ? fa_tile_at(&sequence->tiling, share->first_tile + share->tiles - 1)
                         : first;
    const int64_t row = first.row_begin, end = last.row_begin + last.rows, second = row + k->count;
    int64_t begin = fa_allowed(&sequence->positions, row / plan->group).begin;
    if (plan->split)
        begin = larger(begin, share->first_chunk * sequence->chunk_blocks * sequence->key_block);
    expect_queries(worker, row, end, k);
    expect_queries(worker, second, end, v);
    expect_keys(worker, &plan->args->k, begin, k);
    if (!plan->weights) expect_keys(worker, &plan->args->v, begin, v);
}

/* What a head asks for that takes turns with others: its share of the next block of all of them,
 * key by key. Its own keys are short pieces of memory, a stride apart, and so even a plain loop
 * reads them more slowly than all as they lie (Zen 3). */
static void expect_in_order(const fa_worker *worker, const fa_rows *source, int64_t head_stride,
                            int64_t count, const void **rows)
{
    const int64_t heads = worker->share.heads, begin = worker->head * count;
    int64_t key = worker->key_end + begin / heads, head = begin % heads;
    const char *row = fa_rows_at(source, key);
    for (int64_t n = 0; n < count; ++n, ++head) {
        if (head == heads) head = 0, row = fa_rows_at(source, ++key);
        rows[n] = row + (head - worker->head) * head_stride;
    }
    for (int n = 0; n < FA_KEY_PADDING; ++n) rows[count + n] = row;
}

/* Rows that are copied are copied all at once, so the next ones are asked for all before that. */
void fa_worker_look_ahead(fa_worker *worker, int64_t count, int64_t following)
{
    const void **v_rows = worker->plan->weights ? worker->k_rows : worker->v_rows;
    const int copied = worker->k_copied || worker->v_copied;
    const int64_t ahead = worker->sequence.rows_ahead, distance = copied ? count : ahead;
    const int64_t left = larger(count + following - distance, 0), own = smaller(left, count);
    const int none = left == 0 && worker->next_task < 0; /* any rows, best those at hand */
    if (worker->plan->in_order && worker->share.heads > 1 && !copied && following >= count) {
        const fa_args *args = worker->plan->args;
        expect_in_order(worker, &worker->k, args->k.head, count, worker->k_asks);
        expect_in_order(worker, &worker->v, args->v.head, count, worker->v_asks);
        worker->k_ahead = worker->k_asks;
        worker->v_ahead = worker->v_asks;
        return;
    }
    worker->k_ahead = worker->k_rows + (none ? 0 : distance);
    worker->v_ahead = v_rows + (none ? 0 : distance);
    if (none || (!copied && following >= ahead + FA_KEY_PADDING)) return;
    space k = {worker->k_asks + own, count - own}, v = {worker->v_asks + own, count - own};
    if (copied) {
        fa_rows_point(&worker->k, worker->key_end, own, worker->k_asks);
        if (!worker->plan->weights) fa_rows_point(&worker->v, worker->key_end, own, worker->v_asks);
    } else {
        memcpy(worker->k_asks, worker->k_ahead, (size_t)own * sizeof *k.rows);
        memcpy(worker->v_asks, worker->v_ahead, (size_t)own * sizeof *v.rows);
    }
    if (worker->next_task >= 0) expect_next(worker, &k, &v);
    for (int64_t n = 0; n < k.count + FA_KEY_PADDING; ++n) k.rows[n] = worker->k_rows[0];
    for (int64_t n = 0; n < v.count + FA_KEY_PADDING; ++n) v.rows[n] = v_rows[0];
    worker->k_ahead = worker->k_asks;
    worker->v_ahead = worker->v_asks;
}
