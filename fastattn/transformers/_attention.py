# SPDX-License-Identifier: MIT
"""The attention function that `register` registers."""

import torch

import fastattn
import fastattn.torch as ft
from fastattn.torch._tensors import array, tensor
from fastattn.transformers import _masks


def attend(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None,
    sliding_window=None, softcap=None, s_aux=None, position_bias=None, cu_seq_lens_q=None,
    cu_seq_lens_k=None, cache=None, **kwargs,
):  # fmt: skip
    """Attention of one layer of a Hugging Face model.

    Parameters
    ----------
    module : torch.nn.Module
        The layer; its ``is_causal`` counts where the argument is None and there is no mask.
    query, key, value : Tensor
        (B, Hq, L, D), (B, Hkv, S, D), (B, Hkv, S, Dv): grouped heads are not repeated.
    attention_mask : Tensor or None
        What the mask function made, or a table (B, H, L, S) of bool or float. It says everything
        about causality and windows. Where it is None, `is_causal` and `sliding_window` do.
    dropout : float
        Must be 0.
    scaling, softcap, s_aux, position_bias
        Scale, softcap, sinks and an additive bias (1 or B, H, L, S).
    is_causal : bool, optional
        Aligned at the top left, as in torch; a single query stands at the end. Default: that of
        the layer, True if it has none. Without effect beside a mask.
    sliding_window : int, optional
        At least 1: a query sees the keys fewer than so many places from its own. Without effect
        beside a mask.
    cu_seq_lens_q, cu_seq_lens_k : Tensor, optional
        Where packed sequences begin and end, if there is no mask to say so.
    cache : None
        A paged cache, of continuous batching, is refused.
    **kwargs
        ``output_attentions``, and what other implementations look at: positions and the like.

    Returns
    -------
    out : Tensor, (B, L, Hq, Dv)
    weights : Tensor, (B, Hq, L, S), or None
        With ``output_attentions=True`` the whole table, made for looking at; it has no gradient.

    Raises
    ------
    NotImplementedError
        Dropout, continuous batching with its paged cache, ``output_attentions=True`` or
        `position_bias` with `cu_seq_lens_q` and no mask, or what sparse models and such with sinks
        for each query pass: ``indices``, ``block_indices``, ``sinks``.
    TypeError, ValueError
        As `fastattn.torch.attention`; a mask of another dtype or shape; or `sliding_window` below 1
        where it has an effect.
    """
    _refuse(dropout, cache, kwargs)
    options = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    wanted = kwargs.get("output_attentions", False)
    dense = wanted or position_bias is not None
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options |= _without_mask(query, key, causal, sliding_window, cu_seq_lens_q, cu_seq_lens_k)
    elif isinstance(attention_mask, _masks.CompactMask):
        options |= _masks.decode(attention_mask, query.shape[2], key.shape[2], dense)
    else:
        options["attn_mask"] = _table(attention_mask)
    if position_bias is not None:
        options["attn_mask"] = _with_bias(position_bias, options.get("attn_mask"))
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    if "cu_seqlens_q" not in options:
        weights = _weights(query, key, options) if wanted else None
        return ft.attention(query, key, value, layout="bshd", **options), weights
    if dense:
        name = "output_attentions" if wanted else "position_bias"
        raise NotImplementedError(f"{name}: expected nothing with cu_seq_lens_q, got a value")
    return _attend_packed(query, key, value, options), None


def _refuse(dropout, cache, options):
    """Raise for what is not supported, which `options` has under the names of models."""
    if dropout:
        raise NotImplementedError(
            f"dropout: expected 0, got {dropout} (put the model in eval mode)"
        )
    if cache is not None:
        raise NotImplementedError(
            f"cache: expected None, got {type(cache).__name__} (there is no continuous batching)"
        )
    for name in "indices", "block_indices", "sinks":
        if options.get(name) is not None:
            raise NotImplementedError(
                f"{name}: expected None, got a value (this model has keys or sinks of its own for "
                "each query, which fastattn does not support: use attn_implementation='eager')"
            )


def _table(mask):
    """A mask that a model or the user made, or made out of ours."""
    shape = tuple(mask.shape)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            "attention_mask: expected a table (B, H, L, S) of bool or float, or what the mask "
            f"function of fastattn made, got {mask.dtype} of shape {shape}"
        )
    if mask.ndim != 4:
        raise ValueError(f"attention_mask: expected shape (B, H, L, S), got {shape}")
    return mask


def _without_mask(query, key, causal, sliding_window, cu_seq_lens_q, cu_seq_lens_k):
    """Options of a call that says by arguments what it may see."""
    options = {"causal": True} if causal else {}
    if sliding_window is not None:
        if sliding_window < 1:
            raise ValueError(f"sliding_window: expected at least 1 or None, got {sliding_window}")
        options["window_size"] = sliding_window - 1, sliding_window - 1
    if cu_seq_lens_q is not None:
        return options | {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": cu_seq_lens_k}
    # A single query stands at the end, where it sees everything before it.
    if options and query.shape[2] not in (1, key.shape[2]):
        options["q_offset"] = 0
    return options


def _with_bias(bias, table):
    """One mask for a bias and a table; the bias alone where the mask is no table."""
    if table is None:
        return bias
    if table.dtype == torch.bool:
        return bias.masked_fill(~table, -torch.inf)
    return bias + table


def _weights(query, key, options):
    """The table of weights of a call, which `attention` itself never makes."""
    options = {name: array(name, value) for name, value in options.items()}
    query, key = array("query", query), array("key", key)
    return tensor(fastattn.attention_weights(query, key, layout="bshd", **options))


def _attend_packed(query, key, value, options):
    """Attention of sequences that lie one behind the other along the rows of a batch."""
    batch, length = query.shape[:2]
    query, key, value = (each.flatten(0, 1) for each in (query, key, value))
    return ft.attention_varlen(query, key, value, **options).unflatten(0, (batch, length))
