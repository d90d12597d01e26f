/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "numbers.h"
#include "reach.h"
#include "worker.h"

int64_t fa_line(int64_t bytes) { return round_up(bytes, FA_LINE); }

/* ---- types and storage ---- */

static int real_type(fa_dtype dtype) { return dtype == FA_FLOAT64 ? FA_FLOAT64 : FA_FLOAT32; }

int fa_element_bytes(const fa_plan *plan, fa_storage storage)
{
    if (storage == FA_REAL) return plan->kernels->real_size;
    return storage == FA_HALF || storage == FA_BFLOAT ? 2 : 1;
}

static int valid_types(const fa_args *args)
{
    const int q = args->dtype, kv = args->kv_dtype;
    if (q == FA_FLOAT64) return kv == FA_FLOAT64;
    if (q != FA_FLOAT32 && q != FA_FLOAT16 && q != FA_BFLOAT16) return 0;
    if (kv == q || kv == FA_INT8 || kv == FA_FLOAT8_E4M3 || kv == FA_FLOAT8_E5M2) return 1;
    return q == FA_FLOAT32 && (kv == FA_FLOAT16 || kv == FA_BFLOAT16);
}

static int valid_mask(const fa_args *args)
{
    switch (args->mask.data ? args->mask_dtype : FA_BOOL) {
    case FA_BOOL:
    case FA_FLOAT32:
    case FA_FLOAT64: return 1;
    case FA_FLOAT16:
    case FA_BFLOAT16: return args->dtype != FA_FLOAT64;
    default: return 0;
    }
}

/* A type holds neither a cap far from 1 nor its inverse; all caps beyond these do the same. */
static double held_cap(const fa_args *args)
{
    const double most = args->dtype == FA_FLOAT64 ? 0x1p1000 : 0x1p100, least = 1 / most;
    const double cap = args->softcap;
    if (cap == 0) return cap;
    return cap < least ? least : cap > most ? most : cap;
}

/* Of products of queries and keys, to what softmax, or the cap, takes. */
static double factor_of(const fa_plan *plan)
{
    const fa_args *args = plan->args;
    const int size = plan->kernels->real_size;
    if (args->softcap > 0) return fa_held(args->scale / args->softcap, size);
    return fa_held(args->scale, size) * FA_LOG2E;
}

/* Units take products below 2^-126 for 0: times more than this a few of them would count. And what
 * is below float32 loses bits, of which only `pack` takes care. */
static const double GREATEST_FACTOR = 0x1p64, LEAST_FACTOR = 0x1p-126;

static int usual_factor(double factor)
{
    return factor == 0 || (fabs(factor) >= LEAST_FACTOR && fabs(factor) <= GREATEST_FACTOR);
}

/* What carries what is asked for: all of float32, or 16 or 8 bits of it; float16 is two pieces.
 * Stored bytes are bfloat16 numbers until they are scaled. */
static fa_matrices matrices_for(const fa_plan *plan, const fa_unit *unit)
{
    const fa_args *args = plan->args;
    const int scaled = args->k_scale.data || args->v_scale.data;
    const int bytes = fa_element_bytes(plan, plan->kv_storage) == 1;
    fa_split split = args->precision == FA_MEDIUM ? FA_ONE_PIECE
                     : args->precision == FA_HIGH ? FA_THREE_AND_TWO
                                                  : FA_THREE_PIECES;
    if (args->dtype == FA_FLOAT16) split = FA_TWO_PIECES;
    if (args->dtype == FA_BFLOAT16)
        split = !scaled ? FA_ONE_PIECE : bytes ? FA_SCALED_PIECE : FA_TWO_PIECES;
    const int halves = args->dtype == FA_FLOAT16 && plan->kv_storage == FA_HALF;
    const int thin = args->dtype == FA_BFLOAT16 ? bytes || !scaled : halves && !scaled;
    fa_matrices matrices = {NULL, NULL};
    if (plan->weights || !usual_factor(plan->factor)) return matrices;
    if (unit->wide && unit->wide[split].pieces) matrices.wide = &unit->wide[split];
    if (unit->thin && thin) matrices.thin = unit->thin[plan->kv_storage];
    return matrices;
}

/* ---- sequences ---- */

void fa_plan_sequence(const fa_plan *plan, int64_t index, fa_sequence *sequence)
{
    const fa_args *args = plan->args;
    if (args->cu_q || args->kv_begin || args->kv_end || args->q_offset) {
        *sequence = fa_sequence_at(args, plan->kernels, &plan->matrices, index);
        return;
    }
    *sequence = plan->model; /* all are alike */
    sequence->index = index;
}

void fa_set_rows(fa_rows *rows, const fa_plan *plan, const fa_tensor *tensor,
                 const fa_sequence *sequence, int64_t head, int64_t columns, fa_storage storage)
{
    const fa_args *args = plan->args;
    const int of_keys = tensor == &args->k || tensor == &args->v || tensor == &args->k_scale ||
                        tensor == &args->v_scale;
    rows->base = (char *)tensor->data + head * tensor->head;
    rows->row_stride = tensor->row;
    rows->column_stride = tensor->column;
    rows->columns = columns;
    rows->storage = storage;
    rows->element = fa_element_bytes(plan, storage);
    rows->table = NULL;
    if (args->block_table && of_keys) {
        rows->table = args->block_table + sequence->index * args->table_width;
        rows->page_keys = args->page_keys;
        rows->page_stride = tensor->page;
        rows->page_shift = plan->page_shift;
    } else if (args->cu_q) {
        rows->base += (of_keys ? sequence->key_row : sequence->query_row) * tensor->row;
    } else if (sequence->index) {
        rows->base += fa_batch_offset(args, tensor, sequence->index);
    }
}

static int scattered(const fa_plan *plan, const fa_tensor *tensor, int64_t columns,
                     fa_storage storage)
{
    const fa_sequence first = {0};
    fa_rows rows;
    fa_set_rows(&rows, plan, tensor, &first, 0, columns, storage);
    return fa_rows_scattered(&rows, &tensor->head, 1) ||
           fa_rows_scattered(&rows, tensor->lead, plan->args->lead_rank);
}

/* Most first caches have few lines for all that lies a multiple of this apart: a block of such rows
 * comes from further away for every tile, unless it is copied. Rows half as far apart gain nothing
 * by copies (Zen 3). */
enum { CROWDED_STRIDE = 4096 };

static int crowded(const fa_plan *plan, const fa_tensor *tensor, int64_t columns)
{
    const int64_t stride = llabs(tensor->row);
    return plan->kernels->copies_crowded && stride > columns * plan->kernels->real_size &&
           stride % CROWDED_STRIDE == 0;
}

static void plan_copies(fa_plan *plan)
{
    const fa_args *args = plan->args;
    const fa_storage q = plan->q_storage, kv = plan->kv_storage;
    plan->q_scattered = scattered(plan, &args->q, args->depth, q);
    plan->kv_widened = kv != FA_REAL || args->k_scale.data || args->v_scale.data;
    plan->k_scattered = scattered(plan, &args->k, args->depth, kv);
    plan->k_crowded = crowded(plan, &args->k, args->depth);
    if (plan->weights) return;
    plan->v_scattered = scattered(plan, &args->v, args->value_depth, kv);
    plan->v_crowded = crowded(plan, &args->v, args->value_depth);
    plan->out_scattered = scattered(plan, &args->out, args->value_depth, q);
}

/* Rows of a packed sequence, [cuts[0], cuts[1]), of so many that there are. */
static int valid_rows(const int64_t *cuts, int64_t rows)
{
    return cuts[0] >= 0 && cuts[1] >= cuts[0] && cuts[1] <= rows;
}

/* Every page that some key of a sequence lies in must exist. */
static int valid_pages(const fa_args *args, int64_t index, int64_t begin, int64_t end)
{
    const int32_t *table = args->block_table + index * args->table_width;
    if (begin >= end) return 1;
    for (int64_t page = begin / args->page_keys; page * args->page_keys < end; ++page)
        if (table[page] < 0 || table[page] >= args->pages) return 0;
    return 1;
}

/* Of q_offset: up to there doubles hold every position, and differences of positions fit. */
static const int64_t FARTHEST = (int64_t)1 << 53;

/* Before anything is computed from what the caller says of a sequence. */
static int valid_sequence(const fa_args *args, int64_t index)
{
    int64_t keys = args->keys;
    if (args->cu_q && !valid_rows(args->cu_q + index, args->queries)) return 0;
    if (args->cu_q && !args->block_table) {
        const int64_t *cuts = args->cu_k + index;
        if (!valid_rows(cuts, args->keys)) return 0;
        keys = cuts[1] - cuts[0];
    }
    const int64_t begin = args->kv_begin ? args->kv_begin[index] : 0;
    const int64_t end = args->kv_end ? args->kv_end[index] : keys;
    if (begin < 0 || end < 0 || end > keys) return 0;
    const int64_t offset = args->q_offset ? args->q_offset[index] : 0;
    if (offset < -FARTHEST || offset > FARTHEST) return 0;
    return !args->block_table || valid_pages(args, index, begin, end);
}

static int valid_sequences(const fa_plan *plan)
{
    const fa_args *args = plan->args;
    if (!args->cu_q && !args->kv_begin && !args->kv_end && !args->q_offset && !args->block_table)
        return 1;
    for (int64_t n = 0; n < plan->sequences; ++n)
        if (!valid_sequence(args, n)) return 0;
    return 1;
}

/* More than any machine goes through; what is computed from less fits its integers. */
static const double MOST_NUMBERS = 0x1p56, MOST_FEATURES = 0x1p31;

/* Of q, k, v and out together. Packed sequences share the rows that there are, but not pages; of an
 * empty axis the others must fit nonetheless. */
static int valid_sizes(const fa_args *args, int weights)
{
    double batches = args->cu_q ? (double)larger(args->sequences, 1) : 1;
    for (int axis = 0; axis < args->lead_rank; ++axis) {
        if (args->lead_shape[axis] < 0) return 0;
        batches *= (double)larger(args->lead_shape[axis], 1);
    }
    if (args->cu_q && args->sequences < 0) return 0;
    if (args->kv_heads < 1 || args->q_heads < 0 || args->q_heads % args->kv_heads) return 0;
    if (args->queries < 0 || args->depth < 1) return 0;
    if (args->keys < 0 && !args->block_table) return 0;
    if (!weights && args->value_depth < 1) return 0;
    if (args->block_table && (args->page_keys < 1 || args->table_width < 0)) return 0;
    double rows = (double)args->queries * (double)args->q_heads, keys = (double)args->keys;
    if (args->block_table) keys = (double)args->page_keys * (double)larger(args->table_width, 1);
    keys *= (double)args->kv_heads;
    if (!args->cu_q) rows *= batches;
    if (!args->cu_q || args->block_table) keys *= batches;
    const double features = (double)args->depth + (weights ? 0 : (double)args->value_depth);
    return features <= MOST_FEATURES && batches + (rows + keys) * features <= MOST_NUMBERS;
}

static int valid(const fa_args *args, int weights)
{
    if (!valid_types(args)) return 0;
    if (args->lead_rank < 0 || args->lead_rank > FA_MAX_LEAD || !valid_sizes(args, weights))
        return 0;
    if (args->cu_q && (args->lead_rank || args->mask.data || weights)) return 0;
    if (args->cu_q && !args->cu_k && !args->block_table) return 0;
    if (args->precision < FA_HIGHEST || args->precision > FA_MEDIUM) return 0;
    if (args->threads < 0) return 0;
    if (!valid_mask(args) || !isfinite(args->scale) || !isfinite(args->softcap)) return 0;
    return args->left >= -1 && args->right >= -1 && args->softcap >= 0;
}

/* Of what there is something of. */
static int has_tensors(const fa_args *args, int weights)
{
    const int keys = args->keys == 0 || (args->k.data && (weights || args->v.data));
    return args->q.data && args->out.data && keys;
}

/* Weights are written to whole rows, key after key. */
static int rows_lie_whole(const fa_plan *plan)
{
    const fa_args *args = plan->args;
    return !plan->weights || args->keys < 2 || args->out.column == plan->kernels->real_size;
}

/* ---- memory ---- */

static fa_status allocate(fa_plan *plan)
{
    fa_plan_entries(plan);
    const fa_entry *end = &plan->entries[plan->sequences];
    plan->tasks = end->first_task;
    plan->parts = end->first_part;
    if (plan->threads > plan->tasks) plan->threads = plan->tasks < 1 ? 1 : (int)plan->tasks;

    int64_t map_bytes = 0;
    if (plan->args->mask.data) {
        fa_sequence first;
        fa_plan_sequence(plan, 0, &first);
        plan->map_tiling = first.tiling;
        plan->map_plan = (fa_blockmap_plan){plan->args, &plan->map_tiling, plan->group,
                                            plan->sequences, first.key_block};
        plan->map = fa_blockmap_size(&plan->map_plan);
        const double rows = (double)plan->map.maps * (double)plan->map.tiles;
        if (rows * (double)plan->map.blocks > MOST_NUMBERS) return FA_NO_MEMORY;
        map_bytes = plan->map.maps * plan->map.tiles * plan->map.blocks;
    }
    plan->thread_bytes = fa_scratch_bytes(plan);
    const int64_t scratch_bytes = plan->thread_bytes * plan->threads;
    const int64_t state_bytes = plan->split ? end->first_state : 0;
    const int64_t rest_bytes = larger(map_bytes, fa_reach_bytes(plan)); /* there is one of both */
    plan->memory = malloc((size_t)(scratch_bytes + state_bytes + rest_bytes + FA_LINE));
    if (!plan->memory) return FA_NO_MEMORY;
    plan->scratch = plan->memory + (FA_LINE - (uintptr_t)plan->memory % FA_LINE) % FA_LINE;
    plan->states = plan->scratch + scratch_bytes;
    if (map_bytes) plan->map.states = (uint8_t *)plan->states + state_bytes;
    if (fa_reach_bytes(plan)) plan->reach = (int64_t *)(plan->states + state_bytes);
    fa_workers_reset(plan);
    return FA_OK;
}

/* Of the first version of the struct; later ones only ever got longer. */
static const size_t OLDEST_ARGS = offsetof(fa_args, isa) + sizeof(const char *);

fa_status fa_plan_make(fa_plan *plan, const fa_args *given, int weights)
{
    *plan = (fa_plan){.weights = weights};
    if (!given || given->size < OLDEST_ARGS || given->size > sizeof *given) return FA_INVALID;
    const fa_args *args = plan->args = &plan->own;
    memcpy(&plan->own, given, given->size); /* what an older caller does not know stays 0 */
    if (!valid(args, weights)) return FA_INVALID;
    if (args->block_table) plan->own.keys = args->table_width * args->page_keys;
    plan->own.softcap = held_cap(args);
    const fa_unit *unit;
    plan->kernels = fa_kernels_for(args->isa, real_type(args->dtype), &unit);
    if (!plan->kernels) return FA_UNSUPPORTED_ISA;
    plan->q_storage = fa_storage_of(args->dtype);
    plan->kv_storage = fa_storage_of(args->kv_dtype);
    plan->group = args->q_heads / args->kv_heads;
    plan->value_depth = weights ? 0 : args->value_depth;
    plan->sequences = fa_sequence_count(args);
    if (plan->sequences == 0 || plan->group * args->queries == 0) return FA_OK; /* tasks = 0 */
    if (!has_tensors(args, weights) || !rows_lie_whole(plan) || !valid_sequences(plan))
        return FA_INVALID;
    plan->page_shift = -1;
    for (int shift = 0; shift < 32; ++shift)
        if (args->page_keys == (int64_t)1 << shift) plan->page_shift = shift;
    plan_copies(plan);
    plan->factor = factor_of(plan);
    plan->matrices = matrices_for(plan, unit);
    plan->model = fa_sequence_at(args, plan->kernels, &plan->matrices, 0);
    plan->entries = malloc((size_t)fa_line((plan->sequences + 1) * (int64_t)sizeof(fa_entry)));
    if (!plan->entries) return FA_NO_MEMORY; /* soon: what comes now takes long for so many */
    fa_plan_tasks(plan);
    const fa_status status = allocate(plan);
    if (status != FA_OK) fa_plan_free(plan);
    return status;
}

void fa_plan_free(fa_plan *plan)
{
    free(plan->entries);
    free(plan->memory);
}
