/* SPDX-License-Identifier: MIT */
#include "source.h"

#include <string.h>

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

char *fa_rows_at(const fa_rows *source, int64_t row)
{
    if (!source->table) return source->base + row * source->row_stride;
    const int64_t page = source->table[row / source->page_keys];
    return source->base + page * source->page_stride + row % source->page_keys * source->row_stride;
}

void fa_rows_point(const fa_rows *source, int64_t first, int64_t count, const void **rows)
{
    const int64_t stride = source->row_stride;
    while (count > 0) {
        const char *row = fa_rows_at(source, first);
        int64_t some = count;
        if (source->table && some > source->page_keys - first % source->page_keys)
            some = source->page_keys - first % source->page_keys;
        for (int64_t n = 0; n < some; ++n, row += stride) *rows++ = row;
        first += some, count -= some;
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
