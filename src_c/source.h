/* SPDX-License-Identifier: MIT
 * Where rows come from: storage, separated from arithmetic. Kernels see pointers to rows of
 * contiguous elements; rows that do not lie that way are copied, a block at a time.
 */
#ifndef FA_SOURCE_H
#define FA_SOURCE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *base;                        /* row 0 */
    int64_t row_stride, column_stride; /* bytes */
    int64_t columns;
    int element; /* bytes */
} fa_rows;

/* Whether kernels cannot read the rows where they are: elements apart, or not aligned. */
int fa_rows_scattered(const fa_rows *source, const int64_t *other_strides, int count);

/* Copy one row out of, or back to, scattered storage. */
void fa_rows_read(const fa_rows *source, int64_t row, void *contiguous);
void fa_rows_write(const fa_rows *target, int64_t row, const void *contiguous);

/* rows[n] = row first + n for n < count, and the last of them again for the padding. With a buffer
 * (count x columns elements) the rows are copied there. */
void fa_rows_point(const fa_rows *source, int64_t first, int count, int padding, char *buffer,
                   const void **rows);

#endif
