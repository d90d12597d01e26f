# SPDX-License-Identifier: MIT
"""Figures of the report that compare two times: which way up they stand, from times that are known.

Work is done, and checked, as in a report; only the times are those of the tests.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

from fastattn.measure import timing

pytest.importorskip("resource")  # of POSIX; memory.py asks it

BENCH = Path(__file__).parent.parent / "bench"
pytestmark = [
    pytest.mark.forces_isa,
    pytest.mark.skipif(not BENCH.exists(), reason="needs the source tree"),
]


@pytest.fixture
def values(script, monkeypatch):
    """Return a function: {name of figure: value} of a section, where its calls take these times."""

    def run(module, section, seconds, *arguments, length=64):
        def interleave(calls, **_):
            return timing.Run({n: timing.Timing(np.full(5, seconds(n))) for n in calls}, {})

        monkeypatch.setattr(timing, "interleave", interleave)
        settings = script("figure").Settings(threads=2, peers=(), quick=True)
        monkeypatch.setattr(settings.__class__, "length", lambda *_: length)
        found = getattr(script(module), section)(settings, *arguments)
        figures = [found] if isinstance(found, script("figure").Figure) else found
        figures = figures[0] if isinstance(figures, tuple) else figures
        return {figure.name: figure.value for figure in figures}

    return run


def test_causal_relative_to_full(values):
    found = values("figures", "causal", lambda problem: 0.5 if problem.causal else 1.0)
    assert set(found.values()) == {0.5}


def test_masks_relative_to_none(values):
    seconds = {"none": 1.0, "blocks": 0.5, "random": 2.0, "float": 4.0}
    found = values("figures", "masks", lambda problem: seconds[problem.mask])
    assert {name.split()[1]: value for name, value in found.items()} == {
        kind: time for kind, time in seconds.items() if kind != "none"
    }


def test_heads_side_by_side_relative_to_apart(values):
    [value] = values("figures", "_beside", {"apart": 1.0, "beside": 2.0}.get).values()
    assert value == 2.0


def test_rows_relative_to_one(values, script):
    problem = script("figures_decode").Problem(Sk=64, Hq=2, Hkv=2, D=16)
    found = values("figures_decode", "_query_rows", float, problem, "64 keys")
    assert found == {f"decode 64 keys, {n} rows / 1": float(n) for n in (2, 4, 8, 12, 16)}


def test_layouts_relative_to_dense(values):
    seconds = {"dense": 1.0, "beside": 0.5, 16: 2.0, 64: 4.0, 128: 8.0}
    found = values("figures_decode", "_layouts", seconds.get, 256, "float32")
    assert found == {
        "heads side by side / dense, 256 keys": 0.5,
        **{f"pages of {n} / dense, 256 keys": seconds[n] for n in (16, 64, 128)},
    }


def test_packed_relative_to_single_calls_shared_by_the_threads(values):
    """Single calls take 4 s on one of two threads, so 2 s on both; the packed one takes 3 s."""
    [value] = values("figures_decode", "_packed", {"one": 3.0, "each": 4.0}.get, length=8).values()
    assert value == 1.5


def test_short_steps_relative_to_the_plain_one(values):
    found = values("figures_decode", "_short", lambda name: 1.0 if name == "plain" else 2.0)
    assert len(found) == 5 and set(found.values()) == {2.0}


def test_narrow_prefill_relative_to_wider_types(values, monkeypatch, script):
    pytest.importorskip("ml_dtypes")
    monkeypatch.setattr(script("figures_narrow"), "measured_rows", lambda *_: [])
    seconds = {"float32": 1.0, "float16": 0.5, "bfloat16": 0.25}
    seconds |= {"int8": 0.75, "float8_e4m3fn": 1.5, "float8_e5m2": 2.0}
    found = values("figures_narrow", "_prefill", lambda problem: seconds[problem.kv_dtype])
    assert len(found) == 2 * (2 + 3)
    for name, value in found.items():
        problem, base = name.split(" / ")
        stored = problem.split()[1]  # behind the shape; before "K and V with", of bytes
        assert value == seconds[stored] / seconds[base]


def test_decoding_of_bytes_is_so_many_times_faster(values, monkeypatch, script):
    pytest.importorskip("ml_dtypes")
    monkeypatch.setattr(script("figures_narrow"), "measured_rows", lambda *_: [])
    found = values(
        "figures_narrow", "_decode", lambda problem: 1.0 if problem.kv_dtype == "bfloat16" else 0.5
    )
    assert len(found) == 3 and set(found.values()) == {2.0}


def test_sizes_relative_to_the_next_power_of_two(values):
    pytest.importorskip("ml_dtypes")
    found = values("figures_shapes", "shapes", lambda problem: problem.Sq * problem.D)
    assert len(found) == 3 * (3 * (2 + 4) + 2 + 3 + 1)
    for name, value in found.items():
        problem, larger = name.split(" / ")
        _, _, lengths, depth = problem.split()[0].split("x")
        sizes = {"D": int(depth), "Sq": int(lengths.split(":")[0])}
        size, most = larger.split("=")
        assert value == sizes[size] / int(most) < 1


def test_sizes_of_errors(script):
    """Three units in the last place of each, and as many of the greatest one."""
    expected = np.array([1.0, -1.5, 2.0, 0.25])
    places = np.array([2**-10, 2**-10, 2**-9, 2**-12])  # of float16
    sizes = script("figure").error_sizes((expected + 3 * places).astype("f2"), expected, "float16")
    assert sizes == pytest.approx((3 * 2**-9, 3 * np.sqrt((places**2).mean()), 3), rel=1e-12)


@pytest.mark.parametrize("module, section", [
    ("figures", "accuracy"), ("figures_narrow", "_errors"), ("figures_matrix", "_errors"),
])  # fmt: skip
def test_errors_have_every_size(values, module, section):
    pytest.importorskip("ml_dtypes")
    found = values(module, section, {}.get)
    sizes = {name: value for name, value in found.items() if name.startswith("error ")}
    names = {name.rpartition(" ")[0] for name in sizes}
    assert {*sizes} == {f"{name} {kind}" for name in names for kind in ("max", "rms", "ulp")}
    assert all(sizes[f"{name} rms"] <= sizes[f"{name} max"] for name in names)
    halves = [name for name in names if name.endswith("float16 fastattn")]
    assert all(sizes[f"{name} ulp"] < 0.5 for name in halves)


def test_rate_of_mapped_arrays(script, monkeypatch):
    memory, seen = script("memory"), []
    monkeypatch.setattr(memory, "own_bytes", lambda: 0)
    monkeypatch.setattr(memory.fastattn, "attention", lambda q, k, v, **_: seen.append((k, v)))
    monkeypatch.setattr(memory.time, "perf_counter", map(float, itertools.count(0, 4)).__next__)
    used = memory.measure_mapped(keys=64, depth=8, threads=1)
    assert used["seconds"] == 4.0
    assert used["rate"] == sum(each.nbytes for each in seen[-1]) / 4.0
