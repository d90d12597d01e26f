# SPDX-License-Identifier: MIT
# What goes with K and V in calls that need none of `_check`: which keys there are, in
# which pages, and their scales. Part of _core.pyx; `_plain.pxi` has the calls.

from libc.stdint cimport INT32_MAX
from libc.string cimport memcpy


cdef cnp.ndarray plain_numbers(fa_tensor *tensor, scale, cnp.npy_intp *shape, bint paged):
    """New float32 () from a number, (Hkv,) or (B, Hkv) from an array, if finite; else None.

    Pages belong to no batch entry.
    """
    cdef cnp.ndarray numbers
    cdef cnp.npy_intp index
    cdef double number
    cdef int rank
    if plain_number(scale, -INFINITY, &number):
        numbers = cnp.PyArray_EMPTY(0, NULL, cnp.NPY_FLOAT, 0)
        (<float *>cnp.PyArray_DATA(numbers))[0] = nearest(number)
    elif cnp.PyArray_CheckExact(scale) and 1 <= cnp.PyArray_NDIM(scale) <= (1 if paged else 2):
        if cnp.PyArray_TYPE(scale) != cnp.NPY_FLOAT or not cnp.PyArray_ISBEHAVED_RO(scale):
            return None
        rank = cnp.PyArray_NDIM(scale)
        for index in range(rank):
            if cnp.PyArray_DIMS(scale)[index] != shape[2 - rank + index]:
                return None
        numbers = cnp.PyArray_NewCopy(scale, cnp.NPY_CORDER)
        tensor.head = cnp.PyArray_STRIDES(numbers)[rank - 1]
        tensor.lead[0] = cnp.PyArray_STRIDES(numbers)[0] if rank == 2 else 0
    else:
        return None
    for index in range(cnp.PyArray_SIZE(numbers)):
        if not isfinite((<float *>cnp.PyArray_DATA(numbers))[index]):
            return None
    tensor.data = cnp.PyArray_DATA(numbers)
    return numbers


cdef cnp.ndarray plain_scale(fa_tensor *tensor, scale, cnp.npy_intp *shape, bint paged):
    """What holds the scales of k or v of this shape until the call ends, or None.

    float32 (B, Hkv, Sk) or (pages, Hkv, page), as `quantize_kv` and the caches have them, serves as
    it is: one number for each row.
    """
    cdef cnp.npy_intp *steps
    cdef int axis
    if not cnp.PyArray_CheckExact(scale) or cnp.PyArray_NDIM(scale) != 3:
        return plain_numbers(tensor, scale, shape, paged)
    if cnp.PyArray_TYPE(scale) != cnp.NPY_FLOAT or not cnp.PyArray_ISBEHAVED_RO(scale):
        return None
    for axis in range(3):
        if cnp.PyArray_DIMS(scale)[axis] != shape[axis]:
            return None
    if paged:
        describe_pages(tensor, scale)
        return scale
    steps = cnp.PyArray_STRIDES(scale)
    tensor.data = cnp.PyArray_DATA(scale)
    tensor.lead[0], tensor.head, tensor.row = steps[0], steps[1], steps[2]
    return scale


cdef bint holds_keys(const fa_args *args, int64_t sequence, int64_t block) noexcept:
    """Whether a sequence has keys in a block of its table."""
    cdef int64_t first = block * args.page_keys
    cdef int64_t begin = 0 if args.kv_begin == NULL else args.kv_begin[sequence]
    cdef int64_t end = args.keys if args.kv_end == NULL else args.kv_end[sequence]
    return max(first, begin) < min(first + args.page_keys, end)


cdef cnp.ndarray plain_table(cnp.ndarray table, const fa_args *args, cnp.npy_intp batch):
    """New int32 (batch, blocks) of pages that exist, if those with a key do; else None."""
    cdef int kind = cnp.PyArray_TYPE(table)
    cdef cnp.ndarray pages
    cdef int32_t *entries
    cdef int64_t index, entry
    if not cnp.PyArray_ISCARRAY_RO(table) or cnp.PyArray_DIMS(table)[0] != batch:
        return None
    if kind != cnp.NPY_INT32 and kind != cnp.NPY_INT64:
        return None
    # As with lengths, a copy is checked.
    pages = cnp.PyArray_EMPTY(2, cnp.PyArray_DIMS(table), cnp.NPY_INT32, 0)
    entries = <int32_t *>cnp.PyArray_DATA(pages)
    for index in range(batch * args.table_width):
        if kind == cnp.NPY_INT32:
            entry = (<int32_t *>cnp.PyArray_DATA(table))[index]
        else:
            entry = (<int64_t *>cnp.PyArray_DATA(table))[index]
        if not 0 <= entry < args.pages or entry > INT32_MAX:
            if holds_keys(args, index // args.table_width, index % args.table_width):
                return None
            entry = 0
        entries[index] = <int32_t>entry
    return pages


cdef cnp.ndarray repeated(int64_t value, cnp.npy_intp batch):
    """int64 (batch,) of one value."""
    cdef cnp.ndarray result = cnp.PyArray_EMPTY(1, &batch, cnp.NPY_INT64, 0)
    cdef cnp.npy_intp index
    for index in range(batch):
        (<int64_t *>cnp.PyArray_DATA(result))[index] = value
    return result


cdef cnp.ndarray plain_lengths(lengths, cnp.npy_intp batch, cnp.npy_intp keys):
    """New int64 (batch,) from an int, a list or tuple of them, or an array; else None."""
    cdef cnp.ndarray result
    cdef cnp.npy_intp index = 0
    cdef bint listed = type(lengths) is list or type(lengths) is tuple
    cdef int64_t every
    cdef int64_t *values
    if plain_integer(lengths, 0, keys, &every):
        return repeated(every, batch)
    if not listed:
        if not cnp.PyArray_CheckExact(lengths) or cnp.PyArray_NDIM(lengths) != 1:
            return None
        if cnp.PyArray_DIMS(lengths)[0] != batch or not cnp.PyArray_ISCARRAY_RO(lengths):
            return None
    result = cnp.PyArray_EMPTY(1, &batch, cnp.NPY_INT64, 0)
    values = <int64_t *>cnp.PyArray_DATA(result)
    if listed:
        for length in lengths:
            if index == batch or not plain_integer(length, 0, keys, &values[index]):
                return None
            index += 1
        return result if index == batch and batch > 0 else None  # NumPy takes [] for floats
    # A copy is checked, because another thread may write to the caller's array.
    if cnp.PyArray_TYPE(lengths) == cnp.NPY_INT64:
        memcpy(values, cnp.PyArray_DATA(lengths), batch * sizeof(int64_t))
    elif cnp.PyArray_TYPE(lengths) == cnp.NPY_INT32:
        for index in range(batch):
            values[index] = (<int32_t *>cnp.PyArray_DATA(lengths))[index]
    else:
        return None
    for index in range(batch):
        if not 0 <= values[index] <= keys:
            return None
    return result


cdef tuple plain_range(
    fa_args *args, cnp.npy_intp batch, cnp.npy_intp most, kv_starts, kv_lengths
):
    """What holds which keys of each batch entry there are until the call ends, or None."""
    cdef cnp.ndarray starts = None, lengths = None
    if kv_starts is not None:
        starts = plain_lengths(kv_starts, batch, most)
        if starts is None:
            return None
        args.kv_begin = <const int64_t *>cnp.PyArray_DATA(starts)
    if kv_lengths is not None:
        lengths = plain_lengths(kv_lengths, batch, most)
        if lengths is None:
            return None
        args.kv_end = <const int64_t *>cnp.PyArray_DATA(lengths)
    return starts, lengths


cdef tuple plain_stores(fa_args *args, cnp.npy_intp batch, block_table, k_scale, v_scale):
    """What holds pages and scales until the call ends, or None; after `plain_range`."""
    cdef cnp.ndarray pages = None, k_numbers = None, v_numbers = None
    cdef bint paged = block_table is not None
    cdef cnp.npy_intp[3] shape = [args.lead_shape[0], args.kv_heads, args.keys]
    if paged:
        shape[0], shape[2] = args.pages, args.page_keys
        pages = plain_table(block_table, args, batch)
        if pages is None:
            return None
        args.block_table = <const int32_t *>cnp.PyArray_DATA(pages)
    if k_scale is not None:
        k_numbers = plain_scale(&args.k_scale, k_scale, shape, paged)
        if k_numbers is None:
            return None
    if v_scale is not None:
        v_numbers = plain_scale(&args.v_scale, v_scale, shape, paged)
        if v_numbers is None:
            return None
    return pages, k_numbers, v_numbers
