# SPDX-License-Identifier: MIT
"""`attention` and `attention_weights` of the oracle, the whole score table in memory."""

import math

import numpy as np

from fastattn.reference.stored import gathered, true_values

STAGES = ("scaled", "capped", "masked", "weights")


def attention(
    q, k, v, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, layout="bhsd", precision="highest", out=None,
    return_lse=False, num_threads=None, return_scores=None, dtype=None,
):  # fmt: skip
    r"""Exact attention, ``softmax(scale * q k^T) v``, with every option written out.

    In order: s = scale q.k; s = softcap tanh(s / softcap) if softcap > 0; s -= slope |p_i - j|;
    s += float mask; s = -inf where anything forbids; softmax over j, the sink in the denominator;
    o = sum_j p_j v_j.

    Parameters
    ----------
    q, k, v : ndarray
        Shapes (..., Hq, Sq, D), (..., Hkv, Sk, D), (..., Hkv, Sk, Dv) for layout "bhsd", head and
        sequence axes swapped for "bshd". Rank 2 is one head; leading axes broadcast. Query head h
        reads key head h // (Hq // Hkv).
    attn_mask : ndarray, optional
        bool (True = attend) or float (added; -inf forbids), broadcast to (..., Hq, Sq, Sk) in
        both layouts.
    causal : bool
        Query i attends to keys j <= p_i, its position p_i = i + q_offset.
    window_size : (int or None, int or None), optional
        p_i - left <= j <= p_i + right; -1 or None is unbounded.
    scale : float, optional
        1 / sqrt(D) if None.
    softcap : float
        0 is none.
    alibi_slopes : array, optional
        (Hq,) or (B, Hq).
    sinks : array, optional
        (Hq,): adds exp(sink) to the denominator of each row; unscaled, uncapped.
    q_offset : int or array of int, optional
        Position of query 0, one value or (B,), B the product of the leading axes. None is
        kv_length - Sq: the last query sits at the last key.
    kv_lengths, kv_starts : int or array of int, optional
        Only keys kv_starts <= j < kv_lengths exist; one value or (B,).
    block_table : array of int, optional
        (B, blocks). Then k and v are pages, (pages, Hkv, page, D) for "bhsd" and
        (pages, page, Hkv, D) for "bshd"; key j of sequence b stands in page
        block_table[b, j // page] at j % page, and there are blocks * page keys.
    k_scale, v_scale : float or ndarray, optional
        True value = stored value * scale: one number, (Hkv,), (B, Hkv) or (B, Hkv, Sk); with
        `block_table` one number, (Hkv,) or (pages, Hkv, page). The same in both layouts.
    layout : {"bhsd", "bshd"}
    precision, num_threads
        Ignored.
    out : ndarray, optional
        Receives the result, converted to its dtype.
    return_lse : bool
        Also return the natural log of the denominator, (..., Hq, Sq) in both layouts.
    return_scores : {None, "scaled", "capped", "masked", "weights"}
        Also return, as the last element, the table after that stage, (..., Hq, Sq, Sk);
        "masked" is with ALiBi, float mask and -inf at what is forbidden.
    dtype : dtype, optional
        Convert everything returned to it; float64 if None.

    Returns
    -------
    out : ndarray
        (..., Hq, Sq, Dv) in the layout of q; no head axis if q has rank 2.
    lse, table : ndarray
        If asked for; then the result is a tuple.

    Notes
    -----
    A row without any key gives 0 and lse = -inf (with a sink: 0 and lse = sink). Whatever stands
    at a key that is not allowed, NaN and infinity too, is never looked at; at an allowed key it
    does what floating-point arithmetic does. A score of -inf is a weight of zero.
    """
    if return_scores not in (None, *STAGES):
        raise ValueError(f"return_scores: expected None or one of {STAGES}, got {return_scores!r}")
    headless = np.ndim(q) == 2
    q, k, v = (_logical(tensor, layout) for tensor in (q, k, v))
    lead = q.shape[:-3]
    if block_table is None:
        lead = np.broadcast_shapes(lead, k.shape[:-3], v.shape[:-3])
    q = np.broadcast_to(q, lead + q.shape[-3:])
    heads = q.shape[-3]
    with np.errstate(all="ignore"):  # NaN and infinity in the data are the caller's business
        scaled_lead = lead if block_table is None else k.shape[:1]
        k = k if k_scale is None else true_values(k, k_scale, scaled_lead)
        v = v if v_scale is None else true_values(v, v_scale, scaled_lead)
        if block_table is not None:
            begin = 0 if kv_starts is None else kv_starts
            end = np.shape(block_table)[-1] * k.shape[-2] if kv_lengths is None else kv_lengths
            k, v = (gathered(pages, block_table, begin, end, lead) for pages in (k, v))
        tables = _scores(
            q, k, attn_mask=attn_mask, causal=causal, window_size=window_size, scale=scale,
            softcap=softcap, alibi_slopes=alibi_slopes, q_offset=q_offset, kv_lengths=kv_lengths,
            kv_starts=kv_starts,
        )  # fmt: skip
        tables["weights"], lse = _softmax(tables["masked"], sinks)
        result = _weighted_sum(tables["weights"], _per_query_head(v, heads), tables["allowed"])
    results = [_returned(result, layout, headless)]
    if return_lse:
        results.append(lse[..., 0, :] if headless else lse)
    if return_scores:
        table = tables[return_scores]
        results.append(table[..., 0, :, :] if headless else table)
    results = [each.astype(dtype or np.float64) for each in results]
    if out is not None:
        np.copyto(out, results[0], casting="unsafe")
        results[0] = out
    return results[0] if len(results) == 1 else tuple(results)


def attention_weights(
    q, k, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, layout="bhsd", precision="highest", num_threads=None,
    dtype=None,
):  # fmt: skip
    """Weight table of `attention`, (..., Hq, Sq, Sk) in both layouts.

    Parameters
    ----------
    q, k
        As in `attention`, and so is every other argument.

    Returns
    -------
    ndarray
        Rows sum to 1; to less with a sink, to 0 where no key is allowed.
    """
    _, weights = attention(
        q, k, k, attn_mask=attn_mask, causal=causal, window_size=window_size, scale=scale,
        softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, q_offset=q_offset,
        kv_lengths=kv_lengths, kv_starts=kv_starts, block_table=block_table, k_scale=k_scale,
        layout=layout, return_scores="weights", dtype=dtype,
    )  # fmt: skip
    return weights


def _logical(tensor, layout):
    """Float64 tensor in logical order, (lead..., heads, sequence, depth)."""
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout: expected 'bhsd' or 'bshd', got {layout!r}")
    tensor = np.asarray(tensor).astype(np.float64)
    if tensor.ndim == 2:
        return tensor[None]
    return tensor.swapaxes(-3, -2) if layout == "bshd" else tensor


def _returned(tensor, layout, headless):
    """Inverse of `_logical`."""
    if headless:
        return tensor[..., 0, :, :]
    return tensor.swapaxes(-3, -2) if layout == "bshd" else tensor


def _per_query_head(tensor, heads):
    """Repeat heads of k or v so that query head h finds its own at h: h // (Hq // Hkv)."""
    kv_heads = tensor.shape[-3]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} key heads")
    return np.repeat(tensor, heads // kv_heads, axis=-3)


def _per_batch(values, lead):
    """One integer or (B,) integers as an array that broadcasts against the score table."""
    values = np.asarray(values, np.int64)  # less queries, of 8 bits or unsigned they would wrap
    if values.ndim == 0:
        return values
    return values.reshape((*lead, 1, 1, 1))


def _scores(
    q, k, *, attn_mask, causal, window_size, scale, softcap, alibi_slopes, q_offset, kv_lengths,
    kv_starts,
):  # fmt: skip
    """Score tables after each stage, "scaled", "capped", "masked"; and which keys are "allowed"."""
    *lead, heads, queries, depth = q.shape
    keys = k.shape[-2]
    scale = 1.0 / math.sqrt(depth) if scale is None else scale
    scaled = scale * (q @ _per_query_head(k, heads).swapaxes(-1, -2))
    capped = softcap * np.tanh(scaled / softcap) if softcap > 0 else scaled

    kv_end = _per_batch(keys if kv_lengths is None else kv_lengths, lead)
    kv_begin = _per_batch(0 if kv_starts is None else kv_starts, lead)
    offset = kv_end - queries if q_offset is None else _per_batch(q_offset, lead)
    j = np.arange(keys)
    position = np.arange(queries)[:, None] + offset  # of query i, counted in keys

    allowed = _positions_allowed(position, j, causal, window_size)
    allowed = allowed & (kv_begin <= j) & (j < kv_end)
    biased = capped
    if alibi_slopes is not None:
        slopes = np.asarray(alibi_slopes).astype(np.float64)
        slopes = slopes.reshape((*(lead if slopes.ndim > 1 else ()), heads, 1, 1))
        biased = biased - slopes * np.abs(position - j)
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        mask = mask.reshape(mask.shape[max(0, mask.ndim - biased.ndim) :])  # drops leading ones
        mask = np.broadcast_to(mask, biased.shape)
        if mask.dtype == bool:
            allowed = allowed & mask
        else:
            mask = mask.astype(np.float64)
            biased = biased + mask
            allowed = allowed & (mask != -np.inf)
    allowed = np.broadcast_to(allowed, biased.shape)
    masked = np.where(allowed, biased, -np.inf)
    return {"scaled": scaled, "capped": capped, "masked": masked, "allowed": allowed}


def _positions_allowed(position, j, causal, window_size):
    """Where causality and window let a query at `position` (..., Sq, 1) attend to key `j`."""
    allowed = np.ones(np.broadcast_shapes(position.shape, j.shape), bool)
    if causal:
        allowed = allowed & (j <= position)
    left, right = window_size or (-1, -1)
    if left is not None and left >= 0:
        allowed = allowed & (position - j <= left)  # a sum might exceed 64 bits
    if right is not None and right >= 0:
        allowed = allowed & (j - position <= right)
    return allowed


def _softmax(s, sinks):
    """Weights and log-sum-exp of each row of `s`; a row of -inf has weights 0 and lse -inf."""
    sink = np.full(s.shape[-3], -np.inf) if sinks is None else np.asarray(sinks).astype(np.float64)
    sink = sink[:, None, None]
    largest = np.maximum(s.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    shift = np.where(largest == -np.inf, 0.0, largest)  # -inf - -inf would be NaN
    terms = np.where(s == -np.inf, 0.0, np.exp(s - shift))
    total = terms.sum(axis=-1, keepdims=True) + np.exp(sink - shift)
    weights = np.where(s == -np.inf, 0.0, terms / total)
    return weights, (shift + np.log(total))[..., 0]


def _weighted_sum(p, v, allowed):
    """Sum over j of p[i, j] v[j], over the allowed keys only.

    A matrix product alone would let NaN and infinity at forbidden keys in, as 0 * NaN = NaN. So
    the finite part of v is multiplied, and what the rest of v does to each result is counted.
    """
    o = p @ np.where(np.isfinite(v), v, 0.0)
    if np.isfinite(v).all():
        return o
    vanished = allowed & (p == 0)  # the weight underflowed: 0 * infinity is NaN
    present = allowed & (p > 0)
    gives_nan = _any_product(allowed, np.isnan(v)) | _any_product(vanished, np.isinf(v))
    gives_plus = _any_product(present, v == np.inf)
    gives_minus = _any_product(present, v == -np.inf)
    o = np.where(gives_plus, o + np.inf, o)
    o = np.where(gives_minus, o - np.inf, o)
    return np.where(gives_nan, np.nan, o)


def _any_product(rows, columns):
    """Boolean matrix product: whether rows[i, j] and columns[j, d] for any j."""
    return rows.astype(np.float64) @ columns.astype(np.float64) > 0
