# SPDX-License-Identifier: MIT
"""Meters and peers of the measuring tools work with all the threads that they are given."""

import sys
import types

import numpy as np
import pytest

import fastattn
from fastattn import _kernels
from fastattn.measure import limits, peer_onnxruntime

pytestmark = pytest.mark.forces_isa


def test_the_rate_of_a_meter_is_that_of_all_threads_together():
    class Steady(limits._Meter):
        def _elapsed(self):
            return 1.0

        def _own_rate(self, index):
            return 10.0**index

    assert [Steady(threads)() for threads in (1, 2, 3)] == [1.0, 11.0, 111.0]


def test_a_meter_works_as_long_as_a_sample_is_to_take(monkeypatch):
    now = 0.0

    class Clocked(limits._Meter):
        def _work(self, index):
            nonlocal now
            now += self._repeats * 1e-6
            return self._repeats * 3

    monkeypatch.setattr(limits.time, "perf_counter", lambda: now)
    meter = Clocked(1)
    assert meter._repeats == pytest.approx(limits.SAMPLE_SECONDS / 1e-6, abs=1)
    assert meter() == pytest.approx(3e6)


def test_all_limits_are_measured_with_one_thread_and_with_all(monkeypatch):
    for name in "FmaPeak", "ReadBandwidth", "Exponentials":
        monkeypatch.setattr(limits, name, lambda *given, name=name: (name, *given))
    monkeypatch.setattr(limits, "median_rate", lambda meter: meter)
    found, isas, best = limits.machine(3), fastattn.isas(), fastattn.isa()
    peaks = [("FmaPeak", *(each[key] for key in ("isa", "dtype", "threads")))
             for each in found["peaks"]]  # fmt: skip
    assert [each["flops"] for each in found["peaks"]] == peaks
    for dtype in "float32", "float64":
        assert {("FmaPeak", isa, dtype, n) for isa in isas for n in (1, 3)} <= set(peaks)
    matrix = {isa for _, isa, dtype, _ in peaks if dtype == "bfloat16"}
    assert matrix == {isa for isa in isas if _kernels.matrix_pieces(isa)}
    for threads in 1, 3:
        own = [each for each in found["bandwidth"] if each["threads"] == threads]
        levels = {each["level"]: each["bytes"] for each in own if each["level"]}
        assert levels == limits.working_sets(threads)
        sizes = [each["bytes"] for each in own if not each["level"]]
        assert (sizes[0], sizes[-1]) == (16 << 10, 256 << 20)
        for each in own:
            assert each["rate"] == ("ReadBandwidth", best, each["bytes"], threads)
    assert [each["rate"] for each in found["exponentials"]] == [
        ("Exponentials", isa, dtype) for isa in isas for dtype in ("float32", "float64")
    ]


def test_onnxruntime_gets_the_threads(monkeypatch):
    pytest.importorskip("onnx")
    seen = []
    library = types.SimpleNamespace(
        SessionOptions=types.SimpleNamespace,
        InferenceSession=lambda model, options, **_: seen.append(options),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", library)
    q = np.ones((1, 1, 1, 8), np.float32)
    peer_onnxruntime.OnnxAttention(3).session("Attention", ["q", "k", "v"], [q, q, q])
    assert [(each.intra_op_num_threads, each.inter_op_num_threads) for each in seen] == [(3, 1)]
