# SPDX-License-Identifier: MIT
"""The residual connection around each part of a layer."""

from collections.abc import Callable

import numpy.typing as npt

Transform = Callable[[npt.NDArray], npt.NDArray]


def residual(
    x: npt.NDArray, part: Transform, norm: Transform | None, norm_first: bool
) -> npt.NDArray:
    """Return ``x + part(norm(x))`` with `norm_first`, else ``norm(x + part(x))``.

    Pre norm: Xiong et al. 2020, arXiv:2002.04745; post norm: Vaswani et al. 2017,
    arXiv:1706.03762, section 3.1.

    Parameters
    ----------
    x : ndarray, (..., tokens, features)
        Left as it is.
    part : callable
        From (..., tokens, features) to a new array of the same shape.
    norm : callable, optional
        Default: none.
    norm_first : bool

    Returns
    -------
    ndarray, (..., tokens, features)
    """
    if norm_first:
        out = part(x if norm is None else norm(x))
        out += x
        return out
    out = part(x)
    out += x
    return out if norm is None else norm(out)
