# SPDX-License-Identifier: MIT
"""Meters and peers of the measuring tools work with all the threads that they are given."""

import sys
import types

import numpy as np
import pytest

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
