# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True
# SPDX-License-Identifier: MIT
"""The binding: checked arrays -> fa_args -> one call without the GIL -> status -> exception."""

from libc.math cimport isfinite, sqrt
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memset

import numpy as np

cimport numpy as cnp
from fastattn.capi cimport (
    FA_BFLOAT16, FA_BOOL, FA_FLOAT8_E4M3, FA_FLOAT8_E5M2, FA_FLOAT16, FA_FLOAT32, FA_FLOAT64,
    FA_HIGH, FA_HIGHEST, FA_INT8, FA_MAX_LEAD, FA_MEDIUM, FA_NO_MEMORY, FA_OK, FA_UNSUPPORTED_ISA,
    fa_args, fa_attention, fa_attention_weights, fa_dtype, fa_has_threads, fa_isa_default,
    fa_isa_missing, fa_isa_name, fa_max_threads, fa_status, fa_tensor,
)

from fastattn._check_dtypes import supported as _name_of

cdef extern from "numpy/ndarraytypes.h":
    const int NPY_HALF

cdef extern from "dispatch.h":
    const void *fa_kernels_for(const char *isa, fa_dtype dtype)

cnp.import_array()

cdef dict DTYPES = {
    "float32": FA_FLOAT32, "float64": FA_FLOAT64, "bool": FA_BOOL, "float16": FA_FLOAT16,
    "bfloat16": FA_BFLOAT16, "int8": FA_INT8, "float8_e4m3fn": FA_FLOAT8_E4M3,
    "float8_e5m2": FA_FLOAT8_E5M2,
}

cdef dict PRECISIONS = {"highest": FA_HIGHEST, "high": FA_HIGH, "medium": FA_MEDIUM}


cdef inline void describe(fa_tensor *tensor, cnp.ndarray array, int lead) noexcept:
    """Data and byte strides of an array (lead..., heads, sequence, feature)."""
    cdef cnp.npy_intp *strides = cnp.PyArray_STRIDES(array)
    cdef int axis
    tensor.data = cnp.PyArray_DATA(array)
    for axis in range(lead):
        tensor.lead[axis] = strides[axis]
    tensor.head = strides[lead]
    tensor.row = strides[lead + 1]
    tensor.column = strides[lead + 2]


cdef inline void describe_pages(fa_tensor *tensor, cnp.ndarray array) noexcept:
    """The same of an array (pages, heads, page[, feature])."""
    cdef cnp.npy_intp *strides = cnp.PyArray_STRIDES(array)
    tensor.data = cnp.PyArray_DATA(array)
    tensor.page, tensor.head, tensor.row = strides[0], strides[1], strides[2]
    if cnp.PyArray_NDIM(array) > 3:
        tensor.column = strides[3]


cdef inline void describe_scale(fa_tensor *tensor, array, int lead, bint paged) noexcept:
    """The same of an array (lead..., heads, sequence), or None."""
    if array is None:
        return
    if paged:
        describe_pages(tensor, array)
    else:
        describe(tensor, array[..., None], lead)


cdef inline void sizes(fa_args *args, cnp.ndarray q, cnp.ndarray k, int lead) noexcept:
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(q)
    cdef int axis
    memset(args, 0, sizeof(fa_args))
    args.size = sizeof(fa_args)
    args.lead_rank = lead
    for axis in range(lead):
        args.lead_shape[axis] = shape[axis]
    args.q_heads = shape[lead]
    args.queries = shape[lead + 1]
    args.depth = shape[lead + 2]
    args.kv_heads = cnp.PyArray_DIMS(k)[lead]
    args.keys = cnp.PyArray_DIMS(k)[lead + 1]
    args.value_depth = 1
    args.left = args.right = -1
    describe(&args.q, q, lead)
    describe(&args.k, k, lead)


cdef object failed(fa_status status, const char *isa):
    if status == FA_NO_MEMORY:
        raise MemoryError("fastattn: not enough memory for the scratch of this call")
    if status == FA_UNSUPPORTED_ISA:
        name = isa.decode() if isa != NULL else "FASTATTN_ISA"
        raise RuntimeError(f"fastattn: instruction set {name!r} cannot be used on this machine")
    raise SystemError(f"fastattn: the core refused validated arguments (status {status})")


cdef int call(const fa_args *args, bint weights) except -1:
    cdef fa_status status
    with nogil:
        status = fa_attention_weights(args) if weights else fa_attention(args)
    if status != FA_OK:
        failed(status, args.isa)
    return 0


cdef inline bint plain(cnp.ndarray array, int kind) noexcept:
    """An array of rank 4 and type `kind` that the kernels can read as it is."""
    return (
        cnp.PyArray_NDIM(array) == 4
        and cnp.PyArray_TYPE(array) == kind
        and cnp.PyArray_ISBEHAVED_RO(array)
    )


cdef bint apart(cnp.ndarray out, cnp.ndarray array) noexcept:
    """All of `out`, which is contiguous, before or behind all of `array`."""
    cdef char *first = <char *>cnp.PyArray_DATA(array)
    cdef char *last = first
    cdef char *begin = <char *>cnp.PyArray_DATA(out)
    cdef cnp.npy_intp step
    cdef int axis
    for axis in range(cnp.PyArray_NDIM(array)):
        step = (cnp.PyArray_DIMS(array)[axis] - 1) * cnp.PyArray_STRIDES(array)[axis]
        if step < 0:
            first += step
        else:
            last += step
    return begin + cnp.PyArray_NBYTES(out) <= first or last + cnp.PyArray_ITEMSIZE(array) <= begin


cdef inline bint plain_out(cnp.ndarray out, int kind, cnp.npy_intp *shape) noexcept:
    """A contiguous, writable array of that shape and type."""
    return (
        plain(out, kind)
        and cnp.PyArray_ISCARRAY(out)
        and cnp.PyArray_CompareLists(cnp.PyArray_DIMS(out), shape, 4)
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


cdef cnp.ndarray plain_lengths(lengths, cnp.npy_intp batch, cnp.npy_intp keys):
    """int64 (batch,) from one length or from an array of them; None if that is not what it is."""
    cdef cnp.ndarray result
    cdef int64_t *values
    cdef cnp.npy_intp index
    if type(lengths) is int and 0 <= lengths <= keys:
        result = cnp.PyArray_EMPTY(1, &batch, cnp.NPY_INT64, 0)
        values = <int64_t *>cnp.PyArray_DATA(result)
        for index in range(batch):
            values[index] = lengths
        return result
    if not cnp.PyArray_CheckExact(lengths):
        return None
    result = lengths
    if cnp.PyArray_NDIM(result) != 1 or cnp.PyArray_TYPE(result) != cnp.NPY_INT64:
        return None
    if not cnp.PyArray_ISCARRAY_RO(result) or cnp.PyArray_DIMS(result)[0] != batch:
        return None
    values = <int64_t *>cnp.PyArray_DATA(result)
    for index in range(batch):
        if not 0 <= values[index] <= keys:
            return None
    return result


cdef bint plain_shapes(cnp.npy_intp *q, cnp.npy_intp *k, cnp.npy_intp *v) noexcept:
    """Shapes (B, H, S, D) that go together as they are."""
    if k[0] != q[0] or v[0] != q[0] or k[1] != v[1] or k[2] != v[2] or k[3] != q[3]:
        return False
    return k[1] != 0 and q[1] % k[1] == 0 and q[3] != 0 and v[3] != 0


def attend_plain(
    q, k, v, bint causal, scale, kv_lengths, bint return_lse, out, int threads, bytes isa
):
    """Attention of arrays (B, H, S, D) of one type without further options, at once.

    Returns None for anything that is not exactly that, errors included: `_check` sees to it.
    """
    cdef fa_args args
    cdef cnp.npy_intp shape[4]
    cdef cnp.npy_intp *qs
    cdef cnp.ndarray lse, lengths = None
    cdef int kind, dtype
    if not (cnp.PyArray_CheckExact(q) and cnp.PyArray_CheckExact(k) and cnp.PyArray_CheckExact(v)):
        return None
    kind, dtype = cnp.PyArray_TYPE(q), plain_type(q)
    if dtype < 0 or not (plain(q, kind) and plain(k, kind) and plain(v, kind)):
        return None
    qs = cnp.PyArray_DIMS(q)
    if not plain_shapes(qs, cnp.PyArray_DIMS(k), cnp.PyArray_DIMS(v)):
        return None
    if not cnp.PyArray_IS_C_CONTIGUOUS(q):
        return None
    sizes(&args, q, k, 1)
    args.dtype = args.kv_dtype = <fa_dtype>dtype
    if scale is None:
        args.scale = 1 / sqrt(<double>qs[3])
    elif type(scale) is float and isfinite(<double>scale):
        args.scale = scale
    else:
        return None
    if kv_lengths is not None:
        lengths = plain_lengths(kv_lengths, qs[0], args.keys)
        if lengths is None:
            return None
        args.kv_end = <const int64_t *>cnp.PyArray_DATA(lengths)
    shape[0], shape[1], shape[2] = qs[0], qs[1], qs[2]
    args.value_depth = shape[3] = cnp.PyArray_DIMS(v)[3]
    if out is None:
        out = cnp.PyArray_EMPTY(4, shape, kind, 0)
    elif not cnp.PyArray_CheckExact(out) or not plain_out(out, kind, shape):
        return None
    elif not (apart(out, q) and apart(out, k) and apart(out, v)):
        return None
    elif lengths is not None and not apart(out, lengths):
        return None
    if return_lse:
        kind = cnp.NPY_DOUBLE if dtype == FA_FLOAT64 else cnp.NPY_FLOAT
        lse = cnp.PyArray_EMPTY(3, shape, kind, 0)
        args.lse = cnp.PyArray_DATA(lse)
    describe(&args.v, v, 1)
    describe(&args.out, out, 1)
    args.causal, args.threads, args.isa = causal, threads, isa
    call(&args, False)
    return (out, lse) if return_lse else out


cdef fa_dtype code(cnp.ndarray array) except *:
    return DTYPES[_name_of(array.dtype)]


cdef int describe_options(fa_args *args, problem, int threads, const char *isa) except -1:
    """What does not depend on how the tensors lie."""
    cdef cnp.ndarray q_offset = problem.q_offset
    cdef cnp.ndarray kv_begin = problem.kv_begin, kv_end = problem.kv_end
    args.scale, args.softcap = problem.scale, problem.softcap
    args.causal, args.left, args.right = problem.causal, problem.left, problem.right
    args.q_offset = <const int64_t *>cnp.PyArray_DATA(q_offset)
    args.kv_begin = <const int64_t *>cnp.PyArray_DATA(kv_begin)
    args.kv_end = <const int64_t *>cnp.PyArray_DATA(kv_end)
    alibi, sinks, lse = problem.alibi, problem.sinks, problem.lse
    if alibi is not None:
        args.alibi = <const double *>cnp.PyArray_DATA(alibi)
    if sinks is not None:
        args.sinks = <const double *>cnp.PyArray_DATA(sinks)
    if lse is not None:
        args.lse = cnp.PyArray_DATA(lse)
    args.threads = threads
    args.isa = isa
    args.precision = PRECISIONS[problem.precision]
    return 0


cdef int describe_keys(fa_args *args, problem, int lead, bint weights) except -1:
    """K, V, their scales, and their pages."""
    cdef cnp.ndarray k = problem.k, table
    cdef cnp.npy_intp *shape
    cdef bint paged = problem.block_table is not None
    args.kv_dtype = code(k)
    describe_scale(&args.k_scale, problem.k_scale, lead, paged)
    if not weights:
        describe_scale(&args.v_scale, problem.v_scale, lead, paged)
    if not paged:
        if not weights:
            describe(&args.v, problem.v, lead)
        return 0
    table = problem.block_table
    shape = cnp.PyArray_DIMS(k)
    args.block_table = <const int32_t *>cnp.PyArray_DATA(table)
    args.table_width = cnp.PyArray_DIMS(table)[1]
    args.pages, args.kv_heads, args.page_keys = shape[0], shape[1], shape[2]
    args.keys = args.table_width * args.page_keys
    describe_pages(&args.k, k)
    if not weights:
        describe_pages(&args.v, problem.v)
    return 0


def attend(problem, int threads, bytes isa, bint weights=False):
    """Run a `_check.Problem`, or with `weights` a `_check.WeightsProblem`; fills its arrays."""
    cdef fa_args args
    cdef cnp.ndarray q = problem.q, k = problem.k, out = problem.out
    cdef int lead = cnp.PyArray_NDIM(q) - 3
    if lead > FA_MAX_LEAD:
        raise ValueError(f"q: expected at most {FA_MAX_LEAD + 3} dimensions, got {lead + 3}")
    sizes(&args, q, k if problem.block_table is None else q, lead)
    args.dtype = code(q)
    if weights and args.dtype != FA_FLOAT32 and args.dtype != FA_FLOAT64:
        out = np.empty_like(out, np.float32)  # the core writes weights in the type it computes in
    describe(&args.out, out, lead)
    if not weights:
        args.value_depth = cnp.PyArray_DIMS(out)[lead + 2]
    describe_keys(&args, problem, lead, weights)
    mask = problem.mask
    if mask is not None:
        describe(&args.mask, mask, lead)
        args.mask_dtype = FA_BOOL if mask.dtype.kind == "b" else code(mask)
    describe_options(&args, problem, threads, isa)
    call(&args, weights)
    if out is not problem.out:
        problem.out[...] = out


def attend_varlen(problem, int threads, bytes isa):
    """Run a `_check.VarlenProblem`; fills its arrays."""
    cdef fa_args args
    cdef cnp.ndarray q = problem.q, k = problem.k, out = problem.out, cu_q = problem.cu_q, cu_k
    sizes(&args, q, k if problem.block_table is None else q, 0)
    args.dtype = code(q)
    describe(&args.out, out, 0)
    args.value_depth = cnp.PyArray_DIMS(out)[2]
    describe_keys(&args, problem, 0, False)
    args.sequences = cnp.PyArray_DIMS(cu_q)[0] - 1
    args.cu_q = <const int64_t *>cnp.PyArray_DATA(cu_q)
    if problem.cu_k is not None:
        cu_k = problem.cu_k
        args.cu_k = <const int64_t *>cnp.PyArray_DATA(cu_k)
    describe_options(&args, problem, threads, isa)
    call(&args, False)


def max_threads():
    """CPUs that this process may use, or OMP_NUM_THREADS if that is less."""
    return fa_max_threads()


def has_threads():
    return bool(fa_has_threads())


def isa_table():
    """Every instruction set that is compiled in: {name: None, or why it cannot be used here}."""
    table = {}
    cdef int index = 0
    while fa_isa_name(index) != NULL:
        missing = fa_isa_missing(index)
        table[fa_isa_name(index).decode()] = missing.decode() if missing != NULL else None
        index += 1
    return table


def default_isa():
    """The instruction set that is used without `use_isa`; None if FASTATTN_ISA is not usable."""
    name = fa_isa_default()
    return name.decode() if name != NULL else None


def kernels_at(isa, dtype):
    """Where the kernel table of an instruction set and type is; 0 if it cannot be used here."""
    return <uintptr_t>fa_kernels_for(isa.encode(), DTYPES[dtype])
