/* SPDX-License-Identifier: MIT
 * What one sequence (a batch, or a packed sequence) of a call looks like, and how its work is cut:
 *
 *   tile   query rows of a kv head: row = query * group + head
 *   block  key_block keys, what a tile is updated with at a time
 *   chunk  chunk_blocks blocks. The state of each chunk is begun anew and merged into that of the
 *          chunks before, whether one thread walks over all chunks or each goes to another.
 *   era    FA_ERA_CHUNKS chunks, merged among themselves before they are merged into those before:
 *          sums of a long cache then round less than in one chain of chunks.
 *
 * All borders depend on nothing but the sequence itself, and neither do its bits.
 */
#ifndef FA_SEQUENCE_H
#define FA_SEQUENCE_H

#include "fastattn.h"
#include "kernels.h"
#include "schedule.h"

enum {
    /* Keys of a chunk, at most: enough to hide what merging costs, few enough to deal a long cache
       out evenly. Several tiles on a matrix unit have that unit's chunk_keys instead. */
    FA_CHUNK_KEYS = 512,
    FA_ERA_CHUNKS = 32,
};

typedef struct {
    int64_t index, queries, keys;
    int64_t query_row, key_row; /* of packed tensors: its first ones */
    fa_positions positions;
    fa_tiling tiling;
    int thin; /* rows of its thin tiles, the last one may have fewer; 0: wide, but one apart */
    int key_block, chunk_blocks;
    int load_blocks;         /* whose rows are brought at a time: see fa_worker_load_end */
    int rows_ahead;          /* keys that are asked for before they are needed */
    const fa_matrix *matrix; /* what its tiles are updated with; NULL: the table itself */
    int64_t chunks;
} fa_sequence;

/* What of a unit can multiply these types, or NULL: in wide tiles, and in thin ones. */
typedef struct {
    const fa_matrix *wide, *thin;
} fa_matrices;

int64_t fa_sequence_count(const fa_args *args);

fa_sequence fa_sequence_at(const fa_args *args, const fa_kernels *kernels,
                           const fa_matrices *matrices, int64_t index);
/* How a tile of so many rows keeps them; on a matrix unit one by one. */
void fa_arrange(const fa_args *args, const fa_kernels *kernels, const fa_sequence *sequence,
                const fa_tile_rows *rows, fa_tile *tile);

#endif
