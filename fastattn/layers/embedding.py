# SPDX-License-Identifier: MIT
"""From token ids to token vectors."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.projections import widened


@dataclass(frozen=True, eq=False)
class Embedding:
    """``x = scale E[id] + P[position]`` (Vaswani et al. 2017, arXiv:1706.03762, section 3.4).

    Parameters
    ----------
    table : ndarray, (vocabulary, D_model)
        E. May be stored in 16 bits: vectors come out in float32 then.
    positions : ndarray, (longest, D_model), optional
        P: a learned table, or that of `sinusoidal_positions`. Default: none.
    scale : float
        ``sqrt(D_model)`` in the paper.

    Raises
    ------
    TypeError, ValueError
        A table or scale of a wrong type or shape.
    """

    table: npt.NDArray
    positions: npt.NDArray | None = None
    scale: float = 1.0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.parameter("table", self.table, (None, None))
        _check.optional("positions", self.positions, (None, self.table.shape[1]))
        options.number("scale", self.scale)

    @property
    def dtype(self) -> np.dtype:
        """Of the vectors: float64 for a float64 table, else float32."""
        return np.dtype(np.float64 if self.table.dtype == np.float64 else np.float32)

    def __call__(self, ids: npt.NDArray, positions: npt.NDArray | None = None) -> npt.NDArray:
        """Return the vectors of token ids.

        Parameters
        ----------
        ids : array of int, (..., tokens)
        positions : array of int, (..., tokens), optional
            (tokens,) for the same in every row. Default: 0, 1, 2, ...

        Returns
        -------
        ndarray, (..., tokens, D_model)

        Raises
        ------
        TypeError
            Ids or positions that are no integers.
        ValueError
            Numbers that the tables do not have, or positions of a shape that does not go with ids.
        """
        ids = _check.token_ids("ids", ids, len(self.table))
        if self.positions is not None:
            places = np.arange(ids.shape[-1]) if positions is None else positions
            places = _check.for_tokens("positions", places, ids.shape, len(self.positions))
        x = widened(self.table[ids], self.dtype)
        if self.scale != 1.0:
            x = x * x.dtype.type(self.scale)
        if self.positions is None:
            return x
        return x + widened(self.positions[places], self.dtype)
