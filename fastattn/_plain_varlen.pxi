# SPDX-License-Identifier: MIT
# Packed sequences in calls that need none of `_check`: to the bit what `_check.varlen_problem` and
# `attend_varlen` do. Part of _core.pyx; `_plain.pxi` has what all such calls share.


cdef cnp.ndarray plain_cuts(cuts, int64_t total):
    """New int64 (B + 1,), B > 0, that begins with 0, never falls and ends with `total`; or None.

    total: < 0 if they may end anywhere.
    """
    cdef cnp.ndarray result
    cdef cnp.npy_intp index, last
    cdef int64_t *values
    if type(cuts) is list or type(cuts) is tuple:
        last = len(cuts) - 1
    elif cnp.PyArray_CheckExact(cuts) and cnp.PyArray_NDIM(cuts) == 1:
        last = cnp.PyArray_DIMS(cuts)[0] - 1
    else:
        return None
    result = plain_lengths(cuts, last + 1, LARGEST_OFFSET) if last > 0 else None
    if result is None:
        return None
    values = <int64_t *>cnp.PyArray_DATA(result)
    for index in range(last):
        if values[index] > values[index + 1]:
            return None
    return result if values[0] == 0 and (total < 0 or values[last] == total) else None


cdef cnp.ndarray lengths_between(cnp.ndarray cuts):
    """int64 (B,) of the cuts between packed sequences."""
    cdef cnp.npy_intp index, batch = cnp.PyArray_DIMS(cuts)[0] - 1
    cdef cnp.ndarray result = cnp.PyArray_EMPTY(1, &batch, cnp.NPY_INT64, 0)
    cdef int64_t *values = <int64_t *>cnp.PyArray_DATA(cuts)
    for index in range(batch):
        (<int64_t *>cnp.PyArray_DATA(result))[index] = values[index + 1] - values[index]
    return result


cdef bint within(cnp.ndarray numbers, cnp.ndarray most) noexcept:
    """Whether no number of int64 (B,) exceeds its own limit."""
    cdef cnp.npy_intp index
    cdef int64_t *limits = <int64_t *>cnp.PyArray_DATA(most)
    for index in range(cnp.PyArray_DIMS(numbers)[0]):
        if (<int64_t *>cnp.PyArray_DATA(numbers))[index] > limits[index]:
            return False
    return True


cdef tuple packed_keys(fa_args *args, cnp.ndarray cu_q, cu_seqlens_k, bint lengths_follow):
    """The cuts between packed keys, or None of pages, and how many each sequence has; or None."""
    cdef cnp.ndarray cuts = cu_q, keys
    cdef bint paged = args.pages > 0
    cdef int64_t total = -1 if paged else args.keys
    cdef cnp.npy_intp batch = cnp.PyArray_DIMS(cu_q)[0] - 1
    if cu_seqlens_k is not None:
        cuts = plain_cuts(cu_seqlens_k, total)
        if cuts is None or cnp.PyArray_DIMS(cuts)[0] != batch + 1:
            return None
    elif paged:
        return (None, repeated(args.keys, batch)) if lengths_follow else None
    elif (<int64_t *>cnp.PyArray_DATA(cu_q))[batch] != total:
        return None
    keys = lengths_between(cuts)
    if not paged:
        return cuts, keys
    return (None, keys) if within(keys, repeated(args.keys, batch)) else None


cdef tuple packed_range(fa_args *args, cnp.ndarray keys, kv_starts, kv_lengths):
    """The same as `plain_range`, of sequences that have so many keys each."""
    args.kv_end = <const int64_t *>cnp.PyArray_DATA(keys)
    kept = plain_range(args, cnp.PyArray_DIMS(keys)[0], LARGEST_OFFSET, kv_starts, kv_lengths)
    if kept is None:
        return None
    for numbers in kept:
        if numbers is not None and not within(numbers, keys):
            return None
    return kept


cdef inline packed_scale(scale, bint paged):
    """(Hkv, total_k) as of one batch entry."""
    if paged or not cnp.PyArray_CheckExact(scale) or cnp.PyArray_NDIM(scale) != 2:
        return scale
    return scale[None]


cdef cnp.ndarray packed_out(cnp.ndarray q, out, cnp.npy_intp depth, tuple inputs):
    """Memory for packed results, or the caller's array if it is one; else None."""
    cdef cnp.npy_intp[3] shape = [cnp.PyArray_DIMS(q)[0], cnp.PyArray_DIMS(q)[1], depth]
    if out is None:
        if not cnp.PyArray_IS_C_CONTIGUOUS(q):
            return None
        return cnp.PyArray_EMPTY(3, shape, cnp.PyArray_TYPE(q), 0)
    if not cnp.PyArray_CheckExact(out) or cnp.PyArray_NDIM(out) != 3:
        return None
    return out if plain_out(out[None], q[None], depth, inputs) else None


def attend_varlen_plain(
    q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, scale, softcap, alibi_slopes,
    sinks, q_offset, kv_lengths, kv_starts, block_table, k_scale, v_scale, precision, out,
    return_lse, threads, bytes isa
):
    """Attention of packed sequences with the most usual options, at once: see `attend_plain`."""
    cdef fa_args args
    cdef cnp.ndarray cuts, key_cuts, lse
    cdef cnp.npy_intp batch
    cdef bint paged = block_table is not None
    if return_lse is not True and return_lse is not False:
        return None
    if not cnp.PyArray_CheckExact(q) or cnp.PyArray_NDIM(q) != 3:
        return None
    if not paged:
        for tensor in (k, v):
            if not cnp.PyArray_CheckExact(tensor) or cnp.PyArray_NDIM(tensor) != 3:
                return None
    if not plain_tensors(
        &args, q[None], k if paged else k[None], v if paged else v[None], True, block_table
    ):
        return None
    if not plain_options(&args, causal, window_size, scale, softcap, precision, threads):
        return None
    cuts = plain_cuts(cu_seqlens_q, args.queries)
    if cuts is None:
        return None
    batch = cnp.PyArray_DIMS(cuts)[0] - 1
    keys = packed_keys(&args, cuts, cu_seqlens_k, kv_lengths is not None)
    if keys is None:
        return None
    held = plain_vectors(&args, batch, alibi_slopes, sinks, q_offset)
    if held is None:
        return None
    kept = packed_range(&args, keys[1], kv_starts, kv_lengths)
    if kept is None:
        return None
    owned = plain_stores(
        &args, batch, block_table, packed_scale(k_scale, paged), packed_scale(v_scale, paged)
    )
    if owned is None:
        return None
    inputs = (q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks, kv_lengths, kv_starts)
    out = packed_out(q, out, args.value_depth, (*inputs, block_table, k_scale, v_scale))
    if out is None:
        return None
    describe(&args.out, in_order(out[None], True), 1)
    args.lead_rank = 0
    args.sequences, args.cu_q = batch, <const int64_t *>cnp.PyArray_DATA(cuts)
    if not paged:
        key_cuts = keys[0]
        args.cu_k = <const int64_t *>cnp.PyArray_DATA(key_cuts)
    if return_lse:
        lse = logarithms(&args, 2)
    args.isa = isa
    call(&args, False)
    return (out, lse) if return_lse else out
