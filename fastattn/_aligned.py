# SPDX-License-Identifier: MIT
"""Arrays that begin at a line of the cache, as other libraries make them.

NumPy's begin at any multiple of 16 bytes. Most loads of a whole vector then cross two lines: one
row of queries took 12 to 15 % longer from the caches (Zen 4, AVX-512, D = 64).
"""

import math

import numpy as np

LINE = 64  # bytes


def zeros(shape, dtype):
    """As `numpy.zeros`: memory is taken when it is first written to."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + LINE - 1, np.uint8)
    begin = -memory.ctypes.data % LINE
    return memory[begin : begin + size].view(dtype).reshape(shape)


def copy(array):
    """Return the same numbers, C-contiguous."""
    result = zeros(array.shape, array.dtype)
    result[...] = array
    return result


def at_line(array):
    """Return the array itself if it begins at a line and can be written to, else a copy."""
    fits = array.flags.writeable and array.ctypes.data % LINE == 0
    return array if fits else copy(array)
