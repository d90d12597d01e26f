/* SPDX-License-Identifier: MIT */
#include "worker.h"

#include <math.h>
#include <string.h>

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- scratch: one walk over the list both counts and hands out ---- */

typedef struct {
    char *memory; /* NULL while counting */
    int64_t bytes;
} arena;

static void *take(arena *from, int64_t bytes)
{
    void *at = from->memory ? from->memory + from->bytes : NULL;
    from->bytes += (bytes + FA_LINE - 1) / FA_LINE * FA_LINE;
    return at;
}

static void take_all(fa_worker *worker, const fa_plan *plan, arena *from)
{
    const fa_kernels *kernels = plan->kernels;
    const int64_t size = kernels->real_size, keys = plan->key_block + FA_KEY_PADDING;
    const int64_t width = (int64_t)kernels->max_vectors * kernels->lanes;
    const int64_t depth = plan->args->depth, value_depth = plan->value_depth;
    const int64_t deepest = depth > value_depth ? depth : value_depth;
    void *s = take(from, keys * width * size);
    for (int tile = 0; tile < plan->tiles; ++tile) {
        fa_tile *state = &worker->tile[tile].state;
        *state = (fa_tile){.depth = depth, .value_depth = value_depth, .s = s};
        state->q = take(from, depth * width * size);
        state->o = take(from, value_depth * width * size);
        state->m = take(from, width * size);
        state->l = take(from, width * size);
    }
    worker->k_rows = take(from, keys * (int64_t)sizeof(void *));
    worker->v_rows = take(from, keys * (int64_t)sizeof(void *));
    worker->mask_rows = take(from, width * (int64_t)sizeof(void *));
    worker->rows = take(from, width * (int64_t)sizeof(void *));
    worker->begin = take(from, width * size);
    worker->end = take(from, width * size);
    worker->slope = take(from, width * size);
    worker->position = take(from, width * size);
    worker->sinks = take(from, width * size);
    worker->k_copy = plan->k_scattered ? take(from, keys * depth * size) : NULL;
    worker->v_copy = plan->v_scattered ? take(from, keys * value_depth * size) : NULL;
    worker->copy = NULL;
    if (plan->q_scattered || plan->out_scattered) worker->copy = take(from, width * deepest * size);
}

int64_t fa_scratch_bytes(const fa_plan *plan)
{
    fa_worker worker;
    arena counter = {NULL, 0};
    take_all(&worker, plan, &counter);
    return counter.bytes;
}

/* ---- rows of a tile ---- */

static int64_t query_of(const fa_worker *worker, int64_t row) { return row / worker->plan->group; }

static int64_t head_of(const fa_worker *worker, int64_t row)
{
    return worker->kv_head * worker->plan->group + row % worker->plan->group;
}

static void put(void *array, int64_t index, double value, int real_size)
{
    if (real_size == (int)sizeof(float)) ((float *)array)[index] = (float)value;
    else ((double *)array)[index] = value;
}

static double get(const void *array, int64_t index, int real_size)
{
    if (real_size == (int)sizeof(float)) return ((const float *)array)[index];
    return ((const double *)array)[index];
}

/* The addresses of the tile's rows in a tensor, `count` of them; past the last row, that row. */
static void point_rows(const fa_worker *worker, const fa_worker_tile *tile, const fa_tensor *tensor,
                       int count, void **rows)
{
    const int64_t group = worker->plan->group;
    const fa_rows first =
        fa_rows_of(worker->plan, tensor, worker->batch, worker->kv_head * group, 0);
    int64_t head = tile->rows.row_begin % group, query = tile->rows.row_begin / group;
    for (int r = 0; r < count; ++r) {
        if (r >= tile->rows.rows) {
            rows[r] = rows[r - 1];
            continue;
        }
        rows[r] = first.base + head * tensor->head + query * tensor->row;
        if (++head == group) head = 0, ++query;
    }
}

/* Rows that kernels cannot reach go through worker->copy: q on the way in, out on the way out. */
static void copy_rows(fa_worker *worker, const fa_worker_tile *tile, const fa_tensor *tensor,
                      int64_t columns, int in)
{
    const int size = worker->plan->kernels->real_size;
    for (int r = 0; r < tile->rows.rows; ++r) {
        const fa_rows row = {worker->rows[r], 0, tensor->column, columns, size};
        char *copy = worker->copy + r * columns * size;
        if (in) {
            fa_rows_read(&row, 0, copy);
            worker->rows[r] = copy;
        } else {
            fa_rows_write(&row, 0, copy);
        }
    }
}

static void pack_tile(fa_worker *worker, fa_worker_tile *tile)
{
    const fa_plan *plan = worker->plan;
    const fa_args *args = plan->args;
    const fa_kernels *kernels = plan->kernels;
    const double factor = args->softcap > 0 ? args->scale / args->softcap : args->scale * FA_LOG2E;
    const int width = tile->rows.vectors * kernels->lanes;
    tile->state.vectors = tile->rows.vectors;
    point_rows(worker, tile, &args->q, tile->rows.rows, worker->rows);
    if (plan->q_scattered) copy_rows(worker, tile, &args->q, args->depth, 1);
    for (int r = 0; args->sinks && r < width; ++r) {
        const int row = r < tile->rows.rows ? r : tile->rows.rows - 1;
        const double sink = args->sinks[head_of(worker, tile->rows.row_begin + row)];
        put(worker->sinks, r, sink * FA_LOG2E, kernels->real_size);
    }
    kernels->pack(&tile->state, (const void *const *)worker->rows, tile->rows.rows, factor,
                  args->sinks ? worker->sinks : NULL);
}

static void place_tile(fa_worker *worker, fa_worker_tile *tile, int64_t index)
{
    const fa_plan *plan = worker->plan;
    tile->rows = fa_tile_at(&plan->tiling, index);
    const int64_t row_end = tile->rows.row_begin + tile->rows.rows;
    tile->span = fa_span_of(&worker->positions, query_of(worker, tile->rows.row_begin),
                            query_of(worker, row_end - 1) + 1);
    tile->states = NULL;
    if (plan->map.states)
        tile->states = fa_blockmap_row(&plan->map, worker->batch, worker->kv_head, index);
}

/* Order of the tasks: head by head, so that K and V stay in the cache; the last rows of a head
 * first, which see most keys under a causal mask: the longest tasks must not come last. */
void fa_worker_start(fa_worker *worker, const fa_plan *plan, int64_t task, int thread)
{
    const fa_args *args = plan->args;
    const int64_t head = task / plan->head_tasks;
    const int64_t first = (plan->head_tasks - 1 - task % plan->head_tasks) * plan->tiles;
    const int64_t left = plan->tiling.tiles - first, key_block = plan->key_block;
    const uintptr_t memory = (uintptr_t)plan->memory + FA_LINE - 1;
    arena scratch = {(char *)(memory - memory % FA_LINE) + thread * plan->thread_bytes, 0};
    worker->plan = plan;
    worker->batch = head / args->kv_heads;
    worker->kv_head = head % args->kv_heads;
    worker->positions = fa_positions_of(plan, worker->batch);
    worker->k = fa_rows_of(plan, &args->k, worker->batch, worker->kv_head, args->depth);
    if (!plan->weights)
        worker->v = fa_rows_of(plan, &args->v, worker->batch, worker->kv_head, args->value_depth);
    worker->tiles = left < plan->tiles ? (int)left : plan->tiles;
    take_all(worker, plan, &scratch);
    int64_t begin = INT64_MAX, end = 0;
    for (int n = 0; n < worker->tiles; ++n) {
        fa_worker_tile *tile = &worker->tile[n];
        place_tile(worker, tile, first + n);
        pack_tile(worker, tile);
        if (tile->span.begin >= tile->span.end) continue;
        if (tile->span.begin < begin) begin = tile->span.begin;
        if (tile->span.end > end) end = tile->span.end;
    }
    worker->block_begin = begin < end ? begin / key_block : 0;
    worker->block_end = begin < end ? (end + key_block - 1) / key_block : 0;
}

/* ---- one block ---- */

/* Only keys that exist for this batch are touched; rows [first_key, first_key + key_count). */
void fa_worker_load(fa_worker *worker, int64_t block)
{
    const int64_t key_block = worker->plan->key_block, begin = block * key_block;
    const int64_t from = larger(begin, worker->positions.begin);
    const int64_t to = smaller(begin + key_block, worker->positions.end);
    const int count = (int)(to - from);
    worker->first_key = from;
    worker->key_end = to;
    fa_rows_point(&worker->k, from, count, FA_KEY_PADDING, worker->k_copy, worker->k_rows);
    if (!worker->plan->weights)
        fa_rows_point(&worker->v, from, count, 0, worker->v_copy, worker->v_rows);
}

/* Key bounds of each row, from the block's first key on. */
static void set_bounds(fa_worker *worker, const fa_worker_tile *tile, int64_t first, int keys)
{
    const int size = worker->plan->kernels->real_size;
    const int width = tile->rows.vectors * worker->plan->kernels->lanes;
    for (int r = 0; r < width; ++r) {
        const int row = r < tile->rows.rows ? r : tile->rows.rows - 1;
        const int64_t query = query_of(worker, tile->rows.row_begin + row);
        const fa_range range = fa_allowed(&worker->positions, query);
        const int64_t begin = range.begin - first, end = range.end - first;
        put(worker->begin, r, begin < 0 ? 0 : begin > keys ? keys : (double)begin, size);
        put(worker->end, r, end < 0 ? 0 : end > keys ? keys : (double)end, size);
    }
}

static void set_alibi(fa_worker *worker, const fa_worker_tile *tile, int64_t first)
{
    const fa_args *args = worker->plan->args;
    const int size = worker->plan->kernels->real_size;
    for (int r = 0; r < tile->rows.vectors * worker->plan->kernels->lanes; ++r) {
        const int64_t row = tile->rows.row_begin + (r < tile->rows.rows ? r : tile->rows.rows - 1);
        const double slope = args->alibi[worker->batch * args->q_heads + head_of(worker, row)];
        const int64_t position = query_of(worker, row) + worker->positions.offset;
        put(worker->slope, r, slope * FA_LOG2E, size);
        put(worker->position, r, (double)(position - first), size);
    }
}

static void set_mask(fa_worker *worker, const fa_worker_tile *tile, int64_t first)
{
    const fa_tensor *mask = &worker->plan->args->mask;
    const int width = tile->rows.vectors * worker->plan->kernels->lanes;
    point_rows(worker, tile, mask, width, (void **)worker->mask_rows);
    for (int r = 0; r < width; ++r) worker->mask_rows[r] += first * mask->column;
}

/* What the scores of this tile and block need besides scaling; NULL: nothing. */
static const fa_modifiers *modifiers_of(fa_worker *worker, const fa_worker_tile *tile,
                                        int64_t first, int keys, int masked)
{
    const fa_args *args = worker->plan->args;
    const int bounded = first < tile->span.full_begin || first + keys > tile->span.full_end;
    if (!bounded && !masked && !args->alibi && !(args->softcap > 0)) return NULL;
    worker->modifiers = (fa_modifiers){.cap = args->softcap};
    if (bounded) {
        set_bounds(worker, tile, first, keys);
        worker->modifiers.begin = worker->begin;
        worker->modifiers.end = worker->end;
    }
    if (args->alibi) {
        set_alibi(worker, tile, first);
        worker->modifiers.slope = worker->slope;
        worker->modifiers.position = worker->position;
    }
    if (masked) {
        set_mask(worker, tile, first);
        worker->modifiers.mask_rows = worker->mask_rows;
        worker->modifiers.mask_stride = args->mask.column;
        worker->modifiers.mask = args->mask_dtype == FA_BOOL      ? FA_MASK_BOOL
                                 : args->mask_dtype == FA_FLOAT32 ? FA_MASK_FLOAT32
                                                                  : FA_MASK_FLOAT64;
    }
    return &worker->modifiers;
}

/* The part of a block that a tile needs; 0 keys: none. Keys that no row of the tile may see add
 * exactly nothing, so leaving them out does not change a bit. */
static fa_block block_of(fa_worker *worker, const fa_worker_tile *tile, int64_t block,
                         int64_t *first)
{
    const int64_t from = larger(tile->span.begin, worker->first_key);
    const int64_t to = smaller(tile->span.end, worker->key_end);
    const int state = tile->states ? tile->states[block] : FA_BLOCK_FULL;
    fa_block part = {0};
    *first = from;
    if (from >= to || state == FA_BLOCK_SKIP) return part;
    part.keys = (int)(to - from);
    part.k = worker->k_rows + (from - worker->first_key);
    part.v = worker->v_rows + (from - worker->first_key);
    part.modifiers = modifiers_of(worker, tile, from, part.keys, state == FA_BLOCK_PARTIAL);
    return part;
}

void fa_worker_update(fa_worker *worker, int index, int64_t block)
{
    fa_worker_tile *tile = &worker->tile[index];
    int64_t first;
    const fa_block part = block_of(worker, tile, block, &first);
    if (part.keys) worker->plan->kernels->update(&tile->state, &part);
}

/* ---- results ---- */

static void write_lse(const fa_worker *worker, const fa_worker_tile *tile)
{
    const fa_args *args = worker->plan->args;
    const int size = worker->plan->kernels->real_size;
    for (int r = 0; r < tile->rows.rows; ++r) {
        const int64_t row = tile->rows.row_begin + r;
        const int64_t head = worker->batch * args->q_heads + head_of(worker, row);
        const double m = get(tile->state.m, r, size), l = get(tile->state.l, r, size);
        const double lse = l == 0 ? -INFINITY : (m + log2(l)) / FA_LOG2E;
        put(args->lse, head * args->queries + query_of(worker, row), lse, size);
    }
}

void fa_worker_finish(fa_worker *worker)
{
    const fa_plan *plan = worker->plan;
    const fa_tensor *out = &plan->args->out;
    for (int n = 0; n < worker->tiles; ++n) {
        fa_worker_tile *tile = &worker->tile[n];
        const int64_t row_bytes = plan->value_depth * plan->kernels->real_size;
        if (plan->args->lse) write_lse(worker, tile);
        if (plan->weights) continue;
        point_rows(worker, tile, out, tile->rows.rows, worker->rows);
        if (plan->out_scattered) {
            void *rows[FA_MAX_WIDTH];
            for (int r = 0; r < tile->rows.rows; ++r) rows[r] = worker->copy + r * row_bytes;
            plan->kernels->finish(&tile->state, rows, tile->rows.rows);
            copy_rows(worker, tile, out, plan->value_depth, 0);
        } else {
            plan->kernels->finish(&tile->state, worker->rows, tile->rows.rows);
        }
    }
}

/* The weights of every tile, once m and l are final. Keys of skipped blocks have weight 0. */
void fa_worker_weigh(fa_worker *worker)
{
    const fa_plan *plan = worker->plan;
    const int size = plan->kernels->real_size;
    for (int n = 0; n < worker->tiles; ++n) {
        fa_worker_tile *tile = &worker->tile[n];
        point_rows(worker, tile, &plan->args->out, tile->rows.rows, worker->rows);
        for (int r = 0; r < tile->rows.rows; ++r)
            memset(worker->rows[r], 0, (size_t)(plan->args->keys * size));
        for (int64_t block = worker->block_begin; block < worker->block_end; ++block) {
            void *rows[FA_MAX_WIDTH];
            int64_t first;
            fa_worker_load(worker, block);
            const fa_block part = block_of(worker, tile, block, &first);
            if (!part.keys) continue;
            for (int r = 0; r < tile->rows.rows; ++r)
                rows[r] = (char *)worker->rows[r] + first * size;
            plan->kernels->weigh(&tile->state, &part, rows, tile->rows.rows);
        }
    }
}
