# SPDX-License-Identifier: MIT
"""Every entry of the kernel table by itself, the instruction sets side by side.

    pytest bench/bench_kernels.py
    pytest bench/bench_kernels.py -k "update and float32"

One thread, data in L1. What is timed repeats the entry many times, with everything set up. All
instruction sets do the same amount of work, so the times of a group compare; work per second is
beside the times (`extra_info`): operations, bytes of read_loop, or else numbers.
"""

import kernel_work
import pytest
from conftest import annotate

from fastattn import _kernels

DEPTH = 64
KEYS = 64
ROWS = 48_000  # query rows in all, tile by tile
ELEMENTS = 1 << 20  # of an elementwise entry in all,
CHUNK = 1 << 10  # so many at a time: what is read and what is written stay in L1
OPERATIONS = 2e8  # of the FMA loop


def shape(kernel, isa, dtype):
    """Return keywords of `kernel_work.prepare` that mean the same work on every instruction set."""
    tile = _kernels.tile(isa, dtype)
    lanes, vectors = tile["lanes"], tile["tile_vectors"]
    if kernel == "fma_loop":
        return {"repeats": round(OPERATIONS / _kernels.fma_loop(isa, dtype, 1))}
    if kernel in kernel_work.ELEMENTWISE:
        return {"keys": CHUNK // lanes, "repeats": ELEMENTS // CHUNK}
    repeats = ROWS // (lanes * vectors)
    return {"depth": DEPTH, "keys": KEYS, "vectors": vectors, "repeats": repeats}


@pytest.mark.parametrize(("kernel", "isa", "dtype"), _kernels.table(), ids=str)
def test_kernel(benchmark, kernel, isa, dtype):
    """Time one table entry."""
    benchmark.group = f"{kernel} {dtype}"
    function, work = kernel_work.prepare(kernel, isa, dtype, **shape(kernel, isa, dtype))
    benchmark.pedantic(function, rounds=7, warmup_rounds=1)
    counted = kernel in kernel_work.PRODUCTS or kernel == "fma_loop"
    annotate(benchmark, work if counted else 0, isa, dtype, 1)
    if benchmark.stats is not None:
        benchmark.extra_info["per_second"] = work / benchmark.stats.stats.median
