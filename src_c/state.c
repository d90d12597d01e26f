/* SPDX-License-Identifier: MIT
 * Chunks of keys: states that are begun, merged, kept and resumed. An era is a left fold of its
 * chunks, and all is one of its eras, so that it makes no difference who computed them.
 */
#include "worker.h"

#include <math.h>
#include <string.h>

#include "numbers.h"

/* A kept state: whether any key was seen, m, l, o. */
typedef struct {
    int64_t fresh, m, l, o, bytes;
} layout;

static layout layout_of(const fa_plan *plan, const fa_sequence *sequence)
{
    const fa_kernels *kernels = plan->kernels;
    const int64_t lanes = kernels->lanes, size = kernels->real_size;
    const int64_t rows = round_up(sequence->tiling.rows, lanes);
    const int64_t width = smaller(rows, kernels->max_vectors * lanes);
    const int64_t padded = round_up(plan->value_depth, lanes);
    layout at = {.fresh = 0, .m = FA_LINE};
    at.l = at.m + fa_line(width * size);
    at.o = at.l + fa_line(width * size);
    at.bytes = at.o;
    const fa_tile_rows thin = {.rows = sequence->thin};
    fa_tile tile;
    fa_arrange(plan->args, kernels, sequence, &thin, &tile);
    const int64_t own = sequence->thin && !sequence->matrix ? tile.thin : width;
    at.bytes += fa_line(own * padded * size);
    return at;
}

int64_t fa_state_bytes(const fa_plan *plan, const fa_sequence *sequence)
{
    return layout_of(plan, sequence).bytes;
}

/* Point a tile's state to where it is kept. */
static void attach(fa_worker *worker, const fa_worker_tile *tile, int64_t chunk, fa_tile *state)
{
    const fa_plan *plan = worker->plan;
    const layout at = layout_of(plan, &worker->sequence);
    char *memory = fa_state_at(plan, worker->share.entry, &worker->sequence, tile->kv_head,
                               tile->index, chunk);
    state->m = memory + at.m;
    state->l = memory + at.l;
    state->o = memory + at.o;
    memcpy(&state->fresh, memory + at.fresh, sizeof state->fresh);
}

/* What of a state that was pointed there is not there yet. */
static void keep(const fa_tile *state)
{
    char *memory = (char *)state->m - FA_LINE; /* as layout_of has it */
    memcpy(memory, &state->fresh, sizeof state->fresh);
}

static void set_sinks(fa_worker *worker, const fa_worker_tile *tile)
{
    const fa_plan *plan = worker->plan;
    const int width = tile->rows.vectors * plan->kernels->lanes, size = plan->kernels->real_size;
    for (int r = 0; r < width; ++r) {
        const int row = r < tile->rows.rows ? r : tile->rows.rows - 1;
        const double sink = plan->args->sinks[fa_head_of(worker, tile, tile->rows.row_begin + row)];
        fa_put(worker->sinks, r, isinf(sink) ? sink : fa_held(sink, size) * FA_LOG2E, size);
    }
}

/* The first chunk, and nothing before it. */
static void begin_chunks(const fa_worker *worker, fa_worker_tile *tile)
{
    const int64_t chunk_keys = (int64_t)worker->sequence.chunk_blocks * worker->sequence.key_block;
    tile->first_chunk = tile->span.begin < tile->span.end ? tile->span.begin / chunk_keys : 0;
    memset(tile->has_past, 0, sizeof tile->has_past);
}

/* A sink counts once: in the first chunk that the tile's queries see, or, if they see none, in the
 * first one that there is. */
void fa_worker_begin(fa_worker *worker, fa_worker_tile *tile)
{
    const fa_plan *plan = worker->plan;
    begin_chunks(worker, tile);
    const void *sinks = plan->args->sinks ? worker->sinks : NULL;
    if (sinks) set_sinks(worker, tile);
    if (!plan->split) {
        plan->kernels->begin(&tile->state, sinks);
        return;
    }
    /* All of the task's chunks, should there be no block in them; the first one in the end. */
    for (int64_t chunk = worker->share.chunk_end; chunk-- > worker->share.first_chunk;) {
        attach(worker, tile, chunk, &tile->state);
        plan->kernels->begin(&tile->state, chunk == tile->first_chunk ? sinks : NULL);
        keep(&tile->state);
    }
}

/* `from` is merged into a past, or becomes it. */
static void put(const fa_kernels *kernels, fa_tile *from, fa_tile *past, int *has_past)
{
    if (!*has_past) {
        const fa_tile empty = *past;
        *past = *from;
        from->m = empty.m, from->l = empty.l, from->o = empty.o;
        *has_past = 1;
    } else if (!from->fresh) {
        kernels->merge(past, from);
    }
}

/* The state is that of chunk `done`; `next` comes then. */
static void put_past(const fa_kernels *kernels, fa_worker_tile *tile, int64_t done, int64_t next)
{
    put(kernels, &tile->state, &tile->past[0], &tile->has_past[0]);
    if (done / FA_ERA_CHUNKS == next / FA_ERA_CHUNKS) return;
    put(kernels, &tile->past[0], &tile->past[1], &tile->has_past[1]);
    tile->has_past[0] = 0;
}

static void fold(const fa_kernels *kernels, fa_worker_tile *tile)
{
    for (int n = 0; n < FA_PASTS; ++n) {
        if (!tile->has_past[n]) continue;
        put(kernels, &tile->state, &tile->past[n], &tile->has_past[n]);
        tile->state = tile->past[n];
    }
}

void fa_worker_next_chunk(fa_worker *worker, int64_t chunk)
{
    const int64_t done = worker->chunk;
    worker->chunk = chunk;
    for (int n = 0; n < worker->tiles; ++n) {
        fa_worker_tile *tile = &worker->tile[n];
        if (worker->plan->split) {
            keep(&tile->state);
            attach(worker, tile, chunk, &tile->state);
            continue;
        }
        if (chunk <= tile->first_chunk) continue;
        put_past(worker->plan->kernels, tile, done, chunk);
        worker->plan->kernels->begin(&tile->state, NULL);
    }
}

void fa_worker_fold(fa_worker *worker)
{
    for (int n = 0; n < worker->tiles; ++n) fold(worker->plan->kernels, &worker->tile[n]);
}

void fa_worker_keep(fa_worker *worker)
{
    for (int n = 0; n < worker->tiles; ++n) keep(&worker->tile[n].state);
}

void fa_worker_collect(fa_worker *worker, fa_worker_tile *tile)
{
    const fa_kernels *kernels = worker->plan->kernels;
    begin_chunks(worker, tile);
    attach(worker, tile, tile->first_chunk, &tile->state);
    for (int64_t chunk = tile->first_chunk + 1; chunk < worker->sequence.chunks; ++chunk) {
        put_past(kernels, tile, chunk - 1, chunk);
        attach(worker, tile, chunk, &tile->state);
    }
    fold(kernels, tile);
}
