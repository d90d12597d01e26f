/* SPDX-License-Identifier: MIT */
#include "source.h"

#include <string.h>

fa_storage fa_storage_of(fa_dtype dtype)
{
    switch (dtype) {
    case FA_FLOAT16: return FA_HALF;
    case FA_BFLOAT16: return FA_BFLOAT;
    case FA_INT8: return FA_CHAR;
    case FA_FLOAT8_E4M3: return FA_E4M3;
    case FA_FLOAT8_E5M2: return FA_E5M2;
    default: return FA_REAL;
    }
}

int fa_rows_scattered(const fa_rows *source, const int64_t *other_strides, int count)
{
    const int64_t element = source->element;
    if (source->columns > 1 && source->column_stride != element) return 1;
    if ((intptr_t)source->base % element || source->row_stride % element) return 1;
    if (source->table && source->page_stride % element) return 1;
    for (int n = 0; n < count; ++n)
        if (other_strides[n] % element) return 1;
    return 0;
}

/* The page of a row, and its place there. Pages mostly hold a power of two; a division takes as
 * long as the work on some keys. */
static char *in_page(const fa_rows *source, int64_t row, int64_t *place)
{
    int64_t page;
    if (source->page_shift >= 0) {
        page = row >> source->page_shift;
        *place = row & (source->page_keys - 1);
    } else {
        page = row / source->page_keys;
        *place = row % source->page_keys;
    }
    return source->base + source->table[page] * source->page_stride;
}

char *fa_rows_at(const fa_rows *source, int64_t row)
{
    if (!source->table) return source->base + row * source->row_stride;
    int64_t place;
    const char *page = in_page(source, row, &place);
    return (char *)page + place * source->row_stride;
}

/* Four at a time: the time of a short loop depends on where the linker puts it, and one row of
 * queries waits for this. */
static void point_evenly(const char *row, int64_t stride, int64_t count, const void **rows)
{
    const void **const end = rows + count;
    for (; end - rows >= 4; rows += 4, row += 4 * stride) {
        rows[0] = row, rows[1] = row + stride;
        rows[2] = row + 2 * stride, rows[3] = row + 3 * stride;
    }
    for (; rows < end; ++rows, row += stride) *rows = row;
}

void fa_rows_point(const fa_rows *source, int64_t first, int64_t count, const void **rows)
{
    const int64_t stride = source->row_stride;
    if (!source->table) {
        point_evenly(source->base + first * stride, stride, count, rows);
        return;
    }
    while (count > 0) {
        int64_t place;
        const char *row = in_page(source, first, &place) + place * stride;
        const int64_t left = source->page_keys - place, some = left < count ? left : count;
        point_evenly(row, stride, some, rows);
        rows += some, first += some, count -= some;
    }
}

void fa_rows_gather(const fa_rows *source, const char *row, void *contiguous)
{
    char *to = contiguous;
    for (int64_t n = 0; n < source->columns; ++n, to += source->element)
        memcpy(to, row + n * source->column_stride, (size_t)source->element);
}

void fa_rows_scatter(const fa_rows *target, char *row, const void *contiguous)
{
    const char *from = contiguous;
    for (int64_t n = 0; n < target->columns; ++n, from += target->element)
        memcpy(row + n * target->column_stride, from, (size_t)target->element);
}
