# SPDX-License-Identifier: MIT
"""Validation of q, k, v and out: dtypes and shapes that go together, views in logical order."""

import itertools
import math

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options

MOST_AXES = 9  # heads, sequence and depth behind FA_MAX_LEAD others


def set_tensors(p, q, k, v, bshd, paged=False):
    """Set q, k, v of `p`; return q as an ndarray, and the logical shapes of k and v as they came.

    With `paged`, k and v keep (pages, heads, page, depth) and q its own leading axes.
    """
    if not type(q) is type(k) is type(v) is np.ndarray:
        q, k, v = options.array("q", q), options.array("k", k), options.array("v", v)
    dtype = q.dtype
    if dtype is not dtypes.FLOAT32:
        dtypes.of_queries("q", dtype)
    if k.dtype is not dtype or v.dtype is not dtype:
        dtypes.check_pair(k.dtype, v.dtype, dtypes.of_queries("q", dtype))
    for name, tensor in ("q", q), ("k", k), ("v", v):
        if not 2 <= tensor.ndim <= MOST_AXES:
            raise ValueError(f"{name}: expected 2 to {MOST_AXES} axes, got shape {tensor.shape}")
        if not tensor.flags.aligned:
            options.aligned(name, tensor)
    if paged:
        _check_pages(k, v)
    p.q, p.k, p.v = q, k, v
    if bshd or not (q.ndim > 2 and k.ndim > 2 and v.ndim > 2):
        p.q, p.k, p.v = logical(q, bshd), logical(k, bshd), logical(v, bshd)
    own = p.k.shape, p.v.shape
    alike = _check_shapes(p, q, k, v)
    lead = p.q.shape[:-3]
    if paged:
        if p.k.shape[-2] < 1:
            raise ValueError(f"k: expected pages of at least 1 key, got shape {k.shape}")
        kv_heads = max(own[0][-3], own[1][-3])
        p.k, p.v = with_heads(p.k, kv_heads), with_heads(p.v, kv_heads)
    elif not alike:
        lead = _common_lead(p, k.shape, v.shape)
    _check_heads(lead, p.q.shape[-3])
    if not paged and not alike:
        _broadcast(p, lead)
    return q, own


def _check_pages(k, v):
    """Refuse pages of another rank, and a v with other pages than k."""
    for name, tensor in ("k", k), ("v", v):
        if tensor.ndim != 4:
            raise ValueError(f"{name}: expected 4 axes with block_table, got shape {tensor.shape}")
    if v.shape[0] != k.shape[0]:
        raise ValueError(f"v: expected {k.shape[0]} pages like k, got shape {v.shape}")


def _check_shapes(p, q, k, v):
    """Refuse heads, keys and depths that do not go together; q, k, v are those of the caller.

    Returns whether leading axes are the same for all three, and heads for k and v.
    """
    *q_lead, heads, _, depth = p.q.shape
    *k_lead, k_heads, keys, k_depth = p.k.shape
    *v_lead, v_heads, v_keys, v_depth = p.v.shape
    if depth < 1 or heads < 1:
        raise ValueError(f"q: expected at least 1 head and depth 1, got shape {q.shape}")
    if k_depth != depth:
        raise ValueError(f"k: expected depth {depth} like q, got shape {k.shape}")
    if k_heads < 1 or heads % k_heads:
        expected = f"a number of heads that divides q's {heads}"
        raise ValueError(f"k: expected {expected}, got shape {k.shape}")
    if v_keys != keys:
        raise ValueError(f"v: expected {keys} keys like k, got shape {v.shape}")
    if v_depth < 1:
        raise ValueError(f"v: expected depth of at least 1, got shape {v.shape}")
    if v_heads != k_heads and v_heads != 1 and (k_heads != 1 or v_heads < 1 or heads % v_heads):
        raise ValueError(f"v: expected {k_heads} heads like k, or 1, got shape {v.shape}")
    return q_lead == k_lead == v_lead and k_heads == v_heads


def sdpa_heads(query, key, value, enable_gqa):
    """Return the numbers of heads with which `attention` does what torch does with these shapes.

    With `enable_gqa` torch lets the heads of key and those of value each divide the query's, where
    `attention` wants them alike; without it, 1 is all that matches another number.
    """
    heads, k_heads, v_heads = (s[-3] if len(s) > 2 else 1 for s in (query, key, value))
    if enable_gqa:
        if k_heads != v_heads and 1 not in (k_heads, v_heads):
            common = math.lcm(k_heads, v_heads)
            if common and heads % common == 0:  # otherwise `attention` says what is wrong
                k_heads = v_heads = common
        return heads, k_heads, v_heads
    for name, shape, count in ("key", key, k_heads), ("value", value, v_heads):
        if count != 1 and heads != 1 and count != heads:
            raise ValueError(
                f"{name}: expected {heads} heads or 1 without enable_gqa, got shape {tuple(shape)}"
            )
        heads = count if heads == 1 else heads
    return heads, k_heads, v_heads


def logical(tensor, bshd):
    """View a tensor of the caller as (lead..., heads, sequence, depth)."""
    if tensor.ndim == 2:
        return tensor[None]
    return tensor.swapaxes(-3, -2) if bshd else tensor


def with_heads(tensor, heads):
    """Give a logical tensor this number of heads, by a zero stride if it has one."""
    return np.broadcast_to(tensor, (*tensor.shape[:-3], heads, *tensor.shape[-2:]))


def _common_lead(p, k_shape, v_shape):
    """Return the leading shape to which those of q, k and v broadcast."""
    lead = p.q.shape[:-3]
    for name, tensor, shape in ("k", p.k, k_shape), ("v", p.v, v_shape):
        try:
            lead = np.broadcast_shapes(lead, tensor.shape[:-3])
        except ValueError:
            raise ValueError(
                f"{name}: expected leading axes that broadcast with {lead}, got shape {shape}"
            ) from None
    return lead


def _check_heads(lead, heads):
    """Refuse more heads, of all sequences together, than there can be numbers for each."""
    if math.prod(lead) * heads > options.MOST_HELD:
        raise ValueError(
            "q, k, v: expected at most 2^53 heads of all sequences together, got leading axes "
            f"{lead} and {heads} heads"
        )


def _broadcast(p, lead):
    """Give q, k, v the leading shape `lead`, and k, v the same number of heads, by zero strides."""
    kv_heads = max(p.k.shape[-3], p.v.shape[-3])
    try:
        p.q = np.broadcast_to(p.q, lead + p.q.shape[-3:])
        p.k = np.broadcast_to(p.k, (*lead, kv_heads, *p.k.shape[-2:]))
        p.v = np.broadcast_to(p.v, (*lead, kv_heads, *p.v.shape[-2:]))
    except ValueError:  # NumPy counts their bytes, whatever the strides
        raise ValueError(
            f"q, k, v: expected tensors that arrays can hold with leading axes {lead}, got "
            f"(heads, sequence, depth) {p.q.shape[-3:]}, {p.k.shape[-3:]} and {p.v.shape[-3:]}"
        ) from None


def with_one_lead(name, tensor):
    """View a tensor (lead..., heads, sequence, depth) with all leading axes as one.

    Refuses strides that no view can follow, because a copy would not be what the caller gave.
    """
    lead = tensor.ndim - 3
    if lead < 2:
        return tensor if lead else tensor[None]
    axes = [
        (size, stride)
        for size, stride in zip(tensor.shape[:lead], tensor.strides[:lead], strict=True)
        if size != 1
    ]
    for (_, outer), (size, inner) in itertools.pairwise(axes):
        if outer != size * inner and tensor.size:
            raise ValueError(
                f"{name}: expected leading axes that can be counted as one with block_table, got "
                f"strides {tensor.strides} for shape {tensor.shape}"
            )
    return tensor.reshape(math.prod(tensor.shape[:lead]), *tensor.shape[lead:])


def empty(arguments, shape, dtype):
    """Return memory for a result; if no array is so large, these arguments are at fault."""
    try:
        return np.empty(shape, dtype)
    except ValueError:
        raise ValueError(
            f"{arguments}: expected a result that an array can hold, got one of shape {shape}"
        ) from None


def allocate(p, shape, bshd, headless, follows):
    """Set out and result of `p` to new memory, ordered as q's is.

    `shape` is the logical one. `follows` says that the caller's q is C-contiguous and broadcast
    by nothing: its order is then plainly the caller's layout.
    """
    if not follows:
        p.out = ordered_like("q, v", p.q, shape)
        p.result = _as_layout(p.out, bshd, headless)
    elif bshd and not headless:
        *lead, heads, queries, depth = shape
        p.result = empty("q, v", (*lead, queries, heads, depth), p.q.dtype)
        p.out = p.result.swapaxes(-3, -2)
    else:
        p.out = empty("q, v", shape, p.q.dtype)
        p.result = p.out[..., 0, :, :] if headless else p.out


def _as_layout(out, bshd, headless):
    """View a logical output in the caller's layout; a rank-2 q has no head axis to give back."""
    if headless:
        return out[..., 0, :, :]
    return out.swapaxes(-3, -2) if bshd else out


def ordered_like(arguments, model, shape):
    """Return an empty array of `shape` whose axes lie in memory in the order of `model`'s.

    The last axis always lies innermost, which is what kernels write fastest. Axes along which
    `model` does not move (zero stride, or one element) say nothing about order and keep their
    place in C order, as in NumPy's order "K".
    """
    last = len(shape) - 1
    strides = [
        abs(stride) if size > 1 else 0
        for stride, size in zip(model.strides, model.shape, strict=True)
    ]
    order = []
    for axis in range(last):
        place = axis
        for before in range(axis - 1, -1, -1):
            other = strides[order[before]]
            if other and strides[axis]:
                if other >= strides[axis]:
                    break
                place = before
        order.insert(place, axis)
    order.append(last)
    result = empty(arguments, tuple(shape[axis] for axis in order), model.dtype)
    inverse = [0] * len(order)
    for place, axis in enumerate(order):
        inverse[axis] = place
    return result.transpose(inverse)


def accept(p, out, shape, bshd, headless, inputs):
    """Set out and result of `p` to the caller's array, once it is known to be fit for it.

    `inputs` are the arguments that it must not overlap, by name.
    """
    *lead, heads, queries, depth = shape
    if headless:
        expected = (*lead, queries, depth)
    else:
        expected = (*lead, queries, heads, depth) if bshd else shape
    checked = options.writable(out, expected, p.q.dtype)
    options.reject_overlap(checked, inputs.items())
    p.result = out
    p.out = checked[..., None, :, :] if headless else logical(checked, bshd)
