# SPDX-License-Identifier: MIT
# Part of _kernels.pyx: entries of the table that know rows of numbers, and no tiles.

def elementwise(kernel, isa, x, int64_t repeats=1):
    """exp2 or tanh of a contiguous array whose size is a multiple of the lanes."""
    cdef const fa_kernels *kernels = find(isa, x.dtype)
    cdef void (*function)(const void *, void *, int64_t) noexcept nogil
    function = kernels.exp2 if kernel == "exp2" else kernels.tanh
    y = np.empty_like(x)
    cdef const void *source = <const void *><uintptr_t>address(x)
    cdef void *target = <void *><uintptr_t>address(y)
    cdef int64_t turn, size = x.size
    with nogil:
        for turn in range(repeats):
            function(source, target, size)
    return y


def widen(isa, dtype, storage, stored, scales=None, int64_t repeats=1):
    """Rows (count, columns) of `storage` (one of STORAGES) as `dtype`, times float32 scales."""
    cdef const fa_kernels *kernels = find(isa, dtype)
    cdef fa_storage kind = STORAGES[storage]
    wide = np.empty(stored.shape, dtype)
    rows = pointers(stored, len(stored), 0)
    cdef const void *const *source = <const void *const *><uintptr_t>address(rows)
    cdef void *target = <void *><uintptr_t>address(wide)
    cdef const float *factors = <const float *><uintptr_t>address(scales)
    cdef int64_t turn, count = len(stored), columns = stored.shape[1]
    for turn in range(repeats):
        kernels.widen(kind, source, count, columns, factors, target)
    return wide


def greatest_square(isa, dtype, storage, stored, scales=None, int64_t repeats=1):
    """The greatest sum of squares of rows as `widen` takes them."""
    cdef const fa_kernels *kernels = find(isa, dtype)
    cdef fa_storage kind = STORAGES[storage]
    rows = pointers(stored, len(stored), 0)
    cdef const void *const *source = <const void *const *><uintptr_t>address(rows)
    cdef const float *factors = <const float *><uintptr_t>address(scales)
    cdef int64_t turn, count = len(stored), columns = stored.shape[1]
    cdef double result = 0
    for turn in range(repeats):
        result = kernels.greatest_square(kind, source, count, columns, factors)
    return result


def narrow(isa, storage, row, stored, int64_t repeats=1):
    """Round a contiguous row into `stored`, a row of `storage`."""
    cdef const fa_kernels *kernels = find(isa, row.dtype)
    cdef fa_storage kind = STORAGES[storage]
    cdef const void *source = <const void *><uintptr_t>address(row)
    cdef void *target = <void *><uintptr_t>address(stored)
    cdef int64_t turn, size = row.size
    for turn in range(repeats):
        kernels.narrow(kind, source, size, target)
