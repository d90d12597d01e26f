# SPDX-License-Identifier: MIT
"""Decoder: a token attends to those before it, and to the memory that an encoder made, if any."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.caches import KVCache
from fastattn.caches.base import DType
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.cache import Cache, check_caches, restored_on_error
from fastattn.layers.feed_forward import FeedForward
from fastattn.layers.multi_head import MultiHeadAttention
from fastattn.layers.residual import Transform, residual
from fastattn.layers.rotary import Rotation

KeysValues = tuple[npt.NDArray, npt.NDArray]


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """Causal self-attention, cross-attention if there is a memory, and a feed-forward layer.

    Vaswani et al. 2017, arXiv:1706.03762, section 3.1; without cross-attention it is the layer of
    a language model.

    Parameters
    ----------
    self_attention : MultiHeadAttention
        With ``causal=True``.
    feed_forward : FeedForward, or any callable from (..., features) to the same shape
    cross_attention : MultiHeadAttention, optional
        Its context is the memory.
    self_norm, cross_norm, feed_forward_norm : callable, optional
        `LayerNorm` or `RMSNorm`. Default: none.
    norm_first : bool
        Pre norm, ``x + f(norm(x))``; else post norm, ``norm(x + f(x))``.

    Raises
    ------
    TypeError
        A part that cannot be called, or `norm_first` is no bool.
    ValueError
        Self-attention that is not causal, or cross-attention that is.
    """

    self_attention: MultiHeadAttention
    feed_forward: FeedForward | Transform
    cross_attention: MultiHeadAttention | None = None
    self_norm: Transform | None = None
    cross_norm: Transform | None = None
    feed_forward_norm: Transform | None = None
    norm_first: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        options.flag("norm_first", self.norm_first)
        _check.function("self_attention", self.self_attention)
        _check.function("feed_forward", self.feed_forward)
        _check.optional_functions(
            cross_attention=self.cross_attention, self_norm=self.self_norm,
            cross_norm=self.cross_norm, feed_forward_norm=self.feed_forward_norm,
        )  # fmt: skip
        if not getattr(self.self_attention, "causal", False):
            raise ValueError("self_attention: expected causal attention in a decoder layer")
        if getattr(self.cross_attention, "causal", False):
            raise ValueError("cross_attention: expected attention that is not causal")

    def __call__(
        self,
        x: npt.NDArray,
        memory: npt.NDArray | KeysValues | None = None,
        *,
        cache: Cache | None = None,
        lengths: npt.NDArray | None = None,
        positions: npt.NDArray | Rotation | None = None,
        attn_mask: npt.NDArray | None = None,
        memory_lengths: npt.NDArray | None = None,
        memory_mask: npt.NDArray | None = None,
        need_weights: bool = False,
        num_threads: int | None = None,
    ) -> Any:
        """Return the layer's output of x.

        Parameters
        ----------
        x : ndarray, (..., tokens, D_model)
        memory : ndarray, (..., keys, D_memory), or (k, v), optional
            What the encoder made of the source, or what ``cross_attention.keys_values`` made of
            that, formed once for all steps. Needed exactly with cross-attention.
        cache, lengths, positions, attn_mask
            Of the call of `self_attention`.
        memory_lengths, memory_mask
            `lengths` and `attn_mask` of the call of `cross_attention`.
        need_weights : bool
            Also return the attention patterns.
        num_threads : int, optional
            Of both attentions.

        Returns
        -------
        y : ndarray, shape of x
        weights : tuple of ndarray
            With `need_weights`: the pattern of the self-attention, (..., heads, tokens, keys), and
            that of the cross-attention or None.

        Raises
        ------
        TypeError, ValueError
            As of the call of `MultiHeadAttention`; or a memory without cross-attention, or none
            with it. The cache holds what it held before.
        """
        if (memory is None) != (self.cross_attention is None):
            expected = "None without" if self.cross_attention is None else "an array with"
            raise ValueError(f"memory: expected {expected} cross-attention")
        patterns: list[npt.NDArray | None] = []

        def attend(attention, h, *arguments, **keywords):
            out = attention(
                h, *arguments, need_weights=need_weights, num_threads=num_threads, **keywords
            )
            if need_weights:
                out, pattern = out
                patterns.append(pattern)
            return out

        def attend_to_self(h):
            return attend(
                self.self_attention, h, cache=cache, lengths=lengths, positions=positions,
                attn_mask=attn_mask,
            )  # fmt: skip

        def attend_to_memory(h):
            name = "keys_values" if isinstance(memory, tuple) else "context"
            keywords = {name: memory, "lengths": memory_lengths, "attn_mask": memory_mask}
            if past is not None:
                keywords["q_offset"] = past
            with _check.renamed(
                context="memory", keys_values="memory", lengths="memory_lengths",
                attn_mask="memory_mask",
            ):  # fmt: skip
                return attend(self.cross_attention, h, **keywords)

        with restored_on_error([] if cache is None else [cache]):
            past = None if cache is None else cache.lengths.copy()  # before x joins it
            x = residual("self_attention", x, attend_to_self, self.self_norm, self.norm_first)
            if self.cross_attention is None:
                patterns.append(None)
            else:
                x = residual(
                    "cross_attention", x, attend_to_memory, self.cross_norm, self.norm_first
                )
            x = residual(
                "feed_forward", x, self.feed_forward, self.feed_forward_norm, self.norm_first
            )
        return (x, tuple(patterns)) if need_weights else x


@dataclass(frozen=True, eq=False)
class Decoder:
    """Decoder layers one after the other.

    Parameters
    ----------
    layers : sequence of DecoderLayer
    norm : callable, optional
        After the last layer, as pre norm needs it.

    Raises
    ------
    TypeError
        layers is no sequence, or a part cannot be called.
    ValueError
        There is no layer.
    """

    layers: Sequence[DecoderLayer]
    norm: Callable[[npt.NDArray], npt.NDArray] | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.stack("layers", self.layers)
        if not self.layers:  # whose caches would say how many tokens there were
            raise ValueError("layers: expected at least one layer, got none")
        _check.optional_functions(norm=self.norm)

    def new_caches(self, batch: int, capacity: int, *, dtype: DType = np.float32) -> list[Cache]:
        """Return an empty `fastattn.KVCache` for each layer.

        Parameters
        ----------
        batch : int
        capacity : int
            Tokens of each sequence that there is room for.
        dtype : dtype
            Of the keys and values in it.

        Returns
        -------
        list of KVCache
        """
        caches: list[Cache] = []
        for layer in self.layers:
            each = layer.self_attention
            depth = each.w_k.shape[1] // each.kv_head_count
            value_depth = each.w_v.shape[1] // each.kv_head_count
            caches.append(
                KVCache(
                    batch, each.kv_head_count, depth, value_depth, capacity=capacity, dtype=dtype
                )
            )
        return caches

    def keys_values(
        self, memory: npt.NDArray, *, lengths: npt.NDArray | None = None
    ) -> list[KeysValues]:
        """Return K and V of the memory for each layer, to be formed once for all steps.

        Parameters
        ----------
        memory : ndarray, (..., keys, D_memory)
        lengths : array of int, (batch,), optional
            `memory_lengths` of the calls, which "dynamic" rotary goes by.

        Returns
        -------
        list of (k, v)
        """
        attentions = [layer.cross_attention for layer in self.layers]
        with _check.renamed(context="memory"):
            return [
                each.keys_values(memory, lengths=lengths) for each in attentions if each is not None
            ]

    def __call__(
        self,
        x: npt.NDArray,
        memory: npt.NDArray | list[KeysValues] | None = None,
        *,
        caches: Sequence[Cache] | None = None,
        need_weights: bool = False,
        **layer_options: Any,
    ) -> Any:
        """Return the output of the last layer.

        Parameters
        ----------
        x : ndarray, (..., tokens, D_model)
        memory : ndarray, (..., keys, D_memory), or list of (k, v), optional
            The encoder's output, or what the method `keys_values` made of it.
        caches : sequence of Cache, optional
            One for each layer: x are the tokens behind those in them, (batch, tokens, D_model).
        need_weights : bool
            Also return the attention patterns.
        **layer_options
            Of the call of `DecoderLayer`: lengths, positions, attn_mask, memory_lengths,
            memory_mask, num_threads.

        Returns
        -------
        y : ndarray, shape of x
        weights : list of tuple
            With `need_weights`: the patterns of each layer.

        Raises
        ------
        TypeError, ValueError
            As of the call of `DecoderLayer`, or not one cache or (k, v) for each layer. The
            caches hold what they held before.
        """
        if isinstance(memory, tuple):  # (k, v) is what a single layer takes
            raise TypeError("memory: expected an array or a list of (k, v), got tuple")
        count = len(self.layers)
        check_caches(caches, count)
        if isinstance(memory, list) and len(memory) != count:
            raise ValueError(f"memory: expected {count}, one for each layer, got {len(memory)}")
        patterns = []
        with restored_on_error(caches or ()):
            for index, layer in enumerate(self.layers):
                listed = isinstance(memory, list)
                with _check.of_list("memory", index) if listed else contextlib.nullcontext():
                    x = layer(
                        x,
                        memory[index] if isinstance(memory, list) else memory,
                        cache=None if caches is None else caches[index],
                        need_weights=need_weights,
                        **layer_options,
                    )
                if need_weights:
                    x, pattern = x
                    patterns.append(pattern)
            if self.norm is not None:
                x = self.norm(x)
        return (x, patterns) if need_weights else x
