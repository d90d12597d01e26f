# SPDX-License-Identifier: MIT
"""Validation of single arguments: one function per kind of argument.

Each function takes what the caller passed and returns the value normalised, or raises TypeError
(wrong type or dtype), ValueError (wrong shape, range or combination) or NotImplementedError with a
message of the form ``name: expected this, got that``. `_check` composes them into whole calls.

The common value is tested first by identity, because a small call spends as long in here as in the
kernel.
"""

import contextlib
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fastattn import _arrays
from fastattn import _check_dtypes as dtypes

# Positions up to here are exact in float64, which ALiBi needs, and far from overflowing int64.
LARGEST_OFFSET = 2**53
# A window wider than twice that contains every key whatever the offset: it is unbounded.
WIDEST_WINDOW = 2**54
LARGEST_INT = 2**63 - 1
MOST_NUMBERS = 2**60 - 1  # of an array: NumPy counts its bytes in 64 bits
# More numbers than any memory holds: only zero strides make a batch, or a small array, of so many.
MOST_HELD = 2**53
MOST_THREADS = 2**31 - 1  # an int of C

# Effort given to the exact overlap test, which is exponential in the worst case; a pair of arrays
# that takes more counts as overlapping.
OVERLAP_WORK = 100_000

# Up to so many integers, Python finds the smallest and the largest sooner than NumPy does.
FEW = 32

BOOLS = bool | np.bool_
REALS = int | float | np.integer | np.floating
PRECISIONS = ("highest", "high", "medium")
LAYOUTS = ("bhsd", "bshd")


def described(value):
    """Name the type of `value` for a message."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def rename(error, names):
    """Let the message of `error` call arguments what the function that was called calls them.

    Parameters
    ----------
    error : Exception
    names : dict
        Name of each argument here, and there.
    """
    words = "|".join(names)
    error.args = (re.sub(rf"\b({words})\b", lambda word: names[word[0]], str(error)),)


def array(name, value):
    """Return `value` as a plain numpy.ndarray without copying it.

    Arrays of other libraries are viewed through DLPack, and subclasses that only add methods
    (numpy.memmap) too. Masked arrays and matrices are refused: their mask, or their own idea of
    indexing, would be lost without a word.
    """
    if type(value) is np.ndarray:
        return value
    # np.ma would import it, which takes as long as many calls; before that there are none.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(value, np.ndarray) and not isinstance(value, (np.matrix, masked)):
        return value.view(np.ndarray)
    if not isinstance(value, np.ndarray) and (view := _arrays.from_dlpack(name, value)) is not None:
        return view
    raise TypeError(f"{name}: expected a numpy.ndarray, got {described(value)}")


def aligned(name, value):
    """Refuse data that C cannot address as elements (a field of a packed record, say)."""
    if not value.flags.aligned:
        raise ValueError(
            f"{name}: expected data and strides aligned to {value.dtype.alignment} bytes, got "
            f"strides {value.strides} (numpy.ascontiguousarray({name}) copies them)"
        )


def flag(name, value):
    """Return `value` as a bool; numbers are refused because they are usually misplaced."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise TypeError(f"{name}: expected True or False, got {described(value)}")


def number(name, value, least=-math.inf):
    """Return `value` as a finite float that is not below `least`."""
    if type(value) is not float:
        if isinstance(value, bool) or not (isinstance(value, REALS) or _is_bfloat(value)):
            raise TypeError(f"{name}: expected a number, got {described(value)}")
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if not -math.inf < value < math.inf:  # what torch.compile can trace for a symbol, too
        raise ValueError(f"{name}: expected a finite number, got {value}")
    if value < least:
        raise ValueError(f"{name}: expected a number not below {least:g}, got {value:g}")
    return value


def _is_bfloat(value):
    """Say whether it is a number of ml_dtypes.bfloat16, which NumPy does not count as floating."""
    return type(value).__name__ == "bfloat16" and isinstance(value, np.generic)


def integer(name, value, least, most=math.inf):
    """Return `value` as an int that is neither below `least` nor above `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected an integer, got {described(value)}")
    if value < least:
        raise ValueError(f"{name}: expected an integer not below {least}, got {value}")
    if value > most:
        raise ValueError(f"{name}: expected an integer not above {most}, got {value}")
    return int(value)


def thread_count(name, value):
    """Return `value` as a number of threads."""
    return integer(name, value, 1, MOST_THREADS)


def no_dropout(dropout_p):
    """Refuse any other `dropout_p` than 0."""
    if number("dropout_p", dropout_p) != 0.0:
        raise NotImplementedError(f"dropout_p: expected 0.0, got {dropout_p} (there is no dropout)")


def choice(name, value, choices):
    """Return `value`, one of the strings `choices`."""
    if isinstance(value, str) and value in choices:
        return value
    listed = ", ".join(repr(word) for word in choices)
    if isinstance(value, str):
        raise ValueError(f"{name}: expected one of {listed}, got {value!r}")
    raise TypeError(f"{name}: expected one of {listed}, got {described(value)}")


def mapping(name, value):
    """Return `value`, a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected a mapping, got {described(value)}")
    return value


def path(name, value):
    """Return the name of a file or directory as a Path."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}: expected a path, got {described(value)}")
    return Path(value)


def window(value):
    """Return (left, right) of `window_size`, -1 where it is unbounded."""
    if value is None:
        return -1, -1
    if not isinstance(value, tuple | list):
        raise TypeError(f"window_size: expected a pair (left, right), got {described(value)}")
    if len(value) != 2:
        raise ValueError(f"window_size: expected a pair (left, right), got {len(value)} values")
    left, right = value
    return (
        -1 if left is None else window_side("window_size", left, -1),
        -1 if right is None else window_side("window_size", right, -1),
    )


def window_side(name, value, least):
    """Return one side of a window, an integer not below `least`; -1 if it contains every key."""
    value = integer(name, value, least)
    return -1 if value > WIDEST_WINDOW else value


def small_array(name, value, what):
    """Return a list, tuple or array of numbers as an array; `what` says what was expected."""
    if isinstance(value, list | tuple):
        try:
            return np.array(value)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"{name}: expected {what}, got a list of unequal parts") from None
    if isinstance(value, np.ndarray) or hasattr(type(value), "__dlpack__"):
        value = array(name, value)
        if value.size > MOST_HELD:  # it will be copied
            raise ValueError(
                f"{name}: expected {what}, at most 2^53 of them, got shape {value.shape}"
            )
        return value
    raise TypeError(f"{name}: expected {what}, got {described(value)}")


def integers(name, value, what):
    """Return a list, tuple or array of integers as an array; `what` says what was expected."""
    listed = isinstance(value, list | tuple)
    refuse_bool(name, value)
    found = small_array(name, value, what)
    if listed and not found.size:
        return found.astype(np.int64)
    if found.dtype.kind in "iu":
        return found
    if listed:  # of 2**63 and 1 NumPy makes float64
        exact = np.array(value, object)
        if all(isinstance(each, int | np.integer) for each in exact.flat):
            return _of_64_bits(name, exact)
    raise TypeError(f"{name}: expected integers, got dtype {found.dtype.name}")


def _of_64_bits(name, exact):
    """Return integers, an array of objects, as int64 or uint64."""
    for dtype in np.int64, np.uint64:
        with contextlib.suppress(OverflowError):
            return exact.astype(dtype)
    raise ValueError(f"{name}: expected integers of at most 64 bits, got larger ones")


def int64(name, value):
    """Return an array of integers as a new int64 array in C order."""
    if value.dtype == np.uint64 and value.max(initial=0) > LARGEST_INT:
        raise ValueError(f"{name}: expected numbers up to {LARGEST_INT}, got {value.max()}")
    return value.astype(np.int64, order="C")


def refuse_bool(name, value, what="integers"):
    """Refuse a list that holds bool, which NumPy and torch take for 0 or 1 among numbers."""
    if isinstance(value, list | tuple) and _holds_bool(value):
        raise TypeError(f"{name}: expected {what}, got dtype bool")


def _holds_bool(listed):
    for each in listed:
        if isinstance(each, list | tuple):
            found = _holds_bool(each)
        else:
            found = each.dtype == bool if isinstance(each, np.ndarray) else isinstance(each, BOOLS)
        if found:
            return True
    return False


def per_batch(name, value, lead, least, most):
    """Return integers, one for each batch entry, as a new int64 array of shape (B,).

    Parameters
    ----------
    name : str
        Name of the argument, for messages.
    value : int or array of int
        One value for all, or shape (B,), or shape `lead`, with B the product of `lead`.
    lead : tuple of int
        Leading shape of the problem.
    least, most : int
        Range of allowed values, both ends included.

    Notes
    -----
    What is checked is a copy, so that another thread writing to the caller's array cannot undo the
    range check before the kernel reads it.
    """
    batch = math.prod(lead)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        low = high = int(value)
    else:
        value = integers(name, value, "an integer or an array of integers")
        if value.shape not in ((batch,), (), lead):
            raise ValueError(
                f"{name}: expected an integer or shape ({batch},), got shape {value.shape}"
            )
        value = value.reshape(-1)
        if not value.size:
            return np.empty(batch, np.int64)
        if value.size <= FEW:
            value = value.tolist()
            low, high = min(value), max(value)
        else:
            value = value.copy()
            low, high = int(value.min()), int(value.max())
    if low < least or high > most:
        wrong = low if low < least else high
        raise ValueError(f"{name}: expected values from {least} to {most}, got {wrong}")
    result = np.empty(batch, np.int64)
    result[:] = value
    return result


def real_numbers(name, value):
    """Return a list, tuple or array of real numbers as an array."""
    listed = isinstance(value, list | tuple)
    refuse_bool(name, value, "real numbers")
    value = small_array(name, value, "an array of numbers")
    if listed and value.dtype == object and all(isinstance(n, int | float) for n in value.flat):
        try:  # integers beyond 64 bits, which are numbers like others
            return value.astype(np.float64)
        except OverflowError:
            raise ValueError(f"{name}: expected numbers that fit into float64") from None
    if value.dtype.kind not in "fiu" and value.dtype.name != "bfloat16":
        raise TypeError(f"{name}: expected real numbers, got dtype {value.dtype.name}")
    return value


def writable(out, shape, dtype):
    """Return `out` as an ndarray of `shape` and `dtype` that can be written, element by element."""
    checked = array("out", out)
    if checked.dtype != dtype:
        found = dtypes.dtype_name(checked.dtype)
        raise TypeError(f"out: expected dtype {dtype.name} like the input, got {found}")
    if checked.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {checked.shape}")
    if not checked.flags.writeable:
        raise ValueError("out: expected a writable array, got a read-only one")
    aligned("out", checked)
    if not checked.flags.c_contiguous and _may_overlap_itself(checked):
        raise ValueError(
            f"out: expected elements that do not share memory, got strides {checked.strides} for "
            f"shape {shape}"
        )
    return checked


def _may_overlap_itself(tensor):
    """Say whether two elements may lie at the same place, of an array that is not C-contiguous.

    Exact for every view made by slicing, transposing and broadcasting; for other strides it may
    say yes when the answer is no: each axis must step over all that the smaller strides span.
    """
    span = tensor.itemsize
    axes = [(abs(s), n) for s, n in zip(tensor.strides, tensor.shape, strict=True) if n != 1]
    for stride, size in sorted(axes):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False


def reject_overlap(out, named_inputs):
    """Raise if `out` shares memory with one of the inputs that are arrays."""
    for name, tensor in named_inputs:
        view = tensor if isinstance(tensor, np.ndarray) else _arrays.from_dlpack(name, tensor)
        if view is None or not np.may_share_memory(out, view):
            continue
        try:
            shared = np.shares_memory(out, view, max_work=OVERLAP_WORK)
        except np.exceptions.TooHardError:
            shared = True
        if shared:
            raise ValueError(f"out: expected memory of its own, got an array that overlaps {name}")


def states_of(name, states):
    """Return a sequence of arrays, or one array stacked on axis 0, as a tuple of arrays."""
    if isinstance(states, np.ndarray) or hasattr(type(states), "__dlpack__"):
        stacked = array(name, states)
        if stacked.ndim < 1:
            raise ValueError(f"{name}: expected arrays stacked on axis 0, got shape ()")
        states = tuple(stacked[n, ...] for n in range(len(stacked)))  # an array each, of rank 0 too
    elif isinstance(states, tuple | list):
        states = tuple(array(f"{name}[{n}]", state) for n, state in enumerate(states))
    else:
        raise TypeError(f"{name}: expected a sequence of arrays, got {described(states)}")
    if not states:
        raise ValueError(f"{name}: expected at least one array, got none")
    return states
