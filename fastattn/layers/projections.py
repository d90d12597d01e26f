# SPDX-License-Identifier: MIT
"""The linear map of token vectors, in row-vector convention: one token a row, y = x W + b.

Frameworks store the transpose, (outputs, inputs); pass its view ``weight.T``, which costs nothing.
"""

import math

import numpy as np
import numpy.typing as npt

from fastattn.layers import _check

# Elements of a narrow weight that are widened at a time: 1 MB of float32, so that the product
# reads them from the level 2 cache and a whole wide copy never exists.
WIDE_BLOCK = 1 << 18


def linear(x: npt.NDArray, weight: npt.NDArray, bias: npt.NDArray | None = None) -> npt.NDArray:
    """Project token vectors: ``y = x W + b``, by NumPy's BLAS.

    Parameters
    ----------
    x : ndarray, (..., inputs)
        float32 or float64.
    weight : ndarray, (inputs, outputs)
        Of x's dtype, or narrower (float16 and bfloat16 too): a narrow weight stays as it is, and
        is widened block by block while it is used.
    bias : ndarray, (outputs,), optional

    Returns
    -------
    ndarray, (..., outputs)
        Of x's dtype, C-contiguous.

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or a weight is wider than x.
    ValueError
        A shape does not fit.
    """
    return project(x, weight, bias, ("weight", "bias"))


def project(
    x: npt.NDArray, weight: npt.NDArray, bias: npt.NDArray | None, names: tuple[str, str]
) -> npt.NDArray:
    """Return `linear` of the three, with messages that call weight and bias by `names`."""
    weight_name, bias_name = names
    x = _check.activations("x", x)
    weight = _check.parameter(weight_name, weight, (x.shape[-1], None))
    _check.not_wider(weight_name, weight, x.dtype)
    if bias is not None:
        bias = _check.parameter(bias_name, bias, (weight.shape[1],))
        _check.not_wider(bias_name, bias, x.dtype)
    # As one matrix: NumPy would call BLAS once for each leading index, reading `weight` each time.
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out = np.empty((len(rows), weight.shape[1]), x.dtype)
    if weight.dtype == x.dtype:
        np.matmul(rows, weight, out=out)
    else:
        _multiply_by_blocks(rows, weight, out)
    if bias is not None:
        out += bias.astype(x.dtype, copy=False)
    return out.reshape(*x.shape[:-1], weight.shape[1])


def _multiply_by_blocks(rows, weight, out):
    """Write rows @ weight to `out`, widening as many columns of `weight` as fit the cache."""
    columns = max(1, WIDE_BLOCK // max(1, len(weight)))  # without inputs the product is 0
    for begin in range(0, weight.shape[1], columns):
        part = slice(begin, begin + columns)
        np.matmul(rows, widened(weight[:, part], out.dtype), out=out[:, part])


def widened(stored: npt.NDArray, dtype: npt.DTypeLike) -> npt.NDArray:
    """Return `stored` as `dtype`, float32 or float64: itself, or a copy where it is narrower."""
    if stored.dtype == np.float16 and dtype == np.float32:
        return _widened_half(stored)
    return stored.astype(dtype, copy=False)


def _widened_half(stored):
    """Return float16 as float32, four times as fast as NumPy's conversion, element by element.

    The bits of a float16, moved up by 13, are those of a float32 that is 2**112 too small, for
    subnormal numbers too: one exact product puts it right. Only infinity and NaN come out finite.
    """
    bits = np.left_shift(stored.view(np.int16), 13, dtype=np.int32)
    bits &= np.int32(-0x70002000)  # 0x8fffe000: without the copies of the sign above the exponent
    wide = bits.view(np.float32)
    wide *= np.float32(2.0**112)
    special = np.abs(wide) >= 65536
    if special.any():
        wide[special] = stored[special]
    return wide
