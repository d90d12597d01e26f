# SPDX-License-Identifier: MIT
"""The public functions. Letters: q k v queries, keys, values; s scores; p weights; i query, j key.

s[i, j] = scale * q[i] . k[j]   ->  softcap  ->  + ALiBi  ->  + mask  ->  -inf where forbidden
p = softmax(s) by rows (with sink)        out = p v        lse = log(sum(exp(s)))
"""

import numpy as np

from fastattn import _check, _core
from fastattn.isa import active as _isa
from fastattn.threads import get_num_threads


def attention(
    q, k, v, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, layout="bhsd", precision="highest", out=None,
    return_lse=False, num_threads=None,
):  # fmt: skip
    """Exact softmax attention, ``softmax(scale * q k^T + mask) v``.

    Online softmax over blocks of keys (Dao et al. 2022, arXiv:2205.14135; Milakov & Gimelshein
    2018, arXiv:1805.02867): memory does not grow with the product of the sequence lengths.

    Parameters
    ----------
    q : ndarray, (..., Hq, Sq, D)
        Queries, float32 or float64; (Sq, D) is one head. Any strides.
    k : ndarray, (..., Hkv, Sk, D)
        Keys, of q's dtype. Leading axes broadcast. Hq must be a multiple of Hkv: query head h
        reads kv head ``h // (Hq // Hkv)``.
    v : ndarray, (..., Hkv, Sk, Dv)
        Values; Dv may differ from D.
    attn_mask : ndarray, optional
        Rank 0 to 4, broadcast against (B, Hq, Sq, Sk) without being expanded. bool: True = attend.
        float32 (float64 for float64): added to the scores; -inf forbids like False does.
    causal : bool
        Only keys j <= i + q_offset.
    window_size : (int, int), optional
        (left, right): only keys with ``p - left <= j <= p + right``, p = i + q_offset;
        -1 or None is unbounded. Composes with `causal`.
    scale : float, optional
        Default ``1 / sqrt(D)``. Any finite number.
    softcap : float
        If > 0, ``s = softcap * tanh(s / softcap)``.
    alibi_slopes : array_like, (Hq,) or (B, Hq), optional
        Adds ``-slope * abs(p - j)`` (Press et al. 2022, arXiv:2108.12409).
    sinks : array_like, (Hq,), optional
        Adds ``exp(sink)`` to the denominator (Xiao et al. 2023, arXiv:2309.17453, as learned
        logits); counted in lse.
    q_offset : int or array_like (B,), optional
        Position of query 0. None is ``kv_length - Sq``: the last query sees every key. 0 is
        torch's ``is_causal``.
    kv_lengths, kv_starts : int or array_like (B,), optional
        Only keys ``kv_starts[b] <= j < kv_lengths[b]``; memory outside is never read.
    block_table, k_scale, v_scale
        Not in this version: NotImplementedError.
    layout : {"bhsd", "bshd"}
        "bshd" swaps the head and the sequence axis of q, k, v and the result.
    precision : {"highest", "high", "medium"}
        Least precision allowed for float32; this version always computes with "highest".
    out : ndarray, optional
        Written in place and returned. Overlaps no input.
    return_lse : bool
        Also return the log-sum-exp of the scores.
    num_threads : int, optional
        Default: `get_num_threads()`. The result does not depend on it.

    Returns
    -------
    out : ndarray, (..., Hq, Sq, Dv)
        Of q's dtype. A row that may attend to nothing is 0.
    lse : ndarray, (..., Hq, Sq)
        With `return_lse`: natural logarithm, in both layouts; -inf for a row without keys.

    Raises
    ------
    TypeError
        Something is not an array, or of a dtype that is not supported.
    ValueError
        A shape, range or combination is wrong. Nothing is computed or written.

    Examples
    --------
    >>> import numpy as np, fastattn
    >>> q = k = v = np.eye(2, dtype=np.float32)
    >>> fastattn.attention(q, k, v, scale=1.0, causal=True).round(3)
    array([[1.   , 0.   ],
           [0.269, 0.731]], dtype=float32)
    """
    if (
        attn_mask is None and window_size is None and softcap == 0.0 and alibi_slopes is None
        and sinks is None and q_offset is None and kv_lengths is None and kv_starts is None
        and block_table is None and k_scale is None and v_scale is None and layout == "bhsd"
        and precision == "highest" and out is None and return_lse is False
        and (causal is False or causal is True)
        and (num_threads is None or (type(num_threads) is int and num_threads > 0))
    ):  # fmt: skip
        threads = num_threads or get_num_threads()
        result = _core.attend_plain(q, k, v, causal, scale, threads, _isa())
        if result is not None:
            return result
    problem = _check.problem(
        q, k, v, attn_mask=attn_mask, causal=causal, window_size=window_size, scale=scale,
        softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, q_offset=q_offset,
        kv_lengths=kv_lengths, kv_starts=kv_starts, block_table=block_table, k_scale=k_scale,
        v_scale=v_scale, layout=layout, precision=precision, out=out, return_lse=return_lse,
        num_threads=num_threads,
    )  # fmt: skip
    _reject_later(problem)
    _core.attend(problem, problem.num_threads or get_num_threads(), _isa())
    return (problem.result, problem.lse_result) if return_lse else problem.result


def attention_weights(
    q, k, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, layout="bhsd", precision="highest", num_threads=None,
):  # fmt: skip
    """The whole table of attention weights, ``softmax(scale * q k^T + mask)``, for looking at.

    Takes memory for Sq * Sk weights per head, which `attention` never does.

    Parameters
    ----------
    q, k
        As in `attention`, and so is every other argument.

    Returns
    -------
    ndarray, (..., Hq, Sq, Sk)
        In both layouts. Rows sum to 1 (less with a sink), or are 0 where nothing is allowed.
    """
    problem = _check.weights_problem(
        q, k, attn_mask=attn_mask, causal=causal, window_size=window_size, scale=scale,
        softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, q_offset=q_offset,
        kv_lengths=kv_lengths, kv_starts=kv_starts, block_table=block_table, k_scale=k_scale,
        layout=layout, precision=precision, num_threads=num_threads,
    )  # fmt: skip
    _reject_later(problem)
    threads = problem.num_threads or get_num_threads()
    _core.attend(problem, threads, _isa(), weights=True)
    return problem.result


def _reject_later(problem):
    """Refuse what the C core cannot do yet. It goes when the core can, tests/test_later.py too."""
    if problem.block_table is not None:
        raise NotImplementedError("block_table: expected None, got a table (it comes later)")
    if problem.k_scale is not None or problem.v_scale is not None:
        raise NotImplementedError("k_scale, v_scale: expected None, got scales (they come later)")
    for name in "q", "k", "mask":
        tensor = getattr(problem, name)
        if tensor is not None and tensor.itemsize < 4 and tensor.dtype.kind != "b":
            raise NotImplementedError(
                f"{name}: expected dtype float32 or float64, got {tensor.dtype.name} (narrower "
                "types come later)"
            )


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Attention with the argument names and the meaning of ``torch.nn.functional``, on arrays.

    ``is_causal`` is aligned to the top left: key j <= query i.

    Parameters
    ----------
    query, key, value : ndarray, (..., H, S, D)
    attn_mask : ndarray, optional
        bool (True = attend) or float. Not together with `is_causal`.
    dropout_p : float
        Must be 0: this is inference.
    is_causal : bool
    scale : float, optional
        Default ``1 / sqrt(D)``.
    enable_gqa : bool
        Allow fewer key and value heads than query heads.

    Returns
    -------
    ndarray, (..., H, S, Dv)
    """
    q, k, v, keywords = _check.sdpa_arguments(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )
    return attention(q, k, v, **keywords)


def merge_states(outs, lses, *, out=None):
    """Attention over the union of disjoint sets of keys, from the results over each set.

    ``lse = log(sum_n exp(lses[n]))``, ``out = sum_n exp(lses[n] - lse) * outs[n]``
    (FlashAttention-2, arXiv:2307.08691, section 3.1).

    Parameters
    ----------
    outs : sequence of ndarray, (..., Sq, Dv)
        What ``attention(..., return_lse=True)`` returned for each set.
    lses : sequence of ndarray, (..., Sq)
    out : ndarray, optional
        Written in place and returned.

    Returns
    -------
    out : ndarray, (..., Sq, Dv)
    lse : ndarray, (..., Sq)
    """
    problem = _check.merge_problem(outs, lses, out)
    logs = np.stack(problem.lses).astype(np.float64)
    top = logs.max(axis=0)
    top = np.where(np.isneginf(top), 0.0, top)  # no keys at all: -inf - -inf would be NaN
    shares = np.exp(logs - top)
    total = shares.sum(axis=0)
    with np.errstate(divide="ignore"):
        problem.lse[...] = top + np.log(total)
    merged = np.zeros(problem.out.shape, np.float64)
    for share, part in zip(shares, problem.outs, strict=True):
        # A set without keys counts nothing, whatever its output holds.
        used = np.where((share > 0)[..., None], part.astype(np.float64), 0.0)
        merged += (share / np.where(total > 0, total, 1.0))[..., None] * used
    problem.out[...] = merged
    return problem.out, problem.lse
