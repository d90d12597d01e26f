# SPDX-License-Identifier: MIT
"""Validation of the arguments of `fastattn.layers`, in the words of `fastattn._check_options`."""

import contextlib
import re
from collections.abc import Sequence, Set
from types import SimpleNamespace

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn._check_scores import set_scores
from fastattn._check_varlen import check_end, cut_points

# What weights may be stored in. Sums are formed in the dtype of the activations.
STORED = ("float16", "bfloat16", "float32", "float64")


def activations(name, value, width=None):
    """Return `value`, float32 or float64 with at least one axis, the last of `width` features."""
    value = options.array(name, value)
    if value.dtype != np.float32 and value.dtype != np.float64:
        found = dtypes.dtype_name(value.dtype)
        raise TypeError(f"{name}: expected dtype float32 or float64, got {found}")
    if value.ndim < 1:
        raise ValueError(f"{name}: expected at least 1 axis, got shape ()")
    if width is not None and value.shape[-1] != width:
        raise ValueError(f"{name}: expected {width} features, got shape {value.shape}")
    return value


def tokens(name, value, width=None):
    """Return `value`, activations (..., tokens, width)."""
    value = activations(name, value, width)
    if value.ndim < 2:
        raise ValueError(f"{name}: expected shape (..., tokens, features), got {value.shape}")
    return value


def broadcasts(name, value, lead):
    """Raise unless the leading axes of `value` (..., tokens, features) broadcast with `lead`."""
    try:
        np.broadcast_shapes(value.shape[:-2], lead)
    except ValueError:
        expected = f"leading axes that broadcast with {lead} of x"
        raise ValueError(f"{name}: expected {expected}, got shape {value.shape}") from None


def parameter(name, value, shape):
    """Return a weight of `shape`, in which None stands for any size of at least 1."""
    value = options.array(name, value)
    if dtypes.supported(value.dtype) not in STORED:
        expected = ", ".join(STORED)
        found = dtypes.dtype_name(value.dtype)
        raise TypeError(f"{name}: expected one of the dtypes {expected}, got {found}")
    if value.shape != shape and not _matches(value.shape, shape):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        expected = f"({sizes},)" if len(shape) == 1 else f"({sizes})"
        raise ValueError(f"{name}: expected shape {expected}, got {value.shape}")
    return value


def features(name, value):
    """Return a parameter for each of any number of features, none included; or None."""
    if value is None:
        return None
    value = options.array(name, value)
    return parameter(name, value, value.shape if value.ndim == 1 else (None,))


def _matches(found, shape):
    """Say whether a shape is `shape`, in which None is any size of at least 1."""
    return len(found) == len(shape) and all(
        size == count if size is not None else count > 0
        for size, count in zip(shape, found, strict=True)
    )


def optional(name, value, shape):
    """`parameter`, or None."""
    return None if value is None else parameter(name, value, shape)


@contextlib.contextmanager
def renamed(**names):
    """Let errors of a ``with`` block call arguments what its caller calls them: there=here."""
    try:
        yield
    except (TypeError, ValueError) as error:
        options.rename(error, names)
        raise


@contextlib.contextmanager
def of_list(name, index):
    """Let errors of a ``with`` block say which one of a list its argument `name` was."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # Not by `renamed`: a message may speak of memory that is no argument.
        error.args = (re.sub(rf"^{name}\b", f"{name}[{index}]", str(error)),)
        raise


def function(name, value):
    """Raise unless `value` can be called."""
    if not callable(value):
        raise TypeError(f"{name}: expected a callable, got {options.described(value)}")


def methods(name, value, *names):
    """Raise unless `value` has methods of these names."""
    for method in names:
        if not callable(getattr(value, method, None)):
            found = options.described(value)
            raise TypeError(f"{name}: expected a method {method}, got {found}")


def text(name, value):
    """Return `value`, a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {options.described(value)}")
    return value


def optional_functions(**values):
    """Raise unless each of the values can be called, or is None."""
    for name, value in values.items():
        if value is not None:
            function(name, value)


def scores(layer):
    """Raise unless the options of the scores of an attention layer are what `attention` takes.

    For how many sequences `alibi_slopes` is made is seen when there are some.
    """
    slopes, lead = layer.alibi_slopes, ()
    if slopes is not None:
        lead = options.real_numbers("alibi_slopes", slopes).shape[:-1]
    problem = SimpleNamespace(q=np.empty((*lead, layer.heads, 0, 1)))
    set_scores(
        problem, lead, layer.causal, layer.window_size, layer.scale, layer.softcap, slopes,
        layer.sinks,
    )  # fmt: skip


def instance(name, value, kind):
    """Raise unless `value` is of the class `kind`, one of the layers."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        found = options.described(value)
        raise TypeError(f"{name}: expected {article} {kind.__name__}, got {found}")


def stack(name, value):
    """Raise unless `value` is a sequence of layers."""
    if not isinstance(value, Sequence):
        raise TypeError(f"{name}: expected a sequence of layers, got {options.described(value)}")
    for index, layer in enumerate(value):
        function(f"{name}[{index}]", layer)


def pair(name, value):
    """Raise unless `value` is (k, v)."""
    if not isinstance(value, tuple | list):
        raise TypeError(f"{name}: expected a tuple (k, v), got {options.described(value)}")
    if len(value) != 2:
        raise ValueError(f"{name}: expected 2 arrays, (k, v), got {len(value)}")


def not_wider(name, value, dtype):
    """Raise if `value` would lose digits in activations of `dtype`."""
    if value.dtype != dtype and value.dtype.itemsize >= dtype.itemsize:
        found = value.dtype.name
        raise TypeError(f"{name}: expected dtype {dtype.name} like x, or narrower, got {found}")


def indices(name, value):
    """Return integers as an array; a range will do."""
    value = list(value) if isinstance(value, range) else value
    return options.integers(name, value, "an array of integers")


def stop_ids(value):
    """Return `stop_ids`, integers in any order, as an array."""
    if isinstance(value, Sequence | Set):
        value = list(value)
    return options.integers("stop_ids", value, "a collection of integers")


def logits(value):
    """Return `logits` (batch, vocabulary) as an array."""
    value = options.real_numbers("logits", value)
    if value.ndim != 2 or value.shape[1] < 1:
        raise ValueError(f"logits: expected shape (batch, vocabulary), got {value.shape}")
    return value


def for_each(name, value, batch):
    """Raise unless `value` has a row for each of a batch; any array will do."""
    shape = np.shape(value)
    if len(shape) != 2 or shape[0] != batch:
        raise ValueError(f"{name}: expected shape ({batch}, vocabulary), got {shape}")
    return value


def chosen(name, value, batch):
    """Return what a caller's function chose for each of a batch, int64 (batch,)."""
    value = options.int64(name, indices(name, value))
    if value.shape != (batch,):
        raise ValueError(f"{name}: expected shape ({batch},), got {value.shape}")
    return value


def with_softmax(value):
    """Return `logits` (batch, vocabulary), each row with a softmax, as a new float64 array."""
    value = logits(value).astype(np.float64)
    highest = value.max(axis=-1)
    wrong = np.flatnonzero(~np.isfinite(highest))
    if wrong.size:
        row = wrong[0]
        found = {np.inf: "+inf", -np.inf: "-inf alone"}.get(highest[row], "NaN")
        raise ValueError(
            f"logits: expected finite numbers, or -inf beside them, got {found} in row {row}"
        )
    return value


def token_ids(name, value, vocabulary):
    """Return token ids (..., tokens), each from 0 to `vocabulary` - 1."""
    value = indices(name, value)
    if value.ndim < 1:
        raise ValueError(f"{name}: expected shape (..., tokens), got ()")
    in_range(name, value, vocabulary)
    return value


def in_range(name, value, end, least=0):
    """Raise unless all of the integers `value` are from `least` to `end` - 1."""
    low, high = int(value.min(initial=0)), int(value.max(initial=0))
    if low < least or high >= end:
        wrong = low if low < least else high
        raise ValueError(f"{name}: expected numbers from {least} to {end - 1}, got {wrong}")


def for_tokens(name, value, shape, end):
    """Return integers from 0 to `end` - 1 for tokens of `shape`; leading axes broadcast."""
    value = indices(name, value)
    pairs = zip(value.shape[::-1], shape[::-1], strict=False)
    fits = value.ndim <= len(shape) and value.shape[-1:] == shape[-1:]
    if not fits or any(found not in (1, size) for found, size in pairs):
        raise ValueError(
            f"{name}: expected a shape (..., {shape[-1]}) that broadcasts to {shape}, got "
            f"{value.shape}"
        )
    in_range(name, value, end)
    return value


def packing(name, value, total):
    """Return the borders of packed sequences, (B + 1,) int64: they rise from 0 to `total`."""
    cuts = cut_points(name, value)
    check_end(name, cuts, total, "the number of tokens")
    return cuts
