# SPDX-License-Identifier: MIT
"""Encoder: every token attends to every token of its sequence; one pass, nothing cached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers.feed_forward import FeedForward
from fastattn.layers.multi_head import MultiHeadAttention
from fastattn.layers.residual import Transform, residual


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """Self-attention and a feed-forward layer, each within a residual connection.

    Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

    Parameters
    ----------
    attention : MultiHeadAttention
    feed_forward : FeedForward, or any callable from (..., features) to the same shape
    attention_norm, feed_forward_norm : callable, optional
        `LayerNorm` or `RMSNorm`. Default: none.
    norm_first : bool
        Pre norm, ``x + f(norm(x))``; else post norm, ``norm(x + f(x))``.
    """

    attention: MultiHeadAttention
    feed_forward: FeedForward | Transform
    attention_norm: Transform | None = None
    feed_forward_norm: Transform | None = None
    norm_first: bool = False

    def __post_init__(self) -> None:
        options.flag("norm_first", self.norm_first)

    def __call__(
        self, x: npt.NDArray, *, need_weights: bool = False, **attention_options: Any
    ) -> Any:
        """Return the layer's output of x.

        Parameters
        ----------
        x : ndarray, (..., tokens, D_model), or (tokens, D_model) packed by `cu_seqlens`
        need_weights : bool
            Also return the attention pattern.
        **attention_options
            Of the call of `MultiHeadAttention`: lengths, attn_mask, cu_seqlens, positions,
            attention, num_threads.

        Returns
        -------
        y : ndarray, shape of x
        weights : ndarray, (..., heads, tokens, tokens)
            With `need_weights`.
        """
        patterns = []

        def attend(h):
            out = self.attention(h, need_weights=need_weights, **attention_options)
            if need_weights:
                out, pattern = out
                patterns.append(pattern)
            return out

        x = residual(x, attend, self.attention_norm, self.norm_first)
        x = residual(x, self.feed_forward, self.feed_forward_norm, self.norm_first)
        return (x, patterns[0]) if need_weights else x


@dataclass(frozen=True, eq=False)
class Encoder:
    """Encoder layers one after the other.

    Parameters
    ----------
    layers : sequence of EncoderLayer
    norm : callable, optional
        After the last layer, as pre norm needs it.
    """

    layers: Sequence[EncoderLayer]
    norm: Callable[[npt.NDArray], npt.NDArray] | None = None

    def __call__(
        self, x: npt.NDArray, *, need_weights: bool = False, **attention_options: Any
    ) -> Any:
        """Return the output of the last layer.

        Parameters
        ----------
        x, need_weights, **attention_options
            As in `EncoderLayer`.

        Returns
        -------
        y : ndarray, shape of x
        weights : list of ndarray, (..., heads, tokens, tokens)
            With `need_weights`: the attention pattern of each layer.
        """
        patterns = []
        for layer in self.layers:
            x = layer(x, need_weights=need_weights, **attention_options)
            if need_weights:
                x, pattern = x
                patterns.append(pattern)
        if self.norm is not None:
            x = self.norm(x)
        return (x, patterns) if need_weights else x
