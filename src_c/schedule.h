/* SPDX-License-Identifier: MIT
 * Pure integers: which keys a query may see, and how query rows are cut into tiles.
 */
#ifndef FA_SCHEDULE_H
#define FA_SCHEDULE_H

#include <stdint.h>

/* Of one sequence: query i is at position i + offset and sees begin <= j < end within the window
 * position - left <= j <= position + right; -1: unbounded. */
typedef struct {
    int64_t offset, begin, end, left, right;
} fa_positions;

typedef struct {
    int64_t begin, end; /* empty unless begin < end */
} fa_range;

fa_range fa_allowed(const fa_positions *positions, int64_t query);

/* Of several queries: keys that any of them sees, and those of them that all of them see. */
typedef struct {
    int64_t begin, end, full_begin, full_end;
} fa_span;

fa_span fa_span_of(const fa_positions *positions, int64_t query_begin, int64_t query_end);

/* Out with keys that for each of them are more than `reach` keys beyond the nearest one it sees. */
void fa_span_limit(fa_span *span, const fa_positions *positions, int64_t query_begin,
                   int64_t query_end, int64_t reach);

/* Rows cut into tiles of at most max_vectors vectors, as even as possible (a tile of one vector
 * costs nearly as much as one of two). With group_rows > 0 no tile crosses a multiple of it. The
 * last `apart` rows, no more than a vector has, are a tile of their own. */
typedef struct {
    int64_t rows, group_rows, group_tiles, tiles;
    int lanes, max_vectors, apart;
} fa_tiling;

typedef struct {
    int64_t row_begin;
    int rows, vectors;
    int apart; /* whether it is that tile */
} fa_tile_rows;

fa_tiling fa_tile_up(int64_t rows, int lanes, int max_vectors, int64_t group_rows, int apart);
fa_tile_rows fa_tile_at(const fa_tiling *tiling, int64_t tile);

#endif
