# SPDX-License-Identifier: MIT
"""The functions of `fastattn` on tensors."""

import fastattn
from fastattn.torch import _ops
from fastattn.torch._tensors import array, integers, numbers, only_memory, tensor


def attention(
    q, k, v, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, layout="bhsd", precision="highest",
    return_lse=False, num_threads=None,
):  # fmt: skip
    """`fastattn.attention` on CPU tensors, read where they lie.

    Works under torch.compile (as one node of the graph), torch.export and torch.inference_mode.
    There is no backward yet: that of a result that requires grad raises NotImplementedError.

    Parameters
    ----------
    q, k, v : Tensor
        (..., Hq, Sq, D), (..., Hkv, Sk, D), (..., Hkv, Sk, Dv), on the CPU.
    attn_mask, causal, window_size, scale, softcap, alibi_slopes, sinks, q_offset, kv_lengths, \
kv_starts, block_table, k_scale, v_scale, layout, precision, return_lse, num_threads
        As in `fastattn.attention`; what is an array there is a tensor here.

    Returns
    -------
    out : Tensor, (..., Hq, Sq, Dv)
        Of q's dtype. In eager mode its memory order is q's, in a compiled graph that of `layout`.
    lse : Tensor, (..., Hq, Sq)
        With `return_lse`: float32, float64 for float64.

    Raises
    ------
    TypeError
        A tensor is not on the CPU, or of a dtype that is not supported.
    ValueError
        A shape, range or combination is wrong.
    """
    if (
        attn_mask is None and window_size is None and softcap == 0.0 and alibi_slopes is None
        and sinks is None and q_offset is None and kv_lengths is None and kv_starts is None
        and block_table is None and k_scale is None and v_scale is None and return_lse is False
        and only_memory(q, k, v)
    ):  # fmt: skip
        result = fastattn.attention(
            array("q", q), array("k", k), array("v", v), causal=causal, scale=scale, layout=layout,
            precision=precision, num_threads=num_threads,
        )  # fmt: skip
        return tensor(result)
    if only_memory(
        q, k, v, attn_mask, alibi_slopes, sinks, q_offset, kv_lengths, kv_starts, block_table,
        k_scale, v_scale,
    ):  # fmt: skip
        result = fastattn.attention(
            array("q", q), array("k", k), array("v", v), attn_mask=array("attn_mask", attn_mask),
            causal=causal, window_size=window_size, scale=scale, softcap=softcap,
            alibi_slopes=array("alibi_slopes", alibi_slopes), sinks=array("sinks", sinks),
            q_offset=array("q_offset", q_offset), kv_lengths=array("kv_lengths", kv_lengths),
            kv_starts=array("kv_starts", kv_starts), block_table=array("block_table", block_table),
            k_scale=array("k_scale", k_scale), v_scale=array("v_scale", v_scale), layout=layout,
            precision=precision, return_lse=return_lse, num_threads=num_threads,
        )  # fmt: skip
        return (tensor(result[0]), tensor(result[1])) if return_lse else tensor(result)
    left, right = _window(window_size)
    out, lse = _ops.attention(
        q, k, v, attn_mask, numbers(alibi_slopes), numbers(sinks), integers(q_offset),
        integers(kv_lengths), integers(kv_starts), block_table, numbers(k_scale), numbers(v_scale),
        causal=causal, left=left, right=right, scale=scale, softcap=softcap, layout=layout,
        precision=precision, return_lse=return_lse, num_threads=num_threads,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, *, causal=False, window_size=None, scale=None,
    softcap=0.0, alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, block_table=None,
    k_scale=None, v_scale=None, precision="highest", return_lse=False, num_threads=None,
):  # fmt: skip
    """`fastattn.attention_varlen` on CPU tensors: sequences packed one behind the other.

    Parameters
    ----------
    q, k, v : Tensor
        (tokens, Hq, D), (tokens, Hkv, D), (tokens, Hkv, Dv), on the CPU.
    cu_seqlens_q, cu_seqlens_k : Tensor, (B + 1,)
        Where each sequence begins and ends.
    causal, window_size, scale, softcap, alibi_slopes, sinks, q_offset, kv_lengths, block_table, \
k_scale, v_scale, precision, return_lse, num_threads
        As in `fastattn.attention_varlen`.

    Returns
    -------
    out : Tensor, (tokens, Hq, Dv)
    lse : Tensor, (Hq, tokens)
        With `return_lse`.

    Raises
    ------
    TypeError, ValueError
        As `attention`.
    """
    tensors = (
        q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks, q_offset, kv_lengths, block_table,
        k_scale, v_scale,
    )  # fmt: skip
    if only_memory(*tensors):
        arrays = {name: array(name, t) for name, t in zip(_ops.VARLEN, tensors, strict=True)}
        result = fastattn.attention_varlen(
            **arrays, causal=causal, window_size=window_size, scale=scale, softcap=softcap,
            precision=precision, return_lse=return_lse, num_threads=num_threads,
        )  # fmt: skip
        return (tensor(result[0]), tensor(result[1])) if return_lse else tensor(result)
    left, right = _window(window_size)
    out, lse = _ops.attention_varlen(
        q, k, v, integers(cu_seqlens_q), integers(cu_seqlens_k), numbers(alibi_slopes),
        numbers(sinks), integers(q_offset), integers(kv_lengths), block_table, numbers(k_scale),
        numbers(v_scale), causal=causal, left=left, right=right, scale=scale, softcap=softcap,
        precision=precision, return_lse=return_lse, num_threads=num_threads,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def _window(window_size):
    """`window_size` as two numbers, -1 where it is unbounded."""
    if window_size is None:
        return -1, -1
    if len(window_size) != 2:
        raise ValueError(
            f"window_size: expected a pair (left, right), got {len(window_size)} values"
        )
    left, right = window_size
    return -1 if left is None else left, -1 if right is None else right
