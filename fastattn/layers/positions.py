# SPDX-License-Identifier: MIT
"""Where tokens stand, sinusoids that are added to token vectors, and the slopes of ALiBi."""

import math

import numpy as np
import numpy.typing as npt

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options


def sinusoidal_positions(
    length: int,
    dim: int,
    *,
    base: float = 10000.0,
    start: int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> npt.NDArray:
    """Return the sinusoidal encoding of the positions start .. start + length - 1, one a row.

    ``P[p, 2i] = sin(p / base^(2i / dim))`` and ``P[p, 2i+1] = cos(p / base^(2i / dim))``, columns
    counted from 0 (Vaswani et al. 2017, arXiv:1706.03762, section 3.5). Texts that count columns
    from 1 mean the same columns by 2i-1 (sine) and 2i (cosine) with exponent 2(i-1) / dim; texts
    that count tokens from 1 as well mean ``start=1``.

    Parameters
    ----------
    length : int
        At least 0.
    dim : int
        Features, at least 1; of an odd number the last is a sine.
    base : float
        Positive.
    start : int
        Position of the first row, up to 2^53; may be negative.
    dtype : {float32, float64}

    Returns
    -------
    ndarray, (length, dim)

    Raises
    ------
    TypeError
        A number of a wrong type, or another dtype.
    ValueError
        A number out of range.

    Examples
    --------
    >>> sinusoidal_positions(2, 4, start=1).round(3)
    array([[ 0.841,  0.54 ,  0.01 ,  1.   ],
           [ 0.909, -0.416,  0.02 ,  1.   ]], dtype=float32)
    """
    most = options.LARGEST_OFFSET
    length = options.integer("length", length, 0, most)
    dim = options.integer("dim", dim, 1, most)
    start = options.integer("start", start, -most, most)
    base = options.number("base", base)
    if base <= 0:
        raise ValueError(f"base: expected a positive number, got {base:g}")
    dtype = dtypes.named(dtype, ("float32", "float64"))
    position = np.arange(start, start + length, dtype=np.float64)
    angle = np.outer(position, base ** -(np.arange(0, dim, 2) / dim))
    table = np.empty((length, dim), dtype)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : dim // 2])
    return table


def alibi_slopes(heads: int) -> npt.NDArray:
    """Return the slopes of ALiBi, for `alibi_slopes` of `fastattn.attention`.

    Head h of n (a power of two, h from 1) has slope ``2^(-8h / n)``. For another n: the slopes of
    the power of two below it, then every other slope of twice that power (Press et al. 2022,
    arXiv:2108.12409, section 3 and its published code).

    Parameters
    ----------
    heads : int
        At least 1.

    Returns
    -------
    ndarray, (heads,)
        float32.

    Raises
    ------
    TypeError
        heads is no integer.
    ValueError
        heads is out of range.

    Examples
    --------
    >>> alibi_slopes(8)[:3]
    array([0.5  , 0.25 , 0.125], dtype=float32)
    """
    heads = options.integer("heads", heads, 1, options.LARGEST_OFFSET)
    power = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([slopes, between[: heads - power]]).astype(np.float32)


def token_positions(
    tokens: int,
    past: npt.NDArray | None = None,
    cu_seqlens: npt.NDArray | None = None,
    lengths: npt.NDArray | None = None,
) -> npt.NDArray:
    """Return the positions of the tokens of a call.

    Parameters
    ----------
    tokens : int
    past : array of int, (...), optional
        Tokens before them in each sequence.
    cu_seqlens : array of int, (sequences + 1,), optional
        Borders of packed sequences; each begins at 0.
    lengths : array of int, (...), optional
        Tokens that are real in each sequence. Those behind are at 0: a place that every table has,
        and never the largest, which "dynamic" rotary looks at.

    Returns
    -------
    ndarray of int64, (tokens,), or (..., tokens) with `past` or `lengths`
    """
    order = np.arange(tokens)
    if cu_seqlens is not None:
        return order - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
    places = order if past is None else np.asarray(past)[..., None] + order
    return places if lengths is None else np.where(order < lengths[..., None], places, 0)
