# SPDX-License-Identifier: MIT
"""Validation of what changes scores, for every kind of problem."""

import math

import numpy as np

from fastattn import _check_options as options


def set_scores(p, lead, causal, window_size, scale, softcap, alibi_slopes, sinks):
    """Set causal, window, scale, softcap, ALiBi and sinks of `p`, whose q is set."""
    heads, depth = p.q.shape[-3], p.q.shape[-1]
    p.causal = options.flag("causal", causal)
    p.left, p.right = options.window(window_size)
    p.scale = 1.0 / math.sqrt(depth) if scale is None else options.number("scale", scale)
    p.softcap = options.number("softcap", softcap, 0.0)
    p.alibi = None if alibi_slopes is None else _alibi(alibi_slopes, lead, heads)
    p.sinks = None if sinks is None else _sink_logits(sinks, heads)


def set_effort(p, precision, num_threads):
    """Set how `p` is to be computed."""
    p.precision = options.choice("precision", precision, options.PRECISIONS)
    p.num_threads = (
        None if num_threads is None else options.thread_count("num_threads", num_threads)
    )


def _per_head(name, value, shapes, what):
    """Return real numbers as a new float64 array, of a shape in `shapes` as it came."""
    value = options.real_numbers(name, value)
    if value.shape not in shapes:
        raise ValueError(f"{name}: expected shape {what}, got shape {value.shape}")
    return value.astype(np.float64, order="C")


def _alibi(value, lead, heads):
    """Return `alibi_slopes`, shape (Hq,), (B, Hq) or lead + (Hq,), as float64 of shape (B, Hq)."""
    batch = math.prod(lead)
    shapes = ((heads,), (batch, heads), (*lead, heads))
    what = f"({heads},) or ({batch}, {heads})"
    slopes = _per_head("alibi_slopes", value, shapes, what)
    if not np.isfinite(slopes).all():
        raise ValueError("alibi_slopes: expected finite numbers, got NaN or infinity")
    if slopes.ndim == 1:
        slopes = np.tile(slopes, (batch, 1))
    return slopes.reshape(batch, heads)


def _sink_logits(value, heads):
    """Return `sinks` as float64 of shape (Hq,). -inf is allowed: exp(-inf) adds nothing."""
    logits = _per_head("sinks", value, ((heads,),), f"({heads},)")
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise ValueError("sinks: expected finite numbers or -inf, got NaN or +inf")
    return logits
