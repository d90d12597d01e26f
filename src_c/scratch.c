/* SPDX-License-Identifier: MIT
 * The scratch of a thread: one walk over the list both counts and hands out. It is handed out once
 * and then serves all tasks of the thread.
 */
#include "numbers.h"
#include "worker.h"

typedef struct {
    char *memory; /* NULL while counting */
    int64_t bytes;
} arena;

static void *take(arena *from, int64_t bytes)
{
    void *at = from->memory ? from->memory + from->bytes : NULL;
    from->bytes += fa_line(bytes);
    return at;
}

/* What each of the matrices needs. */
static int64_t panel_bytes(const fa_plan *plan, int64_t rows, int64_t depth)
{
    const fa_matrix *wide = plan->matrices.wide, *thin = plan->matrices.thin;
    const int64_t bytes = wide ? wide->panel_bytes(rows, depth) : 0;
    return larger(bytes, thin ? thin->panel_bytes(rows, depth) : 0);
}

static void take_tile(fa_worker_tile *tile, const fa_plan *plan, arena *from, const fa_tile *shared)
{
    const fa_kernels *kernels = plan->kernels;
    const int64_t size = kernels->real_size;
    const int64_t width = (int64_t)kernels->max_vectors * kernels->lanes;
    const int64_t depth = plan->args->depth, value_depth = plan->value_depth;
    tile->state = *shared;
    tile->state.q = take(from, round_up(depth, kernels->lanes) * width * size);
    for (int n = 0; n < FA_PASTS; ++n) tile->past[n] = tile->state;
    tile->q_panels = take(from, panel_bytes(plan, width, depth));
    for (int n = 0; n < 1 + FA_PASTS; ++n) {
        tile->own[n].o = take(from, round_up(value_depth, kernels->lanes) * width * size);
        tile->own[n].m = take(from, width * size);
        tile->own[n].l = take(from, width * size);
    }
}

static void take_all(fa_worker *worker, const fa_plan *plan, arena *from)
{
    const fa_kernels *kernels = plan->kernels;
    const int64_t size = kernels->real_size;
    const int64_t width = (int64_t)kernels->max_vectors * kernels->lanes;
    const fa_matrix *const both[] = {plan->matrices.wide, plan->matrices.thin};
    int64_t block = kernels->key_block, packed = 0;
    for (int n = 0; n < 2; ++n) {
        if (!both[n]) continue;
        block = larger(both[n]->key_block, block);
        packed = larger(both[n]->load_keys, packed);
    }
    packed = larger(block, packed); /* or copied at a time */
    const int64_t keys = larger(packed, FA_CHUNK_KEYS) + FA_MOST_AHEAD + FA_KEY_PADDING;
    const int64_t depth = plan->args->depth, value_depth = plan->value_depth;
    const int64_t deepest = larger(depth, value_depth);
    fa_tile shared = {.depth = depth, .value_depth = value_depth};
    shared.s = take(from, (block + FA_KEY_PADDING) * width * size);
    shared.p = take(from, panel_bytes(plan, block, width));
    shared.spare = take(from, round_up(value_depth, 4 * kernels->lanes) * kernels->lanes * size);
    const int64_t tiles = larger(plan->tiles, plan->heads * plan->thin_tiles);
    for (int64_t tile = 0; tile < tiles; ++tile)
        take_tile(&worker->tile[tile], plan, from, &shared);
    worker->k_panels = take(from, panel_bytes(plan, packed, depth));
    worker->v_panels = take(from, panel_bytes(plan, packed, value_depth));
    worker->k_rows = take(from, keys * (int64_t)sizeof(void *));
    worker->v_rows = take(from, keys * (int64_t)sizeof(void *));
    worker->k_asks = take(from, keys * (int64_t)sizeof(void *));
    worker->v_asks = take(from, keys * (int64_t)sizeof(void *));
    worker->soon_rows = take(from, keys * (int64_t)sizeof(void *));
    worker->mask_rows = take(from, width * (int64_t)sizeof(void *));
    worker->rows = take(from, width * (int64_t)sizeof(void *));
    worker->begin = take(from, width * size);
    worker->end = take(from, width * size);
    worker->slope = take(from, width * size);
    worker->position = take(from, width * size);
    worker->sinks = take(from, width * size);
    worker->k_scales = take(from, keys * (int64_t)sizeof(float));
    worker->v_scales = take(from, keys * (int64_t)sizeof(float));
    worker->k_copy = worker->v_copy = NULL;
    if (plan->kv_widened || plan->k_scattered || plan->k_crowded)
        worker->k_copy = take(from, packed * depth * size);
    if (plan->kv_widened || plan->v_scattered || plan->v_crowded)
        worker->v_copy = take(from, packed * value_depth * size);
    worker->copy = worker->elements = NULL;
    if (plan->q_scattered || plan->out_scattered) worker->copy = take(from, width * deepest * size);
    if (plan->q_scattered || plan->k_scattered || plan->v_scattered || plan->out_scattered)
        worker->elements = take(from, deepest * size);
}

int64_t fa_scratch_bytes(const fa_plan *plan)
{
    fa_worker worker;
    arena counter = {NULL, fa_line(sizeof worker)};
    take_all(&worker, plan, &counter);
    return counter.bytes;
}

static fa_worker *worker_at(const fa_plan *plan, int thread)
{
    return (fa_worker *)(plan->scratch + thread * plan->thread_bytes);
}

void fa_workers_reset(const fa_plan *plan)
{
    for (int thread = 0; thread < plan->threads; ++thread) worker_at(plan, thread)->plan = NULL;
}

fa_worker *fa_worker_of(const fa_plan *plan, int thread)
{
    fa_worker *worker = worker_at(plan, thread);
    if (worker->plan) return worker;
    arena scratch = {(char *)worker, fa_line(sizeof *worker)};
    worker->plan = plan;
    worker->next_task = -1;
    take_all(worker, plan, &scratch);
    return worker;
}
