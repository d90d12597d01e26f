/* SPDX-License-Identifier: MIT */
#include "schedule.h"

#include "numbers.h"

fa_range fa_allowed(const fa_positions *positions, int64_t query)
{
    const int64_t position = query + positions->offset;
    fa_range range = {positions->begin, positions->end};
    /* Compared by difference: position + right may not fit. */
    if (positions->left >= 0 && position - range.begin > positions->left)
        range.begin = position - positions->left;
    if (positions->right >= 0 && range.end - position - 1 > positions->right)
        range.end = position + positions->right + 1;
    return range;
}

/* Both ends of the allowed range rise with the query, so the first and the last one tell all. */
fa_span fa_span_of(const fa_positions *positions, int64_t query_begin, int64_t query_end)
{
    const fa_range first = fa_allowed(positions, query_begin);
    const fa_range last = fa_allowed(positions, query_end - 1);
    return (fa_span){first.begin, last.end, last.begin, first.end};
}

/* Of the keys that a query sees, if there are any. */
static int64_t nearest(const fa_positions *positions, int64_t query)
{
    const fa_range range = fa_allowed(positions, query);
    return smaller(larger(query + positions->offset, range.begin), range.end - 1);
}

/* The nearest key rises with the query, too. */
void fa_span_limit(fa_span *span, const fa_positions *positions, int64_t query_begin,
                   int64_t query_end, int64_t reach)
{
    span->begin = larger(nearest(positions, query_begin) - reach, span->begin);
    span->end = smaller(nearest(positions, query_end - 1) + reach + 1, span->end);
}

static int64_t tiles_of(int64_t rows, int lanes, int max_vectors)
{
    return divide_up(divide_up(rows, lanes), max_vectors);
}

fa_tiling fa_tile_up(int64_t rows, int lanes, int max_vectors, int64_t group_rows, int apart)
{
    const int64_t before = rows - apart;
    fa_tiling tiling = {.rows = rows, .lanes = lanes, .max_vectors = max_vectors, .apart = apart};
    tiling.group_rows = group_rows > 0 ? group_rows : larger(before, 1);
    tiling.group_tiles = tiles_of(tiling.group_rows, lanes, max_vectors);
    tiling.tiles = before / tiling.group_rows * tiling.group_tiles +
                   tiles_of(before % tiling.group_rows, lanes, max_vectors) + (apart > 0);
    return tiling;
}

/* As in decoding, where the divisions of all others would take as long as the work on some keys. */
static fa_tile_rows only_tile(const fa_tiling *tiling)
{
    fa_tile_rows result = {.rows = (int)tiling->rows, .vectors = 1};
    if (tiling->rows > tiling->lanes) result.vectors = (int)divide_up(tiling->rows, tiling->lanes);
    return result;
}

fa_tile_rows fa_tile_at(const fa_tiling *tiling, int64_t tile)
{
    if (tiling->tiles == 1) return only_tile(tiling);
    const int64_t before = tiling->rows - tiling->apart;
    if (tiling->apart && tile == tiling->tiles - 1)
        return (fa_tile_rows){.row_begin = before, .rows = tiling->apart, .vectors = 1, .apart = 1};
    const int64_t group_begin = tile / tiling->group_tiles * tiling->group_rows;
    const int64_t rows = smaller(tiling->group_rows, before - group_begin);
    const int64_t vectors = divide_up(rows, tiling->lanes);
    const int64_t tiles = divide_up(vectors, tiling->max_vectors);
    const int64_t within = tile % tiling->group_tiles;
    const int64_t even = vectors / tiles, extra = vectors % tiles;
    const int64_t begin = (within * even + smaller(within, extra)) * tiling->lanes;
    fa_tile_rows result = {.row_begin = group_begin + begin};
    result.vectors = (int)(even + (within < extra));
    result.rows = (int)smaller((int64_t)result.vectors * tiling->lanes, rows - begin);
    return result;
}
