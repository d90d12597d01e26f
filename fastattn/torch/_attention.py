# SPDX-License-Identifier: MIT
"""The functions of `fastattn` on tensors."""

import torch

import fastattn
from fastattn import _check_options as options
from fastattn.torch import _ops
from fastattn.torch._tensors import array, only_memory, operand, tensor


def attention(
    q, k, v, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, layout="bhsd", precision="highest",
    return_lse=False, num_threads=None,
):  # fmt: skip
    """`fastattn.attention` on CPU tensors, read where they lie.

    Works under torch.compile (as one node of the graph), torch.export and torch.inference_mode.
    There is no backward yet: that of a result that requires grad raises NotImplementedError. To
    write into a tensor of yours, ``fastattn.attention(q, k, v, out=tensor)`` takes tensors as well.

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
        attn_mask is None and window_size is None and type(softcap) is float and softcap == 0.0
        and alibi_slopes is None and sinks is None and q_offset is None and kv_lengths is None
        and kv_starts is None and block_table is None and k_scale is None and v_scale is None
        and return_lse is False and only_memory(q, k, v)
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
    tensors = (
        q, k, v, attn_mask, alibi_slopes, sinks, q_offset, kv_lengths, kv_starts, block_table,
        k_scale, v_scale,
    )  # fmt: skip
    checked = _checked(causal, window_size, scale, softcap, precision, return_lse, num_threads)
    checked["layout"] = options.choice("layout", layout, options.LAYOUTS)
    return _operated(_ops.attention, _ops.DENSE, tensors, checked)


def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, *, causal=False, window_size=None, scale=None,
    softcap=0.0, alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, precision="highest", return_lse=False,
    num_threads=None,
):  # fmt: skip
    """`fastattn.attention_varlen` on CPU tensors: sequences packed one behind the other.

    Parameters
    ----------
    q, k, v : Tensor
        (tokens, Hq, D), (tokens, Hkv, D), (tokens, Hkv, Dv), on the CPU.
    cu_seqlens_q, cu_seqlens_k : Tensor, (B + 1,)
        Where each sequence begins and ends.
    causal, window_size, scale, softcap, alibi_slopes, sinks, q_offset, kv_lengths, kv_starts, \
block_table, k_scale, v_scale, precision, return_lse, num_threads
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
        q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks, q_offset, kv_lengths, kv_starts,
        block_table, k_scale, v_scale,
    )  # fmt: skip
    if only_memory(*tensors):
        arrays = {name: array(name, t) for name, t in zip(_ops.VARLEN, tensors, strict=True)}
        result = fastattn.attention_varlen(
            **arrays, causal=causal, window_size=window_size, scale=scale, softcap=softcap,
            precision=precision, return_lse=return_lse, num_threads=num_threads,
        )  # fmt: skip
        return (tensor(result[0]), tensor(result[1])) if return_lse else tensor(result)
    checked = _checked(causal, window_size, scale, softcap, precision, return_lse, num_threads)
    return _operated(_ops.attention_varlen, _ops.VARLEN, tensors, checked)


def _operated(operator, names, tensors, checked):
    """What an operator makes of arguments as the functions take them, and of checked options."""
    operands = [operand(name, value) for name, value in zip(names, tensors, strict=True)]
    out, lse = operator(*operands, **checked)
    return (out, lse) if checked["return_lse"] else out


def _checked(causal, window_size, scale, softcap, precision, return_lse, num_threads):
    """Options as an operator takes them, once they are what `fastattn` takes.

    torch would convert some of what `fastattn` refuses, and refuse some of what it takes.
    """
    left, right = _window(window_size)
    return {
        "causal": options.flag("causal", causal), "left": left, "right": right,
        "scale": None if scale is None else _number("scale", scale),
        "softcap": _number("softcap", softcap),
        "precision": options.choice("precision", precision, options.PRECISIONS),
        "return_lse": options.flag("return_lse", return_lse),
        "num_threads": (
            None if num_threads is None else options.thread_count("num_threads", num_threads)
        ),
    }  # fmt: skip


def _number(name, value):
    """A number, whose range is the core's business; what torch counts with stays a symbol."""
    return value if isinstance(value, torch.SymFloat) else options.number(name, value)


def _window(window_size):
    """`window_size` as two checked numbers, -1 where it is unbounded; symbols stay symbols."""
    if not isinstance(window_size, tuple | list):
        return options.window(window_size)
    symbols = [isinstance(side, torch.SymInt) for side in window_size]
    sides = options.window([0 if s else n for n, s in zip(window_size, symbols, strict=True)])
    return [
        given if symbol else side
        for given, symbol, side in zip(window_size, symbols, sides, strict=True)
    ]
