# SPDX-License-Identifier: MIT
"""What the tests of both caches share: sizes, tokens, options of attention, filled caches."""

import io

import numpy as np
from cases import normal

import fastattn

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


def given(rng, cache, batch, count):
    shape = (batch, count, 2) if cache.layout == "bshd" else (batch, 2, count)
    dtype = np.float64 if cache.dtype == np.float64 else np.float32
    return [rng.standard_normal((*shape, depth)).astype(dtype) for depth in (8, 5)]


def filled(rng, kind, path=None, **options):
    """A cache with tokens of three sequences; the paged one with shared and evicted pages."""
    make = fastattn.KVCache if kind == "dense" else fastattn.PagedKVCache
    make = make if path is None else make.memmap
    first = () if path is None else (path,)
    if kind == "dense":
        cache = make(*first, 3, 2, 8, 5, capacity=11, **options)
        cache.append(*given(rng, cache, 3, 6), lengths=[6, 0, 3])
        return cache
    cache = make(*first, 9, 4, 2, 8, 5, **options)
    ids = [cache.new() for _ in range(3)]
    cache.append(ids, *given(rng, cache, 3, 9), lengths=[9, 0, 3])
    cache.fork(ids[0])
    cache.evict(ids[0], 2)
    cache.free(ids[1])
    return cache


def read_back(cache):
    """Return what `load` makes of what `save` writes."""
    file = io.BytesIO()
    cache.save(file)
    file.seek(0)
    return type(cache).load(file)
