# SPDX-License-Identifier: MIT
"""A call of `MultiHeadAttention`: what combinations mean something, and its heads attending."""

import itertools

import numpy as np

import fastattn
from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers.cache import check_cache

# What names, or makes, the keys and values: one of them at most.
SOURCES = ("context", "keys_values", "cache", "cu_seqlens")


def check_call(causal, x, need_weights, **given):
    """Raise on a combination of arguments of the call that means nothing."""
    options.flag("need_weights", need_weights)
    _check.optional_functions(attention=given["attention"])
    present = {name for name, value in given.items() if value is not None}
    one = [name for name in SOURCES if name in present]
    cross = present & {"context", "keys_values"}
    if len(one) > 1:
        raise ValueError(f"{one[1]}: expected None together with {one[0]}, got both")
    if causal and cross:
        raise ValueError(f"{one[0]}: expected None with causal attention, got an argument")
    if "q_offset" in present and not cross:
        raise ValueError("q_offset: expected None without context or keys_values, got an argument")
    if "cache" in present:
        check_cache(given["cache"])
        if x.ndim != 3:
            raise ValueError(f"x: expected (batch, tokens, features) with cache, got {x.shape}")
        layout = getattr(given["cache"], "layout", "bhsd")
        if layout != "bhsd":
            raise ValueError(f"cache: expected layout 'bhsd', got {layout!r}")
        if "attention" in present:
            raise ValueError(
                "attention: expected None with cache, which attends by itself, got both"
            )
    if "cu_seqlens" in present:
        if x.ndim != 2:
            raise ValueError(f"x: expected (tokens, features) with cu_seqlens, got {x.shape}")
        if need_weights:
            raise ValueError("need_weights: expected False with cu_seqlens, got True")
        for name in ("attn_mask", "lengths"):
            if name in present:
                raise ValueError(f"{name}: expected None with cu_seqlens, got both")


def attend(attention, q, k, v, call):
    """Return the heads by `fastattn.attention`, or by the caller's own, which may be anything."""
    if attention is None:
        return fastattn.attention(q, k, v, **call)
    name = "attention(q, k, v)"
    out = options.array(name, attention(q, k, v, **call))
    lead = np.broadcast_shapes(*(part.shape[:-3] for part in (q, k, v)))
    shape = (*lead, *q.shape[-3:-1], v.shape[-1])
    if out.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {out.shape}")
    if dtypes.supported(out.dtype) not in dtypes.FLOATS:
        expected, found = dtypes.listed(dtypes.FLOATS), dtypes.dtype_name(out.dtype)
        raise TypeError(f"{name}: expected dtype {expected}, got {found}")
    return out


def attend_cached(cache, q, k, v, lengths, need_weights, call):
    """Append k, v to the cache and attend to all that is in it."""
    with _check.renamed(k="cache.k", v="cache.v"):
        cache.append(k, v, lengths=lengths)
    weights = None
    if need_weights:
        longest = int(cache.lengths.max(initial=0))
        scale = getattr(cache, "k_scale", None)  # of a cache whose keys are quantized
        weights = fastattn.attention_weights(
            q, cache.k, kv_lengths=cache.lengths, k_scale=scale, **call
        )[..., :longest]
    return cache.attend(q, **call), weights


def attend_packed(q, k, v, cu_seqlens, attention, call):
    """Attend within each packed sequence; q, k, v are (heads, tokens, depth)."""
    if attention is None:
        q, k, v = (part.swapaxes(0, 1) for part in (q, k, v))
        return fastattn.attention_varlen(q, k, v, cu_seqlens, **call).swapaxes(0, 1)
    # Tokens before heads in memory, as q's: the heads then lie side by side for W_O.
    out = np.empty((q.shape[1], q.shape[0], v.shape[2]), q.dtype).swapaxes(0, 1)
    for begin, end in itertools.pairwise(cu_seqlens):
        part = slice(begin, end)
        out[:, part] = attend(attention, q[:, part], k[:, part], v[:, part], call)
    return out
