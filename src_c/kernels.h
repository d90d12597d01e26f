/* SPDX-License-Identifier: MIT
 * The kernel table: what one instruction set offers, and the contract of each entry.
 *
 *   letters  q k v o tensors, s scores, p probabilities, m running maximum, l running sum,
 *            i query, j key, d feature.  Scores, m and lazy maxima are in units of log2.
 *   layout   lanes are query rows. A tile holds width = vectors * lanes rows; every array of a
 *            tile is feature- or key-major, so that one row of it is `vectors` full vectors:
 *
 *                 q [depth][width]    s, p [key_block + padding][width]    o [value_depth][width]
 *
 *            q and o of thin tiles, of at most `lanes` rows: see kernels/thin.inc.
 *   pieces   bfloat16 numbers whose sum a number is; panels hold them as a matrix unit reads them:
 *            see pieces/panels.inc.
 *   to ask   for rows of memory is to prefetch them, line by line.
 *
 * RESTRICTED HEADER. It is included by files compiled with different -m flags. A function defined
 * here (or in anything it includes) would be compiled once per instruction set under one name, and
 * the linker may keep the AVX-512 copy for everybody: an illegal instruction on older machines.
 * So: types and macros only, no other header of the project but platform.h, which is the same;
 * everything below isa/ is static.
 */
#ifndef FA_KERNELS_H
#define FA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "platform.h"

enum {
    FA_ROWS_AHEAD = 64,  /* keys that K and V are asked for before they are needed, mostly */
    FA_MOST_AHEAD = 128, /* the same, at most */
    FA_SHALLOW = 32,     /* features of a head that has few, for the table's kernels */
    FA_KEY_PADDING = 16, /* kernels look so far past the last key of a block, */
    FA_ROW_PADDING = 24, /* and of its rows so far: they ask for those of the tile behind it */
    FA_PANEL_ALIGN = 32, /* panels hold a multiple of it, of keys and of features */
    FA_MAX_WIDTH = 64,   /* rows of a tile on any instruction set, at most */
    FA_MOST_THIN = 4     /* thin tiles that the rows of a head are cut into, at most */
};

/* log2(e), and how far a score may exceed the running maximum before o and l are rescaled.
 * Probabilities then stay below 2^8; precision does not depend on it (p and l scale together). */
#define FA_LOG2E 1.4426950408889634074
#define FA_RESCALE_THRESHOLD 8.0

/* The greatest number of a caller that counts as it is: times log2(e) it is finite, too. */
#define FA_MOST_FLOAT 0x1p126
#define FA_MOST_DOUBLE 0x1p1022

typedef enum {
    FA_MASK_NONE,
    FA_MASK_BOOL,
    FA_MASK_FLOAT32,
    FA_MASK_FLOAT64,
    FA_MASK_HALF,
    FA_MASK_BFLOAT
} fa_mask_type;

/* How a number is stored; FA_REAL: as the table computes. */
typedef enum { FA_REAL, FA_HALF, FA_BFLOAT, FA_CHAR, FA_E4M3, FA_E5M2, FA_STORAGES } fa_storage;

/* One tile of query rows and its online-softmax state. */
typedef struct {
    int vectors;         /* 1 ... max_vectors */
    int beside;          /* of part of a tile: rows of q and o go on for so many more vectors */
    int thin;            /* rows of a thin tile, with those that fill it up; 0: a wide one */
    int spread;          /* features of a row beside each other in a vector of a thin tile */
    int fresh;           /* no key seen yet: o holds nothing */
    int64_t depth;       /* features of q and k */
    int64_t value_depth; /* features of v; 0 when only m and l are wanted */
    void *q;             /* packed and scaled queries */
    void *o;             /* unnormalised output */
    void *m, *l;         /* [width] running maximum and sum */
    void *s;             /* scratch for scores, then probabilities */
    void *spare;         /* of a thin tile: another o, each row of whole fours of vectors */
    /* For the matrix unit: */
    void *q_panels; /* unscaled queries as pieces; NULL: the tile goes without it */
    void *p;        /* scratch for probabilities as pieces */
    double factor;  /* products of pieces times this are scores */
} fa_tile;

/* How the scores of a block differ from plain scaled products. NULL members do not apply. */
typedef struct {
    int keys_before; /* of a block in steps (stairs.inc), of those before; else 0. Its first key is
                      * the block's start for all below */
    double cap;      /* > 0: s = cap * tanh(s); q was packed with scale / cap */
    const void *slope, *position; /* ALiBi: s -= slope * |position - j|, j from the block's start */
    const void *begin, *end;      /* keys begin <= j < end are allowed, j from the block's start */
    fa_mask_type mask;
    int64_t mask_stride;          /* bytes from key to key */
    const char *const *mask_rows; /* [width] each row's mask at the block's first key */
} fa_modifiers;

/* Up to key_block keys, as rows that lie anywhere. */
typedef struct {
    int keys;
    const void *const *k, *const *v; /* [keys + FA_ROW_PADDING], at the end any rows */
    /* [keys + FA_KEY_PADDING] rows to ask for at each key, in the end those that the next task
     * begins with. */
    const void *const *k_ahead, *const *v_ahead;
    /* Thin tiles read rows of any storage, and multiply what they read by [keys] scales or NULL; of
     * panels it is what was packed; for other wide tiles FA_REAL and NULL. */
    fa_storage storage;
    int ahead_element; /* bytes of an element of these: they are as stored, where k may be copies */
    int from_memory;   /* no tile has used the rows just now */
    /* For wide tiles: [keys] rows to ask for besides, of outputs or of the next queries, on the way
     * over the values; or NULL. */
    const void *const *soon;
    int soon_element; /* bytes */
    const float *k_scales, *v_scales;
    void *k_panels, *v_panels; /* pieces, from key panel_begin on, or room for an update; or NULL */
    int panel_begin;           /* a multiple of FA_PANEL_ALIGN */
    const fa_modifiers *modifiers;
} fa_block;

/* How many pieces numbers have: all of them the same, or q and k three, because an error of a score
 * counts more the larger the score is, and v two. Scaled: K and V are bytes, one piece as they are
 * stored; scores and probabilities are multiplied by the scales. */
typedef enum {
    FA_ONE_PIECE,
    FA_SCALED_PIECE,
    FA_TWO_PIECES,
    FA_THREE_AND_TWO,
    FA_THREE_PIECES,
    FA_SPLITS
} fa_split;

/* Tiles on a matrix unit: instructions that multiply narrower numbers than the table's, and more of
 * them, by tiles or by vectors. Bfloat16; for some thin tiles int8 as it is.
 * A tile and a block whose numbers pieces carry have panels; all others, and all other stages, are
 * what the table beside the unit has for them. State and output of a tile lie as they always do,
 * but that a thin tile's o has room for a whole vector of rows. */
typedef struct {
    int pieces; /* the fewest of any number */
    int max_vectors, key_block;
    /* Of a sequence with fewer rows, keys times features, or rows times both, the other kernels are
     * the faster ones. */
    int min_rows, min_key_numbers, min_products;
    int load_keys;             /* packed at a time, of one block or several; 0: nothing is packed */
    int rows_ahead;            /* as FA_ROWS_AHEAD */
    int chunk_keys;            /* of a head with several tiles: see sequence.h */
    int most_thin_rows;        /* of thin tiles: as in fa_kernels */
    int shallow, shallow_rows; /* the same of heads with no more than so many features */
    /* Bytes of the panels of so many rows of q, k or v, and of p. */
    int64_t (*panel_bytes)(int64_t rows, int64_t depth);
    /* Rows [count] as they are stored; 0 if pieces do not carry some number. */
    int (*pack_queries)(fa_tile *tile, fa_storage storage, const void *const *rows, int count);
    /* block->k and v, of block->storage and, but for scaled pieces, times its scales, to panels;
     * returns the same. */
    int (*pack_keys)(const fa_tile *tile, const fa_block *block, void *k_panels, void *v_panels);
    /* Of a tile and a block with panels, in which it may make what packing has left. 0 if it meets
     * numbers that pieces do not carry, which packing need not look for; the state is then as if
     * nothing had happened. */
    int (*update)(fa_tile *tile, const fa_block *block);
    /* On each thread, before the first keys of a task are packed, and after its last update. */
    void (*enter)(void);
    void (*leave)(void);
    /* The limit of the unit: floating-point operations done in registers. */
    double (*product_loop)(int64_t repeats);
} fa_matrix;

/* What an instruction set has of them. */
typedef struct {
    const fa_matrix *wide; /* [FA_SPLITS], pieces 0 where there is none; or NULL */
    /* Of queries of bfloat16, and of float16 where K and V are as well: [FA_STORAGES] of these, or
     * NULL. */
    const fa_matrix *const *thin;
} fa_unit;

typedef struct fa_kernels {
    int real_size;   /* bytes of an element */
    int lanes;       /* rows of a vector */
    int max_vectors; /* vectors of a tile */
    int key_block;   /* keys of a block */
    int thin_rows;   /* of a thin tile, at most */
    /* Up to so many rows thin tiles, one or a few, are faster than a wide one: by what K and V are
     * stored as, [FA_STORAGES]. */
    const int *most_thin_rows;
    int widest_thin; /* but one of more rows than that is slower than a vector of a wide one */
    /* Heads that take turns ask for keys of all of them, as they lie, not each for its own. */
    int heads_in_order;
    /* One row asks for neighbours so far ahead, in bytes of K. */
    int bytes_ahead;
    /* Wide tiles gain by copies of rows that push each other out of the first cache. */
    int copies_crowded;
    /* Of a thin tile of so many rows and what K and V are stored as: its `thin` and spread. */
    int (*arrange)(int rows, fa_storage storage, int *spread);

    /* Rows [count] of FA_REAL, FA_HALF or FA_BFLOAT in, times factor; a wide tile's are transposed,
     * and rows past count repeat the last one; their results are never written. */
    void (*pack)(fa_tile *tile, fa_storage storage, const void *const *rows, int count,
                 double factor);
    /* The state before the first key. sinks: [width] in log2 or NULL. */
    void (*begin)(fa_tile *tile, const void *sinks);
    /* All stages for one block: what the driver calls. */
    void (*update)(fa_tile *tile, const fa_block *block);
    /* into = the state over the keys of both: different keys, the same rows. */
    void (*merge)(fa_tile *into, const fa_tile *from);
    /* Transpose out: rows[r][d] = o / l, or 0 where l is 0; rounded to FA_HALF or FA_BFLOAT. */
    void (*finish)(const fa_tile *tile, fa_storage storage, void *const *rows, int count);
    /* rows[r][j] = exp2(s - m) / l with the final m and l of an earlier walk over all blocks. */
    void (*weigh)(fa_tile *tile, const fa_block *block, void *const *rows, int count);

    /* Between storage and the type of the table; float64 tables know FA_REAL only.
     * Rows [count] of so many columns, times [count] scales or NULL, to contiguous rows. */
    void (*widen)(fa_storage storage, const void *const *rows, int count, int64_t columns,
                  const float *scales, void *to);
    /* One row, rounded to nearest even. */
    void (*narrow)(fa_storage storage, const void *from, int64_t count, void *to);
    /* Of rows as `widen` takes them, times scales: the greatest sum of squares of one; or infinite,
     * where the sum over all of them is no finite number. */
    double (*greatest_square)(fa_storage storage, const void *const *rows, int count,
                              int64_t columns, const float *scales);

    /* The stages of update, one by one, for tests and benches. */
    void (*scores)(fa_tile *tile, const fa_block *block);
    void (*modify)(fa_tile *tile, const fa_block *block);
    void (*softmax)(fa_tile *tile, const fa_block *block);
    void (*output)(fa_tile *tile, const fa_block *block);

    /* y[n] = f(x[n]); n a multiple of lanes. */
    void (*exp2)(const void *x, void *y, int64_t n);
    void (*tanh)(const void *x, void *y, int64_t n);

    /* The limits of the machine: floating-point operations done in registers, bytes read. */
    double (*fma_loop)(int64_t repeats);
    double (*read_loop)(const void *data, int64_t bytes);
} fa_kernels;

#endif
