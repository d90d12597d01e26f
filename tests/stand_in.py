# SPDX-License-Identifier: MIT
"""The oracle in the place of what the C core cannot do yet, behind the real validation."""

import numpy as np

from fastattn import _check, reference
from fastattn.cli.random_storage import can

# Options for three sequences of 9, 2 and 5 tokens, four heads and two queries.
OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window_size": (4, 0)},
    "offset": {"causal": True, "q_offset": np.array([2, 0, 3])},
    "starts": {"kv_starts": [1, 0, 3], "alibi_slopes": [0.5, 0.25, 0.1, 0.0]},
    "fewer": {"kv_lengths": [8, 1, 4], "causal": True},
    "softcap": {"softcap": 2.0, "sinks": [0.5, 0.0, -1.0, 2.0], "scale": 0.7},
}


def attention(q, k, v, **options):
    """`fastattn.attention`, by the oracle."""
    problem = _check.problem(q, k, v, **options)
    return _rounded(reference.attention(q, k, v, **options), problem)


def attention_varlen(q, k, v, *cuts, **options):
    """`fastattn.attention_varlen`, by the oracle."""
    problem = _check.varlen_problem(q, k, v, *cuts, **options)
    return _rounded(reference.attention_varlen(q, k, v, *cuts, **options), problem)


def _rounded(result, problem):
    if not isinstance(result, tuple):
        return result.astype(problem.out.dtype)
    return result[0].astype(problem.out.dtype), result[1].astype(problem.lse.dtype)


def unless_core_can(monkeypatch, module, *abilities):
    """Let a module call the oracle, unless the core has all of these abilities."""
    if not all(can(ability) for ability in abilities):
        for function in attention, attention_varlen:
            if hasattr(module, function.__name__):
                monkeypatch.setattr(module, function.__name__, function)
