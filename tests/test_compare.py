# SPDX-License-Identifier: MIT
"""What is said about two runs of the same problems."""

import pytest

from fastattn.measure import compare


def run_data(seconds, rate=1.0, noise=0.0, **entry):
    """Return a row as it is in a file of figures."""
    subject = {"seconds": seconds, "noise": noise} | entry
    return {
        "name": "p", "subject": "us", "entries": {"us": subject}, "bound": "peak", "flops": 1.0,
        "bytes": 1.0, "rates": {"peak": [rate / 2, *[rate] * 5, rate * 3], "read": [1.0]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("new", "verdict", "ratio"),
    [
        (run_data(1.0), compare.SAME, 1.0),
        (run_data(1.25), compare.SLOWER, 0.8),
        (run_data(0.8), compare.FASTER, 1.25),
        (run_data(1.25, rate=0.8), compare.SAME, 1.0),  # the whole machine was slower
        (run_data(1.0, rate=1.25), compare.SLOWER, 0.8),
        (run_data(1.25, noise=0.3), compare.UNCLEAR, 0.8),
        (run_data(1.25) | {"rates": {"peak": [0.5, 1.0, 1.5]}}, compare.UNCLEAR, 0.8),
        (run_data(1.01, noise=0.3), compare.UNCLEAR, 1 / 1.01),
        (run_data(1.0, failed=True), compare.WRONG, None),
        (run_data(1.0) | {"name": "other"}, compare.MISSING, None),
        (run_data(1.0) | {"rates": {}}, compare.MISSING, None),
    ],
)
def test_compare(new, verdict, ratio):
    [change] = compare.changes([run_data(1.0)], [new])
    assert change.verdict == verdict
    assert change.ratio == pytest.approx(ratio)
    assert compare.failed([change]) == (verdict in ("SLOWER", "WRONG", "missing"))
    assert compare.cells([change])[1][0][-1] == verdict
    assert verdict in compare.summary([change], 0.95)


def test_only_like_compares_with_like():
    one = {"cpu": "a", "isa": "avx2", "threads": 2}
    assert compare.settings_differ(one, dict(one)) is None
    assert compare.settings_differ(one, one | {"threads": 1}) == "threads: 2 there, 1 here"


def test_other_processes_are_spoken_of():
    quiet, loud = [{"others": 0.01}, {}], [{"others": 0.01}, {"others": 0.4}]
    assert compare.busy(quiet, quiet) is None
    assert "40% of the CPUs then, 1% now" in compare.busy(loud, quiet)
