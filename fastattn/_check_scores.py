# SPDX-License-Identifier: MIT
"""Validation of what changes scores, for every kind of problem."""

import math

import numpy as np

from fastattn import _check_dtypes as dtypes
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


def mask_array(value):
    """Return `attn_mask` as an ndarray of whatever shape and dtype."""
    if isinstance(value, np.generic):  # what indexing and arithmetic make of an array of rank 0
        value = np.asarray(value)
    return options.array("attn_mask", value)


def mask(value, shape, dtype):
    """Return `attn_mask` broadcast to `shape` by zero strides.

    Parameters
    ----------
    value : ndarray
        bool, float32, or of `dtype`; rank 0 to max(4, rank of `shape`).
    shape : tuple of int
        lead + (Hq, Sq, Sk).
    dtype : numpy.dtype
        dtype of q.
    """
    value = mask_array(value)
    found = value.dtype
    if found not in (dtypes.BOOL, dtypes.FLOAT32, dtype):
        accepted = dtypes.listed(list(dict.fromkeys(["bool", "float32", dtype.name])))
        found = dtypes.dtype_name(found)
        raise TypeError(f"attn_mask: expected dtype {accepted} with {dtype.name} q, got {found}")
    options.aligned("attn_mask", value)
    if value.ndim > max(4, len(shape)):
        raise ValueError(
            f"attn_mask: expected at most {max(4, len(shape))} axes, got shape {value.shape}"
        )
    view = value
    extra = value.ndim - len(shape)
    if extra > 0 and value.shape[:extra] == (1,) * extra:
        view = value[(0,) * extra]  # (1, H, Sq, Sk) beside a q without a batch axis
    if view.shape == shape:
        return view
    try:
        return np.broadcast_to(view, shape)
    except ValueError:
        raise ValueError(
            f"attn_mask: expected a shape that broadcasts to {shape}, got {value.shape}"
        ) from None
