# SPDX-License-Identifier: MIT
"""Encoder: every token attends to every token of its sequence; one pass, nothing cached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.feed_forward import FeedForward
from fastattn.layers.multi_head import MultiHeadAttention
from fastattn.layers.residual import Transform, residual
from fastattn.layers.rotary import Rotation


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

    Raises
    ------
    TypeError
        A part that cannot be called, or `norm_first` is no bool.
    """

    attention: MultiHeadAttention
    feed_forward: FeedForward | Transform
    attention_norm: Transform | None = None
    feed_forward_norm: Transform | None = None
    norm_first: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        options.flag("norm_first", self.norm_first)
        _check.function("attention", self.attention)
        _check.function("feed_forward", self.feed_forward)
        _check.optional_functions(
            attention_norm=self.attention_norm, feed_forward_norm=self.feed_forward_norm
        )

    def __call__(
        self,
        x: npt.NDArray,
        *,
        lengths: npt.NDArray | None = None,
        attn_mask: npt.NDArray | None = None,
        cu_seqlens: npt.NDArray | None = None,
        positions: npt.NDArray | Rotation | None = None,
        need_weights: bool = False,
        attention: Callable[..., Any] | None = None,
        num_threads: int | None = None,
    ) -> Any:
        """Return the layer's output of x.

        Parameters
        ----------
        x : ndarray, (..., tokens, D_model), or (tokens, D_model) packed by `cu_seqlens`
        lengths, attn_mask, cu_seqlens, positions, attention, num_threads
            Of the call of `MultiHeadAttention`.
        need_weights : bool
            Also return the attention pattern.

        Returns
        -------
        y : ndarray, shape of x
        weights : ndarray, (..., heads, tokens, tokens)
            With `need_weights`.

        Raises
        ------
        TypeError, ValueError
            As of the call of `MultiHeadAttention`, or a part changes shape or dtype.
        """
        patterns = []

        def attend(h):
            out = self.attention(
                h, lengths=lengths, attn_mask=attn_mask, cu_seqlens=cu_seqlens,
                positions=positions, need_weights=need_weights, attention=attention,
                num_threads=num_threads,
            )  # fmt: skip
            if need_weights:
                out, pattern = out
                patterns.append(pattern)
            return out

        x = residual("attention", x, attend, self.attention_norm, self.norm_first)
        x = residual("feed_forward", x, self.feed_forward, self.feed_forward_norm, self.norm_first)
        return (x, patterns[0]) if need_weights else x


@dataclass(frozen=True, eq=False)
class Encoder:
    """Encoder layers one after the other.

    Parameters
    ----------
    layers : sequence of EncoderLayer
    norm : callable, optional
        After the last layer, as pre norm needs it.

    Raises
    ------
    TypeError
        layers is no sequence, or a part cannot be called.
    """

    layers: Sequence[EncoderLayer]
    norm: Callable[[npt.NDArray], npt.NDArray] | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.stack("layers", self.layers)
        _check.optional_functions(norm=self.norm)

    def __call__(self, x: npt.NDArray, *, need_weights: bool = False, **layer_options: Any) -> Any:
        """Return the output of the last layer.

        Parameters
        ----------
        x, need_weights, **layer_options
            Of the call of `EncoderLayer`.

        Returns
        -------
        y : ndarray, shape of x
        weights : list of ndarray, (..., heads, tokens, tokens)
            With `need_weights`: the attention pattern of each layer.

        Raises
        ------
        TypeError, ValueError
            As of the call of `EncoderLayer`.
        """
        patterns = []
        for layer in self.layers:
            x = layer(x, need_weights=need_weights, **layer_options)
            if need_weights:
                x, pattern = x
                patterns.append(pattern)
        if self.norm is not None:
            x = self.norm(x)
        return (x, patterns) if need_weights else x
