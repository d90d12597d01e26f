# SPDX-License-Identifier: MIT
# Calls that need none of `_check`: a small one spends as long in there as in the kernel. Part of
# _core.pyx. What `attend_plain` takes, it does to the bit as `_check.problem` and `attend` do.

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.float cimport DBL_MAX
from libc.limits cimport INT_MAX
from libc.math cimport INFINITY

from fastattn import _check_options as _options
from fastattn._check_dtypes import NARROWER as _NARROWER

cdef int64_t LARGEST_OFFSET = _options.LARGEST_OFFSET
cdef int64_t WIDEST_WINDOW = _options.WIDEST_WINDOW
cdef int64_t MOST_HELD = _options.MOST_HELD


cdef inline bint plain(cnp.ndarray array, int kind) noexcept:
    """An array of rank 4 and type `kind` that the kernels can read as it is."""
    return (
        cnp.PyArray_NDIM(array) == 4
        and cnp.PyArray_TYPE(array) == kind
        and cnp.PyArray_ISBEHAVED_RO(array)
    )


cdef int plain_type(cnp.ndarray q) except -2:
    """The `fa_dtype` of an array that q may be, or -1."""
    cdef int kind = cnp.PyArray_TYPE(q)
    if kind == cnp.NPY_FLOAT:
        return FA_FLOAT32
    if kind == NPY_HALF:
        return FA_FLOAT16
    if kind == cnp.NPY_DOUBLE:
        return FA_FLOAT64
    return FA_BFLOAT16 if _name_of(q.dtype) == "bfloat16" else -1


cdef int plain_stored(cnp.ndarray k, cnp.ndarray q, int dtype) except -2:
    """The `fa_dtype` of an array that k may be beside q of `dtype`, or -1."""
    if cnp.PyArray_TYPE(k) == cnp.PyArray_TYPE(q):
        return dtype
    name = _name_of(k.dtype)
    return <int>DTYPES[name] if name in _NARROWER[_name_of(q.dtype)] else -1


cdef bint plain_shapes(
    cnp.npy_intp *q, cnp.npy_intp *k, cnp.npy_intp *v, bint paged
) noexcept:
    """Shapes (B, H, S, D), or (pages, Hkv, page, D) of K and V, that go together as they are."""
    if (k[0] != q[0] and not paged) or v[0] != k[0] or k[1] != v[1] or k[2] != v[2]:
        return False
    if paged and (k[0] == 0 or k[2] == 0):
        return False
    if k[1] == 0 or q[1] == 0 or q[0] > MOST_HELD // q[1]:
        return False
    return q[1] % k[1] == 0 and k[3] == q[3] and q[3] and v[3]


cdef bint describe_plain(
    fa_args *args, cnp.ndarray q, cnp.ndarray k, cnp.ndarray v, table
) except -1:
    """Tensors in logical order, of shapes that go together; pages with a table."""
    cdef bint paged = table is not None
    cdef cnp.npy_intp *pages = cnp.PyArray_DIMS(k)
    if not plain_shapes(cnp.PyArray_DIMS(q), pages, cnp.PyArray_DIMS(v), paged):
        return False
    sizes(args, q, q if paged else k, 1)
    args.value_depth = cnp.PyArray_DIMS(v)[3]
    if not paged:
        describe(&args.v, v, 1)
        return True
    if not cnp.PyArray_CheckExact(table) or cnp.PyArray_NDIM(table) != 2:
        return False
    describe_pages(&args.k, k)
    describe_pages(&args.v, v)
    args.pages, args.kv_heads, args.page_keys = pages[0], pages[1], pages[2]
    args.table_width = cnp.PyArray_DIMS(table)[1]
    args.keys = args.table_width * args.page_keys
    return True


cdef bint plain_tensors(fa_args *args, q, k, v, bint bshd, table) except -1:
    """Arrays of rank 4, and how they are stored."""
    cdef int kind, stored, dtype, kv_dtype
    if not (cnp.PyArray_CheckExact(q) and cnp.PyArray_CheckExact(k) and cnp.PyArray_CheckExact(v)):
        return False
    kind, stored, dtype = cnp.PyArray_TYPE(q), cnp.PyArray_TYPE(k), plain_type(q)
    if dtype < 0 or not (plain(q, kind) and steps_forward(q)):
        return False
    kv_dtype = plain_stored(k, q, dtype)
    if kv_dtype < 0 or not (plain(k, stored) and plain(v, stored)):
        return False
    if not describe_plain(args, in_order(q, bshd), in_order(k, bshd), in_order(v, bshd), table):
        return False
    args.dtype, args.kv_dtype = <fa_dtype>dtype, <fa_dtype>kv_dtype
    return True


cdef bint steps_forward(cnp.ndarray array) noexcept:
    """C-contiguous, or every axis of more than one element has a positive stride."""
    cdef int axis
    if cnp.PyArray_IS_C_CONTIGUOUS(array):
        return True
    for axis in range(4):
        if cnp.PyArray_DIMS(array)[axis] > 1 and cnp.PyArray_STRIDES(array)[axis] <= 0:
            return False
    return True


cdef inline cnp.ndarray in_order(cnp.ndarray array, bint bshd):
    """An array of the caller as (B, H, S, D), and back again."""
    return cnp.PyArray_SwapAxes(array, 1, 2) if bshd else array


cdef bint plain_integer(value, int64_t least, int64_t most, int64_t *integer) except -1:
    """An int from `least` to `most`."""
    cdef int overflow = 0
    if type(value) is not int:
        return False
    integer[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return not overflow and least <= integer[0] <= most


# Numbers as `_check` rounds them, in the default environment: volatile, because nothing else keeps a
# compiler from computing them before it is entered or after it is left.


cdef double default_scale(int64_t depth) noexcept:
    """1 / sqrt(depth)."""
    cdef fa_environment of_caller = fa_enter_default()
    cdef volatile double number = <double>depth
    number = 1 / sqrt(number)
    fa_leave_default(of_caller)
    return number


cdef float nearest(double number) noexcept:
    """The float32 that is nearest to a number."""
    cdef fa_environment of_caller = fa_enter_default()
    cdef volatile double given = number
    cdef volatile float rounded = <float>given
    fa_leave_default(of_caller)
    return rounded


cdef bint plain_number(value, double least, double *number) except -1:
    """A finite float not below `least`, or an int that float64 holds exactly."""
    cdef int64_t integer
    if isinstance(value, float):  # NumPy's float64 is one
        number[0] = value
    elif plain_integer(value, -LARGEST_OFFSET, LARGEST_OFFSET, &integer):
        number[0] = <double>integer
    else:
        return False
    return isfinite(number[0]) and number[0] >= least


cdef bint plain_window(window_size, fa_args *args) except -1:
    """A pair of ints or None; a wide one that means no bound at all is not plain."""
    if window_size is None:
        return True
    if type(window_size) is not tuple or len(<tuple>window_size) != 2:
        return False
    left, right = <tuple>window_size
    if left is not None and not plain_integer(left, -1, WIDEST_WINDOW, &args.left):
        return False
    return right is None or plain_integer(right, -1, WIDEST_WINDOW, &args.right)


cdef bint plain_options(
    fa_args *args, causal, window_size, scale, softcap, precision, threads
) except -1:
    """What is neither an array nor one number for each batch entry."""
    cdef int64_t number
    if (causal is not True and causal is not False) or type(precision) is not str:
        return False
    args.causal = causal is True
    if scale is None:
        args.scale = default_scale(args.depth)
    elif not plain_number(scale, -INFINITY, &args.scale):
        return False
    if not plain_number(softcap, 0, &args.softcap) or not plain_window(window_size, args):
        return False
    if <str>precision != "highest":
        least = PRECISIONS.get(precision)
        if least is None:
            return False
        args.precision = least
    if not plain_integer(threads, 1, INT_MAX, &number):
        return False
    args.threads = <int>number
    return True


cdef bint plain_mask(fa_args *args, cnp.ndarray mask, cnp.ndarray q) noexcept:
    """bool, float32 or of q's type, broadcast to (B, H, Sq, Sk) by strides."""
    cdef cnp.npy_intp whole[4]
    cdef cnp.npy_intp steps[4]
    cdef int axis, missing = 4 - cnp.PyArray_NDIM(mask), found = cnp.PyArray_TYPE(mask)
    cdef cnp.npy_intp size
    if missing < 0 or not cnp.PyArray_ISBEHAVED_RO(mask):
        return False
    if found != cnp.NPY_BOOL and found != cnp.NPY_FLOAT and found != cnp.PyArray_TYPE(q):
        return False
    whole[0], whole[1], whole[2] = args.lead_shape[0], args.q_heads, args.queries
    whole[3] = args.keys
    for axis in range(4):
        size = cnp.PyArray_DIMS(mask)[axis - missing] if axis >= missing else 1
        if size != 1 and size != whole[axis]:
            return False
        steps[axis] = cnp.PyArray_STRIDES(mask)[axis - missing] if size != 1 else 0
    args.mask.data = cnp.PyArray_DATA(mask)
    args.mask.lead[0], args.mask.head = steps[0], steps[1]
    args.mask.row, args.mask.column = steps[2], steps[3]
    if found == cnp.NPY_BOOL:
        args.mask_dtype = FA_BOOL
    else:
        args.mask_dtype = FA_FLOAT32 if found == cnp.NPY_FLOAT else args.dtype
    return True


cdef cnp.ndarray plain_heads(numbers, cnp.npy_intp times, cnp.npy_intp heads, double least):
    """New float64 (times, Hq) from float32 or float64 (Hq,) from `least` to below inf, or None."""
    cdef cnp.ndarray result
    cdef cnp.npy_intp head, count = max(times, 1) * heads
    cdef double *values
    cdef char *given
    if not cnp.PyArray_CheckExact(numbers) or cnp.PyArray_NDIM(numbers) != 1:
        return None
    if cnp.PyArray_DIMS(numbers)[0] != heads or not cnp.PyArray_ISBEHAVED_RO(numbers):
        return None
    if cnp.PyArray_TYPE(numbers) != cnp.NPY_FLOAT and cnp.PyArray_TYPE(numbers) != cnp.NPY_DOUBLE:
        return None
    result = cnp.PyArray_EMPTY(1, &count, cnp.NPY_DOUBLE, 0)
    values = <double *>cnp.PyArray_DATA(result)
    given = <char *>cnp.PyArray_DATA(numbers)
    for head in range(heads):
        if cnp.PyArray_TYPE(numbers) == cnp.NPY_FLOAT:
            values[head] = (<float *>given)[0]
        else:
            values[head] = (<double *>given)[0]
        if not least <= values[head] < INFINITY:
            return None
        given += cnp.PyArray_STRIDES(numbers)[0]
    for head in range(heads, count):
        values[head] = values[head - heads]
    return result


cdef tuple plain_vectors(fa_args *args, cnp.npy_intp batch, alibi_slopes, sinks, q_offset):
    """What holds the numbers of heads and of batch entries until the call ends, or None."""
    cdef cnp.ndarray slopes = None, logits = None, offsets = None
    cdef int64_t offset
    if alibi_slopes is not None:
        slopes = plain_heads(alibi_slopes, batch, args.q_heads, -DBL_MAX)
        if slopes is None:
            return None
        args.alibi = <const double *>cnp.PyArray_DATA(slopes)
    if sinks is not None:
        logits = plain_heads(sinks, 1, args.q_heads, -INFINITY)
        if logits is None:
            return None
        args.sinks = <const double *>cnp.PyArray_DATA(logits)
    if q_offset is not None:
        if not plain_integer(q_offset, -LARGEST_OFFSET, LARGEST_OFFSET, &offset):
            return None
        if args.causal or args.left >= 0 or args.right >= 0 or slopes is not None:
            offsets = repeated(offset, batch)
            args.q_offset = <const int64_t *>cnp.PyArray_DATA(offsets)
    return slopes, logits, offsets


def attend_plain(
    q, k, v, mask, causal, window_size, scale, softcap, alibi_slopes, sinks, q_offset, kv_lengths,
    kv_starts, block_table, k_scale, v_scale, layout, precision, out, return_lse, threads, bytes isa
):
    """Attention of arrays of rank 4, or pages of keys, with the most usual options, at once.

    Returns None for anything that is not exactly that, errors included: `_check` sees to it.
    """
    cdef fa_args args
    cdef cnp.ndarray lse
    cdef bint bshd
    if type(layout) is not str or (return_lse is not True and return_lse is not False):
        return None
    bshd = <str>layout == "bshd"
    if not bshd and <str>layout != "bhsd":
        return None
    if not plain_tensors(&args, q, k, v, bshd, block_table):
        return None
    if not plain_options(&args, causal, window_size, scale, softcap, precision, threads):
        return None
    if mask is not None and not (cnp.PyArray_CheckExact(mask) and plain_mask(&args, mask, q)):
        return None
    held = plain_vectors(&args, args.lead_shape[0], alibi_slopes, sinks, q_offset)
    if held is None:
        return None
    kept = plain_range(&args, args.lead_shape[0], args.keys, kv_starts, kv_lengths)
    if kept is None:
        return None
    owned = plain_stores(&args, args.lead_shape[0], block_table, k_scale, v_scale)
    if owned is None:
        return None
    if out is None:
        out = allocate(q, args.value_depth, bshd)
    elif not plain_out(
        out, q, args.value_depth,
        (q, k, v, mask, alibi_slopes, sinks, kv_starts, kv_lengths, block_table, k_scale, v_scale),
    ):
        return None
    describe(&args.out, in_order(out, bshd), 1)
    if return_lse:
        lse = logarithms(&args, 3)
    args.isa = isa
    call(&args, False)
    return (out, lse) if return_lse else out
