# SPDX-License-Identifier: MIT
"""The public functions. Letters: q k v queries, keys, values; s scores; p weights; i query, j key.

s[i, j] = scale * q[i] . k[j]   ->  softcap  ->  + ALiBi  ->  + mask  ->  -inf where forbidden
p = softmax(s) by rows (with sink)        out = p v        lse = log(sum(exp(s)))
"""

import numpy as np

from fastattn import _check, _core
from fastattn import _check_options as options
from fastattn.isa import active as _isa
from fastattn.threads import get_num_threads


def _untraced(function):
    """Let torch.compile break its graph at a function; where there must be no break, say why."""
    why = "it reads memory; the functions of fastattn.torch are operators that stay in the graph"
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=why)
    return function


@_untraced
def attention(
    q, k, v, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, layout="bhsd", precision="highest", out=None,
    return_lse=False, num_threads=None,
):  # fmt: skip
    """Exact softmax attention, ``softmax(scale * q k^T + mask) v``.

    Online softmax over blocks of keys (Dao et al. 2022, arXiv:2205.14135; Milakov & Gimelshein
    2018, arXiv:1805.02867): memory does not grow with the product of the sequence lengths. Any
    array with ``__dlpack__``, a torch.Tensor for one, may stand for an ndarray, and is not copied.

    Parameters
    ----------
    q : ndarray, (..., Hq, Sq, D)
        Queries, float32, float64, float16 or `ml_dtypes.bfloat16`; (Sq, D) is one head, and 9
        axes are the most. Any strides.
    k : ndarray, (..., Hkv, Sk, D)
        Keys, of q's dtype or narrower: 16-bit with float32 q, int8 and fp8 (e4m3fn, e5m2 of
        `ml_dtypes`) with any q but float64. Leading axes broadcast. Hq must be a multiple of Hkv:
        query head h reads kv head ``h // (Hq // Hkv)`` (Ainslie et al. 2023, arXiv:2305.13245,
        section 2.2).
    v : ndarray, (..., Hkv, Sk, Dv)
        Values, of k's dtype; Dv may differ from D.
    attn_mask : ndarray, optional
        Rank 0 to 4, or up to that of q, k and v; broadcast against (..., Hq, Sq, Sk), with the
        leading axes of the result, without being expanded. bool: True = attend. float32 or of q's
        dtype: added to the scores; -inf forbids like False does, and nothing else does: numbers
        beyond +-2^126 (float64: 2^1022) count as those.
    causal : bool
        Only keys j <= i + q_offset.
    window_size : (int, int), optional
        (left, right): only keys with ``p - left <= j <= p + right``, p = i + q_offset;
        -1 or None is unbounded (Beltagy et al. 2020, arXiv:2004.05150, section 3.1). Composes with
        `causal`.
    scale : float, optional
        Default ``1 / sqrt(D)``. Any finite number.
    softcap : float
        If > 0, ``s = softcap * tanh(s / softcap)`` (Gemma Team 2024, arXiv:2408.00118, section 2).
    alibi_slopes : array_like, (Hq,) or (B, Hq), optional
        Adds ``-slope * abs(p - j)`` (Press et al. 2022, arXiv:2108.12409). Keys too far away to
        count in the type of the result are skipped.
    sinks : array_like, (Hq,), optional
        Adds ``exp(sink)`` to the denominator (Xiao et al. 2023, arXiv:2309.17453, as learned
        logits); counted in lse.
    q_offset : int or array_like (B,), optional
        Position of query 0. None is ``kv_length - Sq``: the last query sees every key. 0 is
        torch's ``is_causal``.
    kv_lengths, kv_starts : int or array_like (B,), optional
        Only keys ``kv_starts[b] <= j < kv_lengths[b]``; memory outside is never read.
    block_table : array_like of int, (B, blocks), optional
        Then k and v are pages, (pages, Hkv, page, D) and (pages, Hkv, page, Dv), or
        (pages, page, Hkv, ...) with layout "bshd" (Kwon et al. 2023, arXiv:2309.06180, section
        4.1). Key j of sequence b stands in page ``block_table[b, j // page]`` at ``j % page``, and
        Sk is ``blocks * page``. Pages may have any size and belong to several sequences. Entries of
        blocks with a key between `kv_starts` and `kv_lengths` are checked; the others may hold
        anything.
    k_scale, v_scale : float or array_like, optional
        True value = stored value * scale: a number, (Hkv,), (B, Hkv) or, float32, (B, Hkv, Sk);
        with `block_table` a number, (Hkv,) or, float32, (pages, Hkv, page). In both layouts.
        `quantize_kv` makes them.
    layout : {"bhsd", "bshd"}
        "bshd" swaps the head and the sequence axis of q, k, v and the result.
    precision : {"highest", "high", "medium"}
        Least precision allowed for float32. "highest": as exact as float32 arithmetic. On a
        matrix unit (AMX) "high" keeps about 16 bits of values and probabilities (scores are as
        exact as ever) and "medium" 8 of everything, and both are faster; so is "medium" with
        AVX512-BF16 and BFMMLA. Elsewhere, and for other types, it makes no difference.
    out : ndarray, (..., Hq, Sq, Dv), optional
        Of q's dtype. Written in place and returned. Overlaps no input.
    return_lse : bool
        Also return the log-sum-exp of the scores.
    num_threads : int, optional
        Default: `get_num_threads()`. The result does not depend on it.

    Returns
    -------
    out : ndarray, (..., Hq, Sq, Dv)
        Of q's dtype. A row that may attend to nothing is 0.
    lse : ndarray, (..., Hq, Sq)
        With `return_lse`: natural logarithm, in both layouts; -inf for a row without keys. float64
        for float64, float32 otherwise.

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
    threads = get_num_threads() if num_threads is None else num_threads
    result = _core.attend_plain(
        q, k, v, attn_mask, causal, window_size, scale, softcap, alibi_slopes, sinks, q_offset,
        kv_lengths, kv_starts, block_table, k_scale, v_scale, layout, precision, out, return_lse,
        threads, _isa(),
    )  # fmt: skip
    if result is not None:
        return result
    problem = _check.problem(
        q, k, v, attn_mask=attn_mask, causal=causal, window_size=window_size, scale=scale,
        softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, q_offset=q_offset,
        kv_lengths=kv_lengths, kv_starts=kv_starts, block_table=block_table, k_scale=k_scale,
        v_scale=v_scale, layout=layout, precision=precision, out=out, return_lse=return_lse,
        num_threads=num_threads,
    )  # fmt: skip
    _core.attend(problem, problem.num_threads or get_num_threads(), _isa())
    return (problem.result, problem.lse_result) if return_lse else problem.result


@_untraced
def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, *, causal=False, window_size=None, scale=None,
    softcap=0.0, alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, precision="highest", out=None, return_lse=False,
    num_threads=None,
):  # fmt: skip
    """Attention of sequences of any lengths, packed one behind the other.

    Each sequence gets what `attention` gives for it alone.

    Parameters
    ----------
    q : ndarray, (total_q, Hq, D)
        The queries of all sequences: of sequence b those from ``cu_seqlens_q[b]`` up to
        ``cu_seqlens_q[b + 1]``. dtypes and strides as in `attention`.
    k, v : ndarray, (total_k, Hkv, D) and (total_k, Hkv, Dv)
        The same for the keys and values. With `block_table` pages, (pages, page, Hkv, D) and
        (pages, page, Hkv, Dv): always in the order of layout "bshd".
    cu_seqlens_q : array_like of int, (B + 1,)
        Begins with 0, never falls, ends with total_q. A sequence may be empty.
    cu_seqlens_k : array_like of int, (B + 1,), optional
        The same for the keys; None is `cu_seqlens_q`. With `block_table` it only says how many
        keys each sequence has, and `kv_lengths` may say it instead.
    q_offset, kv_lengths, kv_starts : int or array_like (B,), optional
        As in `attention`, counted from the first key of each sequence.
    block_table : array_like of int, (B, blocks), optional
    k_scale, v_scale : float or array_like, optional
        A number, (Hkv,), (1, Hkv) or, float32, (Hkv, total_k); with `block_table` a number, (Hkv,)
        or, float32, (pages, Hkv, page).
    causal, window_size, scale, softcap, alibi_slopes, sinks, precision, num_threads
        As in `attention`. `alibi_slopes` of shape (B, Hq) are those of each sequence.
    out : ndarray, (total_q, Hq, Dv), optional
        Of q's dtype. Written in place and returned. Overlaps no input.
    return_lse : bool

    Returns
    -------
    out : ndarray, (total_q, Hq, Dv)
    lse : ndarray, (Hq, total_q)
        With `return_lse`.

    Raises
    ------
    TypeError, ValueError
        As in `attention`. Nothing is computed or written.

    Examples
    --------
    A sequence of two tokens and one of three:

    >>> import numpy as np, fastattn
    >>> q = k = v = np.arange(5, dtype=np.float32).reshape(5, 1, 1)
    >>> fastattn.attention_varlen(q, k, v, [0, 2, 5], scale=0.0)[:, 0, 0]
    array([0.5, 0.5, 3. , 3. , 3. ], dtype=float32)
    """
    threads = get_num_threads() if num_threads is None else num_threads
    result = _core.attend_varlen_plain(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window_size, scale, softcap, alibi_slopes,
        sinks, q_offset, kv_lengths, kv_starts, block_table, k_scale, v_scale, precision, out,
        return_lse, threads, _isa(),
    )  # fmt: skip
    if result is not None:
        return result
    problem = _check.varlen_problem(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal=causal, window_size=window_size, scale=scale,
        softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, q_offset=q_offset,
        kv_lengths=kv_lengths, kv_starts=kv_starts, block_table=block_table, k_scale=k_scale,
        v_scale=v_scale, precision=precision, out=out, return_lse=return_lse,
        num_threads=num_threads,
    )  # fmt: skip
    _core.attend_varlen(problem, problem.num_threads or get_num_threads(), _isa())
    return (problem.result, problem.lse_result) if return_lse else problem.result


@_untraced
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

    Raises
    ------
    TypeError, ValueError
        As in `attention`. Nothing is computed.
    """
    problem = _check.weights_problem(
        q, k, attn_mask=attn_mask, causal=causal, window_size=window_size, scale=scale,
        softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, q_offset=q_offset,
        kv_lengths=kv_lengths, kv_starts=kv_starts, block_table=block_table, k_scale=k_scale,
        layout=layout, precision=precision, num_threads=num_threads,
    )  # fmt: skip
    threads = problem.num_threads or get_num_threads()
    _core.attend(problem, threads, _isa(), weights=True)
    return problem.result


@_untraced
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
        Allow fewer key and value heads than query heads. Where key and value differ in heads, and
        neither has one alone, both are copied to a common number of them.

    Returns
    -------
    ndarray, (..., H, S, Dv)

    Raises
    ------
    TypeError, ValueError
        As in `attention`.
    NotImplementedError
        Dropout.
    """
    q, k, v, keywords = _check.sdpa_arguments(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )
    try:
        return attention(q, k, v, **keywords)
    except (TypeError, ValueError) as error:
        options.rename(error, {"q": "query", "k": "key", "v": "value"})
        raise


@_untraced
def merge_states(outs, lses, *, out=None):
    """Attention over the union of disjoint sets of keys, from the results over each set.

    ``lse = log(sum_n exp(lses[n]))``, ``out = sum_n exp(lses[n] - lse) * outs[n]``
    (FlashAttention-2, arXiv:2307.08691, section 3.1).

    Parameters
    ----------
    outs : sequence of ndarray, (..., Sq, Dv)
        What ``attention(..., return_lse=True)`` returned for each set, all of one dtype. In layout
        "bshd", and from `attention_varlen`, the axes of heads and of tokens have to be swapped. One
        array that is stacked on axis 0 will do, (sets, ..., Sq, Dv).
    lses : sequence of ndarray, (..., Sq)
        float64 for float64 `outs`, float32 otherwise; or (sets, ..., Sq).
    out : ndarray, (..., Sq, Dv), optional
        Of the dtype of `outs`. Written in place and returned. Overlaps no input.

    Returns
    -------
    out : ndarray, (..., Sq, Dv)
        Of the dtype of `outs`, rounded once.
    lse : ndarray, (..., Sq)

    Raises
    ------
    TypeError, ValueError
        As in `attention`; or the numbers of `outs` and `lses` differ. Nothing is written.

    Notes
    -----
    Sinks belong into one of the calls only. Windows and ALiBi compare positions: a call over the
    keys from c on takes `q_offset` less c. Queries that stand side by side, as in the example, have
    no positions of their own; with a window, give the prefix a leading axis of 1 instead.

    Examples
    --------
    A prefix that many sequences share is read once for all of them: their queries stand side by
    side, as if they were of one sequence. Then each attends to its own suffix.

    >>> import numpy as np, fastattn
    >>> rng = np.random.default_rng(0)
    >>> prefix = rng.standard_normal((2, 50, 8))  # 2 kv heads; keys are values here
    >>> suffix = rng.standard_normal((3, 2, 5, 8))  # of 3 sequences
    >>> q = rng.standard_normal((3, 4, 2, 8))  # their last 2 tokens
    >>> B, H, S, D = q.shape
    >>> side_by_side = q.swapaxes(0, 1).reshape(H, B * S, D)
    >>> out, lse = fastattn.attention(side_by_side, prefix, prefix, return_lse=True)
    >>> out, lse = out.reshape(H, B, S, D).swapaxes(0, 1), lse.reshape(H, B, S).swapaxes(0, 1)
    >>> own = fastattn.attention(q, suffix, suffix, causal=True, return_lse=True)
    >>> merged, _ = fastattn.merge_states([out, own[0]], [lse, own[1]])

    It is what the whole gives:

    >>> whole = np.concatenate([np.broadcast_to(prefix, (B, 2, 50, 8)), suffix], axis=2)
    >>> np.allclose(merged, fastattn.attention(q, whole, whole, causal=True), atol=1e-12)
    True
    """
    problem = _check.merge_problem(outs, lses, out)
    logs = np.stack(problem.lses).astype(np.float64)
    with np.errstate(all="ignore"):  # NaN and infinity in the data are the caller's business
        top = logs.max(axis=0)
        top = np.where(np.isinf(top), 0.0, top)  # inf - inf would be NaN
        shares = np.exp(logs - top)
        total = shares.sum(axis=0)
        problem.lse[...] = top + np.log(total)
        merged = np.zeros(problem.out.shape, np.float64)
        for log, share, part in zip(logs, shares, problem.outs, strict=True):
            # A set without keys counts nothing, whatever its output holds.
            used = np.where(np.isneginf(log)[..., None], 0.0, part.astype(np.float64))
            merged += (share / np.where(total == 0, 1.0, total))[..., None] * used
        problem.out[...] = _to_odd(merged) if problem.out.dtype.name == "bfloat16" else merged
    return problem.out if out is None else out, problem.lse


def _to_odd(numbers):
    """Round float64 to float32, where that is inexact to the neighbour whose last bit is set.

    ml_dtypes makes bfloat16 of float64 by way of float32, and so rounds twice. What is odd lies in
    the middle of no two shorter numbers: rounding it again is like rounding the number itself.
    """
    nearest = numbers.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(numbers)  # toward zero
    bits |= nearest != numbers
    return nearest
