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
