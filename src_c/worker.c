/* SPDX-License-Identifier: MIT */
#include "worker.h"

#include <string.h>

#include "numbers.h"
#include "profile.h"

/* ---- start ---- */

static void own_memory(fa_tile *state, const fa_state_memory *own)
{
    state->o = own->o, state->m = own->m, state->l = own->l;
}

static void place_tile(fa_worker *worker, fa_worker_tile *tile, int64_t kv_head, int64_t index)
{
    const fa_plan *plan = worker->plan;
    const fa_sequence *sequence = &worker->sequence;
    tile->kv_head = kv_head;
    tile->index = index;
    tile->rows = fa_tile_at(&sequence->tiling, index);
    const int64_t row_end = tile->rows.row_begin + tile->rows.rows;
    const int64_t query = fa_query_of(worker, tile->rows.row_begin);
    const int64_t query_end = fa_query_of(worker, row_end - 1) + 1;
    tile->span = fa_span_of(&sequence->positions, query, query_end);
    if (plan->reach)
        fa_span_limit(&tile->span, &sequence->positions, query, query_end,
                      plan->reach[sequence->index * plan->args->kv_heads + kv_head]);
    own_memory(&tile->state, &tile->own[0]);
    for (int n = 0; n < FA_PASTS; ++n) own_memory(&tile->past[n], &tile->own[1 + n]);
    tile->state.vectors = tile->rows.vectors;
    fa_arrange(plan->args, plan->kernels, sequence, &tile->rows, &tile->state);
    tile->packed = 0;
    tile->states = NULL;
    if (plan->map.states)
        tile->states = fa_blockmap_row(&plan->map, sequence->index, kv_head, index);
}

enum { MANY_TILES = 4 }; /* of a task: for so many it pays to copy keys that lie badly */

/* worker->sequence and ->share are set: everything else. */
static void prepare(fa_worker *worker)
{
    const fa_plan *plan = worker->plan;
    const fa_args *args = plan->args;
    const int64_t kv_head = worker->share.kv_head;
    const fa_storage storage = plan->kv_storage;
    const fa_sequence *sequence = &worker->sequence;
    const int scattered = plan->k_scattered || plan->v_scattered;
    const int wide = !sequence->thin && !sequence->matrix;
    const int widened = plan->kv_widened && (wide || scattered);
    const int many = wide && worker->share.tiles >= MANY_TILES;
    worker->k_copied = plan->k_scattered || widened || (many && plan->k_crowded);
    worker->v_copied = plan->v_scattered || widened || (many && plan->v_crowded);
    fa_set_rows(&worker->k, plan, &args->k, sequence, kv_head, args->depth, storage);
    if (args->k_scale.data)
        fa_set_rows(&worker->k_scale, plan, &args->k_scale, sequence, kv_head, 1, FA_REAL);
    if (!plan->weights)
        fa_set_rows(&worker->v, plan, &args->v, sequence, kv_head, args->value_depth, storage);
    if (!plan->weights && args->v_scale.data)
        fa_set_rows(&worker->v_scale, plan, &args->v_scale, sequence, kv_head, 1, FA_REAL);
    worker->head = 0;
    worker->chunk = worker->share.first_chunk;
    worker->tiles = 0;
    worker->mask_of = worker->slope_of = NULL;
    for (int head = 0; head < worker->share.heads; ++head)
        for (int n = 0; n < worker->share.tiles; ++n)
            place_tile(worker, &worker->tile[worker->tiles++], kv_head + head,
                       worker->share.first_tile + n);
}

/* Under a mask blocks are shorter than those of a matrix unit: so many are one of those. */
static int64_t blocks_together(const fa_sequence *sequence)
{
    return sequence->matrix ? sequence->matrix->key_block / sequence->key_block : 1;
}

/* Those of keys [begin, end). A matrix unit gets whole blocks of its own, of which it takes all or
 * nothing: whether it takes one may not depend on what else the task has. */
static void set_blocks(fa_worker *worker, int64_t begin, int64_t end)
{
    const fa_sequence *sequence = &worker->sequence;
    const int64_t key_block = sequence->key_block, together = blocks_together(sequence);
    const int64_t all = divide_up(sequence->positions.end, key_block);
    worker->block_begin = worker->block_end = 0;
    if (begin >= end) return;
    worker->block_begin = begin / key_block / together * together;
    worker->block_end = smaller(round_up(divide_up(end, key_block), together), all);
    if (!worker->plan->split) return;
    const int64_t blocks = sequence->chunk_blocks;
    worker->block_begin = larger(worker->block_begin, worker->share.first_chunk * blocks);
    worker->block_end = smaller(worker->block_end, worker->share.chunk_end * blocks);
}

fa_worker *fa_worker_start(const fa_plan *plan, int64_t task, int64_t next, int thread)
{
    fa_worker *worker = fa_worker_of(plan, thread);
    if (worker->next_task != task) fa_worker_expect(worker, task);
    worker->share = worker->next_share;
    worker->sequence = worker->next_sequence;
    fa_worker_expect(worker, plan->far ? next : -1);
    prepare(worker);
    int64_t begin = INT64_MAX, end = 0;
    for (int n = 0; n < worker->tiles; ++n) {
        fa_worker_tile *tile = &worker->tile[n];
        fa_worker_pack_panels(worker, tile);
        fa_worker_begin(worker, tile);
        if (tile->span.begin >= tile->span.end) continue;
        begin = smaller(tile->span.begin, begin);
        end = larger(tile->span.end, end);
    }
    set_blocks(worker, begin, end);
    if (worker->sequence.matrix) worker->sequence.matrix->enter();
    return worker;
}

void fa_worker_stop(fa_worker *worker)
{
    if (worker->sequence.matrix) worker->sequence.matrix->leave();
}

fa_worker *fa_worker_resume(const fa_plan *plan, int64_t part, int thread)
{
    fa_worker *worker = fa_worker_of(plan, thread);
    worker->share = fa_share_of_part(plan, part, &worker->sequence);
    prepare(worker);
    for (int n = 0; n < worker->tiles; ++n) fa_worker_collect(worker, &worker->tile[n]);
    return worker;
}

/* ---- one block ---- */

enum { IN_PLACE, COPIED }; /* rows of keys */

/* In rows before the first key, which only panels have, stands that key: no query sees them. */
static void bring(fa_worker *worker, int64_t end, int k_copied, int v_copied)
{
    const fa_plan *plan = worker->plan;
    const float *k_scales = plan->args->k_scale.data ? worker->k_scales : NULL;
    const float *v_scales = plan->args->v_scale.data && !plan->weights ? worker->v_scales : NULL;
    const int64_t from = worker->first_key, skipped = from - worker->first_row;
    const int count = (int)(worker->key_end - from);
    if (k_scales) fa_worker_scales(&worker->k_scale, from, count, worker->k_scales + skipped);
    fa_worker_bring(worker, &worker->k, from, count, end, k_scales ? k_scales + skipped : NULL,
                    k_copied ? worker->k_copy : NULL, worker->k_rows + skipped);
    if (v_scales) fa_worker_scales(&worker->v_scale, from, count, worker->v_scales + skipped);
    if (!plan->weights)
        fa_worker_bring(worker, &worker->v, from, count, end, v_scales ? v_scales + skipped : NULL,
                        v_copied ? worker->v_copy : NULL, worker->v_rows + skipped);
    for (int64_t n = 0; n < skipped; ++n) {
        worker->k_rows[n] = worker->k_rows[skipped];
        worker->v_rows[n] = worker->v_rows[skipped];
        if (k_scales) worker->k_scales[n] = k_scales[skipped];
        if (v_scales) worker->v_scales[n] = v_scales[skipped];
    }
    fa_worker_look_ahead(worker, worker->key_end - worker->first_row, end - worker->key_end);
}

enum { LONG_CACHE = 1024 }; /* keys: more of them come from memory, not from the next cache */

/* The keys at hand as panels. */
static void load_panels(fa_worker *worker)
{
    const fa_plan *plan = worker->plan;
    fa_block all = {.k = worker->k_rows, .v = worker->v_rows};
    all.k_ahead = worker->k_ahead, all.v_ahead = worker->v_ahead;
    all.keys = (int)(worker->key_end - worker->first_row);
    all.from_memory = (worker->sequence.positions.end > LONG_CACHE || worker->next_task >= 0) &&
                      !worker->k_copied;
    if (!worker->k_copied) {
        all.storage = plan->kv_storage;
        all.k_scales = plan->args->k_scale.data ? worker->k_scales : NULL;
        all.v_scales = plan->args->v_scale.data ? worker->v_scales : NULL;
    }
    worker->panels = worker->sequence.matrix->pack_keys(&worker->tile[0].state, &all,
                                                        worker->k_panels, worker->v_panels);
}

/* Thin tiles get their rows chunk by chunk: to point at those of each block, and at those ahead of
 * it, takes time that shows where there is one row. But rows that are copied stay in the caches,
 * and heads that take turns do it block by block. */
int64_t fa_worker_load_end(const fa_worker *worker, int64_t block)
{
    const fa_sequence *sequence = &worker->sequence;
    const int copied = worker->k_copied || worker->v_copied;
    const int few = sequence->thin && (copied || worker->share.heads > 1);
    const int64_t blocks = few ? blocks_together(sequence) : sequence->load_blocks;
    return smaller((block / blocks + 1) * blocks, worker->block_end);
}

static void turn_to(fa_worker *worker, int head)
{
    const fa_args *args = worker->plan->args;
    const int64_t step = head - worker->head;
    worker->head = head;
    worker->k.base += step * args->k.head;
    worker->v.base += step * args->v.head;
    if (args->k_scale.data) worker->k_scale.base += step * args->k_scale.head;
    if (args->v_scale.data) worker->v_scale.base += step * args->v_scale.head;
}

/* Only keys that exist for this sequence are touched: rows [first_key, key_end). If a matrix unit
 * cannot take them all, it gets them block by block: so which ones go another way does not depend
 * on what else a task brings. Heads that take turns are brought no more anyway. */
int64_t fa_worker_load(fa_worker *worker, int head, int64_t block, int64_t end)
{
    if (head != worker->head) turn_to(worker, head);
    const fa_positions *positions = &worker->sequence.positions;
    const int64_t key_block = worker->sequence.key_block;
    const int64_t task_end = smaller(worker->block_end * key_block, positions->end);
    worker->first_key = worker->first_row = larger(block * key_block, positions->begin);
    worker->key_end = smaller(end * key_block, positions->end);
    worker->block_used = 0;
    if (worker->sequence.matrix) worker->first_row -= worker->first_row % FA_PANEL_ALIGN;
    bring(worker, task_end, worker->k_copied, worker->v_copied);
    worker->widened =
        !worker->plan->kv_widened || worker->k_copied || worker->sequence.thin; /* as they lie */
    if (!worker->sequence.matrix) return end;
    load_panels(worker);
    const int64_t together = blocks_together(&worker->sequence);
    const int64_t first_end = (block / together + 1) * together;
    if (worker->panels || end <= first_end) return end;
    return fa_worker_load(worker, head, block, first_end);
}

static fa_block_state mask_of(const fa_worker *worker, const fa_worker_tile *tile, int64_t block)
{
    return tile->states ? tile->states[block * worker->plan->map.step] : FA_BLOCK_FULL;
}

/* Keys of blocks [block, end) that a tile needs. */
static fa_range needed(const fa_worker *worker, const fa_worker_tile *tile, int64_t block,
                       int64_t end)
{
    const int64_t key_block = worker->sequence.key_block;
    const int64_t earliest = larger(worker->first_key, block * key_block);
    fa_range range = {larger(tile->span.begin, earliest),
                      smaller(smaller(tile->span.end, worker->key_end), end * key_block)};
    if (range.begin >= range.end || mask_of(worker, tile, block) == FA_BLOCK_SKIP)
        return (fa_range){0, 0};
    if (worker->sequence.matrix) range.begin -= range.begin % FA_PANEL_ALIGN;
    return range;
}

/* With one of its last blocks a tile asks for its rows of the output: stores wait for lines that
 * are not there, one after the other, which is long beside a short sequence. With the others it
 * asks for the queries of the next tile, until they are packed. */
static void expect_rows(fa_worker *worker, const fa_worker_tile *tile, int64_t end, fa_block *part)
{
    const fa_plan *plan = worker->plan;
    const int last = tile->span.end - end < worker->sequence.key_block;
    const fa_worker_tile *of = last ? tile : tile + 1;
    if (!plan->far || plan->split || plan->weights || worker->sequence.thin) return;
    if (!last && (of == worker->tile + worker->tiles || of->packed)) return;
    fa_worker_point(worker, of, last ? &plan->args->out : &plan->args->q, part->keys,
                    worker->soon_rows);
    part->soon = (const void *const *)worker->soon_rows;
    part->soon_element = fa_element_bytes(plan, plan->q_storage);
}

/* Keys that no row of the tile may see add exactly nothing: they may be left out, or in. */
static fa_block block_of(fa_worker *worker, const fa_worker_tile *tile, int64_t block,
                         fa_range range)
{
    const int64_t skipped = range.begin - worker->first_row;
    const int masked = mask_of(worker, tile, block) == FA_BLOCK_PARTIAL;
    fa_block part = {.keys = (int)(range.end - range.begin)};
    part.k = worker->k_rows + skipped;
    part.v = worker->v_rows + skipped;
    part.ahead_element = worker->k.element;
    part.k_ahead = worker->k_ahead + skipped;
    part.v_ahead = worker->v_ahead + skipped;
    const int as_stored = worker->sequence.thin || (worker->sequence.matrix && worker->panels);
    if (worker->plan->kv_widened && !worker->k_copied && as_stored) {
        part.storage = worker->plan->kv_storage;
        if (worker->plan->args->k_scale.data) part.k_scales = worker->k_scales + skipped;
        if (worker->plan->args->v_scale.data) part.v_scales = worker->v_scales + skipped;
    }
    if (worker->sequence.matrix && worker->panels) {
        part.k_panels = worker->k_panels;
        part.v_panels = worker->v_panels;
        part.panel_begin = (int)skipped;
    }
    part.modifiers = fa_worker_modifiers(worker, tile, range.begin, part.keys, masked);
    return part;
}

/* What the matrix unit cannot do with these numbers, the other kernels do. */
static void without_matrix(fa_worker *worker, fa_block *part)
{
    if (!worker->widened) bring(worker, worker->key_end, COPIED, COPIED);
    worker->widened = 1;
    if (worker->sequence.thin) return;
    part->storage = FA_REAL;
    part->k_scales = part->v_scales = NULL;
}

/* Instrumented, the stages of a block one by one; a little slower than all in one. */
static void update(const fa_kernels *kernels, fa_tile *tile, const fa_block *block)
{
#if defined(FA_PROFILE)
    for (int turn = 0; turn <= fa_profile_slow(); ++turn) kernels->scores(tile, block);
    FA_MARK(FA_STAGE_SCORES);
    if (block->modifiers) {
        kernels->modify(tile, block);
        FA_MARK(FA_STAGE_MASK);
    }
    kernels->softmax(tile, block);
    FA_MARK(FA_STAGE_SOFTMAX);
    kernels->output(tile, block);
    FA_MARK(FA_STAGE_OUTPUT);
#else
    kernels->update(tile, block);
#endif
}

static void update_range(fa_worker *worker, fa_worker_tile *tile, int64_t block, fa_range range)
{
    const fa_matrix *matrix = worker->sequence.matrix;
    fa_block part = block_of(worker, tile, block, range);
    part.from_memory = !worker->block_used && !matrix;
    if (!matrix) expect_rows(worker, tile, range.end, &part);
    const int in_panels = matrix && tile->state.q_panels && part.k_panels;
    if (in_panels && matrix->update(&tile->state, &part)) {
        FA_MARK(FA_STAGE_MATRIX);
    } else {
        if (matrix) without_matrix(worker, &part);
        if (!tile->packed) {
            fa_worker_pack_rows(worker, tile);
            FA_MARK(FA_STAGE_PACK);
        }
        update(worker->plan->kernels, &tile->state, &part);
    }
    worker->block_used = 1;
}

/* Of blocks that are one of a matrix unit, those of one kind go together, wherever loads end. */
static int64_t end_of_alike(const fa_worker *worker, const fa_worker_tile *tile, int64_t block,
                            int64_t end)
{
    const int64_t together = blocks_together(&worker->sequence);
    int64_t alike_end = block + 1;
    if (!tile->states) return alike_end;
    end = smaller((block / together + 1) * together, end);
    while (alike_end < end && mask_of(worker, tile, alike_end) == mask_of(worker, tile, block))
        ++alike_end;
    return alike_end;
}

int64_t fa_worker_update(fa_worker *worker, int index, int64_t block, int64_t end)
{
    fa_worker_tile *tile = &worker->tile[worker->head * worker->share.tiles + index];
    const int64_t alike_end = end_of_alike(worker, tile, block, end);
    const fa_range range = needed(worker, tile, block, alike_end);
    if (range.begin < range.end) update_range(worker, tile, block, range);
    return alike_end;
}

/* ---- results ---- */

void fa_worker_finish(fa_worker *worker)
{
    for (int n = 0; n < worker->tiles; ++n) fa_worker_write(worker, &worker->tile[n]);
}

/* The weights of every tile, once m and l are final. Keys of skipped blocks have weight 0. */
void fa_worker_weigh(fa_worker *worker)
{
    const fa_plan *plan = worker->plan;
    const int size = plan->kernels->real_size;
    for (int n = 0; n < worker->tiles; ++n) {
        fa_worker_tile *tile = &worker->tile[n];
        fa_worker_point(worker, tile, &plan->args->out, tile->rows.rows, worker->rows);
        for (int r = 0; r < tile->rows.rows; ++r)
            memset(worker->rows[r], 0, (size_t)(plan->args->keys * size));
        for (int64_t block = worker->block_begin; block < worker->block_end; ++block) {
            void *rows[FA_MAX_WIDTH];
            fa_worker_load(worker, 0, block, block + 1);
            const fa_range range = needed(worker, tile, block, block + 1);
            if (range.begin >= range.end) continue;
            const fa_block part = block_of(worker, tile, block, range);
            for (int r = 0; r < tile->rows.rows; ++r)
                rows[r] = (char *)worker->rows[r] + range.begin * size;
            plan->kernels->weigh(&tile->state, &part, rows, tile->rows.rows);
        }
    }
}
