# SPDX-License-Identifier: MIT
"""Narrow keys and values: int8 and fp8 with scales, symmetric around zero."""

import numpy as np

from fastattn import _aligned as aligned
from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn import _check_tensors as tensors

# Largest number that is stored; int8 keeps -128 unused, so that a value and its negative stay so.
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
# No scale is below the normal numbers of float32, which some kernels flush to zero.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
PER = ("token", "head")


def quantize_kv(k, v, dtype=np.int8, per="token", *, layout="bhsd"):
    """Round keys and values to int8 or fp8, with scales: ``true value = stored value * scale``.

    Parameters
    ----------
    k, v : ndarray, (..., Hkv, Sk, D) and (..., Hkv, Sk, Dv)
        float32, float64, float16 or `ml_dtypes.bfloat16`, finite. Pages of a cache do
        as well, per token.
    dtype : dtype
        int8, or float8_e4m3fn or float8_e5m2 of `ml_dtypes`; a name will do.
    per : {"token", "head"}
        One scale for each key of each head, or one for all the keys of a head. The largest
        absolute value that shares a scale becomes the largest number of `dtype`.
    layout : {"bhsd", "bshd"}
        "bshd" swaps the head and the sequence axis of k and v; never of the scales.

    Returns
    -------
    k, v : ndarray
        Of `dtype`, in the shapes that came.
    k_scale, v_scale : ndarray, float32
        (..., Hkv, Sk), or (..., Hkv) per head: as `attention` takes them.

    Raises
    ------
    TypeError
        Something is not an array, or of a dtype that is not supported.
    ValueError
        A value is NaN or infinite, or a word is unknown.
    ModuleNotFoundError
        `dtype` is the name of a type of `ml_dtypes`, which is not installed.

    Notes
    -----
    With a the largest absolute value that shares the scale of x, the error of x is at most

    ========  ===========================
    int8      a / 254
    e4m3fn    max(abs(x) / 16, a / 458752)
    e5m2      max(abs(x) / 8, a / 7.5e9)
    ========  ===========================

    (rounding to nearest, the division in float32 aside; the second term is half the distance of
    numbers near zero). No scale is below the normal numbers of float32, so an a below 1.5e-36,
    5.3e-36 or 6.8e-34 counts as that. If no key is off by more than e_k and no value by more than
    e_v in any element, the output of attention is off by at most
    ``e_v + (exp(2 * abs(scale) * sum(abs(q)) * e_k) - 1) * max(abs(v))``: an error of the scores
    changes each weight by a factor of no more than exp(twice that error). On normally distributed
    tensors int8 per token is about four times as accurate as e4m3fn; fp8 is the better one where a
    few features are far larger than the others.

    Examples
    --------
    >>> import numpy as np, fastattn
    >>> k = np.array([[[0.5, -1.0, 0.25]]], dtype=np.float32)
    >>> stored, _, scale, _ = fastattn.quantize_kv(k, k)
    >>> stored
    array([[[  64, -127,   32]]], dtype=int8)
    >>> bool(np.abs(stored * scale[..., None] - k).max() <= 1.0 / 254)
    True
    """
    dtype = dtypes.named(dtype, dtypes.NARROW)
    options.choice("per", per, PER)
    bshd = options.choice("layout", layout, options.LAYOUTS) == "bshd"
    k8, k_scale = quantized("k", k, dtype, per, bshd)
    v8, v_scale = quantized("v", v, dtype, per, bshd)
    return k8, v8, k_scale, v_scale


def quantized(name, tensor, dtype, per, bshd):
    """Return one tensor as `dtype`, in its shape, and its scales; see `quantize_kv`."""
    tensor = options.array(name, tensor)
    dtypes.of_queries(name, tensor.dtype)
    if tensor.ndim < 2:
        raise ValueError(f"{name}: expected at least 2 axes, got shape {tensor.shape}")
    values = tensors.logical(tensor, bshd)
    values = values.astype(np.float64 if tensor.dtype == np.float64 else np.float32)
    largest = np.abs(values).max(axis=-1 if per == "token" else (-2, -1), initial=0.0)
    if not np.isfinite(largest).all():
        raise ValueError(f"{name}: expected finite values, got NaN or infinity")
    limit = LARGEST[dtype.name]
    with np.errstate(over="ignore"):
        scale = np.maximum(largest / limit, SMALLEST_SCALE).astype(np.float32)
    if not np.isfinite(scale).all():
        raise ValueError(f"{name}: expected values whose scale fits into float32, got larger ones")
    values /= scale[..., None] if per == "token" else scale[..., None, None]
    if dtype.kind == "i":
        np.rint(values, out=values)
    np.clip(values, -limit, limit, out=values)
    stored = aligned.zeros(tensor.shape, dtype)
    tensors.logical(stored, bshd)[...] = values.astype(dtype)
    return stored, scale
