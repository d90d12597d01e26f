# SPDX-License-Identifier: MIT
"""The activation functions of feed-forward layers, element by element."""

import math

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._blocks import apply_in_blocks

# Phi and phi of the standard normal on a grid of 1/1024 over [-6, 6]. The second derivative of Phi
# is at most 0.25, so a linear step of half a cell is off by at most 3e-8: less than the rounding of
# 1 + erf in float32. Beyond 6 the tail times x is below 6e-9, and left out: the first cell serves
# every x below it, and 1e-9 times that may be any number.
GRID_STEPS = 1024
GRID_LIMIT = 6
_CENTERS = np.arange(-GRID_LIMIT * GRID_STEPS, GRID_LIMIT * GRID_STEPS + 1) / GRID_STEPS
_PHI = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in _CENTERS], np.float32)
_SLOPE = (np.exp(-0.5 * _CENTERS**2) / math.sqrt(2 * math.pi) / GRID_STEPS).astype(np.float32)
_PHI[0] = _SLOPE[0] = 0
_erfc = np.frompyfunc(math.erfc, 1, 1)


def relu(x: npt.NDArray, *, out: npt.NDArray | None = None) -> npt.NDArray:
    """Return ``max(x, 0)`` (Vaswani et al. 2017, arXiv:1706.03762, section 3.3).

    Parameters
    ----------
    x : ndarray, (...)
        float32 or float64.
    out : ndarray, optional
        Where to write, C-contiguous; may be `x` itself.

    Returns
    -------
    ndarray, (...)

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or out of another dtype.
    ValueError
        out is of another shape, not C-contiguous or read-only. Nothing is written.
    """
    return apply_in_blocks(_relu, _check.activations("x", x), out)


def gelu(
    x: npt.NDArray, *, approximate: str = "none", out: npt.NDArray | None = None
) -> npt.NDArray:
    """Return ``x Phi(x)``, Phi the distribution function of the standard normal.

    Hendrycks & Gimpel 2016, arXiv:1606.08415: "none" is exact, ``x (1 + erf(x / sqrt(2))) / 2``;
    "tanh" is ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``, off by up to 5e-4.

    Parameters
    ----------
    x : ndarray, (...)
        float32 or float64 (whose exact form is slow: it calls C's erfc for each element).
    approximate : {"none", "tanh"}
    out : ndarray, optional
        Where to write, C-contiguous; may be `x` itself.

    Returns
    -------
    ndarray, (...)

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or out of another dtype.
    ValueError
        Another `approximate`; or out is of another shape, not C-contiguous or read-only.
        Nothing is written.
    """
    options.choice("approximate", approximate, ("none", "tanh"))
    x = _check.activations("x", x)
    if approximate == "tanh":
        return apply_in_blocks(_gelu_tanh, x, out)
    return apply_in_blocks(_gelu if x.dtype == np.float32 else _gelu_float64, x, out)


def silu(x: npt.NDArray, *, out: npt.NDArray | None = None) -> npt.NDArray:
    """Return ``x / (1 + exp(-x))`` (Hendrycks & Gimpel 2016; "swish", arXiv:1710.05941).

    Parameters
    ----------
    x : ndarray, (...)
        float32 or float64.
    out : ndarray, optional
        Where to write, C-contiguous; may be `x` itself.

    Returns
    -------
    ndarray, (...)

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or out of another dtype.
    ValueError
        out is of another shape, not C-contiguous or read-only. Nothing is written.
    """
    return apply_in_blocks(_silu, _check.activations("x", x), out)


def _relu(x):
    np.maximum(x, 0, out=x)


def _gelu(x):
    step = np.clip(x, -GRID_LIMIT, GRID_LIMIT)
    step *= np.float32(GRID_STEPS)
    cell = np.rint(step)
    step -= cell
    cell += np.float32(GRID_LIMIT * GRID_STEPS)
    with np.errstate(invalid="ignore"):  # NaN has no cell; it comes back through the product with x
        index = cell.astype(np.int32)
    # Phi(c + t) = Phi(c) + phi(c) t
    step *= _SLOPE.take(index, mode="clip")
    step += _PHI.take(index, mode="clip")
    x *= step


def _gelu_float64(x):
    x *= 0.5 * _erfc(x * -math.sqrt(0.5)).astype(np.float64)


def _gelu_tanh(x):
    inner = x * x
    inner *= x.dtype.type(0.044715)
    inner += 1
    inner *= x
    inner *= x.dtype.type(math.sqrt(2 / math.pi))
    np.tanh(inner, out=inner)
    inner += 1
    inner *= x.dtype.type(0.5)
    x *= inner


def _silu(x):
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the limit 0
        divisor = np.exp(-x)
    divisor += 1
    x /= divisor


# The activations by name, as functions that overwrite their argument.
BY_NAME = {
    "relu": lambda x: relu(x, out=x),
    "gelu": lambda x: gelu(x, out=x),
    "gelu_tanh": lambda x: gelu(x, approximate="tanh", out=x),
    "silu": lambda x: silu(x, out=x),
}
