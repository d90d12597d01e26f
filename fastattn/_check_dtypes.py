# SPDX-License-Identifier: MIT
"""Which dtypes there are, and which of them go together.

The types of ml_dtypes are recognised by name from a dtype that is given: nothing here imports it.
"""

import importlib

import numpy as np

from fastattn._extras import needed

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
BOOL = np.dtype(np.bool_)

HALVES = ("float16", "bfloat16")
NARROW = ("int8", "float8_e4m3fn", "float8_e5m2")
FLOATS = ("float32", "float64", *HALVES)
WIDTHS = {"float32": 4, "float64": 8, **dict.fromkeys(HALVES, 2), **dict.fromkeys(NARROW, 1)}
# Types of K and V that are narrower than q; a 16-bit q does not go with the other 16-bit type.
NARROWER = {
    "float64": (),
    "float32": (*HALVES, *NARROW),
    "float16": NARROW,
    "bfloat16": NARROW,
}


_NAMES: dict[np.dtype, str] = {}  # to ask a dtype for its name takes a microsecond


def supported(dtype):
    """Return the name of a dtype that q, k or v may have, or None."""
    name = _NAMES.get(dtype)
    if name is None and dtype.isnative and WIDTHS.get(dtype.name) == dtype.itemsize:
        name = _NAMES[dtype] = dtype.name
    return name


def named(dtype, accepted=WIDTHS):
    """Return the argument `dtype`, a dtype, a type or a name, if its name is one of `accepted`.

    ml_dtypes is imported where one of its types is asked for by name.
    """
    found = dtype
    if isinstance(dtype, str) and dtype in WIDTHS and not hasattr(np, dtype):
        with needed(f"dtype {dtype!r}"):
            found = getattr(importlib.import_module("ml_dtypes"), dtype)
    try:
        found = np.dtype(found)
        name = "None" if dtype is None else dtype_name(found)  # NumPy takes None for float64
    except (TypeError, ValueError, SyntaxError):  # NumPy reads "(2,)f4" as Python would
        name = repr(dtype)
    if name not in accepted:
        raise TypeError(f"dtype: expected {listed(accepted)}, got {name}")
    return found


def dtype_name(dtype):
    """Name a dtype for a message; byte order is part of the name where it is not the machine's."""
    return dtype.name if dtype.isnative else f"byte-swapped {dtype.name}"


def listed(names):
    """Return names as they stand in a sentence: "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def of_queries(name, dtype):
    """Return the name of the dtype of q, a float type."""
    found = supported(dtype)
    if found not in FLOATS:
        raise TypeError(f"{name}: expected dtype {listed(FLOATS)}, got {dtype_name(dtype)}")
    return found


def check_pair(k, v, of_q):
    """Refuse dtypes of k and v that differ, or that do not go with q's, whose name is `of_q`."""
    found = supported(k)
    accepted = (of_q, *NARROWER[of_q])
    if found not in accepted:
        raise TypeError(f"k: expected dtype {listed(accepted)} with {of_q} q, got {dtype_name(k)}")
    if supported(v) != found:
        raise TypeError(f"v: expected dtype {found} like k, got {dtype_name(v)}")


def of_state(dtype):
    """Return the dtype of the log-sum-exp that belongs to q of `dtype`."""
    return FLOAT32 if dtype is FLOAT32 or dtype != FLOAT64 else FLOAT64
