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

void fa_rows_point(const fa_rows *source, int64_t first, int64_t count, const void **rows)
{
    const int64_t stride = source->row_stride;
    if (!source->table) {
        const char *row = source->base + first * stride;
        for (int64_t n = 0; n < count; ++n, row += stride) rows[n] = row;
        return;
    }
    while (count > 0) {
        int64_t place;
        const char *row = in_page(source, first, &place) + place * stride;
        const int64_t left = source->page_keys - place, some = left < count ? left : count;
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
