# SPDX-License-Identifier: MIT
"""What only pictures show: the same problem over threads, shares of a mask, and precisions.

Each sweep is rows of `runner.measure`, checked and interleaved like everything else.
"""

import dataclasses
import importlib.util

from fastattn.measure import peers, runner, suites, table
from fastattn.measure.problems import Problem

LENGTH = 1024
DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Point:
    """One point of a curve: a library at one setting.

    Attributes
    ----------
    library : str
    x : float or str
        Threads, share of a mask, or type.
    seconds, error : float
    """

    library: str
    x: object
    seconds: float
    error: float


def thread_scaling(threads, names, seconds, isa=None):
    """Return {threads: Row} of 1, 2, 4, ... `threads`: one causal prefill, this package, peers."""
    problem = Problem(Hq=suites.HEADS, Sq=LENGTH, D=64, causal=True)
    counts = sorted({threads, *(1 << n for n in range(threads.bit_length()) if 1 << n <= threads)})
    rows = {}
    for count in counts:
        contestants = [peers.Fastattn(count, isa), *peers.select(names, count)]
        rows[count] = runner.measure(problem, contestants, seconds=seconds)
    return rows


def mask_shares(threads, names, seconds, isa=None):
    """Return {share: Row} over the share of 64 x 64 blocks that a bool mask allows."""
    rows = {}
    for problem in suites.mask_shares(LENGTH):
        contestants = [peers.Fastattn(threads, isa), *peers.select(names, threads)]
        rows[problem.allowed] = runner.measure(problem, contestants, seconds=seconds)
    return rows


def precisions(threads, names, seconds, isa=None):
    """Return {type: Row}, one prefill: what speed costs in error."""
    rows = {}
    known = importlib.util.find_spec("ml_dtypes") is not None  # bfloat16 is that of ml_dtypes
    for dtype in DTYPES if known else DTYPES[:-1]:
        problem = Problem(Hq=suites.HEADS, Sq=LENGTH, D=64, dtype=dtype)
        contestants = [peers.Fastattn(threads, isa), *peers.select(names, threads)]
        rows[dtype] = runner.measure(problem, contestants, seconds=seconds)
    return rows


def points(rows):
    """Return a point for everything that was timed in {x: Row}."""
    return [
        Point(entry.name, x, entry.timing.median, entry.error)
        for x, row in rows.items()
        for entry in row.entries.values()
        if entry.timing is not None
    ]


def run_all(threads, names, seconds, isa=None, progress=None):
    """Return ({"threads": points, "masks": points, "precisions": points}, lines on failures)."""
    sweeps = {"threads": thread_scaling, "masks": mask_shares, "precisions": precisions}
    found, failures = {}, []
    for index, (name, sweep) in enumerate(sweeps.items()):
        if progress is not None:
            progress(index / len(sweeps), name)
        rows = sweep(threads, names, seconds, isa)
        found[name] = points(rows)
        failures += [
            f"{name} {x}: {line}" for x, row in rows.items() for line in table.failures([row])
        ]
    return found, failures
