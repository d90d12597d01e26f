/* SPDX-License-Identifier: MIT
 * One task on one thread: its tiles, its scratch, and the steps that attention.c walks through.
 */
#ifndef FA_WORKER_H
#define FA_WORKER_H

#include "plan.h"

typedef struct {
    fa_tile state;
    fa_tile_rows rows;
    fa_span span;          /* keys that its queries see */
    const uint8_t *states; /* of the blocks of an explicit mask, or NULL */
} fa_worker_tile;

typedef struct {
    const fa_plan *plan;
    int64_t batch, kv_head;
    fa_positions positions;
    fa_rows k, v;
    int tiles;
    fa_worker_tile tile[FA_MAX_TILES];
    int64_t block_begin, block_end; /* blocks that some tile needs */

    int64_t first_key, key_end; /* of the current block */

    /* scratch */
    const void **k_rows, **v_rows; /* of the current block */
    char *k_copy, *v_copy;         /* scattered rows, or NULL */
    const char **mask_rows;
    void **rows;                                  /* of a tile: queries in, outputs out */
    char *copy;                                   /* scattered rows of a tile */
    void *begin, *end, *slope, *position, *sinks; /* [width] */
    fa_modifiers modifiers;
} fa_worker;

void fa_worker_start(fa_worker *worker, const fa_plan *plan, int64_t task, int thread);
void fa_worker_load(fa_worker *worker, int64_t block);
void fa_worker_update(fa_worker *worker, int tile, int64_t block);
void fa_worker_weigh(fa_worker *worker);
void fa_worker_finish(fa_worker *worker);

#endif
