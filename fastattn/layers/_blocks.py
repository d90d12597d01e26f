# SPDX-License-Identifier: MIT
"""Elementwise passes block by block: temporaries stay in the cache, and threads share the blocks.

NumPy makes a pass over memory for each operation, and runs it on one thread. Over whole hidden
layers that costs as much as the matrix products; in blocks, on all threads, a fraction.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fastattn import _check_options as options
from fastattn.threads import get_num_threads

# 128 KB of float32: a handful of temporaries fit the level 2 cache, and the interpreter's share is
# below a tenth.
BLOCK = 1 << 15
# Starting threads takes as long as about four blocks.
LEAST_BLOCKS = 16


def apply_in_blocks(function, x, out=None, width=None):
    """Return a copy of `x` that `function` has overwritten, block by block.

    Parameters
    ----------
    function : callable
        Overwrites its argument: a slice of x, flat, or with `width` whole rows (n, width).
    x : ndarray, (...)
    out : ndarray, (...), optional
        Where to write: C-contiguous, of x's shape and dtype; may be `x` itself.
    width : int, optional
        Elements that must stay together: those of one row.
    """
    if out is None:
        out = target = np.array(x, order="C")
    else:
        target = options.writable(out, x.shape, x.dtype)
        if not target.flags.c_contiguous:
            raise ValueError(f"out: expected a C-contiguous array, got strides {target.strides}")
        if target is not x:
            np.copyto(target, x)
    if target.size == 0:
        return out
    flat = target.reshape(-1) if width is None else target.reshape(-1, width)
    rows = max(1, BLOCK // (width or 1))
    blocks = [flat[begin : begin + rows] for begin in range(0, len(flat), rows)]
    threads = min(get_num_threads(), len(blocks))
    if threads == 1 or len(blocks) < LEAST_BLOCKS:
        for block in blocks:
            function(block)
    else:
        # A pool for each call: one that lives on would leave a forked child waiting for ever.
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(function, blocks):
                pass
    return out
