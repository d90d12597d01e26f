# SPDX-License-Identifier: MIT
"""Every entry of the kernel table by itself, the instruction sets side by side.

    pytest bench/bench_kernels.py
    pytest bench/bench_kernels.py -k "update and float32"

One thread, data in L1. A call repeats the entry many times, because setting it up costs more than
running it. All instruction sets do the same amount of work, so the times of a group compare; work
per second is beside the times (`extra_info`).
"""

import kernel_work
import pytest
from conftest import annotate

from fastattn import _kernels

DEPTH = 64
KEYS = 64
ROWS = 48_000  # query rows in all, tile by tile
ELEMENTS = 1 << 20  # of an elementwise entry in all, so many at a time that calling is nothing:
CHUNK = 1 << 16
OPERATIONS = 2e8  # of the FMA loop
PRODUCTS = ("update", "scores", "output", "weigh", "fma_loop")  # work counted in operations


def shape(kernel, isa, dtype):
    """Return keywords of `kernel_work.run` that mean the same work on every instruction set."""
    tile = _kernels.tile(isa, dtype)
    lanes, vectors = tile["lanes"], tile["tile_vectors"]
    if kernel == "fma_loop":
        return {"repeats": round(OPERATIONS / _kernels.fma_loop(isa, dtype, 1))}
    if kernel in ("exp2", "tanh", "read_loop", "widen", "narrow"):
        return {"keys": CHUNK // lanes, "repeats": ELEMENTS // CHUNK}
    repeats = ROWS // (lanes * vectors)
    return {"depth": DEPTH, "keys": KEYS, "vectors": vectors, "repeats": repeats}


@pytest.mark.parametrize(("kernel", "isa", "dtype"), _kernels.table(), ids=str)
def test_kernel(benchmark, kernel, isa, dtype):
    """Time one table entry."""
    benchmark.group = f"{kernel} {dtype}"
    keywords = shape(kernel, isa, dtype)
    work = benchmark.pedantic(
        kernel_work.run, (kernel, isa, dtype), keywords, rounds=7, warmup_rounds=1
    )
    annotate(benchmark, work if kernel in PRODUCTS else 0, isa, dtype, 1)
    if benchmark.stats is not None:
        benchmark.extra_info["per_second"] = work / benchmark.stats.stats.median
