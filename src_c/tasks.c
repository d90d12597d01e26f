/* SPDX-License-Identifier: MIT
 * Who does what: how a call is cut into tasks, and which rows and keys a task is about.
 */
#include <stdlib.h>

#include "numbers.h"
#include "parallel.h"
#include "plan.h"

/* How large a task is. */
static const struct sizes {
    int64_t bytes; /* of packed queries and outputs, at most: they stay in the second-level cache */
    int tiles;     /* at most */
    int per_thread; /* so many tasks, or the last one to finish is long alone */
} SIZES = {512 * 1024, 12, 16},
  /* Every task widens its keys, or packs them, which must be worth it; caches are large where units
   * are. */
    WIDENED_SIZES = {512 * 1024, 12, 4}, MATRIX_SIZES = {1024 * 1024, FA_MAX_TILES, 4};

enum {
    /* Of all chunks together; beyond it, rather fewer tasks. */
    STATE_BYTES = 32 * 1024 * 1024,
    /* What the second-level cache holds for sure, of K and V until they are needed. */
    NEAR_BYTES = 256 * 1024,
    LONG_PAGE = 16,      /* keys, at least */
    LONG_RUN = 8 * 1024, /* bytes of a key, of all heads together: more on end come no faster */
};
/* Below this many multiplications another thread costs more than it brings. */
static const double SERIAL_WORK = 1e5;

static int heads_of(const fa_plan *plan, const fa_sequence *sequence)
{
    return sequence->thin ? plan->heads : 1;
}

static int64_t parts_of(const fa_plan *plan, const fa_sequence *sequence)
{
    return divide_up(sequence->tiling.tiles, plan->tiles) *
           divide_up(plan->args->kv_heads, heads_of(plan, sequence));
}

/* Chunks are dealt out so many at a time: the first keys of a task have not been asked for. */
static int64_t tasks_of_part(const fa_plan *plan, const fa_sequence *sequence)
{
    return plan->split ? divide_up(sequence->chunks, plan->split) : 1;
}

static double cost_of(const fa_sequence *sequence, int64_t tiles)
{
    const fa_positions *positions = &sequence->positions;
    const int64_t keys = positions->end > positions->begin ? positions->end - positions->begin : 0;
    return (double)(keys + 16) * (double)tiles; /* no keys are some work too */
}

/* Whether the heads of a key, or of a short page, are neighbours in memory. The machine reads ahead
 * what follows in memory, not what follows of a head: on Zen 4 one head after another came at less
 * than half the rate of the heads of a block after another. Where some keys of a head lie on end,
 * one head after another is mostly the faster way again. */
static int heads_lie_together(const fa_args *args)
{
    const int64_t head = llabs(args->k.head), row = llabs(args->k.row);
    const int in_pages = args->block_table && args->page_keys < LONG_PAGE;
    return head <= (in_pages ? args->page_keys * row : row);
}

/* Whether all heads of a key come before the next key, and kernels gain by asking for them so. */
static int keys_lie_in_order(const fa_plan *plan)
{
    const fa_tensor *k = &plan->args->k, *v = &plan->args->v;
    return plan->kernels->heads_in_order && llabs(k->head) <= llabs(k->row) &&
           llabs(v->head) <= llabs(v->row);
}

/* Of packed queries and outputs; those of chunks before are touched once a chunk. */
static int64_t tile_bytes(const fa_plan *plan)
{
    const fa_kernels *kernels = plan->kernels;
    const fa_matrix *matrix = plan->matrices.wide;
    const int vectors = matrix ? matrix->max_vectors : kernels->max_vectors;
    const int64_t width = (int64_t)vectors * kernels->lanes, depth = plan->args->depth;
    const int64_t queries =
        matrix ? matrix->panel_bytes(width, depth) : width * depth * kernels->real_size;
    return queries + width * plan->value_depth * kernels->real_size;
}

/* Of all sequences. */
typedef struct {
    double work; /* multiplications */
    double cost, longest_task;
    double state_bytes; /* of more than are ever kept they do not fit into integers */
    int64_t tiles, most_tiles, thin_tiles, most_chunks, tasks;
    int64_t numbers; /* of q, k, v and out */
} totals;

static totals total_of(const fa_plan *plan)
{
    const int64_t heads = plan->args->kv_heads, depth = plan->args->depth + plan->value_depth;
    totals all = {.thin_tiles = 1, .most_chunks = 1};
    for (int64_t n = 0; n < plan->sequences; ++n) {
        fa_sequence sequence;
        fa_plan_sequence(plan, n, &sequence);
        const int64_t own = sequence.tiling.tiles, chunks = sequence.chunks;
        const int64_t tiles = smaller(own, plan->tiles) * heads_of(plan, &sequence);
        const double task = cost_of(&sequence, tiles) / (double)tasks_of_part(plan, &sequence);
        all.work += (double)(sequence.tiling.rows * depth) * cost_of(&sequence, heads);
        all.numbers += (sequence.tiling.rows + sequence.keys) * heads * depth;
        all.cost += cost_of(&sequence, own * heads);
        all.tiles += own * heads;
        all.tasks += parts_of(plan, &sequence) * tasks_of_part(plan, &sequence);
        all.state_bytes +=
            (double)(fa_state_bytes(plan, &sequence) * chunks) * (double)(own * heads);
        if (task > all.longest_task) all.longest_task = task;
        if (own > all.most_tiles) all.most_tiles = own;
        if (sequence.thin && own > all.thin_tiles) all.thin_tiles = own;
        if (chunks > all.most_chunks) all.most_chunks = chunks;
    }
    return all;
}

/* So many parts of a head, or up to twice as many, that threads end together, if all tasks take the
 * same: their tiles, and as long as half a tile to pack keys. */
static int64_t even_parts(const fa_plan *plan, const totals *all, int64_t parts,
                          int64_t least_tiles)
{
    const int64_t tiles = all->most_tiles, heads = all->tiles / tiles;
    int64_t best = parts, shortest = INT64_MAX;
    if (parts * heads >= (int64_t)plan->threads * SIZES.per_thread) return parts; /* even enough */
    for (int64_t n = parts; n <= 2 * parts; ++n) {
        const int64_t own = divide_up(tiles, n);
        const int64_t time = divide_up(n * heads, plan->threads) * (2 * own + 1);
        if (n > parts && own < least_tiles) break;
        if (time < shortest) best = n, shortest = time;
    }
    return best;
}

/* Tiles of a part: many, so that keys are read seldom, but enough parts for all threads. Thin tiles
 * of a head stay together wherever that leaves some for each. */
static int tiles_for(const fa_plan *plan, const struct sizes *of, const totals *all)
{
    int64_t tiles = all->tiles / ((int64_t)plan->threads * of->per_thread);
    if (plan->threads == 1 || tiles > of->tiles) tiles = of->tiles;
    if (tiles > of->bytes / tile_bytes(plan)) tiles = of->bytes / tile_bytes(plan);
    const int enough = all->most_chunks > 1 || all->tiles >= plan->threads * all->thin_tiles;
    const int64_t least = enough ? all->thin_tiles : 1;
    tiles = larger(tiles, least);
    const int64_t parts = divide_up(all->most_tiles, tiles); /* as even as can be */
    return parts ? (int)divide_up(all->most_tiles, even_parts(plan, all, parts, least)) : 1;
}

/* So many that what is asked for ahead stays in the second-level cache, or that memory is read in
 * long runs; in even groups. */
static int heads_for(const fa_plan *plan)
{
    const fa_args *args = plan->args;
    const int64_t bytes = fa_element_bytes(plan, plan->kv_storage);
    const int64_t numbers = plan->model.rows_ahead * (args->depth + plan->value_depth);
    const int64_t most =
        plan->in_order ? LONG_RUN / (args->depth * bytes) : NEAR_BYTES / (numbers * bytes);
    int64_t heads = smaller(most, FA_MAX_TILES / plan->thin_tiles);
    if (heads < 1 || plan->weights || !heads_lie_together(args)) heads = 1;
    return (int)divide_up(args->kv_heads, divide_up(args->kv_heads, heads));
}

/* Whether of tasks of thin tiles some threads would have one more than others, for long. */
static int threads_wait(const fa_plan *plan, const totals *all)
{
    const double most = (double)divide_up(all->tasks, plan->threads) * all->longest_task;
    return all->most_tiles == all->thin_tiles && most * plan->threads > 1.06 * all->cost;
}

/* How many threads, how many tiles and heads a task, and whether the keys of a part are split: when
 * the longest task would be long against a thread's share of all, or threads would wait. */
void fa_plan_tasks(fa_plan *plan)
{
    const fa_args *args = plan->args;
    const struct sizes *of = plan->matrices.wide ? &MATRIX_SIZES : &SIZES;
    const struct sizes *of_tiles = of == &SIZES && plan->kv_widened ? &WIDENED_SIZES : of;
    plan->tiles = plan->heads = 1;
    totals all = total_of(plan);
    plan->far = all.numbers * fa_element_bytes(plan, plan->kv_storage) > NEAR_BYTES;
    plan->threads = all.work < SERIAL_WORK ? 1 : fa_threads_for(args->threads);
    plan->tiles = tiles_for(plan, of_tiles, &all);
    plan->thin_tiles = (int)all.thin_tiles;
    plan->in_order = keys_lie_in_order(plan);
    plan->heads = heads_for(plan);
    if (plan->threads == 1) return;
    const double share = all.cost / (plan->threads * (of->per_thread / 2.0));
    all = total_of(plan);
    plan->split = all.most_chunks > 1 && all.state_bytes <= STATE_BYTES && !plan->weights &&
                  (all.longest_task > share || threads_wait(plan, &all));
    if (plan->split) all = total_of(plan);
    while (plan->heads > 1 && all.longest_task > share) {
        plan->heads = (plan->heads + 1) / 2;
        all = total_of(plan);
    }
    if (!plan->split) return;
    const int64_t run = all.tasks / ((int64_t)plan->threads * SIZES.per_thread);
    if (run > 1) plan->split = (int)run;
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
        plan->entries[n].first_task = (int64_t)cost_of(&sequence, smaller(tiles, plan->tiles));
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
        task += parts * tasks_of_part(plan, &sequence);
        if (plan->split)
            state += fa_state_bytes(plan, &sequence) * sequence.tiling.tiles * args->kv_heads *
                     sequence.chunks;
    }
}

typedef enum { OF_TASKS, OF_PARTS } entry_index;

/* The entry whose tasks or parts the index is one of. */
static const fa_entry *entry_of(const fa_plan *plan, int64_t index, entry_index of)
{
    int64_t low = 0, high = plan->sequences;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        const fa_entry *entry = &plan->entries[middle];
        if ((of == OF_PARTS ? entry->first_part : entry->first_task) <= index) low = middle;
        else high = middle;
    }
    return &plan->entries[low];
}

/* Order within a sequence: head by head, so that K and V stay in the cache. But under a causal mask
 * the last rows of all heads first, which see most keys: the longest tasks must not come last. */
static fa_share share_of(const fa_plan *plan, const fa_entry *entry, int64_t part,
                         const fa_sequence *sequence)
{
    const int64_t head_parts = divide_up(sequence->tiling.tiles, plan->tiles);
    const int heads = heads_of(plan, sequence);
    const int64_t groups = divide_up(plan->args->kv_heads, heads);
    const int unlike = sequence->positions.right >= 0 && sequence->positions.right < sequence->keys;
    fa_share share = {.entry = entry};
    share.kv_head = (unlike ? part % groups : part / head_parts) * heads;
    share.heads = (int)smaller(plan->args->kv_heads - share.kv_head, heads);
    share.first_tile = unlike ? head_parts - 1 - part / groups : part % head_parts;
    share.first_tile *= plan->tiles;
    share.tiles = (int)smaller(sequence->tiling.tiles - share.first_tile, plan->tiles);
    return share;
}

fa_share fa_share_of_part(const fa_plan *plan, int64_t part, fa_sequence *sequence)
{
    const fa_entry *entry = entry_of(plan, part, OF_PARTS);
    fa_plan_sequence(plan, entry->sequence, sequence);
    return share_of(plan, entry, part - entry->first_part, sequence);
}

fa_share fa_share_of_task(const fa_plan *plan, int64_t task, fa_sequence *sequence)
{
    const fa_entry *entry = entry_of(plan, task, OF_TASKS);
    fa_plan_sequence(plan, entry->sequence, sequence);
    const int64_t own = task - entry->first_task;
    if (!plan->split) return share_of(plan, entry, own, sequence);
    const int64_t parts = parts_of(plan, sequence);
    fa_share share = share_of(plan, entry, own % parts, sequence);
    share.first_chunk = own / parts * plan->split;
    share.chunk_end = smaller(share.first_chunk + plan->split, sequence->chunks);
    return share;
}

char *fa_state_at(const fa_plan *plan, const fa_entry *entry, const fa_sequence *sequence,
                  int64_t kv_head, int64_t tile, int64_t chunk)
{
    const int64_t row = kv_head * sequence->tiling.tiles + tile;
    return plan->states + entry->first_state +
           (row * sequence->chunks + chunk) * fa_state_bytes(plan, sequence);
}
