# SPDX-License-Identifier: MIT
"""Validation of whole calls: every public function passes its arguments through here once.

What comes out (`Problem`, `WeightsProblem`, `MergeProblem`) is complete and consistent, so the
binding and the C code check nothing. What is wrong raises before anything is computed or written.
Single arguments are checked in `_check_options`.

Logical order, whatever the layout of the caller: q ``(lead..., Hq, Sq, D)``, k
``(lead..., Hkv, Sk, D)``, v ``(lead..., Hkv, Sk, Dv)``, all three with the same `lead`. Tensors are
views of the caller's memory, never copies; broadcasting shows as a zero stride.
"""

import functools
import math

import numpy as np

from fastattn import _check_options as options


class Problem:
    """A checked call of `attention`, in the form that the binding takes.

    Attributes
    ----------
    q, k, v : ndarray
        Views in logical order, same dtype (float32 or float64), same leading shape.
    out : ndarray
        Writable view in logical order, (lead..., Hq, Sq, Dv).
    result : ndarray
        The same memory in the caller's layout and rank: what the caller gets.
    lse, lse_result : ndarray or None
        C-contiguous (lead..., Hq, Sq), and the caller's view of it.
    mask : ndarray or None
        bool, float32 or float64, broadcast to (lead..., Hq, Sq, Sk).
    scale, softcap : float
    causal : bool
    left, right : int
        Window; -1 is unbounded.
    q_offset, kv_begin, kv_end : ndarray
        int64 of shape (B,), B the product of `lead`. kv_begin may exceed kv_end: no key then.
    alibi : ndarray or None
        float64 (B, Hq).
    sinks : ndarray or None
        float64 (Hq,).
    precision : str
    num_threads : int or None
    """

    __slots__ = (
        "q", "k", "v", "out", "result", "lse", "lse_result", "mask", "scale", "softcap", "causal",
        "left", "right", "q_offset", "kv_begin", "kv_end", "alibi", "sinks", "precision",
        "num_threads",
    )  # fmt: skip


class WeightsProblem(Problem):
    """A checked call of `attention_weights`: `out` is (lead..., Hq, Sq, Sk); v and lse are None."""

    __slots__ = ()


class MergeProblem:
    """A checked call of `merge_states`.

    Attributes
    ----------
    outs, lses : tuple of ndarray
        Partial outputs (..., Sq, D) and their log-sum-exp (..., Sq), same dtype.
    out, lse : ndarray
        Where the union goes; both are returned to the caller.
    """

    __slots__ = ("outs", "lses", "out", "lse")


def problem(
    q, k, v, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, layout="bhsd", precision="highest", out=None,
    return_lse=False, num_threads=None,
):  # fmt: skip
    """Check the arguments of `attention` and return them as a `Problem`.

    Raises
    ------
    TypeError
        Something is not an array, or of a dtype that is not supported.
    ValueError
        A shape, a range or a combination is wrong.
    NotImplementedError
        A documented feature that this version does not have yet.
    """
    if block_table is not None or k_scale is not None or v_scale is not None:
        _reject_later(block_table=block_table, k_scale=k_scale, v_scale=v_scale)
    p = Problem()
    bshd = options.choice("layout", layout, options.LAYOUTS) == "bshd"
    p.precision = options.choice("precision", precision, options.PRECISIONS)
    user_q, own_lead = _set_tensors(p, q, k, v, bshd)
    _set_scores(p, attn_mask, causal, window_size, scale, softcap, alibi_slopes, sinks)
    _set_positions(p, q_offset, kv_lengths, kv_starts)
    p.num_threads = None if num_threads is None else options.integer("num_threads", num_threads, 1)
    shape = (*p.q.shape[:-1], p.v.shape[-1])
    headless = user_q.ndim == 2
    if out is None:
        follows = own_lead and user_q.flags.c_contiguous
        _allocate(p, shape, bshd, headless, follows)
    else:
        given = (attn_mask, alibi_slopes, sinks, q_offset, kv_lengths, kv_starts)
        _accept(p, out, shape, bshd, headless, (q, k, v, *given))
    p.lse = p.lse_result = None
    if options.flag("return_lse", return_lse):
        p.lse = np.empty(shape[:-1], p.q.dtype)
        p.lse_result = p.lse[..., 0, :] if headless else p.lse
    return p


def weights_problem(
    q, k, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, layout="bhsd", precision="highest", num_threads=None,
):  # fmt: skip
    """Check the arguments of `attention_weights` and return them as a `WeightsProblem`."""
    if block_table is not None or k_scale is not None:
        _reject_later(block_table=block_table, k_scale=k_scale)
    p = WeightsProblem()
    bshd = options.choice("layout", layout, options.LAYOUTS) == "bshd"
    p.precision = options.choice("precision", precision, options.PRECISIONS)
    user_q, _ = _set_tensors(p, q, k, k, bshd)
    p.v = None
    _set_scores(p, attn_mask, causal, window_size, scale, softcap, alibi_slopes, sinks)
    _set_positions(p, q_offset, kv_lengths, kv_starts)
    p.num_threads = None if num_threads is None else options.integer("num_threads", num_threads, 1)
    p.out = np.empty((*p.q.shape[:-1], p.k.shape[-2]), p.q.dtype)
    p.result = p.out[..., 0, :, :] if user_q.ndim == 2 else p.out
    p.lse = p.lse_result = None
    return p


def merge_problem(outs, lses, out=None):
    """Check the arguments of `merge_states` and return them as a `MergeProblem`."""
    p = MergeProblem()
    p.outs = options.states_of("outs", outs)
    p.lses = options.states_of("lses", lses)
    if len(p.outs) != len(p.lses):
        raise ValueError(f"lses: expected {len(p.outs)} arrays like outs, got {len(p.lses)}")
    first = p.outs[0]
    if first.ndim < 2:
        raise ValueError(f"outs: expected shape (..., Sq, D), got shape {first.shape}")
    dtype = options.float_dtype("outs", first.dtype)
    for name, states, shape in ("outs", p.outs, first.shape), ("lses", p.lses, first.shape[:-1]):
        for state in states:
            if state.dtype != dtype:
                raise TypeError(
                    f"{name}: expected dtype {dtype.name} like outs[0], "
                    f"got {options.dtype_name(state.dtype)}"
                )
            if state.shape != shape:
                raise ValueError(f"{name}: expected shape {shape} each, got {state.shape}")
            options.aligned(name, state)
    if out is None:
        p.out = _ordered_like(first, first.shape)
    else:
        checked = options.writable(out, first.shape, dtype)
        inputs = [("outs", state) for state in p.outs] + [("lses", state) for state in p.lses]
        options.reject_overlap(checked, inputs)
        p.out = out
    p.lse = np.empty(first.shape[:-1], dtype)
    return p


def sdpa_arguments(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Translate torch's `scaled_dot_product_attention` into a call of `attention`.

    Returns
    -------
    q, k, v : ndarray
        Positional arguments of `attention`.
    keywords : dict
        Its keyword arguments. ``q_offset`` is 0, because torch aligns `is_causal` at the top left.
    """
    q = options.array("query", query)
    k = options.array("key", key)
    v = options.array("value", value)
    if options.number("dropout_p", dropout_p) != 0.0:
        raise NotImplementedError(f"dropout_p: expected 0.0, got {dropout_p} (there is no dropout)")
    causal = options.flag("is_causal", is_causal)
    if causal and attn_mask is not None:
        raise ValueError("attn_mask: expected None with is_causal=True, got both")
    if max(q.ndim, k.ndim, v.ndim) > 2 and q.ndim == 2:
        q = q[None]  # torch broadcasts, so the result has every axis that one of the inputs has
    if not options.flag("enable_gqa", enable_gqa):
        q = _broadcast_heads(q, k, v)
    return q, k, v, {"attn_mask": attn_mask, "causal": causal, "q_offset": 0, "scale": scale}


def _broadcast_heads(q, k, v):
    """Return q with the heads of k and v; without `enable_gqa` only 1 matches another number."""
    heads = 1
    for name, tensor in ("query", q), ("key", k), ("value", v):
        count = tensor.shape[-3] if tensor.ndim > 2 else 1
        if count != 1 and heads != 1 and count != heads:
            raise ValueError(
                f"{name}: expected {heads} heads or 1 without enable_gqa, got shape {tensor.shape}"
            )
        heads = count if heads == 1 else heads
    if q.ndim > 2 and q.shape[-3] != heads:
        q = np.broadcast_to(q, (*q.shape[:-3], heads, *q.shape[-2:]))
    return q


def _reject_later(**arguments):
    """Raise for the documented arguments that this version does not have yet."""
    for name, value in arguments.items():
        if value is not None:
            found = options.described(value)
            raise NotImplementedError(f"{name}: expected None, got {found} ({name} comes later)")


def _set_tensors(p, q, k, v, bshd):
    """Set q, k, v of `p`; return q as an ndarray and whether `lead` is q's own."""
    q, k, v = options.array("q", q), options.array("k", k), options.array("v", v)
    dtype = options.float_dtype("q", q.dtype)
    for name, tensor in ("q", q), ("k", k), ("v", v):
        if tensor.dtype is not dtype and options.float_dtype(name, tensor.dtype) is not dtype:
            raise TypeError(f"{name}: expected dtype {dtype.name} like q, got {tensor.dtype.name}")
        if not 2 <= tensor.ndim <= 8:
            raise ValueError(f"{name}: expected 2 to 8 axes, got shape {tensor.shape}")
        options.aligned(name, tensor)
    p.q, p.k, p.v = _logical(q, bshd), _logical(k, bshd), _logical(v, bshd)
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
    if q_lead != k_lead or q_lead != v_lead or k_heads != v_heads:
        _broadcast(p, k.shape, v.shape)
    return q, p.q.shape[:-3] == tuple(q_lead)


def _logical(tensor, bshd):
    """View a tensor of the caller as (lead..., heads, sequence, depth)."""
    if tensor.ndim == 2:
        return tensor[None]
    return tensor.swapaxes(-3, -2) if bshd else tensor


def _broadcast(p, k_shape, v_shape):
    """Give q, k, v the same leading shape, and k, v the same number of heads, by zero strides."""
    lead = p.q.shape[:-3]
    for name, tensor, shape in ("k", p.k, k_shape), ("v", p.v, v_shape):
        try:
            lead = np.broadcast_shapes(lead, tensor.shape[:-3])
        except ValueError:
            raise ValueError(
                f"{name}: expected leading axes that broadcast with {lead}, got shape {shape}"
            ) from None
    kv_heads = max(p.k.shape[-3], p.v.shape[-3])
    p.q = np.broadcast_to(p.q, lead + p.q.shape[-3:])
    p.k = np.broadcast_to(p.k, (*lead, kv_heads, *p.k.shape[-2:]))
    p.v = np.broadcast_to(p.v, (*lead, kv_heads, *p.v.shape[-2:]))


def _set_scores(p, attn_mask, causal, window_size, scale, softcap, alibi_slopes, sinks):
    """Set what changes scores: scale, softcap, ALiBi, mask, causal, window and sinks."""
    *lead, heads, queries, depth = p.q.shape
    p.causal = options.flag("causal", causal)
    p.left, p.right = options.window(window_size)
    p.scale = 1.0 / math.sqrt(depth) if scale is None else options.number("scale", scale)
    p.softcap = options.number("softcap", softcap, 0.0)
    p.mask = p.alibi = p.sinks = None
    if attn_mask is not None:
        p.mask = options.mask(attn_mask, (*lead, heads, queries, p.k.shape[-2]), p.q.dtype)
    if alibi_slopes is not None:
        p.alibi = options.alibi(alibi_slopes, tuple(lead), heads)
    if sinks is not None:
        p.sinks = options.sink_logits(sinks, heads)


def _set_positions(p, q_offset, kv_lengths, kv_starts):
    """Set the range of keys and the position of query 0 for each batch entry."""
    lead = p.q.shape[:-3]
    queries, keys = p.q.shape[-2], p.k.shape[-2]
    if q_offset is None and kv_lengths is None and kv_starts is None:
        p.q_offset, p.kv_begin, p.kv_end = _default_positions(math.prod(lead), queries, keys)
        return
    kv_begin = 0 if kv_starts is None else kv_starts
    kv_end = keys if kv_lengths is None else kv_lengths
    p.kv_begin = options.per_batch("kv_starts", kv_begin, lead, 0, keys)
    p.kv_end = options.per_batch("kv_lengths", kv_end, lead, 0, keys)
    if q_offset is None:
        p.q_offset = p.kv_end - queries
    else:
        most = options.LARGEST_OFFSET
        p.q_offset = options.per_batch("q_offset", q_offset, lead, -most, most)


@functools.lru_cache(maxsize=16)
def _default_positions(batch, queries, keys):
    """Return q_offset, kv_begin, kv_end where nobody gave any: read-only, shared between calls."""
    positions = np.empty((3, batch), np.int64)
    positions[:] = [[keys - queries], [0], [keys]]
    positions.flags.writeable = False
    return tuple(positions)


def _allocate(p, shape, bshd, headless, follows):
    """Set out and result of `p` to new memory, ordered as q's is.

    `shape` is the logical one. `follows` says that the caller's q is C-contiguous and broadcast
    by nothing: its order is then plainly the caller's layout.
    """
    if not follows:
        p.out = _ordered_like(p.q, shape)
        p.result = _as_layout(p.out, bshd, headless)
    elif bshd and not headless:
        *lead, heads, queries, depth = shape
        p.result = np.empty((*lead, queries, heads, depth), p.q.dtype)
        p.out = p.result.swapaxes(-3, -2)
    else:
        p.out = np.empty(shape, p.q.dtype)
        p.result = p.out[..., 0, :, :] if headless else p.out


def _as_layout(logical, bshd, headless):
    """View a logical output in the caller's layout; a rank-2 q has no head axis to give back."""
    if headless:
        return logical[..., 0, :, :]
    return logical.swapaxes(-3, -2) if bshd else logical


def _ordered_like(model, shape):
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
    result = np.empty([shape[axis] for axis in order], model.dtype)
    inverse = [0] * len(order)
    for place, axis in enumerate(order):
        inverse[axis] = place
    return result.transpose(inverse)


def _accept(p, out, shape, bshd, headless, inputs):
    """Set out and result of `p` to the caller's array, once it is known to be fit for it."""
    *lead, heads, queries, depth = shape
    if headless:
        expected = (*lead, queries, depth)
    else:
        expected = (*lead, queries, heads, depth) if bshd else shape
    checked = options.writable(out, expected, p.q.dtype)
    names = ("q", "k", "v", "attn_mask", "alibi_slopes", "sinks", "q_offset", "kv_lengths",
             "kv_starts")  # fmt: skip
    options.reject_overlap(checked, zip(names, inputs, strict=True))
    p.result = out
    p.out = checked[..., None, :, :] if headless else _logical(checked, bshd)
