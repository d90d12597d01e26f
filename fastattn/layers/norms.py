# SPDX-License-Identifier: MIT
"""Normalization of token vectors, each by itself over its features."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._blocks import apply_in_blocks
from fastattn.layers._repr import short_repr


def layer_norm(
    x: npt.NDArray,
    weight: npt.NDArray | None = None,
    bias: npt.NDArray | None = None,
    *,
    eps: float = 1e-5,
) -> npt.NDArray:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis.

    Ba et al. 2016, arXiv:1607.06450. The variance is that of the features themselves (divided by
    their number).

    Parameters
    ----------
    x : ndarray, (..., features)
        float32 or float64.
    weight, bias : ndarray, (features,), optional
        Default 1 and 0.
    eps : float
        At least 0.

    Returns
    -------
    ndarray, (..., features)

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or a parameter is wider than x.
    ValueError
        A shape does not fit, or eps is below 0.
    """
    x, (weight, bias), eps = _arguments(x, eps, weight=weight, bias=bias)

    def normalize(rows):
        rows -= rows.mean(-1, keepdims=True)
        rows /= np.sqrt(_mean_square(rows) + eps)
        if weight is not None:
            rows *= weight
        if bias is not None:
            rows += bias

    return apply_in_blocks(normalize, x, width=x.shape[-1])


def rms_norm(
    x: npt.NDArray, weight: npt.NDArray | None = None, *, eps: float = 1e-6
) -> npt.NDArray:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last axis.

    Zhang & Sennrich 2019, arXiv:1910.07467.

    Parameters
    ----------
    x : ndarray, (..., features)
        float32 or float64.
    weight : ndarray, (features,), optional
        Default 1.
    eps : float
        At least 0.

    Returns
    -------
    ndarray, (..., features)

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or a parameter is wider than x.
    ValueError
        A shape does not fit, or eps is below 0.
    """
    x, (weight,), eps = _arguments(x, eps, weight=weight)

    def normalize(rows):
        rows /= np.sqrt(_mean_square(rows) + eps)
        if weight is not None:
            rows *= weight

    return apply_in_blocks(normalize, x, width=x.shape[-1])


def _mean_square(rows):
    return np.einsum("ij,ij->i", rows, rows)[:, None] / rows.dtype.type(rows.shape[-1])


def _arguments(x, eps, **parameters):
    x = _check.activations("x", x)
    eps = x.dtype.type(options.number("eps", eps, 0.0))
    values = []
    for name, value in parameters.items():
        if value is not None:
            value = _check.parameter(name, value, (x.shape[-1],))
            _check.not_wider(name, value, x.dtype)
            value = value.astype(x.dtype, copy=False)
        values.append(value)
    return x, values, eps


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """`layer_norm` with its parameters: ``norm(x)``.

    Parameters
    ----------
    weight, bias : ndarray, (features,), optional
    eps : float

    Raises
    ------
    TypeError, ValueError
        Parameters of a wrong type or shape, or eps below 0.
    """

    weight: npt.NDArray | None = None
    bias: npt.NDArray | None = None
    eps: float = 1e-5

    __repr__ = short_repr

    def __post_init__(self) -> None:
        weight, bias = _check.features("weight", self.weight), _check.features("bias", self.bias)
        if weight is not None and bias is not None:
            _check.parameter("bias", bias, weight.shape)
        options.number("eps", self.eps, 0.0)

    def __call__(self, x: npt.NDArray) -> npt.NDArray:
        """Return ``layer_norm(x, weight, bias, eps=eps)``.

        Parameters
        ----------
        x : ndarray, (..., features)
            float32 or float64.

        Returns
        -------
        ndarray, (..., features)

        Raises
        ------
        TypeError, ValueError
            As of `layer_norm`: parameters that do not go with x.
        """
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """`rms_norm` with its parameters: ``norm(x)``.

    Parameters
    ----------
    weight : ndarray, (features,), optional
    eps : float

    Raises
    ------
    TypeError, ValueError
        A weight of a wrong type or shape, or eps below 0.
    """

    weight: npt.NDArray | None = None
    eps: float = 1e-6

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.features("weight", self.weight)
        options.number("eps", self.eps, 0.0)

    def __call__(self, x: npt.NDArray) -> npt.NDArray:
        """Return ``rms_norm(x, weight, eps=eps)``.

        Parameters
        ----------
        x : ndarray, (..., features)
            float32 or float64.

        Returns
        -------
        ndarray, (..., features)

        Raises
        ------
        TypeError, ValueError
            As of `rms_norm`: a weight that does not go with x.
        """
        return rms_norm(x, self.weight, eps=self.eps)
