# SPDX-License-Identifier: MIT
"""What the benches under pytest-benchmark share: collection, threads, limits, extra columns."""

import functools
import subprocess
from pathlib import Path

import machine
import pytest
from arguments import at_least

import fastattn
from fastattn.cli import arguments as checks
from fastattn.measure import limits


def pytest_addoption(parser):
    """Add --threads."""
    parser.addoption(
        "--threads",
        type=at_least(1, checks.MOST_METERED_THREADS),
        default=fastattn.get_num_threads(),
        help="threads of every bench",
    )


def pytest_collect_file(file_path, parent):
    """Collect bench_*.py for ``pytest bench``; the tests' own pattern stays as it is."""
    named = parent.session.isinitpath(file_path)  # pytest itself collects what is named
    if file_path.match("bench_*.py") and not named:
        return pytest.Module.from_parent(parent, path=file_path)
    return None


@pytest.fixture(scope="session")
def threads(request):
    """Return the number of threads to use."""
    return request.config.getoption("--threads")


@functools.cache
def fma_peak(isa, dtype, threads):
    """Return the FMA peak in operations per second."""
    return limits.median_rate(limits.FmaPeak(isa, dtype, threads))


@functools.cache
def environment():
    """Return what every result carries along: CPU, load when the run began, git commit."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        commit = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {"cpu": fastattn.config()["cpu"], "load": machine.load(), "commit": commit}


def annotate(benchmark, flops, isa, dtype, threads):
    """Put speed, share of the peak and the environment beside the times of `benchmark`."""
    extra = benchmark.extra_info
    extra |= environment() | {"isa": isa, "dtype": dtype, "threads": threads}
    if benchmark.stats is None or not flops:  # --benchmark-disable
        return
    rate = flops / benchmark.stats.stats.median
    extra["gflops"] = rate / 1e9
    extra["share_of_peak"] = rate / fma_peak(isa, dtype, threads)
