/* SPDX-License-Identifier: MIT
 * The driver: which tiles, which blocks, in which order. It knows no vectors and no instruction
 * set. Dao et al. 2022 (arXiv:2205.14135) and Dao 2023 (arXiv:2307.08691) on CPU caches:
 *
 * For each block of keys the tiles of a task are updated in turn, so that K and V come from memory
 * once per task and from the cache for every tile. Where there are few tiles and many keys, chunks
 * of keys are tasks of their own (sequence.h, plan.h). Heads whose keys are neighbours in memory
 * take turns block by block.
 */
#include "plan.h"
#include "worker.h"

#include "environment.h"
#include "numbers.h"
#include "parallel.h"
#include "profile.h"
#include "reach.h"

static void run_task(void *context, int64_t task, int64_t next, int thread)
{
    const fa_plan *plan = context;
    FA_ENTER(thread);
    fa_worker *worker = fa_worker_start(plan, task, next, thread);
    FA_MARK(FA_STAGE_PACK);
    for (int64_t begin = worker->block_begin; begin < worker->block_end;) {
        int64_t end = fa_worker_load_end(worker, begin);
        const int64_t chunk = begin / worker->sequence.chunk_blocks;
        if (chunk != worker->chunk) fa_worker_next_chunk(worker, chunk);
        FA_MARK(FA_STAGE_MERGE);
        for (int head = 0; head < worker->share.heads; ++head) {
            end = fa_worker_load(worker, head, begin, end);
            FA_MARK(FA_STAGE_LOAD);
            for (int tile = 0; tile < worker->share.tiles; ++tile)
                for (int64_t block = begin; block < end;)
                    block = fa_worker_update(worker, tile, block, end);
        }
        begin = end;
    }
    fa_worker_stop(worker);
    if (plan->split) {
        fa_worker_keep(worker);
        FA_MARK(FA_STAGE_MERGE);
        return;
    }
    fa_worker_fold(worker);
    FA_MARK(FA_STAGE_MERGE);
    if (plan->weights) fa_worker_weigh(worker);
    fa_worker_finish(worker);
    FA_MARK(FA_STAGE_WRITE);
}

static void merge_part(void *context, int64_t part, int64_t next, int thread)
{
    (void)next;
    FA_ENTER(thread);
    fa_worker *worker = fa_worker_resume(context, part, thread);
    FA_MARK(FA_STAGE_MERGE);
    fa_worker_finish(worker);
    FA_MARK(FA_STAGE_WRITE);
}

/* Keys that queries of a row of the map see, in any of the sequences that share it. */
static fa_range seen_by(const fa_plan *plan, int64_t index)
{
    const fa_args *args = plan->args;
    const fa_blockmap *map = &plan->map;
    const fa_range rows = fa_blockmap_rows(&plan->map_plan, map, index);
    const int64_t begin = rows.begin / plan->group, end = divide_up(rows.end, plan->group);
    const int alike = map->batches > 1 || !(args->kv_begin || args->kv_end || args->q_offset);
    const int64_t first = map->batches > 1 ? index / map->tiles / map->heads : 0;
    const int64_t count = alike ? 1 : plan->sequences;
    fa_range seen = {INT64_MAX, 0};
    for (int64_t n = first; n < first + count; ++n) {
        fa_sequence sequence;
        fa_plan_sequence(plan, n, &sequence);
        const fa_span span = fa_span_of(&sequence.positions, begin, end);
        seen.begin = smaller(seen.begin, span.begin);
        seen.end = larger(seen.end, span.end);
    }
    return seen;
}

static void fill_map(void *context, int64_t index, int64_t next, int thread)
{
    const fa_plan *plan = context;
    (void)next, (void)thread;
    FA_ENTER(thread);
    fa_blockmap_fill(&plan->map_plan, &plan->map, index, seen_by(plan, index));
    FA_MARK(FA_STAGE_MAP);
}

static void fill_reach(void *context, int64_t index, int64_t next, int thread)
{
    (void)next, (void)thread;
    FA_ENTER(thread);
    fa_reach_fill(context, index);
    FA_MARK(FA_STAGE_MAP);
}

static fa_status attend(const fa_args *args, int weights)
{
    fa_plan plan;
    FA_CALL(1);
    const fa_status status = fa_plan_make(&plan, args, weights);
    if (status != FA_OK) return status;
    if (plan.map.states)
        fa_parallel_for(plan.map.maps * plan.map.tiles, plan.threads, fill_map, &plan);
    if (plan.reach)
        fa_parallel_for(plan.sequences * plan.args->kv_heads, plan.threads, fill_reach, &plan);
    fa_parallel_for(plan.tasks, plan.threads, run_task, &plan);
    if (plan.split) fa_parallel_for(plan.parts, plan.threads, merge_part, &plan);
    fa_plan_free(&plan);
    FA_CALL(0);
    return FA_OK;
}

/* In the environment that helpers have: a caller who rounds up, or takes denormal numbers for 0,
 * would otherwise get results that depend on who computed them. */
static fa_status run(const fa_args *args, int weights)
{
    const fa_environment of_caller = fa_enter_default();
    const fa_status status = attend(args, weights);
    fa_leave_default(of_caller);
    return status;
}

fa_status fa_attention(const fa_args *args) { return run(args, 0); }

fa_status fa_attention_weights(const fa_args *args) { return run(args, 1); }
