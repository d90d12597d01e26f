# SPDX-License-Identifier: MIT
"""Section of the report about sizes that do not fill what kernels take at a time."""

from figure import Figure, relative_times
from figures_narrow import named

from fastattn.measure import suites
from fastattn.measure.problems import Problem

DTYPES = ("float32", "float16", "bfloat16")
# Each smaller one beside the next power of two.
DEPTHS = {64: (40, 48), 128: (72, 80, 96, 112)}
ROWS = {16: (9, 12), 32: (17, 20, 24), 64: (33,)}
# As long as the larger one, but for noise.
NO_LONGER = 1.05


def shapes(settings):
    """Depths and rows between powers of two: no slower than the next power of two."""
    keys = settings.length(1024)
    figures = []
    for dtype in DTYPES:
        for depth, smaller in DEPTHS.items():
            for queries in (1, 4, keys):
                figures += _beside_larger("D", depth, smaller, settings, dtype, queries, keys)
        for rows, smaller in ROWS.items():
            figures += _beside_larger("Sq", rows, smaller, settings, dtype, rows, keys)
    return figures, []


def _beside_larger(size, larger, smaller, settings, dtype, queries, keys):
    """Return a figure for each of the smaller sizes: its time relative to the larger one."""
    sizes = {"Hq": suites.HEADS, "Sq": queries, "Sk": keys, "D": 128}
    base, *others = (named(Problem(**sizes | {size: each}), dtype) for each in (larger, *smaller))
    times = relative_times(base, others, settings)
    return [
        Figure(f"{problem.name} / {size}={larger}", times[problem], at_most=NO_LONGER)
        for problem in others
    ]
