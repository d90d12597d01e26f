# SPDX-License-Identifier: MIT
"""The check before the clock: some rows of every result against the oracle."""

import numpy as np

from fastattn import reference

ROWS_CHECKED = 24
ROWS_OF_LONG = 6  # the oracle takes long for many keys
LONG = 10_000
# Relative to max|v|. For float32 and float64 far above the rounding of any implementation, far
# below what a wrong mask, a wrong scale or 16-bit products give. With 16 bits a result may be off
# by the rounding of the weights and that of itself, one unit roundoff of max|v| each.
WRONG = {"float32": 1e-4, "float64": 1e-10, "float16": 2 * 2**-11, "bfloat16": 2 * 2**-8}
# That alone would let a key too many pass among thousands, because results are small against max|v|
# then. Rounding is at random, so that the rms error is below a unit roundoff of the rms result.
WRONG_RMS = {"float16": 4 * 2**-11, "bfloat16": 4 * 2**-8}


class WrongResultError(RuntimeError):
    """A result differs from the oracle by more than rounding."""


def expected_rows(problem, inputs):
    """Return {(b, h, i): row} of some rows of the right result, the corners among them."""
    rng = np.random.default_rng(0)
    sizes = problem.B, problem.Hq, problem.Sq
    count = ROWS_CHECKED if problem.Sk < LONG else ROWS_OF_LONG
    picked = {tuple(int(rng.integers(size)) for size in sizes) for _ in range(count)}
    rows = sorted(picked | {(0, 0, 0), tuple(size - 1 for size in sizes)})
    return {row: oracle_row(problem, inputs, *row) for row in rows}


def oracle_row(problem, inputs, b, h, i):
    """Return one row of the result, (Dv,), from the oracle in float64."""
    kv_head = h // (problem.Hq // problem.Hkv)
    k, v = inputs.k[b, kv_head], inputs.v[b, kv_head]
    query, queries = i, problem.Sq
    if problem.packed:
        ends = np.cumsum(problem.packed, axis=0)
        index = int(np.searchsorted(ends[:, 0], i, side="right"))
        queries, keys = problem.packed[index]
        query = i - (ends[index, 0] - queries)
        k, v = (each[ends[index, 1] - keys : ends[index, 1]] for each in (k, v))
    mask = inputs.mask
    return reference.attention(
        inputs.q[b, h, i : i + 1],
        k,
        v,
        attn_mask=None if mask is None else mask[i : i + 1],
        causal=problem.causal,
        window_size=(problem.window, -1),
        softcap=problem.softcap,
        alibi_slopes=None if inputs.slopes is None else inputs.slopes[h : h + 1],
        sinks=None if inputs.sinks is None else inputs.sinks[h : h + 1],
        q_offset=int(query + len(k) - queries),
        kv_lengths=None if inputs.kv_lengths is None else int(inputs.kv_lengths[b]),
        k_scale=inputs.scale,
        v_scale=inputs.scale,
    )[0]


def check(prepared, problem, inputs, expected=None):
    """Run `prepared` once and compare some rows of its result with the oracle.

    Parameters
    ----------
    prepared : Prepared
    problem : Problem
    inputs : Inputs
    expected : dict, optional
        `expected_rows`, if they are known already.

    Returns
    -------
    float
        Largest error, relative to max|v|.

    Raises
    ------
    WrongResultError
        The shape is wrong, anything is NaN, or a row differs by more than rounding.
    """
    result = prepared.array(prepared.call())
    expected_shape = (problem.B, problem.Hq, problem.Sq, problem.Dv)
    if result.shape != expected_shape:
        raise WrongResultError(f"shape {result.shape}, expected {expected_shape}")
    if not np.isfinite(result).all():
        raise WrongResultError("NaN or infinity in the result")
    expected = expected_rows(problem, inputs) if expected is None else expected
    right = np.stack(list(expected.values()))
    error = np.stack([result[row] for row in expected]).astype(np.float64) - right
    largest = np.abs(inputs.v.astype(np.float32)).max() * (inputs.scale or 1.0)
    worst = float(np.abs(error).max() / largest)
    _reject(worst, "max|v|", WRONG[problem.dtype])
    if problem.dtype in WRONG_RMS:
        rms = np.sqrt((error**2).mean() / (right**2).mean())
        _reject(float(rms), "the rms result", WRONG_RMS[problem.dtype])
    return worst


def _reject(error, what, allowed):
    if not error <= allowed:
        raise WrongResultError(f"error {error:.1e} of {what}, allowed {allowed:.0e}")
