# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True
# SPDX-License-Identifier: MIT
"""Arrays of other libraries as NumPy arrays on the same memory.

DLPack 1.3 (https://dmlc.github.io/dlpack/latest/), read here because NumPy's own `from_dlpack` knows
neither bfloat16 nor the C exchange table, by which a tensor of torch is described in a tenth of the
time that a capsule takes.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cimport numpy as cnp

import numpy as np

cnp.import_array()

cdef enum:
    MAX_AXES = 64  # NumPy's own limit
    READ_ONLY = 1
    IS_COPIED = 2

# Kinds of memory that a CPU reads like any other: its own, and that pinned for CUDA and for ROCm.
HOST_MEMORY = (1, 3, 11)

ctypedef struct Device:
    int32_t type
    int32_t index

ctypedef struct Dtype:
    uint8_t code
    uint8_t bits
    uint16_t lanes

ctypedef struct Tensor:
    char *data
    Device device
    int32_t axes
    Dtype dtype
    int64_t *shape
    int64_t *strides  # in elements; NULL for C order, before version 1.2
    uint64_t offset

ctypedef struct Managed:
    Tensor tensor
    void *context
    void *deleter

ctypedef struct Version:
    uint32_t major
    uint32_t minor

ctypedef struct ManagedVersioned:
    Version version
    void *context
    void *deleter
    uint64_t flags
    Tensor tensor

ctypedef struct ExchangeTable:
    Version version
    ExchangeTable *previous
    void *allocate
    void *managed_from_object
    void *managed_to_object
    int (*tensor_from_object)(void *, Tensor *) except -1  # may be NULL
    void *stream

# The capsules of types that have an exchange table of their own. A subclass is not entitled to the
# table of its base: the elements of a FakeTensor, say, are nowhere.
cdef dict tables = {}


def view(value, dtypes):
    """An array of any library with DLPack as a numpy.ndarray on the same memory.

    Parameters
    ----------
    value : object
        Has ``__dlpack__`` and ``__dlpack_device__``. It is kept alive by the result. Not a tensor of
        torch whose ``is_neg()``: it exports the memory of such a one as if it were not.
    dtypes : dict
        NumPy's number of the type for each ``256 * code + bits`` of DLPack.

    Raises
    ------
    BufferError
        It is not in the memory of the CPU, or of a type that is not in `dtypes`.
    Exception
        Whatever ``value.__dlpack__`` raises.
    """
    cdef Tensor tensor
    cdef ExchangeTable *table
    capsule = tables.get(type(value))
    if capsule is None and "__dlpack_c_exchange_api__" in vars(type(value)):
        capsule = tables.setdefault(type(value), type(value).__dlpack_c_exchange_api__)
    if capsule is not None:
        table = <ExchangeTable *>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
        while table != NULL and table.version.major != 1:
            table = table.previous
        if table != NULL and table.tensor_from_object != NULL:
            table.tensor_from_object(<void *>value, &tensor)
            return wrap(&tensor, value, True, dtypes)
    return view_by_capsule(value, dtypes)


cdef view_by_capsule(value, dict dtypes):
    cdef Managed *managed
    cdef ManagedVersioned *versioned
    device = value.__dlpack_device__()
    if device[0] not in HOST_MEMORY:
        raise BufferError(f"it is on DLPack device {int(device[0])}:{device[1]}")
    try:
        capsule = value.__dlpack__(max_version=(1, 3))
    except TypeError:  # a library from before version 1
        capsule = value.__dlpack__()
    # The capsule is not consumed but kept: it frees what it holds when the result is collected.
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        versioned = <ManagedVersioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if versioned.version.major != 1:
            raise BufferError(f"it speaks version {versioned.version.major} of DLPack, not 1")
        # What is written into a copy would not reach the array.
        writable = not versioned.flags & (READ_ONLY | IS_COPIED)
        return wrap(&versioned.tensor, capsule, writable, dtypes)
    # The old kind does not say whether it may be written. JAX, whose arrays may not, exports it, and
    # so does torch before 2.9, whose tensors may.
    managed = <Managed *>PyCapsule_GetPointer(capsule, "dltensor")
    writable = type(value).__module__.partition(".")[0] == "torch"
    return wrap(&managed.tensor, capsule, writable, dtypes)


cdef wrap(const Tensor *tensor, owner, bint writable, dict dtypes):
    cdef cnp.npy_intp shape[MAX_AXES]
    cdef cnp.npy_intp strides[MAX_AXES]
    cdef cnp.npy_intp step = tensor.dtype.bits // 8
    cdef int64_t size = 1
    cdef int axis
    number = dtypes.get(256 * tensor.dtype.code + tensor.dtype.bits)
    if number is None or tensor.dtype.lanes != 1:
        dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        raise BufferError(f"its elements are of DLPack type (code, bits, lanes) = {dtype}")
    if tensor.device.type not in HOST_MEMORY:
        raise BufferError(f"it is on DLPack device {tensor.device.type}:{tensor.device.index}")
    if tensor.axes > MAX_AXES:
        raise BufferError(f"it has {tensor.axes} axes")
    for axis in range(tensor.axes - 1, -1, -1):
        shape[axis] = tensor.shape[axis]
        if tensor.strides == NULL:
            strides[axis] = size * step
        else:
            strides[axis] = tensor.strides[axis] * step
        size *= shape[axis]
    if tensor.data == NULL and size > 0:
        raise BufferError("it has no memory")
    # Without elements there may be no memory, but NumPy would allocate some for NULL.
    data = tensor.data if tensor.data != NULL else <char *>tensor
    result = cnp.PyArray_New(
        np.ndarray, tensor.axes, shape, number, strides, data + tensor.offset, 0,
        cnp.NPY_ARRAY_WRITEABLE if writable else 0, None,
    )
    cnp.set_array_base(result, owner)
    return result
