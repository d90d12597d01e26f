# SPDX-License-Identifier: MIT
"""What forbids, in the forms that libraries take it in: a flag, a bool mask, numbers to add."""

import numpy as np


def bool_mask(problem, inputs, causal=False):
    """Return everything that forbids as one bool mask (B or 1, 1, Sq or 1, Sk), or None.

    Causality and window are only in it if asked for; some libraries have options for them.
    """
    mask = None
    if inputs.mask is not None and inputs.mask.dtype == bool:
        mask = inputs.mask[None, None]
    if inputs.kv_lengths is not None:
        present = np.arange(problem.Sk) < inputs.kv_lengths[:, None]
        mask = present[:, None, None] if mask is None else mask & present[:, None, None]
    if causal and problem.causal and (problem.Sq > 1 or problem.window >= 0):
        offset = problem.Sk - problem.Sq
        lower = np.tri(problem.Sq, problem.Sk, offset, dtype=bool)
        if problem.window >= 0:
            lower &= ~np.tri(problem.Sq, problem.Sk, offset - problem.window - 1, dtype=bool)
        mask = lower[None, None] if mask is None else mask & lower
    return mask


def flag_and_mask(problem, inputs):
    """Return (causal, mask), for libraries that take a causal flag or one mask, but not both.

    The flag is for square problems, because most libraries align it at the top left. The mask is
    float or bool or None.
    """
    if inputs.mask is not None and inputs.mask.dtype != bool:
        return False, inputs.mask
    flag = (
        problem.causal
        and problem.window < 0
        and problem.Sq == problem.Sk
        and bool_mask(problem, inputs) is None
    )
    return flag, bool_mask(problem, inputs, causal=not flag)


def additive_mask(problem, inputs, causal=False):
    """Return the same as `bool_mask` as numbers to add, the float mask included, or None."""
    dtype = inputs.q.dtype
    forbidden = bool_mask(problem, inputs, causal)
    added = None
    if inputs.mask is not None and inputs.mask.dtype != bool:
        added = inputs.mask[None, None]
    if forbidden is not None:
        # The lowest number, not -inf: some libraries make NaN of -inf - -inf in their blocks.
        numbers = np.where(forbidden, dtype.type(0), np.finfo(dtype).min)
        added = numbers if added is None else np.maximum(added + numbers, np.finfo(dtype).min)
    return added
