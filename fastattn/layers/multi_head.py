# SPDX-License-Identifier: MIT
"""Multi-head attention with its projections: self and cross, causal, grouped, rotary, cached.

    Q = X W_Q + b_Q    K = C W_K + b_K    V = C W_V + b_V    (C = X for self-attention)
    head_h = softmax(scale Q_h K_h^T + mask) V_h             Y = concat(head_h) W_O + b_O

X is (..., tokens, D_model), one token a row; head h is the h-th group of d_k columns of Q.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import fastattn
from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._attend import attend, attend_cached, attend_packed, check_call
from fastattn.layers._repr import short_repr
from fastattn.layers.cache import Cache, restored_on_error
from fastattn.layers.positions import token_positions
from fastattn.layers.projections import project
from fastattn.layers.rotary import Rotary, Rotation


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """Attention between token vectors: project, attend, project.

    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; grouped heads: Ainslie et al. 2023,
    arXiv:2305.13245. With the first three weights alone it is the single head of the textbooks.

    Parameters
    ----------
    w_q : ndarray, (D_model, heads * d_k)
    w_k : ndarray, (D_context, kv_heads * d_k)
    w_v : ndarray, (D_context, kv_heads * d_v)
        Any d_k and d_v. Weights may be stored narrower than x, as in `linear`.
    w_o : ndarray, (heads * d_v, D_out), optional
        Default: the heads side by side are the result.
    heads : int
    kv_heads : int, optional
        A divisor of `heads`: query head h reads kv head ``h // (heads // kv_heads)``. Default:
        `heads`.
    b_q, b_k, b_v, b_o : ndarray, optional
        Biases of the four projections.
    q_norm, k_norm : callable, optional
        Applied to every head of Q and K, (..., d_k), before they are turned.
    rotary : Rotary, optional
        Turns Q and K by their positions.
    causal : bool
        Query i attends to keys j <= i. Not for cross-attention.
    window_size, scale, softcap, alibi_slopes, sinks
        As in `fastattn.attention`.

    Raises
    ------
    TypeError, ValueError
        Of a wrong type, or shapes that do not fit one another.
    """

    w_q: npt.NDArray
    w_k: npt.NDArray
    w_v: npt.NDArray
    w_o: npt.NDArray | None = None
    heads: int = 1
    kv_heads: int | None = None
    b_q: npt.NDArray | None = None
    b_k: npt.NDArray | None = None
    b_v: npt.NDArray | None = None
    b_o: npt.NDArray | None = None
    q_norm: Callable[[npt.NDArray], npt.NDArray] | None = None
    k_norm: Callable[[npt.NDArray], npt.NDArray] | None = None
    rotary: Rotary | None = None
    causal: bool = False
    window_size: tuple[int | None, int | None] | None = None
    scale: float | None = None
    softcap: float = 0.0
    alibi_slopes: npt.NDArray | None = None
    sinks: npt.NDArray | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", options.integer("heads", self.heads, 1))
        kv_heads = options.integer("kv_heads", self.kv_head_count, 1)
        object.__setattr__(self, "kv_heads", kv_heads)
        if self.heads % self.kv_head_count:
            raise ValueError(f"kv_heads: expected a divisor of {self.heads}, got {self.kv_heads}")
        for name, weight, heads in (
            ("w_q", self.w_q, self.heads),
            ("w_k", self.w_k, self.kv_head_count),
            ("w_v", self.w_v, self.kv_head_count),
        ):
            _check.parameter(name, weight, (None, None))
            if weight.shape[1] % heads:
                expected = f"a multiple of {heads} columns, one group for each head"
                raise ValueError(f"{name}: expected {expected}, got shape {weight.shape}")
        depth = self.w_q.shape[1] // self.heads
        _check.parameter("w_k", self.w_k, (None, self.kv_head_count * depth))
        _check.parameter("w_v", self.w_v, (self.w_k.shape[0], None))
        width = self.heads * (self.w_v.shape[1] // self.kv_head_count)
        _check.optional("w_o", self.w_o, (width, None))
        if self.w_o is None and self.b_o is not None:
            raise ValueError("b_o: expected None without w_o, got an array")
        for name, weight in (("b_q", self.w_q), ("b_k", self.w_k), ("b_v", self.w_v)):
            _check.optional(name, getattr(self, name), (weight.shape[1],))
        _check.optional("b_o", self.b_o, (None if self.w_o is None else self.w_o.shape[1],))
        _check.optional_functions(q_norm=self.q_norm, k_norm=self.k_norm)
        if self.rotary is not None:
            _check.instance("rotary", self.rotary, Rotary)
            dim = self.rotary.rotary_dim
            if depth % 2 if dim is None else dim > depth:
                expected = "an even number of" if dim is None else f"at least {dim}"
                raise ValueError(f"rotary: expected heads of {expected} features, got {depth}")
        _check.scores(self)

    @property
    def kv_head_count(self) -> int:
        """The number of kv heads: `kv_heads`, which type checkers think may be None."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def queries(self, x: npt.NDArray, turn: Rotation | None = None) -> npt.NDArray:
        """Return Q of x, split into heads.

        Parameters
        ----------
        x : ndarray, (..., tokens, D_model)
            float32 or float64.
        turn : Rotation, optional
            For attention with `rotary`: ``rotary.at(positions, d_k)``. Default: of the positions
            0, 1, 2, ...

        Returns
        -------
        ndarray, (..., heads, tokens, d_k)
            A strided view.

        Raises
        ------
        TypeError, ValueError
            Of a wrong type or shape.
        """
        x = _check.tokens("x", x, self.w_q.shape[0])
        turn = self._rotation(None, x) if turn is None else turn
        q = project(x, self.w_q, self.b_q, ("w_q", "b_q"))
        return self._heads(q, self.heads, self.q_norm, turn)

    def keys_values(
        self,
        context: npt.NDArray,
        turn: Rotation | None = None,
        *,
        lengths: npt.NDArray | None = None,
    ) -> tuple[npt.NDArray, npt.NDArray]:
        """Return K and V of a context: what is the same for every query, formed once.

        Parameters
        ----------
        context : ndarray, (..., keys, D_context)
        turn : Rotation, optional
            As in `queries`.
        lengths : array of int, (batch,), optional
            Keys that are real in each sequence, which "dynamic" turns go by; by default all.

        Returns
        -------
        k : ndarray, (..., kv_heads, keys, d_k)
        v : ndarray, (..., kv_heads, keys, d_v)
            Strided views; `fastattn.attention` takes them as they are.

        Raises
        ------
        TypeError, ValueError
            Of a wrong type or shape.
        """
        context = _check.tokens("context", context, self.w_k.shape[0])
        turn = self._rotation(None, context, lengths=lengths) if turn is None else turn
        k = project(context, self.w_k, self.b_k, ("w_k", "b_k"))
        v = project(context, self.w_v, self.b_v, ("w_v", "b_v"))
        k = self._heads(k, self.kv_head_count, self.k_norm, turn)
        return k, self._heads(v, self.kv_head_count, None, None)

    @staticmethod
    def _heads(projected, heads, norm, turn):
        """View (..., tokens, heads * depth) as (..., heads, tokens, depth), normed and turned."""
        *lead, tokens, width = projected.shape
        split = projected.reshape(*lead, tokens, heads, width // heads)
        if norm is not None:
            split = norm(split)
        split = split.swapaxes(-3, -2)
        if turn is None:
            return split
        _check.instance("turn", turn, Rotation)
        return turn.apply(split)

    def __call__(
        self,
        x: npt.NDArray,
        context: npt.NDArray | None = None,
        *,
        keys_values: tuple[npt.NDArray, npt.NDArray] | None = None,
        cache: Cache | None = None,
        cu_seqlens: npt.NDArray | None = None,
        positions: npt.NDArray | Rotation | None = None,
        lengths: npt.NDArray | None = None,
        q_offset: int | npt.NDArray | None = None,
        attn_mask: npt.NDArray | None = None,
        need_weights: bool = False,
        attention: Callable[..., Any] | None = None,
        num_threads: int | None = None,
    ) -> Any:
        """Attend from every token of x to its context.

        Parameters
        ----------
        x : ndarray, (..., tokens, D_model)
            float32 or float64.
        context : ndarray, (..., keys, D_context), optional
            Of cross-attention. Default: x itself, self-attention.
        keys_values : (ndarray, ndarray), optional
            Instead of `context`: what the method `keys_values` made of it.
        cache : Cache, optional
            Self-attention step by step: K and V of x are appended, and x attends to all that is
            there. The first token of x is at position ``cache.lengths``.
        cu_seqlens : array of int, (sequences + 1,), optional
            x is packed, (tokens, D_model): sequence b is rows cu_seqlens[b] to cu_seqlens[b + 1],
            and attends to itself alone.
        positions : array of int (tokens,) or (batch, tokens), or Rotation, optional
            For `rotary`; a Rotation is what ``rotary.at(positions, d_k)`` gave, formed once for all
            layers. Default: 0, 1, 2, ... behind the cache, and from 0 in each packed sequence.
            Masks go by the place of a token, not by this. The length that "dynamic" scaling looks
            at is the largest of these + 1, sequence by sequence, packed or not; by default padding
            behind `lengths` does not count. (Hugging Face's models take the largest of all rows.)
        lengths : array of int, (batch,), optional
            Tokens that are real in each sequence of the context (of x in self-attention): what is
            behind them is never read. Rows of the result behind them mean nothing.
        q_offset : int or array of int (batch,), optional
            Of cross-attention: the position of the first token of x, for `rotary`, `window_size`
            and `alibi_slopes`. Default: 0.
        attn_mask : ndarray, optional
            Rank 0 to 4, against (batch, heads, tokens, keys): bool (True = attend) or float, added.
            With a cache its keys are all that the cache has room for.
        need_weights : bool
            Also return the attention pattern.
        attention : callable, optional
            In place of `fastattn.attention`, to compare; of the same meaning, such as
            `fastattn.reference.attention`.
        num_threads : int, optional
            Of the attention.

        Returns
        -------
        y : ndarray, (..., tokens, D_out)
        weights : ndarray, (..., heads, tokens, keys)
            With `need_weights`: row i is what token i took from each key. Rows sum to 1 (less with
            `sinks`), or are 0 where nothing is allowed.

        Raises
        ------
        TypeError
            A wrong type, or activations or weights of dtypes that do not go together.
        ValueError
            A combination that means nothing, such as a cache for cross-attention; a wrong shape.
            The cache holds what it held before, whatever is raised.
        """
        x = _check.tokens("x", x, self.w_q.shape[0])
        cross = context is not None or keys_values is not None
        check_call(
            self.causal, x, need_weights, context=context, keys_values=keys_values, cache=cache,
            cu_seqlens=cu_seqlens, attn_mask=attn_mask, lengths=lengths, q_offset=q_offset,
            attention=attention,
        )  # fmt: skip
        context = self._checked_context(x, context, keys_values, lengths)
        if cu_seqlens is not None:
            cu_seqlens = _check.packing("cu_seqlens", cu_seqlens, len(x))
        past = self._past(x, cache, q_offset)
        turn = self._rotation(positions, x, past, cu_seqlens, None if cross else lengths)
        here = {"kv_lengths": "lengths"}
        if keys_values is not None:
            here |= {"k": "keys_values[0]", "v": "keys_values[1]"}
        if context is not None:
            keys_values = self.keys_values(context, lengths=lengths)
        elif keys_values is None:
            keys_values = self.keys_values(x, turn)
        q = self.queries(x, turn)
        k, v = keys_values
        call = self._options(attn_mask, num_threads)
        if cache is not None:
            call["q_offset"] = past
            with restored_on_error([cache]):
                out, weights = attend_cached(cache, q, k, v, lengths, need_weights, call)
                y = self._output(out, x.dtype)
            return (y, weights) if need_weights else y
        if cu_seqlens is not None:
            out, weights = attend_packed(q, k, v, cu_seqlens, attention, call), None
        else:
            if lengths is not None or cross:
                # Token i of x is at position i, however short the context is.
                call["q_offset"] = 0 if q_offset is None else q_offset
            if lengths is not None and not cross:
                lengths = options.per_batch("lengths", lengths, x.shape[:-2], 0, x.shape[-2])
            if lengths is not None:
                call["kv_lengths"] = lengths
            with _check.renamed(**here):
                out = attend(attention, q, k, v, call)
            weights = fastattn.attention_weights(q, k, **call) if need_weights else None
        y = self._output(out, x.dtype)
        return (y, weights) if need_weights else y

    def _options(self, attn_mask, num_threads):
        """Return the options of `fastattn.attention` that are not the default ones."""
        values = {
            "causal": self.causal or None,
            "window_size": self.window_size,
            "scale": self.scale,
            "softcap": self.softcap or None,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
            "attn_mask": attn_mask,
            "num_threads": num_threads,
        }
        return {name: value for name, value in values.items() if value is not None}

    @staticmethod
    def _past(x, cache, q_offset):
        """Return how many tokens are before those of x in each sequence; None where none are."""
        if cache is not None:
            return cache.lengths.copy()
        if q_offset is None:
            return None
        most = options.LARGEST_OFFSET
        return options.per_batch("q_offset", q_offset, x.shape[:-2], -most, most).reshape(
            x.shape[:-2]
        )

    def _rotation(self, positions, x, past=None, cu_seqlens=None, lengths=None):
        """Return the turns of x's tokens, or None for attention without `rotary`."""
        if self.rotary is None:
            if positions is not None:
                raise ValueError("positions: expected None without rotary, got an argument")
            return None
        depth = self.w_q.shape[1] // self.heads
        if isinstance(positions, Rotation):
            if positions.rotary != self.rotary:
                raise ValueError("positions: expected a Rotation made by this layer's rotary")
            if positions.depth != depth:
                expected = f"a Rotation for heads of {depth} features"
                raise ValueError(f"positions: expected {expected}, got one of {positions.depth}")
            return positions
        by_length = self.rotary.by_length
        if positions is None:
            real = None
            if by_length and lengths is not None:  # neither padding nor another sequence counts
                real = options.per_batch("lengths", lengths, x.shape[:-2], 0, x.shape[-2])
                real = real.reshape(x.shape[:-2])
            positions = token_positions(x.shape[-2], past, cu_seqlens, real)
        return self.rotary.at(positions, depth, cu_seqlens=cu_seqlens if by_length else None)

    def _output(self, out, dtype):
        """Project the heads (..., heads, tokens, d_v), side by side, by W_O."""
        # A view: attention lays its result out in q's memory order, which is tokens before heads.
        beside = out.astype(dtype, copy=False).swapaxes(-3, -2)
        *lead, heads, depth = beside.shape
        beside = beside.reshape(*lead, heads * depth)
        if self.w_o is None:
            return beside
        return project(beside, self.w_o, self.b_o, ("w_o", "b_o"))

    def _checked_context(self, x, context, keys_values, lengths):
        """Return the context as an array, or None; raise unless it goes with x."""
        if keys_values is not None:
            _check.pair("keys_values", keys_values)
        if context is not None:
            context = _check.tokens("context", context, self.w_k.shape[0])
            if context.dtype != x.dtype:
                expected = f"dtype {x.dtype.name} like x"
                raise TypeError(f"context: expected {expected}, got {context.dtype.name}")
            _check.broadcasts("context", context, x.shape[:-2])
            if lengths is not None and self.rotary is not None and self.rotary.by_length:
                # Turned by lengths that differ, even one context for all is another for each.
                with contextlib.suppress(ValueError):  # which the attention says better
                    context = np.broadcast_to(context, (*x.shape[:-2], *context.shape[-2:]))
        return context
