/* SPDX-License-Identifier: MIT
 * Which blocks of an explicit mask need work: one pass over the mask, shared by every batch and
 * head that shares the mask.
 */
#ifndef FA_BLOCKMAP_H
#define FA_BLOCKMAP_H

#include <stdint.h>

#include "fastattn.h"
#include "schedule.h"

typedef enum { FA_BLOCK_SKIP, FA_BLOCK_PARTIAL, FA_BLOCK_FULL } fa_block_state;

typedef struct {
    uint8_t *states; /* [maps][tiles][blocks] */
    int64_t maps, tiles, blocks;
    int64_t batches, heads; /* distinct ones: maps = batches * heads */
    int uniform;            /* every query of a head has the same mask: tiles = 1 */
    int step;               /* from block to block; 0: every key has the same mask, blocks = 1 */
} fa_blockmap;

/* What is needed to walk the mask; group = query heads of a kv head, row r of a kv head is query
 * r / group of head r % group. */
typedef struct {
    const fa_args *args;
    const fa_tiling *tiling;
    int64_t group, batches;
    int key_block;
} fa_blockmap_plan;

/* Sizes of the map; states is for the caller to allocate, maps * tiles * blocks bytes. */
fa_blockmap fa_blockmap_size(const fa_blockmap_plan *plan);

/* One row of the map, index = map * tiles + tile: the query rows that it is about, and filling it
 * in, for blocks of the keys that some of them sees. The mask may be large, and they may see few.
 */
fa_range fa_blockmap_rows(const fa_blockmap_plan *plan, const fa_blockmap *map, int64_t index);
void fa_blockmap_fill(const fa_blockmap_plan *plan, const fa_blockmap *map, int64_t index,
                      fa_range seen);

/* The states of one tile: that of a block is at block * map->step. */
const uint8_t *fa_blockmap_row(const fa_blockmap *map, int64_t batch, int64_t kv_head,
                               int64_t tile);

/* Offset of a batch, from its index over all leading axes. */
int64_t fa_batch_offset(const fa_args *args, const fa_tensor *tensor, int64_t batch);

#endif
