# SPDX-License-Identifier: MIT
"""What only pictures show: the same problem over threads, shares of a mask, and precisions.

Each sweep is rows of `runner.measure`, checked and interleaved like everything else.
"""

import dataclasses
import importlib.util

from fastattn.measure import peers, runner, suites
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
    """Return points over 1, 2, 4, ... `threads`: one causal prefill, on this package and peers."""
    problem = Problem(Hq=suites.HEADS, Sq=LENGTH, D=64, causal=True)
    counts = sorted({threads, *(1 << n for n in range(threads.bit_length()) if 1 << n <= threads)})
    points = []
    for count in counts:
        contestants = [peers.Fastattn(count, isa), *peers.select(names, count)]
        points += _points(runner.measure(problem, contestants, seconds=seconds), count)
    return points


def mask_shares(threads, names, seconds, isa=None):
    """Return points over the share of 64 x 64 blocks that a bool mask allows."""
    points = []
    for problem in suites.mask_shares(LENGTH):
        contestants = [peers.Fastattn(threads, isa), *peers.select(names, threads)]
        points += _points(runner.measure(problem, contestants, seconds=seconds), problem.allowed)
    return points


def precisions(threads, names, seconds, isa=None):
    """Return points over the types, one prefill: what speed costs in error."""
    points = []
    known = importlib.util.find_spec("ml_dtypes") is not None  # bfloat16 is that of ml_dtypes
    for dtype in DTYPES if known else DTYPES[:-1]:
        problem = Problem(Hq=suites.HEADS, Sq=LENGTH, D=64, dtype=dtype)
        contestants = [peers.Fastattn(threads, isa), *peers.select(names, threads)]
        points += _points(runner.measure(problem, contestants, seconds=seconds), dtype)
    return points


def _points(row, x):
    return [
        Point(entry.name, x, entry.timing.median, entry.error)
        for entry in row.entries.values()
        if entry.timing is not None
    ]


def run_all(threads, names, seconds, isa=None, progress=None):
    """Return {"threads": points, "masks": points, "precisions": points}."""
    sweeps = {"threads": thread_scaling, "masks": mask_shares, "precisions": precisions}
    found = {}
    for index, (name, sweep) in enumerate(sweeps.items()):
        if progress is not None:
            progress(index / len(sweeps), name)
        found[name] = sweep(threads, names, seconds, isa)
    return found
