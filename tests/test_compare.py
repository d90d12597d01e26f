# SPDX-License-Identifier: MIT
"""What is said about two runs of the same problems."""

import pytest

from fastattn.measure import compare

pytestmark = pytest.mark.forces_isa


def run_data(seconds, rate=1.0, noise=0.0, cache=1.0, **entry):
    """Return a row as it is in a file of figures."""
    samples = [seconds * (1 + noise * place) for place in (-3, -2, -1, 0, 1, 2, 3)]
    subject = {"seconds": seconds, "samples": samples} | entry
    rates = {"peak": [rate / 2, *[rate] * 5, rate * 3], "read": [1.0], "cache": [cache] * 7}
    return {
        "name": "p", "subject": "us", "entries": {"us": subject}, "bound": "peak", "flops": 1.0,
        "bytes": 1.0, "rates": rates,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("new", "verdict", "ratio"),
    [
        (run_data(1.0), compare.SAME, 1.0),
        (run_data(1.25), compare.SLOWER, 0.8),
        (run_data(0.8), compare.FASTER, 1.25),
        (run_data(1.25, rate=0.8), compare.SAME, 1.0),  # the whole machine was slower
        (run_data(1.0, rate=1.25, cache=1.25), compare.SLOWER, 0.8),
        (run_data(1.0, rate=1.25), compare.UNCLEAR, 0.8),  # the registers were faster, nothing else
        (run_data(1.25, noise=0.3), compare.UNCLEAR, 0.8),
        (run_data(0.8, noise=0.3), compare.UNCLEAR, 1.25),
        (run_data(1.25, cache=0.8), compare.UNCLEAR, 0.8),  # the caches were slower, too
        (run_data(0.8, cache=1.25), compare.UNCLEAR, 1.25),
        (run_data(1.0, cache=0.8), compare.SAME, 1.0),
        (run_data(1.01, noise=0.3), compare.UNCLEAR, 1 / 1.01),
        (run_data(1.0, failed=True), compare.WRONG, None),
        (run_data(1.0) | {"name": "other"}, compare.MISSING, None),
        (run_data(1.0) | {"rates": {}}, compare.MISSING, None),
        (run_data(1.0, samples=[]), compare.MISSING, None),
    ],
)
def test_compare(new, verdict, ratio):
    [change] = compare.changes([run_data(1.0)], [new])
    assert change.verdict == verdict
    assert change.ratio == pytest.approx(ratio)
    assert compare.failed([change]) == (verdict in ("SLOWER", "WRONG", "missing"))
    assert compare.cells([change])[1][0][-1] == verdict
    assert verdict in compare.summary([change], 0.95)


@pytest.mark.parametrize("old", [run_data(1.0, samples=[]), run_data(1.0) | {"rates": {}}])
def test_what_had_no_figure_then_is_no_fault_now(old):
    changes = compare.changes([old] * 2 + [run_data(1.0)], [run_data(1.0)])
    assert [each.verdict for each in changes] == ["no figure then", "no figure then", "same"]
    assert not compare.failed(changes)
    assert compare.changes([old], [run_data(1.0, failed=True)])[0].verdict == compare.WRONG


def test_a_drift_that_the_limit_shares_is_no_noise():
    drifting = [1.0, 1.3, 0.7, 1.6, 0.9, 1.1, 0.5]
    row = run_data(1.0)
    row["entries"]["us"]["samples"] = drifting
    row["rates"]["peak"] = [1 / each for each in drifting]
    [change] = compare.changes([row], [row])
    assert change.noise == pytest.approx(0, abs=1e-12)
    assert change.verdict == compare.SAME


def test_only_like_compares_with_like():
    one = {"cpu": "a", "isa": "avx2", "threads": 2}
    assert compare.settings_differ(one, dict(one)) is None
    assert compare.settings_differ(one, one | {"threads": 1}) == "threads: 2 there, 1 here"
    assert compare.settings_differ(one, one | {"meters": 2}) == "meters: None there, 2 here"


def test_other_processes_are_spoken_of():
    quiet, loud = [{"others": 0.01}, {}], [{"others": 0.01}, {"others": 0.4}]
    assert compare.busy(quiet, quiet) is None
    assert "40% of the CPUs then, 1% now" in compare.busy(loud, quiet)
