# SPDX-License-Identifier: MIT
# Where results go in calls that need none of `_check`: memory as `_check_tensors` takes it, and
# arrays of the caller that are certainly apart from the inputs. Part of _core.pyx.


cdef cnp.ndarray ordered_like(cnp.ndarray model, cnp.npy_intp depth):
    """What `_check_tensors.ordered_like` returns, if `model` steps forward."""
    cdef cnp.npy_intp *strides = cnp.PyArray_STRIDES(model)
    cdef cnp.npy_intp *given = cnp.PyArray_DIMS(model)
    cdef int order[4]
    cdef cnp.npy_intp shape[4]
    cdef cnp.npy_intp inverse[4]
    cdef cnp.PyArray_Dims places
    cdef int axis, place, before
    for axis in range(3):
        place = axis
        for before in range(axis - 1, -1, -1):
            if given[order[before]] > 1 and given[axis] > 1:
                if strides[order[before]] >= strides[axis]:
                    break
                place = before
        for before in range(axis, place, -1):
            order[before] = order[before - 1]
        order[place] = axis
    order[3] = 3
    for place in range(4):
        shape[place] = given[order[place]]
        inverse[order[place]] = place
    shape[3] = depth
    places.ptr, places.len = inverse, 4
    memory = cnp.PyArray_EMPTY(4, shape, cnp.PyArray_TYPE(model), 0)
    return cnp.PyArray_Transpose(memory, &places)


cdef cnp.ndarray allocate(cnp.ndarray q, cnp.npy_intp depth, bint bshd):
    """Memory for the result of a q of the caller, as `_check_tensors.allocate` takes it."""
    cdef cnp.npy_intp shape[4]
    cdef int axis
    if not cnp.PyArray_IS_C_CONTIGUOUS(q):
        return in_order(ordered_like(in_order(q, bshd), depth), bshd)
    for axis in range(3):
        shape[axis] = cnp.PyArray_DIMS(q)[axis]
    shape[3] = depth
    return cnp.PyArray_EMPTY(4, shape, cnp.PyArray_TYPE(q), 0)


cdef void extent(cnp.ndarray array, char **begin, char **end) noexcept:
    """The first byte of an array and the one behind its last."""
    cdef cnp.npy_intp step
    cdef int axis
    begin[0] = end[0] = <char *>cnp.PyArray_DATA(array)
    for axis in range(cnp.PyArray_NDIM(array)):
        step = (cnp.PyArray_DIMS(array)[axis] - 1) * cnp.PyArray_STRIDES(array)[axis]
        if step < 0:
            begin[0] += step
        else:
            end[0] += step
    end[0] += cnp.PyArray_ITEMSIZE(array)


cdef bint apart(cnp.ndarray out, cnp.ndarray array) noexcept:
    """All of `out` before or behind all of `array`."""
    cdef char *begin
    cdef char *end
    cdef char *other_begin
    cdef char *other_end
    extent(out, &begin, &end)
    extent(array, &other_begin, &other_end)
    return end <= other_begin or other_end <= begin


cdef bint overlaps_itself(cnp.ndarray array) noexcept:
    """What `_may_overlap_itself` says, but yes of every array that steps backward."""
    cdef cnp.npy_intp *strides = cnp.PyArray_STRIDES(array)
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(array)
    cdef cnp.npy_intp span = cnp.PyArray_ITEMSIZE(array)
    cdef bint passed[4]
    cdef int axis, least, turn
    for axis in range(4):
        passed[axis] = shape[axis] == 1
    for turn in range(4):
        least = -1
        for axis in range(4):
            if not passed[axis] and (least < 0 or strides[axis] < strides[least]):
                least = axis
        if least < 0:
            break
        if strides[least] < span:
            return True
        passed[least] = True
        span += strides[least] * (shape[least] - 1)
    return False


cdef bint plain_out(out, cnp.ndarray q, cnp.npy_intp depth, tuple inputs) except -1:
    """A writable array of the shape that `allocate` returns, apart from the inputs."""
    cdef int axis
    if not (cnp.PyArray_CheckExact(out) and plain(out, cnp.PyArray_TYPE(q))):
        return False
    if not cnp.PyArray_ISWRITEABLE(out) or cnp.PyArray_DIMS(out)[3] != depth:
        return False
    for axis in range(3):
        if cnp.PyArray_DIMS(out)[axis] != cnp.PyArray_DIMS(q)[axis]:
            return False
    if not cnp.PyArray_IS_C_CONTIGUOUS(out) and overlaps_itself(out):
        return False
    for array in inputs:
        if cnp.PyArray_CheckExact(array) and not apart(out, array):
            return False
    return True


cdef cnp.ndarray logarithms(fa_args *args, int rank):
    """New memory for lse, (B, Hq, Sq) or, of rank 2, (Hq, total_q)."""
    cdef cnp.npy_intp[3] shape = [args.lead_shape[0], args.q_heads, args.queries]
    cdef int kind = cnp.NPY_DOUBLE if args.dtype == FA_FLOAT64 else cnp.NPY_FLOAT
    cdef cnp.ndarray lse = cnp.PyArray_EMPTY(rank, &shape[3 - rank], kind, 0)
    args.lse = cnp.PyArray_DATA(lse)
    return lse
