# SPDX-License-Identifier: MIT
"""Whole calls over a grid of shapes, the instruction sets side by side.

    pytest bench/bench_attention.py
    pytest bench/bench_attention.py -k "1024 and avx2" --threads 1

Times compare within a group; pytest-benchmark runs its cases one after the other, so for quotable
ratios to other libraries take bench_peers.py, which interleaves them.
"""

import pytest
from conftest import annotate

import fastattn
from fastattn.measure import checking, limits, peers, suites

SCALAR_FLOPS = 3e9  # beyond that nobody waits for scalar code


def grid():
    """Return the problems of the suites, what takes long in one type only."""
    return [
        *suites.prefill(),
        *suites.prefill(causal=True),
        *suites.all_masks()[1:],
        *suites.small(),
        *suites.decode(),
        *suites.varlen(),
        *suites.models(),
        *suites.prefill(lengths=(512, 2048), depths=(64,), dtype="float64"),
        *suites.prefill(lengths=(512, 2048), depths=(64,), dtype="float16"),
    ]


def cases():
    """Return (problem, isa) of everything that is worth running."""
    return [
        pytest.param(problem, isa, id=f"{problem.name}-{problem.dtype}-{isa}".replace(" ", "-"))
        for problem in grid()
        for isa in fastattn.isas()
        if isa != "scalar" or problem.flops() < SCALAR_FLOPS
    ]


@pytest.mark.parametrize(("problem", "isa"), cases())
def test_attention(benchmark, problem, isa, threads):
    """Check one problem on one instruction set, then time it."""
    benchmark.group = f"{problem.name} {problem.dtype}"
    inputs = problem.inputs()
    prepared = peers.Fastattn(threads, isa).prepare(problem, inputs)
    benchmark.extra_info["error"] = checking.check(prepared, problem, inputs)
    if problem.flops() > 1e9:
        benchmark.pedantic(prepared.call, rounds=5, warmup_rounds=1)
    else:
        benchmark(prepared.call)
    annotate(benchmark, problem.flops(), isa, limits.peak_type(problem, isa), threads)
    benchmark.extra_info["dtype"] = problem.dtype
