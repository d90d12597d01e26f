/* SPDX-License-Identifier: MIT
 * What one call needs to know before it starts: sizes, tasks, memory. All of the memory that the
 * library ever allocates is allocated here, before anything is written.
 */
#ifndef FA_PLAN_H
#define FA_PLAN_H

#include "blockmap.h"
#include "fastattn.h"
#include "kernels.h"
#include "schedule.h"
#include "source.h"

enum { FA_MAX_TILES = 8 }; /* of a task */

typedef struct {
    const fa_args *args;
    const fa_kernels *kernels;
    int weights; /* the table of weights is wanted, not the output */
    int64_t batches;
    int64_t group; /* query heads of a kv head */
    int64_t value_depth;
    int key_block;             /* keys of a block */
    fa_tiling tiling;          /* of the group * queries rows of one kv head */
    int tiles;                 /* of a task */
    int64_t head_tasks, tasks; /* of one kv head of one batch; of the call */
    int threads;

    fa_blockmap map; /* states NULL: no explicit mask */
    fa_blockmap_plan map_plan;

    int q_scattered, k_scattered, v_scattered, out_scattered;
    char *memory;
    int64_t thread_bytes; /* scratch of a thread */
} fa_plan;

fa_status fa_plan_make(fa_plan *plan, const fa_args *args, int weights);
void fa_plan_free(fa_plan *plan);

/* Scratch of a thread, in the order in which fa_worker_start takes it. */
int64_t fa_scratch_bytes(const fa_plan *plan);

/* Rows of one head of one batch. */
fa_rows fa_rows_of(const fa_plan *plan, const fa_tensor *tensor, int64_t batch, int64_t head,
                   int64_t columns);

/* The keys that the queries of a batch may see. */
fa_positions fa_positions_of(const fa_plan *plan, int64_t batch);

#endif
