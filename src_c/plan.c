/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include <stdlib.h>

#include "dispatch.h"
#include "parallel.h"
#include "worker.h"

enum {
    /* Packed queries and outputs of a task stay in the second-level cache. */
    TASK_BYTES = 256 * 1024,
    /* Under an explicit mask tiles and blocks never straddle so many rows and keys: masks that
       leave out whole blocks come in multiples of it. */
    MASK_BLOCK = 64,
    /* Enough tasks per thread that the last one to finish is not long alone. */
    TASKS_PER_THREAD = 16,
};
/* Below this many multiplications another thread costs more than it brings. */
static const double SERIAL_WORK = 1e5;

fa_rows fa_rows_of(const fa_plan *plan, const fa_tensor *tensor, int64_t batch, int64_t head,
                   int64_t columns)
{
    char *base = (char *)tensor->data + fa_batch_offset(plan->args, tensor, batch);
    return (fa_rows){base + head * tensor->head, tensor->row, tensor->column, columns,
                     plan->kernels->real_size};
}

fa_positions fa_positions_of(const fa_plan *plan, int64_t batch)
{
    const fa_args *args = plan->args;
    fa_positions positions;
    positions.begin = args->kv_begin ? args->kv_begin[batch] : 0;
    positions.end = args->kv_end ? args->kv_end[batch] : args->keys;
    positions.offset = args->q_offset ? args->q_offset[batch] : positions.end - args->queries;
    positions.left = args->left;
    positions.right = args->causal ? 0 : args->right;
    return positions;
}

static int scattered(const fa_plan *plan, const fa_tensor *tensor, int64_t columns)
{
    const fa_rows rows = fa_rows_of(plan, tensor, 0, 0, columns);
    return fa_rows_scattered(&rows, &tensor->head, 1) ||
           fa_rows_scattered(&rows, tensor->lead, plan->args->lead_rank);
}

static int valid(const fa_args *args)
{
    if (args->size != sizeof(fa_args)) return 0;
    if (args->lead_rank < 0 || args->lead_rank > FA_MAX_LEAD) return 0;
    if (args->kv_heads < 1 || args->q_heads % args->kv_heads) return 0;
    if (args->queries < 0 || args->keys < 0 || args->depth < 1 || args->value_depth < 1) return 0;
    return args->left >= -1 && args->right >= -1 && args->softcap >= 0;
}

static void plan_tasks(fa_plan *plan)
{
    const fa_args *args = plan->args;
    const fa_kernels *kernels = plan->kernels;
    const int64_t pairs = plan->batches * args->kv_heads;
    const int64_t tile_bytes = (int64_t)kernels->max_vectors * kernels->lanes *
                               (args->depth + plan->value_depth) * kernels->real_size;
    plan->key_block = kernels->key_block;
    if (args->mask.data && plan->key_block > MASK_BLOCK) plan->key_block = MASK_BLOCK;
    plan->tiling = fa_tile_up(plan->group * args->queries, kernels->lanes, kernels->max_vectors,
                              args->mask.data ? MASK_BLOCK : 0);
    const double work = (double)pairs * (double)plan->tiling.rows * (double)args->keys *
                        (double)(args->depth + args->value_depth);
    plan->threads = work < SERIAL_WORK ? 1 : fa_threads_for(args->threads);

    int64_t tiles = plan->tiling.tiles * pairs / ((int64_t)plan->threads * TASKS_PER_THREAD);
    if (plan->threads == 1 || tiles > FA_MAX_TILES) tiles = FA_MAX_TILES;
    if (tiles > plan->tiling.tiles) tiles = plan->tiling.tiles;
    if (tiles > TASK_BYTES / tile_bytes) tiles = TASK_BYTES / tile_bytes;
    if (tiles < 1) tiles = 1;
    plan->head_tasks = (plan->tiling.tiles + tiles - 1) / tiles;
    plan->tiles = (int)((plan->tiling.tiles + plan->head_tasks - 1) / plan->head_tasks);
    plan->tasks = plan->head_tasks * pairs;
    if (plan->threads > plan->tasks) plan->threads = plan->tasks < 1 ? 1 : (int)plan->tasks;
}

static int64_t line(int64_t bytes) { return (bytes + FA_LINE - 1) / FA_LINE * FA_LINE; }

static fa_status allocate(fa_plan *plan)
{
    int64_t map_bytes = 0;
    if (plan->args->mask.data) {
        plan->map_plan = (fa_blockmap_plan){plan->args, &plan->tiling, plan->group, plan->batches,
                                            plan->key_block};
        plan->map = fa_blockmap_size(&plan->map_plan);
        map_bytes = line(plan->map.maps * plan->map.tiles * plan->map.blocks);
    }
    plan->thread_bytes = line(fa_scratch_bytes(plan));
    plan->memory = malloc((size_t)(plan->thread_bytes * plan->threads + map_bytes + FA_LINE));
    if (!plan->memory) return FA_NO_MEMORY;
    if (map_bytes) {
        const int64_t scratch = plan->thread_bytes * plan->threads + FA_LINE;
        plan->map.states = (uint8_t *)plan->memory + scratch;
    }
    return FA_OK;
}

fa_status fa_plan_make(fa_plan *plan, const fa_args *args, int weights)
{
    if (!valid(args)) return FA_INVALID;
    *plan = (fa_plan){.args = args, .weights = weights};
    plan->kernels = fa_kernels_for(args->isa, args->dtype);
    if (!plan->kernels) return FA_UNSUPPORTED_ISA;
    plan->group = args->q_heads / args->kv_heads;
    plan->value_depth = weights ? 0 : args->value_depth;
    plan->batches = 1;
    for (int axis = 0; axis < args->lead_rank; ++axis) plan->batches *= args->lead_shape[axis];
    if (plan->batches == 0 || plan->group * args->queries == 0) return FA_OK; /* tasks = 0 */
    plan_tasks(plan);
    plan->q_scattered = scattered(plan, &args->q, args->depth);
    plan->k_scattered = scattered(plan, &args->k, args->depth);
    plan->v_scattered = !weights && scattered(plan, &args->v, args->value_depth);
    plan->out_scattered = !weights && scattered(plan, &args->out, args->value_depth);
    return allocate(plan);
}

void fa_plan_free(fa_plan *plan) { free(plan->memory); }
