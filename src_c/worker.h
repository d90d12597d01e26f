/* SPDX-License-Identifier: MIT
 * One task on one thread: its tiles, its scratch, and the steps that attention.c walks through.
 */
#ifndef FA_WORKER_H
#define FA_WORKER_H

#include "plan.h"

/* Of a state. */
typedef struct {
    void *o, *m, *l;
} fa_state_memory;

enum { FA_PASTS = 2 };

/* A query tile: the state of the current chunk, that of the chunks before it in its era, and that
 * of all eras before. */
typedef struct {
    fa_tile state, past[FA_PASTS];
    fa_state_memory own[1 + FA_PASTS]; /* memory of all, as the task begins */
    int has_past[FA_PASTS];
    int64_t kv_head, index; /* which tile of which head it is */
    int64_t first_chunk;    /* of the keys that its queries see */
    fa_tile_rows rows;
    fa_span span;          /* keys that its queries see */
    const uint8_t *states; /* of the blocks of an explicit mask, or NULL */
    void *q_panels;        /* memory for state.q_panels */
    int packed;            /* state.q holds the queries */
} fa_worker_tile;

_Static_assert((int)FA_MOST_THIN <= (int)FA_MAX_TILES, "all of a head may be one task");

typedef struct {
    const fa_plan *plan;
    fa_sequence sequence;
    fa_share share;
    int tiles;                      /* of all heads of the share, head by head */
    int head;                       /* of the share: whose turn it is */
    fa_rows k, v, k_scale, v_scale; /* of that head */
    int k_copied, v_copied;         /* or else kernels read rows where they lie */
    int panels;                     /* whether the keys at hand are in panels */
    int widened;                    /* whether the table's kernels can read their rows */
    fa_worker_tile tile[FA_MAX_TILES];
    int64_t block_begin, block_end; /* blocks that some tile needs */
    int64_t chunk;                  /* whose state the tiles have */

    int64_t next_task; /* what the thread probably does next, or < 0 */
    fa_share next_share;
    fa_sequence next_sequence;

    int64_t first_row;                           /* <= first_key: panels begin with it */
    int64_t first_key, key_end;                  /* keys at hand: of one or more blocks */
    int block_used;                              /* by a tile: its rows are in the cache */
    const void *const *k_ahead, *const *v_ahead; /* as in fa_block */

    /* scratch */
    const void **k_rows, **v_rows; /* of the keys at hand */
    const void **k_asks, **v_asks; /* room for k_ahead and v_ahead where no other list has them */
    void **soon_rows;              /* room for fa_block.soon */
    char *k_copy, *v_copy;         /* copied rows */
    void *k_panels, *v_panels;
    float *k_scales, *v_scales; /* of the keys at hand */
    char *elements;             /* one row of scattered elements */
    const char **mask_rows;     /* at key mask_first of tile mask_of, if that is one */
    const fa_worker_tile *mask_of, *slope_of; /* slope_of: whose `slope` is */
    int64_t mask_first;
    void **rows;                                  /* of a tile: queries in, outputs out */
    char *copy;                                   /* copied rows of a tile */
    void *begin, *end, *slope, *position, *sinks; /* [width] */
    fa_modifiers modifiers;
} fa_worker;

/* Bytes of the scratch of a thread, in whole lines, its worker included. */
int64_t fa_scratch_bytes(const fa_plan *plan);

/* Before the first task of any thread. */
void fa_workers_reset(const fa_plan *plan);
fa_worker *fa_worker_of(const fa_plan *plan, int thread);

/* The thread's worker, with its task. next: what it probably does after it, or < 0. */
fa_worker *fa_worker_start(const fa_plan *plan, int64_t task, int64_t next, int thread);
/* Take up a part whose states were kept, chunk by chunk. */
fa_worker *fa_worker_resume(const fa_plan *plan, int64_t part, int thread);
/* After the last block. */
void fa_worker_stop(fa_worker *worker);
/* Where to end a load that begins with `block`: so many blocks are best loaded together. */
int64_t fa_worker_load_end(const fa_worker *worker, int64_t block);
/* Bring the keys of blocks [block, end) of a head, or only of the first of these blocks. Returns
 * where those end that are at hand now. */
int64_t fa_worker_load(fa_worker *worker, int head, int64_t block, int64_t end);
/* Update a tile of that head with `block`, or with a few blocks from there on. Returns where those
 * end. */
int64_t fa_worker_update(fa_worker *worker, int tile, int64_t block, int64_t end);
/* Write the weights of all tiles, or their outputs. */
void fa_worker_weigh(fa_worker *worker);
void fa_worker_finish(fa_worker *worker);

/* ---- ahead.c: what to ask for ---- */

/* The thread's next task, or < 0. */
void fa_worker_expect(fa_worker *worker, int64_t next);
/* Set k_ahead and v_ahead for the `count` rows at hand; `following` more come after them. */
void fa_worker_look_ahead(fa_worker *worker, int64_t count, int64_t following);

/* ---- state.c: chunks ---- */

/* Begin the states of a tile whose queries are packed. */
void fa_worker_begin(fa_worker *worker, fa_worker_tile *tile);

/* The next block is of another chunk: what was done so far becomes the past, or with plan->split is
 * kept in the plan's memory. */
void fa_worker_next_chunk(fa_worker *worker, int64_t chunk);

/* After the last block: make the states those over all chunks. */
void fa_worker_fold(fa_worker *worker);
/* After the last block with plan->split: keep the states of the last chunk, too. */
void fa_worker_keep(fa_worker *worker);

/* Make the state of a tile that over all chunks that were kept. */
void fa_worker_collect(fa_worker *worker, fa_worker_tile *tile);

/* ---- rows.c: rows of tiles and blocks between memory and kernels ---- */

int64_t fa_query_of(const fa_worker *worker, int64_t row);
int64_t fa_head_of(const fa_worker *worker, const fa_worker_tile *tile, int64_t row);

/* The addresses of the tile's rows in a tensor, `count` of them; past the last row, that row. */
void fa_worker_point(const fa_worker *worker, const fa_worker_tile *tile, const fa_tensor *tensor,
                     int count, void **rows);

/* The same of any rows, which must exist. */
void fa_point_queries(const fa_plan *plan, const fa_sequence *sequence, const fa_tensor *tensor,
                      int64_t kv_head, int64_t row_begin, int count, void **rows);

/* Queries in, for the matrix unit, if there is one and it carries them. */
void fa_worker_pack_panels(fa_worker *worker, fa_worker_tile *tile);
/* Queries in, for the table's kernels: when a tile first needs them. */
void fa_worker_pack_rows(fa_worker *worker, fa_worker_tile *tile);
/* Outputs out, and lse. */
void fa_worker_write(fa_worker *worker, fa_worker_tile *tile);

/* Rows [first, first + count) of k or v, copied in the type of the kernels or not; what follows
 * them are rows that come next, up to `end`, then the last one again. scales: [count] or NULL. */
void fa_worker_bring(fa_worker *worker, const fa_rows *source, int64_t first, int count,
                     int64_t end, const float *scales, char *copy, const void **rows);

/* Their scales. */
void fa_worker_scales(const fa_rows *source, int64_t first, int count, float *scales);

/* ---- options.c: how the scores of a tile and block differ from plain products ---- */

/* NULL: not at all. masked: the explicit mask matters here. */
const fa_modifiers *fa_worker_modifiers(fa_worker *worker, const fa_worker_tile *tile,
                                        int64_t first, int keys, int masked);

/* Values of the kernels' type in arrays of a tile. */
static inline void fa_put(void *array, int64_t index, double value, int real_size)
{
    if (real_size == (int)sizeof(float)) ((float *)array)[index] = (float)value;
    else ((double *)array)[index] = value;
}

/* A number of the caller, or the nearest one that counts. */
static inline double fa_held(double value, int real_size)
{
    const double most = real_size == (int)sizeof(float) ? FA_MOST_FLOAT : FA_MOST_DOUBLE;
    return value > most ? most : value < -most ? -most : value;
}

static inline double fa_get(const void *array, int64_t index, int real_size)
{
    if (real_size == (int)sizeof(float)) return ((const float *)array)[index];
    return ((const double *)array)[index];
}

#endif
