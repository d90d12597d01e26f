# SPDX-License-Identifier: MIT
"""Attention as a loop over single scores, and inputs for it: what the oracle is tested against."""

import itertools
import math

import numpy as np


def tensors(seed=0, batch=2, heads=4, kv_heads=2, queries=5, keys=7, depth=6, v_depth=3):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((batch, heads, queries, depth)),
        rng.standard_normal((batch, kv_heads, keys, depth)),
        rng.standard_normal((batch, kv_heads, keys, v_depth)),
    )


def score(b, h, i, j, q_row, k_row, options):
    """Score of one query and one key, or None where it is forbidden. Options are all given."""
    s = options["scale"] * sum(x * y for x, y in zip(q_row, k_row, strict=True))
    if options["softcap"] > 0:
        s = options["softcap"] * math.tanh(s / options["softcap"])
    position = i + options["q_offset"][b]
    s -= options["alibi_slopes"][b][h] * abs(position - j)
    if options["attn_mask"].dtype == bool:
        if not options["attn_mask"][b, h, i, j]:
            return None
    elif options["attn_mask"][b, h, i, j] == -np.inf:
        return None
    else:
        s += options["attn_mask"][b, h, i, j]
    left, right = options["window_size"]
    if not options["kv_starts"][b] <= j < options["kv_lengths"][b]:
        return None
    if options["causal"] and j > position:
        return None
    if left >= 0 and j < position - left:
        return None
    if right >= 0 and j > position + right:
        return None
    return s


def loop(q, k, v, **options):
    """Attention of rank-4 tensors, one score at a time."""
    batch, heads, queries, depth = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    full = (batch, heads, queries, keys)
    options["scale"] = options.get("scale", 1 / math.sqrt(depth))
    options.setdefault("softcap", 0.0)
    options.setdefault("causal", False)
    window = options.get("window_size", (-1, -1))
    options["window_size"] = [-1 if side is None else side for side in window]
    options["kv_lengths"] = np.broadcast_to(options.get("kv_lengths", keys), batch)
    options["kv_starts"] = np.broadcast_to(options.get("kv_starts", 0), batch)
    offset = options.get("q_offset", options["kv_lengths"] - queries)
    options["q_offset"] = np.broadcast_to(offset, batch)
    slopes = options.get("alibi_slopes", 0.0)
    options["alibi_slopes"] = np.broadcast_to(slopes, (batch, heads))
    options["attn_mask"] = np.broadcast_to(options.get("attn_mask", True), full)
    sinks = np.broadcast_to(options.get("sinks", -np.inf), heads)
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(full[:3], -np.inf)
    for b, h, i in itertools.product(range(batch), range(heads), range(queries)):
        k_rows, v_rows = k[b, h // group], v[b, h // group]
        row = [score(b, h, i, j, q[b, h, i], k_rows[j], options) for j in range(keys)]
        terms = {j: math.exp(s) for j, s in enumerate(row) if s is not None}
        total = sum(terms.values()) + math.exp(sinks[h])
        if total > 0:
            lse[b, h, i] = math.log(total)
        for j, term in terms.items():
            out[b, h, i] += term / total * v_rows[j]
    return out, lse


def float_mask(*shape):
    mask = np.random.default_rng(1).standard_normal(shape)
    mask[mask < -0.5] = -np.inf
    return mask


def bool_mask(*shape):
    return np.random.default_rng(2).random(shape) < 0.6
