/* SPDX-License-Identifier: MIT
 * Who does what: how a call is cut into tasks, and which rows and keys a task is about.
 */
#include <stdlib.h>

#include "parallel.h"
#include "plan.h"

/* How large a task is. */
static const struct sizes {
    int64_t bytes; /* of packed queries and outputs, at most: they stay in the second-level cache */
    int tiles;     /* at most */
    int per_thread; /* so many tasks, or the last one to finish is long alone */
} SIZES = {256 * 1024, 8, 16},
  /* Every task packs its keys, which must be worth it; caches are large where such units are. */
    MATRIX_SIZES = {1536 * 1024, FA_MAX_TILES, 4};

enum {
    /* Of all chunks together; beyond it, rather fewer tasks. */
    STATE_BYTES = 32 * 1024 * 1024,
};
/* Below this many multiplications another thread costs more than it brings. */
static const double SERIAL_WORK = 1e5;

static int64_t parts_of(const fa_plan *plan, const fa_sequence *sequence)
{
    return (sequence->tiling.tiles + plan->tiles - 1) / plan->tiles * plan->args->kv_heads;
}

static double cost_of(const fa_sequence *sequence, int64_t tiles)
{
    const fa_positions *positions = &sequence->positions;
    const int64_t keys = positions->end > positions->begin ? positions->end - positions->begin : 0;
    return (double)(keys + 16) * (double)tiles; /* no keys are some work too */
}

/* Whether the heads of a key, or of a page, are neighbours in memory: what the machine reads ahead
 * of one head is then what the next one needs, if it is not long until then. */
static int heads_lie_together(const fa_args *args)
{
    const int64_t run = args->block_table ? args->page_keys : 1; /* keys of a head on end */
    return args->kv_heads > 1 && llabs(args->k.head) <= run * llabs(args->k.row);
}

/* Of packed queries, and of outputs, those of chunks before as well. */
static int64_t tile_bytes(const fa_plan *plan)
{
    const fa_kernels *kernels = plan->kernels;
    const fa_matrix *matrix = plan->matrix;
    const int vectors = matrix ? matrix->max_vectors : kernels->max_vectors;
    const int64_t width = (int64_t)vectors * kernels->lanes, depth = plan->args->depth;
    const int64_t queries =
        matrix ? matrix->panel_bytes(width, depth) : width * depth * kernels->real_size;
    return queries + 2 * width * plan->value_depth * kernels->real_size;
}

/* How many threads, how many tiles a task, and whether the keys of a part are split: when the
 * longest task would be long against a thread's share of all. */
void fa_plan_tasks(fa_plan *plan)
{
    const fa_args *args = plan->args;
    const struct sizes *of = plan->matrix ? &MATRIX_SIZES : &SIZES;
    double work = 0, cost = 0, longest = 0;
    int64_t tiles = 0, most_tiles = 0;
    for (int64_t n = 0; n < plan->sequences; ++n) {
        fa_sequence sequence;
        fa_plan_sequence(plan, n, &sequence);
        work += (double)sequence.tiling.rows * cost_of(&sequence, args->kv_heads);
        tiles += sequence.tiling.tiles * args->kv_heads;
        if (sequence.tiling.tiles > most_tiles) most_tiles = sequence.tiling.tiles;
    }
    work *= (double)(args->depth + args->value_depth);
    plan->threads = work < SERIAL_WORK ? 1 : fa_threads_for(args->threads);

    tiles /= (int64_t)plan->threads * of->per_thread;
    if (plan->threads == 1 || tiles > of->tiles) tiles = of->tiles;
    if (tiles > most_tiles) tiles = most_tiles;
    if (tiles > of->bytes / tile_bytes(plan)) tiles = of->bytes / tile_bytes(plan);
    if (tiles < 1) tiles = 1;
    const int64_t parts = (most_tiles + tiles - 1) / tiles; /* as even as can be */
    plan->tiles = parts ? (int)((most_tiles + parts - 1) / parts) : 1;

    int64_t chunks = 1, all_chunks = 0, states = 0, thin = 0;
    for (int64_t n = 0; n < plan->sequences; ++n) {
        fa_sequence sequence;
        fa_plan_sequence(plan, n, &sequence);
        const int64_t own = sequence.tiling.tiles;
        const double part = cost_of(&sequence, own < plan->tiles ? own : plan->tiles);
        cost += cost_of(&sequence, own * args->kv_heads);
        if (part > longest) longest = part;
        if (sequence.thin) ++thin;
        if (sequence.chunks > chunks) chunks = sequence.chunks;
        all_chunks += sequence.chunks;
        states += fa_state_bytes(plan, &sequence) * own * args->kv_heads * sequence.chunks;
    }
    const double share = cost / (plan->threads * (of->per_thread / 2.0));
    const int together = thin == plan->sequences && heads_lie_together(args);
    plan->split = plan->threads > 1 && chunks > 1 && (longest > share || together) &&
                  states <= STATE_BYTES && !plan->weights;
    const int enough = all_chunks >= (int64_t)plan->threads * of->per_thread;
    plan->grain = plan->split && together && enough ? args->kv_heads : 1;
}

static int longest_first(const void *a, const void *b)
{
    const fa_entry *x = a, *y = b;
    /* first_task holds the length while sorting; equals stay in order. */
    if (x->first_task != y->first_task) return x->first_task < y->first_task ? 1 : -1;
    return x->sequence < y->sequence ? -1 : 1;
}

void fa_plan_entries(fa_plan *plan)
{
    const fa_args *args = plan->args;
    int64_t task = 0, part = 0, state = 0;
    for (int64_t n = 0; n < plan->sequences; ++n) {
        plan->entries[n] = (fa_entry){.sequence = n};
        if (!args->cu_q && !args->kv_end) continue;
        fa_sequence sequence;
        fa_plan_sequence(plan, n, &sequence);
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
        fa_sequence sequence;
        fa_plan_sequence(plan, entry->sequence, &sequence);
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
    fa_plan_sequence(plan, entry->sequence, sequence);
    return share_of(plan, entry, part - entry->first_part, sequence);
}

/* With `split`, chunk by chunk: see heads_lie_together. */
fa_share fa_share_of_task(const fa_plan *plan, int64_t task, fa_sequence *sequence)
{
    const fa_entry *entry = entry_of(plan, task, 0);
    fa_plan_sequence(plan, entry->sequence, sequence);
    const int64_t parts = parts_of(plan, sequence), own = task - entry->first_task;
    fa_share share = share_of(plan, entry, own % parts, sequence);
    share.chunk = own / parts;
    return share;
}

char *fa_state_at(const fa_plan *plan, const fa_share *share, const fa_sequence *sequence,
                  int64_t tile, int64_t chunk)
{
    const int64_t row = share->kv_head * sequence->tiling.tiles + tile;
    return plan->states + share->entry->first_state +
           (row * sequence->chunks + chunk) * fa_state_bytes(plan, sequence);
}
