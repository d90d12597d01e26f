# SPDX-License-Identifier: MIT
"""Sequences of different lengths as one array: padded to the longest, or packed end to end."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check

Ids = npt.NDArray | Sequence[int] | Sequence[Sequence[int]] | Sequence[npt.NDArray]


def sequences(name: str, ids: Ids) -> tuple[list[npt.NDArray], bool]:
    """Return token ids as a list of sequences, and whether they came as one alone.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    ids : array of int (tokens,) or (batch, tokens), or sequence of such rows of any lengths

    Returns
    -------
    rows : list of ndarray, (tokens,)
    alone : bool

    Raises
    ------
    ValueError
        There is no sequence, or one of them has no token.
    """
    ids = _listed(name, ids)
    if isinstance(ids, np.ndarray) and ids.ndim > 2:
        raise ValueError(f"{name}: expected shape (tokens,) or (batch, tokens), got {ids.shape}")
    alone = (isinstance(ids, np.ndarray) and ids.ndim == 1) or (
        not isinstance(ids, np.ndarray) and len(ids) > 0 and np.ndim(ids[0]) == 0
    )
    rows = [_check.indices(name, row) for row in ([ids] if alone else ids)]
    if not rows:
        raise ValueError(f"{name}: expected at least one sequence, got none")
    for index, row in enumerate(rows):
        if row.ndim != 1 or row.size == 0:
            where = name if alone else f"{name}[{index}]"
            raise ValueError(f"{where}: expected at least one token, got shape {row.shape}")
    return rows, alone


def pad(rows: Sequence[npt.NDArray], pad_id: int = 0) -> tuple[npt.NDArray, npt.NDArray]:
    """Return sequences as one array, padded behind their ends.

    Parameters
    ----------
    rows : sequence of array of int, (tokens,)
    pad_id : int

    Returns
    -------
    ids : ndarray of int64, (batch, longest)
    lengths : ndarray of int64, (batch,)

    Raises
    ------
    TypeError
        A row or `pad_id` that is not of integers.
    ValueError
        A row that is not (tokens,), or a number beyond 64 bits.
    """
    rows = _of_int64(rows)
    most = options.LARGEST_INT
    [pad_id] = options.per_batch("pad_id", pad_id, (), -most - 1, most).tolist()
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.full((len(rows), lengths.max(initial=0)), pad_id, np.int64)
    for row, target in zip(rows, ids, strict=True):
        target[: len(row)] = row
    return ids, lengths


def pack(rows: Sequence[npt.NDArray]) -> tuple[npt.NDArray, npt.NDArray]:
    """Return sequences end to end, without padding.

    Parameters
    ----------
    rows : sequence of array of int, (tokens,)

    Returns
    -------
    ids : ndarray of int64, (total tokens,)
    cu_seqlens : ndarray of int64, (batch + 1,)
        Sequence b is ids[cu_seqlens[b]:cu_seqlens[b + 1]].

    Raises
    ------
    TypeError
        A row that is not of integers.
    ValueError
        A row that is not (tokens,), or a number beyond 64 bits.
    """
    rows = _of_int64(rows)
    borders = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return np.concatenate([np.empty(0, np.int64), *rows]), borders


def _listed(name, value):
    """Return `value` if it is a sequence, or as an array with axes; raise if it is neither."""
    if isinstance(value, Sequence):
        return value
    value = options.small_array(name, value, "a sequence")
    if value.ndim == 0:
        raise ValueError(f"{name}: expected a sequence, got shape ()")
    return value


def _of_int64(rows):
    """Return the argument `rows` as arrays of int64, (tokens,)."""
    checked = []
    for index, row in enumerate(_listed("rows", rows)):
        name = f"rows[{index}]"
        row = _check.indices(name, row)
        if row.ndim != 1:
            raise ValueError(f"{name}: expected shape (tokens,), got {row.shape}")
        checked.append(options.int64(name, row))
    return checked
