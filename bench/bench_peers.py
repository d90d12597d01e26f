# SPDX-License-Identifier: MIT
"""This package and every other library that is installed, interleaved in one run per problem.

    python bench/bench_peers.py --suite prefill          # as `python -m fastattn bench`
    pytest bench/bench_peers.py                          # the suites, ratios in extra_info

Every result is compared with the oracle before it is timed; a wrong one has no figure. Under pytest
the times shown are those of this package, taken within the interleaved run.
"""

import sys

import pytest
from conftest import annotate

import fastattn
from fastattn import cli
from fastattn.measure import limits, peers, runner, suites

SECONDS = 2.0


class Clock:
    """A clock for pytest-benchmark that replays the samples of an interleaved run."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        """Return the time."""
        return self.now

    def advance(self, seconds):
        """Let time pass."""
        self.now += seconds


clock = Clock()


def grid():
    """Return the problems: shapes that take less than a few seconds with every library."""
    prefill = [
        problem
        for causal in (False, True)
        for problem in suites.prefill(causal, lengths=(256, 1024, 2048))
    ]
    lists = (suites.all_masks, suites.small, suites.decode, suites.varlen, suites.models)
    problems = [*prefill, *(problem for make in lists for problem in make())]
    return list({problem.name: problem for problem in problems}.values())


@pytest.mark.benchmark(timer=clock)
@pytest.mark.parametrize("problem", grid(), ids=lambda p: p.name.replace(" ", "-"))
def test_peers(benchmark, problem, threads):
    """Measure one problem with everybody; fail if a result is wrong."""
    benchmark.group = "against other libraries"
    isa = fastattn.isa()
    peak = limits.FmaPeak(isa, limits.peak_type(problem, isa), threads)
    read = limits.read_of(problem, problem.inputs(), isa, threads)
    contestants = [peers.Fastattn(threads), *peers.select(None, threads)]
    meters = {runner.PEAK: peak, runner.READ: read}
    row = runner.measure(problem, contestants, meters=meters, seconds=SECONDS)
    wrong = [f"{entry.name}: {entry.note}" for entry in row.entries.values() if entry.failed]
    assert not wrong, wrong
    timing = row.entries[row.subject].timing
    samples = iter(timing.samples)
    benchmark.pedantic(lambda: clock.advance(next(samples)), rounds=len(timing.samples))
    annotate(benchmark, problem.flops(), isa, limits.peak_type(problem, isa), threads)
    benchmark.extra_info["share"], benchmark.extra_info["bound"] = row.share(), row.bound
    benchmark.extra_info["noise"] = row.noise
    benchmark.extra_info["ratios"] = {name: row.ratio(name) for name in row.peers}


if __name__ == "__main__":
    sys.exit(cli.main(["bench", *sys.argv[1:]]))
