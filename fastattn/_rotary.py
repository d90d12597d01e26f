# SPDX-License-Identifier: MIT
"""The formula of rotary position embedding, for `fastattn.layers` and `fastattn.flash_attn`."""

import numpy as np


def turned(x, cos, sin, interleaved):
    """Return a copy of x, in its memory order, whose first features are turned pair by pair.

    ``(a, b) -> (a cos - b sin, a sin + b cos)`` (Su et al. 2021, arXiv:2104.09864).

    Parameters
    ----------
    x : ndarray, (..., depth)
    cos, sin : ndarray, (..., pairs)
        Of x's dtype; leading axes broadcast.
    interleaved : bool
        Pairs are neighbours; otherwise feature i goes with i + pairs.
    """
    pairs = cos.shape[-1]
    out = np.empty_like(x)
    first, second = _pairs(x, pairs, interleaved)
    out_first, out_second = _pairs(out, pairs, interleaved)
    np.multiply(first, cos, out=out_first)
    out_first -= second * sin
    np.multiply(second, cos, out=out_second)
    out_second += first * sin
    out[..., 2 * pairs :] = x[..., 2 * pairs :]
    return out


def _pairs(x, pairs, interleaved):
    """View the two features of each pair, (..., pairs) each."""
    if interleaved:
        return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    return x[..., :pairs], x[..., pairs : 2 * pairs]
