# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True
# SPDX-License-Identifier: MIT
"""The binding: checked arrays -> fa_args -> one call without the GIL -> status -> exception."""

from libc.math cimport isfinite, sqrt
from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp
from fastattn.capi cimport (
    FA_BOOL, FA_FLOAT32, FA_FLOAT64, FA_MAX_LEAD, FA_NO_MEMORY, FA_OK, FA_UNSUPPORTED_ISA,
    fa_args, fa_attention, fa_attention_weights, fa_dtype, fa_has_threads, fa_isa_default,
    fa_isa_missing, fa_isa_name, fa_max_threads, fa_status, fa_tensor,
)

cnp.import_array()


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


cdef inline bint plain(cnp.ndarray array) noexcept:
    """A float32 array of rank 4 that the kernels can read as it is."""
    return (
        cnp.PyArray_NDIM(array) == 4
        and cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT
        and cnp.PyArray_ISBEHAVED_RO(array)
    )


def attend_plain(q, k, v, bint causal, scale, int threads, bytes isa):
    """Attention of float32 arrays (B, H, S, D) without further options, as fast as can be.

    Returns None for anything that is not exactly that, errors included: `_check` sees to it.
    """
    cdef fa_args args
    cdef cnp.npy_intp shape[4]
    cdef cnp.npy_intp *qs
    cdef cnp.npy_intp *ks
    cdef cnp.npy_intp *vs
    if not (cnp.PyArray_CheckExact(q) and cnp.PyArray_CheckExact(k) and cnp.PyArray_CheckExact(v)):
        return None
    if not (plain(q) and plain(k) and plain(v)) or not cnp.PyArray_IS_C_CONTIGUOUS(q):
        return None
    qs, ks, vs = cnp.PyArray_DIMS(q), cnp.PyArray_DIMS(k), cnp.PyArray_DIMS(v)
    if ks[0] != qs[0] or vs[0] != qs[0] or ks[1] != vs[1] or ks[2] != vs[2] or ks[3] != qs[3]:
        return None
    if ks[1] == 0 or qs[1] % ks[1] or qs[3] == 0 or vs[3] == 0:
        return None
    sizes(&args, q, k, 1)
    args.dtype = args.kv_dtype = FA_FLOAT32
    if scale is None:
        args.scale = 1 / sqrt(<double>qs[3])
    elif type(scale) is float:
        args.scale = scale
        if not isfinite(args.scale):
            return None
    else:
        return None
    args.value_depth = shape[3] = vs[3]
    shape[0], shape[1], shape[2] = qs[0], qs[1], qs[2]
    out = cnp.PyArray_EMPTY(4, shape, cnp.NPY_FLOAT, 0)
    describe(&args.v, v, 1)
    describe(&args.out, out, 1)
    args.causal = causal
    args.threads = threads
    args.isa = isa
    call(&args, False)
    return out


def attend(problem, int threads, bytes isa, bint weights=False):
    """Run a `_check.Problem`, or with `weights` a `_check.WeightsProblem`; fills its arrays."""
    cdef fa_args args
    cdef cnp.ndarray q = problem.q, k = problem.k, out = problem.out
    cdef cnp.ndarray q_offset = problem.q_offset
    cdef cnp.ndarray kv_begin = problem.kv_begin, kv_end = problem.kv_end
    cdef int lead = cnp.PyArray_NDIM(q) - 3
    if lead > FA_MAX_LEAD:
        raise ValueError(f"q: expected at most {FA_MAX_LEAD + 3} dimensions, got {lead + 3}")
    sizes(&args, q, k, lead)
    args.dtype = args.kv_dtype = real_type(q)
    describe(&args.out, out, lead)
    if not weights:
        describe(&args.v, problem.v, lead)
        args.value_depth = cnp.PyArray_DIMS(out)[lead + 2]
    mask = problem.mask
    if mask is not None:
        describe(&args.mask, mask, lead)
        args.mask_dtype = FA_BOOL if mask.dtype.kind == "b" else real_type(mask)
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
    call(&args, weights)


cdef fa_dtype real_type(array):
    return FA_FLOAT32 if cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT else FA_FLOAT64


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
