/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include <stdlib.h>

#include "dispatch.h"
#include "parallel.h"
#include "worker.h"

enum {
    /* Packed queries and outputs of a task stay in the second-level cache. */
    TASK_BYTES = 256 * 1024,
    /* Enough tasks per thread that the last one to finish is not long alone. */
    TASKS_PER_THREAD = 16,
};
/* Below this many multiplications another thread costs more than it brings. */
static const double SERIAL_WORK = 1e5;

int64_t fa_line(int64_t bytes) { return (bytes + FA_LINE - 1) / FA_LINE * FA_LINE; }

/* ---- types and storage ---- */

static int real_type(fa_dtype dtype) { return dtype == FA_FLOAT64 ? FA_FLOAT64 : FA_FLOAT32; }

static fa_storage storage_of(fa_dtype dtype)
{
    switch (dtype) {
    case FA_FLOAT16: return FA_HALF;
    case FA_BFLOAT16: return FA_BFLOAT;
    case FA_INT8: return FA_CHAR;
    case FA_FLOAT8_E4M3: return FA_E4M3;
    case FA_FLOAT8_E5M2: return FA_E5M2;
    default: return FA_REAL;
    }
}

static int element_of(const fa_plan *plan, fa_storage storage)
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

/* ---- sequences ---- */

fa_sequence fa_plan_sequence(const fa_plan *plan, int64_t index)
{
    if (!plan->args->cu_q) {
        fa_sequence sequence = plan->model;
        fa_sequence_move(plan->args, &sequence, index);
        return sequence;
    }
    return fa_sequence_at(plan->args, plan->kernels, index);
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
    rows->element = element_of(plan, storage);
    rows->table = NULL;
    if (args->block_table && of_keys) {
        rows->table = args->block_table + sequence->index * args->table_width;
        rows->page_keys = args->page_keys;
        rows->page_stride = tensor->page;
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

static void plan_copies(fa_plan *plan)
{
    const fa_args *args = plan->args;
    const fa_storage q = plan->q_storage, kv = plan->kv_storage;
    plan->q_copied = q != FA_REAL || scattered(plan, &args->q, args->depth, q);
    plan->kv_widened = kv != FA_REAL || args->k_scale.data || args->v_scale.data;
    plan->k_scattered = scattered(plan, &args->k, args->depth, kv);
    if (plan->weights) return;
    plan->v_scattered = scattered(plan, &args->v, args->value_depth, kv);
    plan->out_copied = q != FA_REAL || scattered(plan, &args->out, args->value_depth, q);
}

/* Every page that some key of a sequence lies in must exist. */
static int valid_pages(const fa_args *args, const fa_sequence *sequence)
{
    const int64_t begin = sequence->positions.begin, end = sequence->positions.end;
    if (end > args->table_width * args->page_keys) return 0;
    const int32_t *table = args->block_table + sequence->index * args->table_width;
    for (int64_t page = begin / args->page_keys; page * args->page_keys < end; ++page)
        if (table[page] < 0 || table[page] >= args->pages) return 0;
    return 1;
}

static int valid_sequences(const fa_plan *plan)
{
    const fa_args *args = plan->args;
    for (int64_t n = 0; n < plan->sequences; ++n) {
        const fa_sequence sequence = fa_plan_sequence(plan, n);
        const fa_positions *positions = &sequence.positions;
        if (sequence.queries < 0 || sequence.keys < 0) return 0;
        if (positions->begin < 0 || positions->end < 0 || positions->end > sequence.keys) return 0;
        if (args->block_table && !valid_pages(args, &sequence)) return 0;
    }
    return 1;
}

static int valid(const fa_args *args, int weights)
{
    if (args->size != sizeof(fa_args) || !valid_types(args)) return 0;
    if (args->lead_rank < 0 || args->lead_rank > FA_MAX_LEAD) return 0;
    if (args->kv_heads < 1 || args->q_heads % args->kv_heads) return 0;
    if (args->queries < 0 || args->keys < 0 || args->depth < 1 || args->value_depth < 1) return 0;
    if (args->block_table && (args->page_keys < 1 || args->table_width < 0)) return 0;
    if (args->cu_q && (args->lead_rank || args->mask.data || weights)) return 0;
    if (args->cu_q && !args->cu_k && !args->block_table) return 0;
    return args->left >= -1 && args->right >= -1 && args->softcap >= 0;
}

/* ---- tasks ---- */

static int64_t parts_of(const fa_plan *plan, const fa_sequence *sequence)
{
    return (sequence->tiling.tiles + plan->tiles - 1) / plan->tiles * plan->args->kv_heads;
}

static double cost_of(const fa_sequence *sequence, int64_t tiles)
{
    return (double)(sequence->positions.end - sequence->positions.begin + 16) * (double)tiles;
}

/* How many threads, how many tiles a task, and whether the keys of a part are split: when the
 * longest task would be long against a thread's share of all. */
static void plan_tasks(fa_plan *plan)
{
    const fa_args *args = plan->args;
    const fa_kernels *kernels = plan->kernels;
    const int64_t tile_bytes = (int64_t)kernels->max_vectors * kernels->lanes *
                               (args->depth + 2 * plan->value_depth) * kernels->real_size;
    double work = 0, cost = 0, longest = 0;
    int64_t tiles = 0, most_tiles = 0;
    for (int64_t n = 0; n < plan->sequences; ++n) {
        const fa_sequence sequence = fa_plan_sequence(plan, n);
        work += (double)sequence.tiling.rows * cost_of(&sequence, args->kv_heads);
        tiles += sequence.tiling.tiles * args->kv_heads;
        if (sequence.tiling.tiles > most_tiles) most_tiles = sequence.tiling.tiles;
    }
    work *= (double)(args->depth + args->value_depth);
    plan->threads = work < SERIAL_WORK ? 1 : fa_threads_for(args->threads);

    tiles /= (int64_t)plan->threads * TASKS_PER_THREAD;
    if (plan->threads == 1 || tiles > FA_MAX_TILES) tiles = FA_MAX_TILES;
    if (tiles > most_tiles) tiles = most_tiles;
    if (tiles > TASK_BYTES / tile_bytes) tiles = TASK_BYTES / tile_bytes;
    if (tiles < 1) tiles = 1;
    const int64_t parts = (most_tiles + tiles - 1) / tiles; /* as even as can be */
    plan->tiles = parts ? (int)((most_tiles + parts - 1) / parts) : 1;

    int64_t chunks = 1;
    for (int64_t n = 0; n < plan->sequences; ++n) {
        const fa_sequence sequence = fa_plan_sequence(plan, n);
        const int64_t own = sequence.tiling.tiles;
        const double part = cost_of(&sequence, own < plan->tiles ? own : plan->tiles);
        cost += cost_of(&sequence, own * args->kv_heads);
        if (part > longest) longest = part;
        if (sequence.chunks > chunks) chunks = sequence.chunks;
    }
    const double share = cost / (plan->threads * (TASKS_PER_THREAD / 2.0));
    plan->split = plan->threads > 1 && chunks > 1 && longest > share && !plan->weights;
}

static int longest_first(const void *a, const void *b)
{
    const fa_entry *x = a, *y = b;
    /* first_task holds the length while sorting; equals stay in order. */
    if (x->first_task != y->first_task) return x->first_task < y->first_task ? 1 : -1;
    return x->sequence < y->sequence ? -1 : 1;
}

static void fill_entries(fa_plan *plan)
{
    const fa_args *args = plan->args;
    int64_t task = 0, part = 0, state = 0;
    for (int64_t n = 0; n < plan->sequences; ++n) {
        plan->entries[n] = (fa_entry){.sequence = n};
        if (!args->cu_q && !args->kv_end) continue;
        const fa_sequence sequence = fa_plan_sequence(plan, n);
        const int64_t tiles = sequence.tiling.tiles;
        plan->entries[n].first_task =
            (int64_t)cost_of(&sequence, tiles < plan->tiles ? tiles : plan->tiles);
    }
    if ((args->cu_q || args->kv_end) && plan->sequences > 1)
        qsort(plan->entries, (size_t)plan->sequences, sizeof *plan->entries, longest_first);
    for (int64_t n = 0; n <= plan->sequences; ++n) {
        fa_entry *entry = &plan->entries[n];
        entry->first_task = task, entry->first_part = part, entry->first_state = state;
        if (n == plan->sequences) break;
        const fa_sequence sequence = fa_plan_sequence(plan, entry->sequence);
        const int64_t parts = parts_of(plan, &sequence);
        part += parts;
        task += plan->split ? parts * sequence.chunks : parts;
        state += fa_state_bytes(plan, &sequence) * sequence.tiling.tiles * args->kv_heads *
                 sequence.chunks;
    }
}

/* The entry whose tasks (or parts) the index is one of. */
static const fa_entry *entry_of(const fa_plan *plan, int64_t index, int of_parts)
{
    int64_t low = 0, high = plan->sequences;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        const fa_entry *entry = &plan->entries[middle];
        if ((of_parts ? entry->first_part : entry->first_task) <= index) low = middle;
        else high = middle;
    }
    return &plan->entries[low];
}

/* Order within a sequence: head by head, so that K and V stay in the cache; the last rows of a
 * head first, which see most keys under a causal mask: the longest tasks must not come last. */
static fa_share share_of(const fa_plan *plan, const fa_entry *entry, int64_t part,
                         const fa_sequence *sequence)
{
    const int64_t head_parts = (sequence->tiling.tiles + plan->tiles - 1) / plan->tiles;
    fa_share share = {.entry = entry, .kv_head = part / head_parts};
    share.first_tile = (head_parts - 1 - part % head_parts) * plan->tiles;
    const int64_t left = sequence->tiling.tiles - share.first_tile;
    share.tiles = left < plan->tiles ? (int)left : plan->tiles;
    return share;
}

fa_share fa_share_of_part(const fa_plan *plan, int64_t part, fa_sequence *sequence)
{
    const fa_entry *entry = entry_of(plan, part, 1);
    *sequence = fa_plan_sequence(plan, entry->sequence);
    return share_of(plan, entry, part - entry->first_part, sequence);
}

fa_share fa_share_of_task(const fa_plan *plan, int64_t task, fa_sequence *sequence)
{
    const fa_entry *entry = entry_of(plan, task, 0);
    *sequence = fa_plan_sequence(plan, entry->sequence);
    const int64_t chunks = plan->split ? sequence->chunks : 1, own = task - entry->first_task;
    fa_share share = share_of(plan, entry, own / chunks, sequence);
    share.chunk = own % chunks;
    return share;
}

char *fa_state_at(const fa_plan *plan, const fa_share *share, const fa_sequence *sequence,
                  int64_t tile, int64_t chunk)
{
    const int64_t row = share->kv_head * sequence->tiling.tiles + tile;
    return plan->states + share->entry->first_state +
           (row * sequence->chunks + chunk) * fa_state_bytes(plan, sequence);
}

/* ---- memory ---- */

static fa_status allocate(fa_plan *plan)
{
    const int64_t entry_bytes = fa_line((plan->sequences + 1) * (int64_t)sizeof(fa_entry));
    plan->entries = malloc((size_t)entry_bytes);
    if (!plan->entries) return FA_NO_MEMORY;
    fill_entries(plan);
    const fa_entry *end = &plan->entries[plan->sequences];
    plan->tasks = end->first_task;
    plan->parts = end->first_part;
    if (plan->threads > plan->tasks) plan->threads = plan->tasks < 1 ? 1 : (int)plan->tasks;

    int64_t map_bytes = 0;
    if (plan->args->mask.data) {
        const fa_sequence first = fa_plan_sequence(plan, 0);
        plan->map_tiling = first.tiling;
        plan->map_plan = (fa_blockmap_plan){plan->args, &plan->map_tiling, plan->group,
                                            plan->sequences, first.key_block};
        plan->map = fa_blockmap_size(&plan->map_plan);
        map_bytes = plan->map.maps * plan->map.tiles * plan->map.blocks;
    }
    plan->thread_bytes = fa_line(fa_scratch_bytes(plan));
    const int64_t scratch_bytes = plan->thread_bytes * plan->threads;
    const int64_t state_bytes = plan->split ? end->first_state : 0;
    plan->memory = malloc((size_t)(scratch_bytes + state_bytes + map_bytes + FA_LINE));
    if (!plan->memory) return FA_NO_MEMORY;
    plan->scratch = plan->memory + (FA_LINE - (uintptr_t)plan->memory % FA_LINE) % FA_LINE;
    plan->states = plan->scratch + scratch_bytes;
    if (map_bytes) plan->map.states = (uint8_t *)plan->states + state_bytes;
    return FA_OK;
}

fa_status fa_plan_make(fa_plan *plan, const fa_args *args, int weights)
{
    *plan = (fa_plan){.args = args, .weights = weights};
    if (!valid(args, weights)) return FA_INVALID;
    plan->kernels = fa_kernels_for(args->isa, real_type(args->dtype));
    if (!plan->kernels) return FA_UNSUPPORTED_ISA;
    plan->q_storage = storage_of(args->dtype);
    plan->kv_storage = storage_of(args->kv_dtype);
    plan->group = args->q_heads / args->kv_heads;
    plan->value_depth = weights ? 0 : args->value_depth;
    plan->sequences = fa_sequence_count(args);
    if (plan->sequences == 0 || plan->group * args->queries == 0) return FA_OK; /* tasks = 0 */
    plan_copies(plan);
    plan->model = fa_sequence_at(args, plan->kernels, 0);
    if (!valid_sequences(plan)) return FA_INVALID;
    plan_tasks(plan);
    const fa_status status = allocate(plan);
    if (status != FA_OK) fa_plan_free(plan);
    return status;
}

void fa_plan_free(fa_plan *plan)
{
    free(plan->entries);
    free(plan->memory);
}
