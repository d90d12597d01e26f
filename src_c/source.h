/* SPDX-License-Identifier: MIT
 * Where rows come from: storage, separated from arithmetic. Kernels see pointers to rows of
 * contiguous numbers of their own type; rows that do not lie that way, or are stored narrower, are
 * copied, a block at a time.
 */
#ifndef FA_SOURCE_H
#define FA_SOURCE_H

#include <stdint.h>

#include "fastattn.h"
#include "kernels.h"

/* How numbers of a type are stored. */
fa_storage fa_storage_of(fa_dtype dtype);

/* Rows of one head of one batch. */
typedef struct {
    char *base;                        /* row 0, or with a table row 0 of page 0 */
    int64_t row_stride, column_stride; /* bytes */
    int64_t columns;
    int element; /* bytes */
    fa_storage storage;
    const int32_t *table; /* pages of page_keys rows each, or NULL: row after row */
    int64_t page_keys, page_stride;
    int page_shift; /* page_keys = 1 << page_shift, or -1 */
} fa_rows;

/* Whether elements of a row lie apart, or, at one of `count` strides over other axes, unaligned. */
int fa_rows_scattered(const fa_rows *source, const int64_t *other_strides, int count);

/* The address of a row. */
char *fa_rows_at(const fa_rows *source, int64_t row);

/* rows[n] = the address of row first + n. */
void fa_rows_point(const fa_rows *source, int64_t first, int64_t count, const void **rows);

/* One row between its place and contiguous elements of the same storage. */
void fa_rows_gather(const fa_rows *source, const char *row, void *contiguous);
void fa_rows_scatter(const fa_rows *target, char *row, const void *contiguous);

#endif
