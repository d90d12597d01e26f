# SPDX-License-Identifier: MIT
"""What the tests of both caches share: their sizes, tokens, and options of attention."""

import numpy as np
from cases import normal

LAYOUTS = ["bhsd", "bshd"]
HEADS, DEPTH, VALUE_DEPTH = 2, 8, 5

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


def logical(tensor, layout):
    """View a tensor as (B, heads, S, D)."""
    return tensor.swapaxes(1, 2) if layout == "bshd" else tensor


def tokens(rng, batch, count, layout="bhsd", dtype=np.float32):
    """Keys and values of so many tokens for each sequence."""
    k, v = (normal(rng, batch, HEADS, count, depth, dtype=dtype) for depth in (DEPTH, VALUE_DEPTH))
    return [logical(each, layout).copy() for each in (k, v)]
