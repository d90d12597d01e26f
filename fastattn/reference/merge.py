# SPDX-License-Identifier: MIT
"""`merge_states` of the oracle."""

import numpy as np


def merge_states(outs, lses, *, out=None, dtype=None):
    """Attention over the union of disjoint key sets, from the attention over each of them.

    lse = log sum_n exp(lse_n), o = sum_n exp(lse_n - lse) o_n.

    Parameters
    ----------
    outs : sequence of ndarray
        Outputs (..., Sq, Dv), or the same stacked on axis 0.
    lses : sequence of ndarray
        Their log-sum-exp (..., Sq), or the same stacked on axis 0.
    out : ndarray, optional
        Receives the result.
    dtype : dtype, optional
        Convert what is returned to it; float64 if None.

    Returns
    -------
    out, lse : ndarray
        (..., Sq, Dv) and (..., Sq).

    Notes
    -----
    A state with lse = -inf saw no key and adds nothing, whatever its output holds. A sink belongs
    into one of the states only.
    """
    outs = np.stack([np.asarray(each, np.float64) for each in outs])
    lses = np.stack([np.asarray(each, np.float64) for each in lses])
    with np.errstate(all="ignore"):
        lse = np.logaddexp.reduce(lses, axis=0)
        empty = lses == -np.inf
        weights = np.where(empty, 0.0, np.exp(lses - lse))[..., None]
        result = (weights * np.where(empty[..., None], 0.0, outs)).sum(axis=0)
    result, lse = result.astype(dtype or np.float64), lse.astype(dtype or np.float64)
    if out is not None:
        np.copyto(out, result, casting="unsafe")
        result = out
    return result, lse
