# SPDX-License-Identifier: MIT
"""Peers for tests of the measuring tools: one that is right, and others that are not."""

import numpy as np

from fastattn import reference
from fastattn.measure import peers, runner
from fastattn.measure.problems import Problem

SMALL = Problem(B=2, Hq=4, Hkv=2, Sq=20, D=8)


class Exact(peers.Peer):
    """The oracle as a peer."""

    name, version = "exact", "1"
    features = peers.EVERYTHING

    def prepare(self, problem, inputs):
        """Bind the oracle."""
        options = {"attn_mask": inputs.mask, "causal": problem.causal}
        options["kv_lengths"] = inputs.kv_lengths
        tensors = inputs.q, inputs.k, inputs.v
        dtype = inputs.q.dtype
        return peers.Prepared(lambda: reference.attention(*tensors, **options, dtype=dtype))


class Wrong(Exact):
    """Nearly right: forgets causality, or one element is off."""

    name = "wrong"

    def prepare(self, problem, inputs):
        """Bind the oracle and spoil it."""
        call = super().prepare(problem, inputs).call
        return peers.Prepared(lambda: call() + self.off(problem))

    def off(self, problem):
        """Return what is added."""
        spoiled = np.zeros((problem.B, problem.Hq, problem.Sq, problem.Dv), np.float32)
        spoiled[0, 0, 0] = 0.01
        return spoiled


class Broken(Exact):
    """Raises."""

    name = "broken"

    def prepare(self, problem, inputs):
        """Raise."""
        raise RuntimeError("no kernel\nwith a long story")


class Silent(Exact):
    """Cannot do this."""

    name = "silent"

    def supports(self, problem):
        """Nothing."""
        return "not today"


def measured(*contestants, problem=SMALL, **options):
    """Measure in the shortest way."""
    return runner.measure(problem, [each(1) for each in contestants], rounds=3, **options)
