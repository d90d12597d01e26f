# SPDX-License-Identifier: MIT
"""Rotary position embedding: pairs of features turn by an angle that grows with the position.

``(a, b) -> (a cos t - b sin t, a sin t + b cos t)``, t = position * frequency of the pair; so that
q_i . k_j depends on i - j alone (Su et al. 2021, arXiv:2104.09864, section 3.2.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn._check_varlen import cut_points
from fastattn._rotary import turned
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.rotary_scaling import even, rotary_frequencies


def rotary_embedding(
    x: npt.NDArray,
    positions: npt.NDArray,
    *,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> npt.NDArray:
    """Turn queries or keys by their positions.

    Parameters
    ----------
    x : ndarray, (..., tokens, depth)
        Queries or keys, float32 or float64; any strides.
    positions : array of int, (tokens,) or (batch, tokens)
        A batch axis goes with x's first axis.
    base : float
        Frequency of pair i is ``base^(-2i / rotary_dim)``; greater than 1.
    scaling : mapping, optional
        What stretches a model beyond the length it was trained for, in the words of Hugging Face's
        config.json: ``{"rope_type": "linear" | "ntk" | "dynamic" | "yarn" | "llama3", ...}``, see
        `rotary_frequencies`.
    interleaved : bool
        False pairs feature i with i + rotary_dim / 2 (GPT-NeoX, Llama in Hugging Face's files);
        True pairs 2i with 2i + 1 (the paper, GPT-J, Llama in Meta's files).
    rotary_dim : int, optional
        Turn the first `rotary_dim` features only; even. Default: all.

    Returns
    -------
    ndarray, (..., tokens, depth)
        In x's memory order. Angles are formed in float64.

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or positions or a setting of a wrong type.
    ValueError
        Positions that do not go with x, or a setting out of range.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0]])
    >>> rotary_embedding(x, np.array([2])).round(3)  # cos 2, sin 2
    array([[-0.416,  0.909]])
    """
    rotary = Rotary(base, scaling, interleaved, rotary_dim)
    x = _check.tokens("x", x)
    with _check.renamed(depth="x.shape[-1]"):
        return rotary.at(positions, x.shape[-1]).apply(x)


@dataclass(frozen=True)
class Rotary:
    """The settings of `rotary_embedding`, which a model has once.

    Parameters
    ----------
    base, scaling, interleaved, rotary_dim
        As in `rotary_embedding`.

    Raises
    ------
    TypeError, ValueError
        A setting of a wrong type or out of range, as of `rotary_frequencies`.
    """

    base: float = 10000.0
    scaling: Mapping[str, Any] | None = field(default=None, hash=False)  # a dict has no hash
    interleaved: bool = False
    rotary_dim: int | None = None

    def __post_init__(self) -> None:
        options.flag("interleaved", self.interleaved)
        if self.rotary_dim is not None:
            most = options.LARGEST_OFFSET
            even("rotary_dim", options.integer("rotary_dim", self.rotary_dim, 2, most))
        rotary_frequencies(self.rotary_dim or 2, self.base, self.scaling)  # checks the two

    @property
    def by_length(self) -> bool:
        """Whether turns depend on the length of the sequence: those of "dynamic" do."""
        scaling = self.scaling or {}
        return scaling.get("rope_type", scaling.get("type")) == "dynamic"

    def at(
        self, positions: npt.NDArray, depth: int, *, cu_seqlens: npt.NDArray | None = None
    ) -> "Rotation":
        """Return the turns at `positions`, for all queries and keys of this depth there.

        A model forms them once and gives them to each of its layers.

        Parameters
        ----------
        positions : array of int, (tokens,) or (batch, tokens)
            From -2^53 to 2^53, where angles are exact in float64.
        depth : int
            Features of a head.
        cu_seqlens : array of int, (sequences + 1,), optional
            Borders of packed sequences, whose positions (tokens,) are then.

        Returns
        -------
        Rotation

        Raises
        ------
        TypeError
            positions or depth are no integers.
        ValueError
            positions without an axis, out of range, or not those of `cu_seqlens`; or depth is below
            `rotary_dim`, or odd without it.
        """
        positions = _check.indices("positions", positions)
        if positions.ndim < 1:
            raise ValueError("positions: expected shape (tokens,) or (batch, tokens), got ()")
        most = options.LARGEST_OFFSET
        _check.in_range("positions", positions, most + 1, -most)
        positions = options.int64("positions", positions)  # uint64 and 1 would make float64
        depth = options.integer("depth", depth, 1, most)
        dim = even("depth", depth) if self.rotary_dim is None else self.rotary_dim
        if dim > depth:
            raise ValueError(f"rotary_dim: expected at most {depth}, the features, got {dim}")
        lengths = _lengths(positions, cu_seqlens)
        frequencies, size = rotary_frequencies(dim, self.base, self.scaling, length=lengths)
        angle = positions[..., None] * frequencies
        return Rotation(self, depth, size * np.cos(angle), size * np.sin(angle))


def _lengths(positions, cu_seqlens):
    """Return the largest position + 1, (..., 1), or if packed that of each token's sequence."""
    if cu_seqlens is None:
        return positions.max(axis=-1, initial=0, keepdims=True) + np.int64(1)
    cuts = cut_points("cu_seqlens", cu_seqlens)
    if positions.shape != (cuts[-1],):
        raise ValueError(f"positions: expected shape ({cuts[-1]},), got {positions.shape}")
    sizes = np.diff(cuts)
    there = sizes > 0
    largest = np.maximum.reduceat(positions, cuts[:-1][there]).clip(0)
    return np.repeat(largest + np.int64(1), sizes[there])


@dataclass(frozen=True, eq=False)
class Rotation:
    """Turns at given positions, made by `Rotary.at`.

    Parameters
    ----------
    rotary : Rotary
    depth : int
        Features of the heads that it turns.
    cos, sin : ndarray, (..., tokens, rotary_dim / 2)
        float64.

    Raises
    ------
    TypeError, ValueError
        Of a wrong type, or shapes that do not fit one another.
    """

    rotary: Rotary
    depth: int
    cos: npt.NDArray
    sin: npt.NDArray

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.instance("rotary", self.rotary, Rotary)
        options.integer("depth", self.depth, 1)
        dim = self.depth if self.rotary.rotary_dim is None else self.rotary.rotary_dim
        if dim > self.depth:
            raise ValueError(f"depth: expected at least the rotary_dim {dim}, got {self.depth}")
        lead = options.array("cos", self.cos).shape[:-1] or (None,)
        for name, value in ("cos", self.cos), ("sin", self.sin):
            value = _check.parameter(name, value, (*lead, dim // 2))
            if value.dtype != np.float64:
                raise TypeError(f"{name}: expected dtype float64, got {value.dtype.name}")

    def apply(self, x: npt.NDArray) -> npt.NDArray:
        """Turn queries or keys.

        Parameters
        ----------
        x : ndarray, (..., tokens, depth)
            float32 or float64; any strides. With positions (batch, tokens), its first axis is
            batch, or that of the positions has size 1.

        Returns
        -------
        ndarray, (..., tokens, depth)
            In x's memory order.

        Raises
        ------
        TypeError, ValueError
            Of a wrong type, or a shape that does not go with the positions or `depth`.
        """
        x = _check.tokens("x", x, self.depth)
        *lead, tokens, half = self.cos.shape
        fits = x.ndim >= len(lead) + 2 and x.shape[-2] == tokens
        if not fits or any(n not in (1, m) for n, m in zip(lead, x.shape, strict=False)):
            raise ValueError(
                f"positions: expected shape ({x.shape[-2]},) or (batch, {x.shape[-2]}) for x of "
                f"shape {x.shape}, got {self.cos.shape[:-1]}"
            )
        shape = (*lead, *(1,) * (x.ndim - 2 - len(lead)), tokens, half)
        cos, sin = (part.astype(x.dtype).reshape(shape) for part in (self.cos, self.sin))
        return turned(x, cos, sin, self.rotary.interleaved)
