# SPDX-License-Identifier: MIT
"""`attention_varlen` of the oracle: a loop over the sequences of a pack."""

import numpy as np

from fastattn.reference.dense import attention


def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, *, causal=False, window_size=None, scale=None,
    softcap=0.0, alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, precision="highest", out=None, return_lse=False,
    num_threads=None, dtype=None,
):  # fmt: skip
    """`attention` of each sequence of a pack by itself.

    Parameters
    ----------
    q : ndarray, (total_q, Hq, D)
        Sequence b has the rows from cu_seqlens_q[b] to cu_seqlens_q[b + 1].
    k, v : ndarray
        (total_k, Hkv, D) and (total_k, Hkv, Dv), cut by `cu_seqlens_k` in the same way, or with
        `block_table` (pages, page, Hkv, D) and (pages, page, Hkv, Dv).
    cu_seqlens_q, cu_seqlens_k : array of int, (B + 1,)
        From 0 on, not falling. `cu_seqlens_k` is `cu_seqlens_q` if None; with `block_table` it says
        how many keys each sequence has.
    q_offset, kv_lengths, kv_starts : int or array of int (B,), optional
        Counted from the first key of each sequence.
    k_scale, v_scale : number, (Hkv,), (1, Hkv), (Hkv, total_k) or (pages, Hkv, page), optional
    causal, window_size, scale, softcap, alibi_slopes, sinks, block_table, out, return_lse, dtype, \
precision, num_threads
        As in `attention`.

    Returns
    -------
    out : ndarray, (total_q, Hq, Dv)
    lse : ndarray, (Hq, total_q)
    """
    total, heads = q.shape[:2]
    batch = len(cu_seqlens_q) - 1
    if cu_seqlens_k is None and block_table is None:
        cu_seqlens_k = cu_seqlens_q
    if kv_lengths is None and block_table is not None:
        kv_lengths = np.diff(np.asarray(cu_seqlens_k, np.int64))
    results = np.zeros((total, heads, v.shape[-1])), np.full((heads, total), -np.inf)
    for b in range(batch):
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        keys = slice(None) if block_table is not None else slice(*cu_seqlens_k[b : b + 2])
        results[0][rows], results[1][:, rows] = attention(
            q[rows], k[keys], v[keys], layout="bshd", return_lse=True, causal=causal,
            window_size=window_size, scale=scale, softcap=softcap, sinks=sinks,
            alibi_slopes=alibi_slopes[b] if np.ndim(alibi_slopes) == 2 else alibi_slopes,
            q_offset=_of(q_offset, b), kv_lengths=_of(kv_lengths, b), kv_starts=_of(kv_starts, b),
            block_table=None if block_table is None else np.asarray(block_table)[b : b + 1],
            k_scale=_of_keys(k_scale, keys, k.shape[-2]),
            v_scale=_of_keys(v_scale, keys, k.shape[-2]),
        )  # fmt: skip
    out_of_all, lse = (each.astype(dtype or np.float64) for each in results)
    if out is not None:
        np.copyto(out, out_of_all, casting="unsafe")
        out_of_all = out
    return (out_of_all, lse) if return_lse else out_of_all


def _of(values, b):
    """Value of sequence b of one for all, or of one for each."""
    return values if values is None or np.ndim(values) == 0 else values[b]


def _of_keys(scale, keys, heads):
    """Part of the scales that belongs to the keys of one sequence."""
    if np.shape(scale) == (1, heads):
        return np.ravel(scale)
    return scale[:, keys] if np.ndim(scale) == 2 else scale
