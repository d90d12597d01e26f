# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True
# SPDX-License-Identifier: MIT
"""The binding: checked arrays -> fa_args -> one call without the GIL -> status -> exception."""

from libc.math cimport isfinite, sqrt
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memset

import functools
import sys

import numpy as np

cimport numpy as cnp
from fastattn.capi cimport (
    FA_BFLOAT16, FA_BOOL, FA_FLOAT8_E4M3, FA_FLOAT8_E5M2, FA_FLOAT16, FA_FLOAT32, FA_FLOAT64,
    FA_HIGH, FA_HIGHEST, FA_INT8, FA_INVALID, FA_MAX_LEAD, FA_MEDIUM, FA_NO_MEMORY, FA_OK,
    FA_UNSUPPORTED_ISA,
    fa_args, fa_attention, fa_attention_weights, fa_dtype, fa_has_threads, fa_isa_default,
    fa_isa_missing, fa_isa_name, fa_max_threads, fa_status, fa_tensor,
)

from fastattn._check_dtypes import supported as _name_of

cdef extern from "numpy/ndarraytypes.h":
    const int NPY_HALF

cdef extern from "environment.h" nogil:
    ctypedef struct fa_environment:
        pass
    fa_environment fa_enter_default()
    void fa_leave_default(fa_environment of_caller)

cdef extern from "dispatch.h":
    ctypedef struct fa_unit:
        pass
    const void *fa_kernels_for(const char *isa, fa_dtype dtype, const fa_unit **unit)

cdef extern from *:
    const char *FASTATTN_VERSION  # from pyproject.toml, by setup.py

cnp.import_array()

VERSION = FASTATTN_VERSION.decode()

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
    args.left = args.right = -1
    describe(&args.q, q, lead)
    describe(&args.k, k, lead)


cdef object failed(fa_status status, const fa_args *args):
    if status == FA_NO_MEMORY:
        raise MemoryError(
            "fastattn: not enough memory for the scratch of this call, with num_threads "
            f"{args.threads} and depths {args.depth} and {args.value_depth}"
        )
    if status == FA_UNSUPPORTED_ISA:
        name = args.isa.decode() if args.isa != NULL else "FASTATTN_ISA"
        raise RuntimeError(f"fastattn: instruction set {name!r} cannot be used on this machine")
    if status == FA_INVALID: # of what has been checked: too much of it
        raise ValueError(
            "q, k, v: expected at most 2^56 numbers together, of at most 2^31 features, got "
            f"{args.queries} queries, {args.keys} keys, depths {args.depth} and {args.value_depth}"
        )
    raise SystemError(f"fastattn: unknown status {status} of the core")


cdef int call(const fa_args *args, bint weights) except -1:
    cdef fa_status status
    with nogil:
        status = fa_attention_weights(args) if weights else fa_attention(args)
    if status != FA_OK:
        failed(status, args)
    return 0


def in_default_environment(function):
    """Let a function that checks arguments round them as the core does, whatever the caller has.

    Where torch.compile calls it, it is not compiled: Dynamo takes arrays for tensors, and fails.
    """
    untraced = None
    @functools.wraps(function)
    def inside(*arguments, **options):
        nonlocal untraced
        cdef fa_environment of_caller
        if untraced is None and "torch._dynamo" in sys.modules:
            untraced = sys.modules["torch"].compiler.disable(function)
        of_caller = fa_enter_default()
        try:
            return (untraced or function)(*arguments, **options)
        finally:
            fa_leave_default(of_caller)
    return inside


include "_plain.pxi"
include "_plain_keys.pxi"
include "_plain_out.pxi"
include "_plain_varlen.pxi"


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
    """Where the kernels of an instruction set and type are, and the unit beside them; or 0."""
    cdef const fa_unit *unit
    cdef const void *kernels = fa_kernels_for(isa.encode(), DTYPES[dtype], &unit)
    return <uintptr_t>kernels, <uintptr_t>unit
