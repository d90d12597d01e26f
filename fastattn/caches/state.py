# SPDX-License-Identifier: MIT
"""What the arrays of a saved state must be, to be those of a cache."""

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn import _check_tensors as tensors

ARRAYS = ("k", "v", "k_scale", "v_scale")


def storage_dtype(dtype):
    """The dtype itself, or unsigned integers for one that NumPy does not know by itself."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def check_present(arrays, names):
    """Refuse a state without one of these names."""
    for name in names:
        if name not in arrays:
            raise ValueError(f"arrays: expected {name!r} among them, got {', '.join(arrays)}")


def check_held(arrays, dtype, bshd):
    """Refuse arrays of keys, values and scales that do not go with the dtype or each other."""
    arrays = {name: options.array(name, array) for name, array in arrays.items()}
    for name, array in arrays.items():
        accepted = (dtype, storage_dtype(dtype)) if name in ("k", "v") else (dtypes.FLOAT32,)
        if array.dtype not in accepted:
            raise TypeError(
                f"{name}: expected dtype {accepted[-1].name} for a cache of {dtype.name}, got "
                f"{dtypes.dtype_name(array.dtype)}"
            )
    k, v = arrays["k"], arrays["v"]
    for name, array in ("k", k), ("v", v):
        if array.ndim != 4 or array.size == 0:
            raise ValueError(
                f"{name}: expected 4 axes, none of them empty, got shape {array.shape}"
            )
    if v.shape[:3] != k.shape[:3]:
        expected = ", ".join(map(str, k.shape[:3]))
        raise ValueError(f"v: expected shape ({expected}, Dv) like k, got shape {v.shape}")
    expected = tensors.logical(k, bshd).shape[:3]
    for name in ARRAYS[2:]:
        if name in arrays and arrays[name].shape != expected:
            found = arrays[name].shape
            raise ValueError(f"{name}: expected shape {expected}, got shape {found}")
