/* SPDX-License-Identifier: MIT */
#include "source.h"

#include <string.h>

int fa_rows_scattered(const fa_rows *source, const int64_t *other_strides, int count)
{
    const int64_t element = source->element;
    if (source->columns > 1 && source->column_stride != element) return 1;
    if ((intptr_t)source->base % element || source->row_stride % element) return 1;
    for (int n = 0; n < count; ++n)
        if (other_strides[n] % element) return 1;
    return 0;
}

void fa_rows_read(const fa_rows *source, int64_t row, void *contiguous)
{
    const char *from = source->base + row * source->row_stride;
    char *to = contiguous;
    for (int64_t n = 0; n < source->columns; ++n, to += source->element)
        memcpy(to, from + n * source->column_stride, (size_t)source->element);
}

void fa_rows_write(const fa_rows *target, int64_t row, const void *contiguous)
{
    char *to = target->base + row * target->row_stride;
    const char *from = contiguous;
    for (int64_t n = 0; n < target->columns; ++n, from += target->element)
        memcpy(to + n * target->column_stride, from, (size_t)target->element);
}

void fa_rows_point(const fa_rows *source, int64_t first, int count, int padding, char *buffer,
                   const void **rows)
{
    const char *row = source->base + first * source->row_stride;
    for (int n = 0; n < count; ++n, row += source->row_stride) rows[n] = row;
    if (buffer) {
        const int64_t row_bytes = source->columns * source->element;
        for (int n = 0; n < count; ++n, buffer += row_bytes) {
            fa_rows_read(source, first + n, buffer);
            rows[n] = buffer;
        }
    }
    for (int n = 0; n < padding; ++n) rows[count + n] = rows[count - 1];
}
