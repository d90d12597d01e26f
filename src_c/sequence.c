/* SPDX-License-Identifier: MIT */
#include "sequence.h"

#include "numbers.h"
#include "source.h"

enum {
    /* Under an explicit mask tiles and blocks never straddle so many rows and keys: masks that
       leave out whole blocks come in multiples of it. */
    MASK_BLOCK = 64,
    LEAST_AHEAD = 8, /* keys, however long they are */
};

int64_t fa_sequence_count(const fa_args *args)
{
    if (args->cu_q) return args->sequences;
    int64_t count = 1;
    for (int axis = 0; axis < args->lead_rank; ++axis) count *= args->lead_shape[axis];
    return count;
}

/* Which keys the sequence's queries see. */
static void place(const fa_args *args, fa_sequence *sequence)
{
    const int64_t index = sequence->index;
    fa_positions *positions = &sequence->positions;
    positions->end = args->kv_end ? args->kv_end[index] : sequence->keys;
    /* No later than the end: differences of positions fit. */
    positions->begin = args->kv_begin ? smaller(args->kv_begin[index], positions->end) : 0;
    positions->offset = args->q_offset ? args->q_offset[index] : positions->end - sequence->queries;
    positions->left = args->left;
    positions->right = args->causal ? 0 : args->right;
}

/* Under a mask all sequences are cut alike, whatever their length. */
static int worth_it(const fa_args *args, const fa_matrix *matrix, const fa_sequence *sequence,
                    int64_t rows)
{
    const int64_t keys = args->mask.data ? sequence->keys : sequence->positions.end;
    const int64_t numbers = keys * args->depth;
    return rows >= matrix->min_rows && numbers >= matrix->min_key_numbers &&
           (double)rows * (double)numbers >= matrix->min_products;
}

/* Rows of each thin tile but the last: as even as can be, but in fours, as several share loads. */
static int thin_width(const fa_kernels *kernels, int64_t rows)
{
    const int64_t tiles = divide_up(rows, kernels->thin_rows), even = divide_up(rows, tiles);
    return (int)(tiles > 1 ? smaller(round_up(even, 4), kernels->thin_rows) : even);
}

/* Each tile converts keys that are not stored as floats once more: of few features, one at most. */
static int thin_pays(const fa_args *args, const fa_kernels *kernels, int64_t rows)
{
    const fa_storage storage = fa_storage_of(args->kv_dtype);
    const int one = storage != FA_REAL && args->depth <= FA_SHALLOW;
    return rows <= (one ? kernels->thin_rows : kernels->most_thin_rows[storage]) &&
           thin_width(kernels, rows) <= kernels->widest_thin;
}

/* Rows past the last whole vector: another vector of a wide tile would take as long for one of them
 * as for all, a thin tile takes less for up to half of them. */
static int rows_apart(const fa_kernels *kernels, const fa_sequence *sequence, int64_t rows)
{
    const int rest = (int)(rows % kernels->lanes);
    if (sequence->thin || sequence->matrix || rows < kernels->lanes) return 0;
    return rest <= kernels->lanes / 2 ? rest : 0;
}

/* One row has soon done with a key. Where keys are neighbours, what it asks for is best as far
 * ahead as the machine itself reads: 16 KB, which is a block of floats, takes AVX-512 up to a tenth
 * longer than 10 KB, and 4 KB longer still (Zen 4). Keys that lie apart are for nobody else to ask
 * for. */
static int rows_ahead(const fa_args *args, const fa_kernels *kernels, const fa_sequence *sequence)
{
    const int64_t bytes = args->depth * args->k.column;
    const int neighbours = !args->block_table && args->k.row == bytes && bytes > 0;
    if (sequence->matrix) return sequence->matrix->rows_ahead;
    if (sequence->thin != 1 || !neighbours) return FA_ROWS_AHEAD;
    return (int)larger(smaller(kernels->bytes_ahead / bytes, FA_MOST_AHEAD), LEAST_AHEAD);
}

/* Tiles, blocks and chunks. */
static void cut(const fa_args *args, const fa_kernels *kernels, fa_sequence *sequence, int64_t rows)
{
    const fa_matrix *matrix = sequence->matrix;
    const int vectors = matrix ? matrix->max_vectors : kernels->max_vectors;
    const int group_rows = args->mask.data ? MASK_BLOCK : 0;
    /* One tile, as in decoding: only chunks can keep all threads busy. */
    const int one_tile = sequence->thin || rows <= vectors * kernels->lanes;
    const int chunk_keys = matrix && !one_tile ? matrix->chunk_keys : FA_CHUNK_KEYS;
    sequence->tiling = sequence->thin
                           ? fa_tile_up(rows, thin_width(kernels, rows), 1, group_rows, 0)
                           : fa_tile_up(rows, kernels->lanes, vectors, group_rows,
                                        rows_apart(kernels, sequence, rows));
    sequence->key_block = matrix ? matrix->key_block : kernels->key_block;
    if (args->mask.data && sequence->key_block > MASK_BLOCK) sequence->key_block = MASK_BLOCK;
    sequence->chunk_blocks = chunk_keys / sequence->key_block;
    sequence->load_blocks = matrix || sequence->thin ? sequence->chunk_blocks : 1;
    if (matrix && matrix->load_keys)
        sequence->load_blocks =
            (int)smaller(matrix->load_keys / sequence->key_block, sequence->chunk_blocks);
    sequence->rows_ahead = rows_ahead(args, kernels, sequence);
    const int64_t chunk = (int64_t)sequence->chunk_blocks * sequence->key_block;
    sequence->chunks = 1;
    if (sequence->positions.end > chunk)
        sequence->chunks = divide_up(sequence->positions.end, chunk);
}

/* What its tiles are updated with, and how many rows thin ones have. */
static void choose(const fa_args *args, const fa_kernels *kernels, const fa_matrices *matrices,
                   int64_t rows, fa_sequence *sequence)
{
    const fa_matrix *wide = matrices->wide, *thin = matrices->thin;
    if (rows == 0) return;
    const int shallow = thin && args->depth <= thin->shallow;
    if (thin && rows <= (shallow ? thin->shallow_rows : thin->most_thin_rows) &&
        worth_it(args, thin, sequence, rows)) {
        sequence->matrix = thin;
        sequence->thin = thin_width(kernels, rows);
    } else if (wide && worth_it(args, wide, sequence, rows)) {
        sequence->matrix = wide;
    } else if (thin_pays(args, kernels, rows)) {
        sequence->thin = thin_width(kernels, rows);
    }
}

void fa_arrange(const fa_args *args, const fa_kernels *kernels, const fa_sequence *sequence,
                const fa_tile_rows *rows, fa_tile *tile)
{
    const int thin = sequence->thin || rows->apart;
    tile->spread = kernels->lanes;
    tile->thin = thin ? rows->rows : 0;
    if (thin && !sequence->matrix)
        tile->thin = kernels->arrange(rows->rows, fa_storage_of(args->kv_dtype), &tile->spread);
}

fa_sequence fa_sequence_at(const fa_args *args, const fa_kernels *kernels,
                           const fa_matrices *matrices, int64_t index)
{
    fa_sequence sequence = {.index = index, .queries = args->queries, .keys = args->keys};
    if (args->cu_q) {
        sequence.query_row = args->cu_q[index];
        sequence.queries = args->cu_q[index + 1] - args->cu_q[index];
        if (!args->block_table) {
            sequence.key_row = args->cu_k[index];
            sequence.keys = args->cu_k[index + 1] - args->cu_k[index];
        }
    }
    const int64_t rows = args->q_heads / args->kv_heads * sequence.queries;
    place(args, &sequence);
    choose(args, kernels, matrices, rows, &sequence);
    cut(args, kernels, &sequence, rows);
    return sequence;
}
