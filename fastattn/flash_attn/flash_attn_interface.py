# SPDX-License-Identifier: MIT
"""flash-attn's functions: translations into calls of `attention` and `attention_varlen`."""

import math

from fastattn import _check_options as options
from fastattn.flash_attn import _cache, _library

# What callers know the parts of packed arguments by: `_unpacked` takes them.
_QKV_PARTS = {
    "q": "qkv[..., 0, :, :]", "k": "qkv[..., 1, :, :]", "v": "qkv[..., 2, :, :]",
    "cu_seqlens_q": "cu_seqlens", "cu_seqlens_k": "cu_seqlens",
}  # fmt: skip
_KV_PARTS = {"k": "kv[..., 0, :, :]", "v": "kv[..., 1, :, :]"}


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Attention of (batch, sequence, heads, head dimension) tensors.

    Parameters
    ----------
    q, k, v : Tensor or ndarray
        (B, Sq, Hq, D), (B, Sk, Hkv, D), (B, Sk, Hkv, Dv); Hq a multiple of Hkv.
    dropout_p : float
        Must be 0.
    softmax_scale : float, optional
        Default ``1 / sqrt(D)``.
    causal : bool
        Aligned to the bottom right: the last query sees every key.
    window_size : (int, int)
        (left, right), -1 is unbounded.
    softcap : float
        If > 0, ``s = softcap * tanh(s / softcap)``.
    alibi_slopes : Tensor or ndarray, (Hq,) or (B, Hq), optional
    deterministic : bool
        Ignored: it always is.
    return_attn_probs : bool
        Also return what follows `out` below.

    Returns
    -------
    out : Tensor or ndarray, (B, Sq, Hq, Dv)
    softmax_lse : (B, Hq, Sq)
        Natural log-sum-exp of the scores.
    S_dmask : (0,)
        The pattern of dropout, which there is not.

    Raises
    ------
    NotImplementedError
        Dropout.
    TypeError, ValueError
        As `fastattn.attention`.
    """
    options.no_dropout(dropout_p)
    probs = options.flag("return_attn_probs", return_attn_probs)
    scores = _scores(softmax_scale, causal, window_size, softcap, alibi_slopes)
    result = _library.of(q).attention(q, k, v, **scores, layout="bshd", return_lse=probs)
    return (*result, _library.no_pattern(q)) if probs else result


def flash_attn_qkvpacked_func(
    qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """`flash_attn_func` of queries, keys and values in one tensor (B, S, 3, H, D).

    Parameters
    ----------
    qkv : Tensor or ndarray, (B, S, 3, H, D)
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, \
return_attn_probs
        As in `flash_attn_func`.

    Returns
    -------
    out, softmax_lse, S_dmask
        As from `flash_attn_func`.

    Raises
    ------
    NotImplementedError, TypeError, ValueError
        As `flash_attn_func`.
    """
    return _renaming(
        flash_attn_func, _QKV_PARTS, *_unpacked("qkv", qkv, 3), dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """`flash_attn_func` of keys and values in one tensor (B, Sk, 2, Hkv, D).

    Parameters
    ----------
    q : Tensor or ndarray, (B, Sq, Hq, D)
    kv : Tensor or ndarray, (B, Sk, 2, Hkv, D)
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, \
return_attn_probs
        As in `flash_attn_func`.

    Returns
    -------
    out, softmax_lse, S_dmask
        As from `flash_attn_func`.

    Raises
    ------
    NotImplementedError, TypeError, ValueError
        As `flash_attn_func`.
    """
    return _renaming(
        flash_attn_func, _KV_PARTS, q, *_unpacked("kv", kv, 2), dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """Attention of sequences that are packed one behind the other.

    Parameters
    ----------
    q, k, v : Tensor or ndarray
        (tokens, Hq, D), (tokens, Hkv, D), (tokens, Hkv, Dv). With `block_table` k and v are pages
        (pages, page, Hkv, D or Dv).
    cu_seqlens_q, cu_seqlens_k : Tensor or ndarray, (B + 1,)
        Where each sequence begins, and the end. With `block_table`, `cu_seqlens_k` says how many
        keys each sequence has.
    max_seqlen_q, max_seqlen_k : int
        Ignored.
    block_table : Tensor or ndarray, (B, blocks), optional
        The pages of each sequence.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, \
return_attn_probs
        As in `flash_attn_func`.

    Returns
    -------
    out : Tensor or ndarray, (tokens, Hq, Dv)
    softmax_lse : (Hq, tokens)
    S_dmask : (0,)

    Raises
    ------
    NotImplementedError, TypeError, ValueError
        As `flash_attn_func`.
    """
    options.no_dropout(dropout_p)
    probs = options.flag("return_attn_probs", return_attn_probs)
    scores = _scores(softmax_scale, causal, window_size, softcap, alibi_slopes)
    result = _library.of(q).attention_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, **scores, block_table=block_table, return_lse=probs
    )
    return (*result, _library.no_pattern(q)) if probs else result


def flash_attn_varlen_qkvpacked_func(
    qkv, cu_seqlens, max_seqlen=None, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False,
):  # fmt: skip
    """`flash_attn_varlen_func` of queries, keys and values in one tensor (tokens, 3, H, D).

    Parameters
    ----------
    qkv : Tensor or ndarray, (tokens, 3, H, D)
    cu_seqlens : Tensor or ndarray, (B + 1,)
        Where each sequence begins, and the end.
    max_seqlen : int
        Ignored.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, \
return_attn_probs
        As in `flash_attn_func`.

    Returns
    -------
    out, softmax_lse, S_dmask
        As from `flash_attn_varlen_func`.

    Raises
    ------
    NotImplementedError, TypeError, ValueError
        As `flash_attn_func`.
    """
    return _renaming(
        flash_attn_varlen_func, _QKV_PARTS, *_unpacked("qkv", qkv, 3), cu_seqlens, cu_seqlens,
        max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """`flash_attn_varlen_func` of keys and values in one tensor (tokens, 2, Hkv, D).

    Parameters
    ----------
    q : Tensor or ndarray, (tokens, Hq, D)
    kv : Tensor or ndarray, (tokens, 2, Hkv, D)
    cu_seqlens_q, cu_seqlens_k : Tensor or ndarray, (B + 1,)
        Where each sequence begins, and the end.
    max_seqlen_q, max_seqlen_k : int
        Ignored.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, \
return_attn_probs
        As in `flash_attn_func`.

    Returns
    -------
    out, softmax_lse, S_dmask
        As from `flash_attn_varlen_func`.

    Raises
    ------
    NotImplementedError, TypeError, ValueError
        As `flash_attn_func`.
    """
    return _renaming(
        flash_attn_varlen_func, _KV_PARTS, q, *_unpacked("kv", kv, 2), cu_seqlens_q, cu_seqlens_k,
        max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
    return_softmax_lse=False,
):  # fmt: skip
    """Append new keys and values to a cache, and attend to what it holds then.

    Under torch.compile it stays outside of the graphs, because it writes into the cache.

    Parameters
    ----------
    q : Tensor or ndarray, (B, Sq, Hq, D)
    k_cache, v_cache : Tensor or ndarray
        (rows, capacity, Hkv, D or Dv); with `block_table` (pages, page, Hkv, D or Dv). Written in
        place if `k` and `v` are given.
    k, v : Tensor or ndarray, (B, T, Hkv, D or Dv), optional
        Written at positions ``cache_seqlens[b]`` and on.
    rotary_cos, rotary_sin : Tensor or ndarray, (positions, R / 2), optional
        Rotate the first R features of k, and of q, each by its position; without causality and
        window all of q by the position ``cache_seqlens[b]``. Only together with `k`.
    cache_seqlens : int or (B,), optional
        How many keys of each sequence the cache holds before. Default all of `k_cache`.
    cache_batch_idx : (B,), optional
        The row of the cache of each sequence. Default ``0, 1, ...``.
    cache_leftpad : (B,), optional
        The first key of each sequence.
    block_table : (B, blocks), optional
        The pages of each sequence.
    rotary_interleaved : bool
        Rotate features 0 and 1, 2 and 3, ... (True), or 0 and R / 2, 1 and R / 2 + 1, ...
    num_splits : int
        Ignored.
    softmax_scale, causal, window_size, softcap, alibi_slopes
        As in `flash_attn_func`.
    return_softmax_lse : bool

    Returns
    -------
    out : Tensor or ndarray, (B, Sq, Hq, Dv)
    softmax_lse : (B, Hq, Sq)
        With `return_softmax_lse`.

    Raises
    ------
    NotImplementedError
        Forward-mode differentiation of a tensor.
    TypeError, ValueError
        As `fastattn.attention`; a cache that is too small or read-only; an argument without the
        one that it goes with. Nothing is written then.
    """
    arguments = (
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
        cache_leftpad, block_table, softmax_scale, causal, window_size, softcap,
        rotary_interleaved, alibi_slopes, return_softmax_lse,
    )  # fmt: skip
    return _library.outside_of_graphs(q, _with_kvcache, *arguments)


def _with_kvcache(
    q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
    cache_leftpad, block_table, softmax_scale, causal, window_size, softcap, rotary_interleaved,
    alibi_slopes, return_softmax_lse,
):  # fmt: skip
    """`flash_attn_with_kvcache`, where nothing is traced."""
    _library.refuse_tangents(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, alibi_slopes)
    with_lse = options.flag("return_softmax_lse", return_softmax_lse)
    interleaved = options.flag("rotary_interleaved", rotary_interleaved)
    scores = _scores(softmax_scale, causal, window_size, softcap, alibi_slopes)
    queries = options.array("q", q)
    cache = _cache.Cache(k_cache, v_cache, cache_seqlens, cache_batch_idx, block_table, queries)
    starts = cache.starts(cache_leftpad)
    if (k is None) != (v is None):
        raise ValueError("k, v: expected both or neither, got one of them")
    for name, table in ("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin):
        if k is None and table is not None:
            raise ValueError(f"{name}: expected None without k, got a table")
    if k is not None:
        k, v = cache.fitting("k", k, cache.k), cache.fitting("v", v, cache.v)
        # Without queries this computes nothing, but finds what is wrong before a write.
        cache.attend(queries[:, :0], kv_starts=starts, **scores)
        if rotary_cos is not None or rotary_sin is not None:
            rotate = _cache.rotation(rotary_cos, rotary_sin, interleaved, cache.lengths)
            local = causal or scores["window_size"] != (-1, -1)
            k, queries = rotate("k", k, True), rotate("q", queries, local)
        cache.append(k, v)
    result = cache.attend(queries, kv_starts=starts, **scores, return_lse=with_lse)
    wrap = _library.wrapper(q)
    return tuple(wrap(each) for each in result) if with_lse else wrap(result)


def _scores(softmax_scale, causal, window_size, softcap, alibi_slopes):
    """What changes scores in every function, as options of `attention`."""
    if softmax_scale is not None:
        softmax_scale = options.number("softmax_scale", softmax_scale)
    return {
        "scale": softmax_scale, "causal": causal, "window_size": _window(window_size),
        "softcap": max(options.number("softcap", softcap), 0.0), "alibi_slopes": alibi_slopes,
    }  # fmt: skip


def _window(window_size):
    """Any negative number is unbounded in flash-attn."""
    if not isinstance(window_size, tuple | list) or len(window_size) != 2:
        raise ValueError(f"window_size: expected a pair (left, right), got {window_size!r}")
    return tuple(
        -1 if side is None or options.integer("window_size", side, -math.inf) < 0 else side
        for side in window_size
    )


def _renaming(function, names, *arguments):
    """Call a function; let its errors call arguments what the caller of ours does."""
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        options.rename(error, names)
        raise


def _unpacked(name, packed, count):
    """The `count` parts of a packed tensor, as views."""
    packed = packed if _library.is_tensor(packed) else options.array(name, packed)
    if packed.ndim < 3 or packed.shape[-3] != count:
        raise ValueError(
            f"{name}: expected shape (..., {count}, heads, depth), got {tuple(packed.shape)}"
        )
    return [packed[..., part, :, :] for part in range(count)]
