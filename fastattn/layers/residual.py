# SPDX-License-Identifier: MIT
"""The residual connection around each part of a layer."""

from collections.abc import Callable

import numpy.typing as npt

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn.layers import _check

Transform = Callable[[npt.NDArray], npt.NDArray]


def residual(
    name: str, x: npt.NDArray, part: Transform, norm: Transform | None, norm_first: bool
) -> npt.NDArray:
    """Return ``x + part(norm(x))`` with `norm_first`, else ``norm(x + part(x))``.

    Pre norm: Xiong et al. 2020, arXiv:2002.04745; post norm: Vaswani et al. 2017,
    arXiv:1706.03762, section 3.1.

    Parameters
    ----------
    name : str
        Of `part`, for messages.
    x : ndarray, (..., tokens, features)
        Left as it is.
    part : callable
        From (..., tokens, features) to the same shape and dtype. What it returns is left as it is:
        it may be a view of x, or the callable's own.
    norm : callable, optional
        Default: none.
    norm_first : bool

    Returns
    -------
    ndarray, (..., tokens, features)
    """
    x = _check.activations("x", x)
    if norm_first:
        return x + _like(name, part(x if norm is None else norm(x)), x)
    out = x + _like(name, part(x), x)
    return out if norm is None else norm(out)


def _like(name, out, x):
    """Return what the callable `name` made of x; raise unless shape and dtype are those of x."""
    result = f"{name}(x)"
    out = options.array(result, out)
    if out.shape != x.shape:
        raise ValueError(f"{result}: expected shape {x.shape} like x, got {out.shape}")
    if out.dtype != x.dtype:
        found = dtypes.dtype_name(out.dtype)
        raise TypeError(f"{result}: expected dtype {x.dtype.name} like x, got {found}")
    return out
