/* SPDX-License-Identifier: MIT */
#include "blockmap.h"

#include <math.h>
#include <string.h>

#include "numbers.h"

int64_t fa_batch_offset(const fa_args *args, const fa_tensor *tensor, int64_t batch)
{
    int64_t offset = 0;
    for (int axis = args->lead_rank - 1; axis > 0; --axis) {
        offset += batch % args->lead_shape[axis] * tensor->lead[axis];
        batch /= args->lead_shape[axis];
    }
    return args->lead_rank > 0 ? offset + batch * tensor->lead[0] : 0;
}

fa_blockmap fa_blockmap_size(const fa_blockmap_plan *plan)
{
    const fa_args *args = plan->args;
    fa_blockmap map = {.batches = 1, .heads = 1, .tiles = plan->tiling->tiles};
    for (int axis = 0; axis < args->lead_rank; ++axis)
        if (args->mask.lead[axis]) map.batches = plan->batches;
    if (args->mask.head) map.heads = args->kv_heads;
    map.uniform = !args->mask.row;
    if (map.uniform) map.tiles = 1;
    map.step = args->mask.column != 0;
    map.blocks = map.step ? divide_up(args->keys, plan->key_block) : 1;
    map.maps = map.batches * map.heads;
    return map;
}

/* Accumulates whether any element allows and whether all are neutral (True, or a float 0). */
static void scan_bool(const char *row, int64_t stride, int keys, int *any, int *all)
{
    if (stride == 1) {
        const int every = !memchr(row, 0, (size_t)keys);
        /* All bytes equal to the next one and the first one 0: nothing is set. */
        const int none = row[0] == 0 && !memcmp(row, row + 1, (size_t)keys - 1);
        *any |= !none;
        *all &= every;
        return;
    }
    for (int j = 0; j < keys; ++j) {
        *any |= row[j * stride] != 0;
        *all &= row[j * stride] != 0;
    }
}

#define SCAN_FLOAT(name, type)                                                                     \
    static void name(const char *row, int64_t stride, int keys, int *any, int *all)                \
    {                                                                                              \
        int some = 0, every = 1;                                                                   \
        for (int j = 0; j < keys; ++j) {                                                           \
            type value;                                                                            \
            memcpy(&value, row + j * stride, sizeof value);                                        \
            some |= value != (type)-INFINITY;                                                      \
            every &= value == 0;                                                                   \
        }                                                                                          \
        *any |= some;                                                                              \
        *all &= every;                                                                             \
    }
SCAN_FLOAT(scan_float32, float)
SCAN_FLOAT(scan_float64, double)

/* float16 and bfloat16: 0 and -0 are zero, and -infinity is one pattern. */
static void scan_halves(const char *row, int64_t stride, int keys, uint16_t minus_infinity,
                        int *any, int *all)
{
    int some = 0, every = 1;
    for (int j = 0; j < keys; ++j) {
        uint16_t value;
        memcpy(&value, row + j * stride, sizeof value);
        some |= value != minus_infinity;
        every &= (value & 0x7fff) == 0;
    }
    *any |= some;
    *all &= every;
}

static void scan(const fa_args *args, const char *row, int keys, int *any, int *all)
{
    const int64_t stride = args->mask.column;
    if (args->mask_dtype == FA_BOOL) scan_bool(row, stride, keys, any, all);
    else if (args->mask_dtype == FA_FLOAT32) scan_float32(row, stride, keys, any, all);
    else if (args->mask_dtype == FA_FLOAT64) scan_float64(row, stride, keys, any, all);
    else scan_halves(row, stride, keys, args->mask_dtype == FA_FLOAT16 ? 0xfc00 : 0xff80, any, all);
}

/* The mask's element (batch, head, query, key 0). */
static const char *mask_row(const fa_args *args, int64_t batch, int64_t head, int64_t query)
{
    const fa_tensor *mask = &args->mask;
    return (const char *)mask->data + fa_batch_offset(args, mask, batch) + head * mask->head +
           query * mask->row;
}

fa_range fa_blockmap_rows(const fa_blockmap_plan *plan, const fa_blockmap *map, int64_t index)
{
    if (map->uniform) return (fa_range){0, plan->tiling->rows};
    const fa_tile_rows tile = fa_tile_at(plan->tiling, index % map->tiles);
    return (fa_range){tile.row_begin, tile.row_begin + tile.rows};
}

void fa_blockmap_fill(const fa_blockmap_plan *plan, const fa_blockmap *map, int64_t index,
                      fa_range seen)
{
    const fa_args *args = plan->args;
    const int64_t at = index / map->tiles;
    const int64_t batch = at / map->heads, kv_head = at % map->heads;
    const fa_range rows = fa_blockmap_rows(plan, map, index);
    /* Without a head axis the heads of a group share their query's row of the mask. */
    const int64_t step = args->mask.head ? 1 : plan->group;
    const int64_t first = rows.begin / step * step;
    const int64_t end = map->uniform ? plan->group : rows.end;
    uint8_t *states = map->states + index * map->blocks;
    memset(states, FA_BLOCK_SKIP, (size_t)map->blocks);
    if (seen.begin >= seen.end) return;
    const int64_t last = map->step ? divide_up(seen.end, plan->key_block) : 1;
    for (int64_t block = map->step * seen.begin / plan->key_block; block < last; ++block) {
        const int64_t key = block * plan->key_block;
        const int keys = map->step ? (int)smaller(args->keys - key, plan->key_block) : 1;
        int any = 0, all = 1;
        for (int64_t row = first; row < end && !(any && !all); row += step) {
            const int64_t head = kv_head * plan->group + row % plan->group;
            const char *start = mask_row(args, batch, head, row / plan->group);
            scan(args, start + key * args->mask.column, keys, &any, &all);
        }
        states[block] = all ? FA_BLOCK_FULL : any ? FA_BLOCK_PARTIAL : FA_BLOCK_SKIP;
    }
}

const uint8_t *fa_blockmap_row(const fa_blockmap *map, int64_t batch, int64_t kv_head, int64_t tile)
{
    const int64_t at = (map->batches > 1 ? batch : 0) * map->heads + (map->heads > 1 ? kv_head : 0);
    return map->states + (at * map->tiles + (map->uniform ? 0 : tile)) * map->blocks;
}
