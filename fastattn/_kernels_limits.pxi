# SPDX-License-Identifier: MIT
# What the machine can do at most: loops in C, run for the bench (measure/limits.py). Nothing of
# Python is between their turns, however short one is.


def fma_loop(isa, dtype, int64_t repeats):
    """Run multiply-adds in registers; the number of floating-point operations done."""
    cdef const fa_kernels *kernels = find(isa, dtype)
    cdef double count
    with nogil:
        count = kernels.fma_loop(repeats)
    return count


def product_loop(isa, int64_t repeats):
    """Multiply tiles of bfloat16 in registers; the number of floating-point operations done."""
    cdef const fa_matrix *wide = find_unit(isa).wide
    cdef double count
    if wide == NULL:
        raise ValueError(f"isa: {isa!r} has no matrix unit")
    with nogil:
        count = wide[0].product_loop(repeats)
    return count


def read_loop(isa, arrays, int64_t repeats=1):
    """Read contiguous float32 arrays, one after the other; the number of bytes read."""
    cdef const fa_kernels *kernels = find(isa, np.float32)
    places = np.array([(address(array), array.nbytes) for array in arrays], np.int64)
    cdef const int64_t *at = <const int64_t *><uintptr_t>address(places)
    cdef int64_t turn, n, parts = len(places)
    cdef double count = 0
    with nogil:
        for turn in range(repeats):
            for n in range(parts):
                count += kernels.read_loop(<const void *><uintptr_t>at[2 * n], at[2 * n + 1])
    return count
