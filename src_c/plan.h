/* SPDX-License-Identifier: MIT
 * What one call needs to know before it starts: sizes, tasks, memory. All of the memory that the
 * library ever allocates is allocated here, before anything is written.
 */
#ifndef FA_PLAN_H
#define FA_PLAN_H

#include "blockmap.h"
#include "fastattn.h"
#include "kernels.h"
#include "sequence.h"
#include "source.h"

enum { FA_MAX_TILES = 32 }; /* of a task */

/* What of the call's tasks belongs to one sequence. */
typedef struct {
    int64_t sequence;
    int64_t first_task, first_part;
    int64_t first_state; /* bytes from plan->states on */
} fa_entry;

typedef struct {
    fa_args own; /* the caller's arguments, in today's layout */
    const fa_args *args;
    const fa_kernels *kernels;
    double factor;                    /* of products of queries and keys */
    fa_matrices matrices;             /* those that are of use for these types and this factor */
    int weights;                      /* the table of weights is wanted, not the output */
    fa_storage q_storage, kv_storage; /* of q and out; of k and v */
    int q_scattered, out_scattered;   /* elements apart */
    int k_scattered, v_scattered;     /* elements apart */
    int k_crowded, v_crowded;         /* rows that tiles push out of the first cache */
    int kv_widened;                   /* for wide tiles */
    int64_t group;                    /* query heads of a kv head */
    int64_t value_depth;              /* 0 with weights */
    int page_shift;                   /* page_keys = 1 << page_shift, or -1 */
    int64_t sequences;
    fa_sequence model; /* sequence 0 */

    /* A part of a sequence is `tiles` tiles of one kv head, or, where tiles are thin, those of
     * `heads` kv heads. A task is a part, or with `split` some chunks of the keys of a part, whose
     * states are kept for a second round, that merges. */
    fa_entry *entries; /* [sequences + 1], the longest sequence first */
    int tiles, heads;
    int thin_tiles; /* of a kv head, at most */
    int in_order;   /* heads of a part ask for keys of all of them, as they lie: ahead.c */
    int split;      /* chunks of a task, or 0 */
    int64_t tasks, parts;
    int threads;
    int far; /* more data than the second-level cache holds: the next task's is worth asking for */

    fa_blockmap map; /* states NULL: no explicit mask */
    fa_blockmap_plan map_plan;
    fa_tiling map_tiling;
    int64_t *reach; /* [sequences][kv_heads], or NULL: all keys are in reach (reach.h) */

    char *memory;
    int64_t thread_bytes; /* scratch of a thread */
    char *scratch, *states;
} fa_plan;

/* The plan keeps pointers into itself: it must not be moved. */
fa_status fa_plan_make(fa_plan *plan, const fa_args *given, int weights);
void fa_plan_free(fa_plan *plan);

/* Not by value: a copy would read in whole vectors what was stored number by number just before,
 * and loads that span several stores wait for them. */
void fa_plan_sequence(const fa_plan *plan, int64_t index, fa_sequence *sequence);

/* ---- tasks.c ---- */

/* How many threads, how large the parts and tasks. */
void fa_plan_tasks(fa_plan *plan);

/* Fill plan->entries. */
void fa_plan_entries(fa_plan *plan);

/* What one task, or one part, is. */
typedef struct {
    const fa_entry *entry;
    int64_t kv_head, first_tile, first_chunk, chunk_end;
    int heads, tiles; /* from there on; tiles of each head */
} fa_share;

fa_share fa_share_of_task(const fa_plan *plan, int64_t task, fa_sequence *sequence);
fa_share fa_share_of_part(const fa_plan *plan, int64_t part, fa_sequence *sequence);

/* Bytes of the state of one tile of a sequence, and where it is kept with `split`. */
int64_t fa_state_bytes(const fa_plan *plan, const fa_sequence *sequence);
char *fa_state_at(const fa_plan *plan, const fa_entry *entry, const fa_sequence *sequence,
                  int64_t kv_head, int64_t tile, int64_t chunk);

/* Rows of one head of one sequence. */
void fa_set_rows(fa_rows *rows, const fa_plan *plan, const fa_tensor *tensor,
                 const fa_sequence *sequence, int64_t head, int64_t columns, fa_storage storage);

int fa_element_bytes(const fa_plan *plan, fa_storage storage);

/* Scratch is handed out in whole lines. */
int64_t fa_line(int64_t bytes);

#endif
