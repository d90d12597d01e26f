# SPDX-License-Identifier: MIT
"""Random problems over all options of `attention`, for the check and for tests.

A problem follows from its seed and index alone, so that naming the two reproduces it. Shapes are
the awkward ones: around multiples of the tile sizes. Memory that the call must not read (keys
outside the range, padding between rows) is poisoned with NaN; the oracle gets the same values
without the poison.
"""

import dataclasses
import math

import numpy as np

from fastattn import reference

QUERIES = (1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 47, 48, 49, 63, 65, 97, 129)
KEYS = (0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 129, 200, 257)
DEPTHS = (1, 2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 40, 64, 65, 80, 96, 128)
DTYPES = ("float32", "float64")
STRIDES = ("plain", "plain", "gap", "reversed", "swapped", "column-step", "offset")

# Error allowed relative to max|v| at |scores| <= 30; a score's own rounding error grows with it.
# Of 16-bit queries the scores are float32 as well.
TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-6, "bfloat16": 2e-6}
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-24, "bfloat16": 2.0**-24}
SCORE_RANGE = 30.0
# Relative error of rounding to 16 bits, and the absolute one of the smallest numbers: a weight is
# rounded before it multiplies, their sum with them, and the result once.
HALF_UNIT = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 0.0)}
# On a matrix unit the exponent of base two of such a weight is one of 1/512, and the table that
# makes a weight of it is wrong by up to so much more than rounding is (pieces/words.inc).
EXPONENT_UNIT = {"bfloat16": math.log(2) / 1024 + 1.6e-4}


@dataclasses.dataclass(frozen=True)
class RandomProblem:
    """One call of `attention` and what the oracle needs to judge it.

    Attributes
    ----------
    seed, index : int
    arrays : tuple of ndarray
        q, k, v as the call gets them: strided, poisoned.
    clean : tuple of ndarray
        The same without poison.
    options : dict
        Keyword arguments of the call, without `return_lse`.
    clean_options : dict, optional
        What the oracle gets instead, where `options` are poisoned too.
    function : {"attention", "attention_varlen"}
    """

    seed: int
    index: int
    arrays: tuple
    clean: tuple
    options: dict
    clean_options: dict | None = None
    function: str = "attention"

    @property
    def dtype(self):
        """Name of the dtype of the result."""
        return self.arrays[0].dtype.name

    def describe(self):
        """Return one line: shapes, dtypes and options."""
        shapes = ", ".join(
            f"{name} {'x'.join(map(str, array.shape))}"
            for name, array in zip("qkv", self.arrays, strict=True)
        )
        of_kv = self.arrays[1].dtype.name
        dtypes = self.dtype if of_kv == self.dtype else f"{self.dtype}, k and v {of_kv}"
        options = ", ".join(f"{name}={_brief(value)}" for name, value in self.options.items())
        packed = "" if self.function == "attention" else " packed"
        return f"{shapes} {dtypes}{packed}; {options or 'no options'}"

    def oracle_options(self):
        """Return the keyword arguments of the oracle."""
        options = self.options if self.clean_options is None else self.clean_options
        return {key: value for key, value in options.items() if key != "out"}

    def expected(self):
        """Return (out, lse, allowed error of out, allowed error of lse) from the oracle."""
        options = self.oracle_options()
        out, lse = getattr(reference, self.function)(*self.clean, **options, return_lse=True)
        bound, largest = self._score_bound(options), self._largest_score(options)
        # A score that is small because large terms cancel is rounded like a large one; half of the
        # Cauchy-Schwarz bound stands for that, which no ordinary scale brings beyond the range.
        growth = max(1.0, largest / SCORE_RANGE, bound / 2 / SCORE_RANGE)
        of_v = max(_largest(self.clean[2]) * _largest_scale(options, "v_scale"), 1e-30)
        tolerance = TOLERANCE[self.dtype] * growth
        # The D roundings in a score add up like a random walk, and the log of the sum is taken in
        # base two from numbers as large as the scores, rounded in each of about four steps. In
        # `out` that averages out; the log-sum-exp of a row with one high score has all of it.
        rounding = UNIT[self.dtype] * (self.clean[0].shape[-1] ** 0.5 * bound + 4 * largest)
        half, smallest = HALF_UNIT.get(self.dtype, (0.0, 0.0))
        of_weights = half + smallest * max(KEYS)
        allowed = (tolerance + 2 * of_weights + half) * of_v + smallest
        of_exponents = EXPONENT_UNIT.get(self.dtype, 0.0)
        return out, lse, allowed, tolerance + rounding + of_weights + of_exponents

    def _largest_score(self, options):
        """Return the largest absolute score that counts, before and after ALiBi and mask."""
        if self.function == "attention":
            tables = [
                reference.attention(*self.clean, **options, return_scores=stage)[-1]
                for stage in ("scaled", "masked")
            ]
            return max(_largest(tables[1]), _largest(np.where(tables[1] > -np.inf, tables[0], 0.0)))
        slope = _largest(options.get("alibi_slopes", 0.0))
        farthest = max(KEYS) + max(QUERIES) + _largest(options.get("q_offset", 0))
        return self._score_bound(options) + slope * farthest

    def _score_bound(self, options):
        """Return |scale| max|q| max|k|, which no scaled score exceeds (Cauchy-Schwarz)."""
        q, k = (tensor.astype(np.float64) for tensor in self.clean[:2])
        if not q.size or not k.size:
            return 0.0
        norms = [float(np.sqrt(np.square(tensor).sum(-1).max())) for tensor in (q, k)]
        scale = abs(options.get("scale", q.shape[-1] ** -0.5))
        return scale * norms[0] * norms[1] * _largest_scale(options, "k_scale")


def _largest(array):
    """Largest absolute value of the finite elements; 0 of none."""
    array = np.asarray(array, np.float64)
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))


def _largest_scale(options, name):
    """Largest of the scales of this name; 1 without."""
    return _largest(options.get(name, 1.0))


def _brief(value):
    """Return a value in a few characters."""
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"{value.dtype}{list(value.shape)}"
    return str(value.tolist()) if isinstance(value, np.ndarray) else repr(value)


def random_problem(seed, index, dtype=None):
    """Return the `RandomProblem` with this seed and index.

    Parameters
    ----------
    seed, index : int
    dtype : {"float32", "float64"}, optional
        Either, at random, if None.
    """
    rng = np.random.default_rng([seed, index])
    drawn = DTYPES[rng.integers(2)]
    dtype = np.dtype(dtype or drawn)
    shape = _Shape(rng)
    options = shape.options
    _add_score_options(rng, options, shape)
    _add_positions(rng, options, shape)
    _add_mask(rng, options, shape, dtype)
    q, k, v = (strided(rng, rng.standard_normal(each).astype(dtype)) for each in shape.tensors)
    clean = (q, k, v)
    unused = unused_keys(options, shape.keys)
    axis = -3 if shape.bshd else -2
    k, v = poisoned(k, unused, axis), poisoned(v, unused, axis)
    if rng.random() < 0.2:
        options["out"] = _out(rng, shape, dtype)
    return RandomProblem(seed, index, (q, k, v), clean, options)


class _Shape:
    """Sizes, rank, layout; how lengths and offsets may be given."""

    def __init__(self, rng):
        self.kv_heads = int(rng.integers(1, 4))
        self.heads = self.kv_heads * int(rng.choice([1, 1, 2, 3, 8]))
        self.queries, self.keys = int(rng.choice(QUERIES)), int(rng.choice(KEYS))
        self.depth = int(rng.choice(DEPTHS))
        self.value_depth = int(rng.choice(DEPTHS)) if rng.random() < 0.3 else self.depth
        rank = int(rng.choice([2, 3, 4, 4, 4, 5]))
        if rank == 2:
            self.heads = self.kv_heads = 1
        self.rank = rank
        self.lead = tuple(int(n) for n in rng.integers(1, 4, max(rank - 3, 0)))
        self.batch = int(np.prod(self.lead))
        self.options = {}
        self.bshd = rank > 2 and rng.random() < 0.3
        if self.bshd:
            self.options["layout"] = "bshd"
        # K and V of one batch entry, or of one head, may serve all.
        kv_lead = tuple(1 if rng.random() < 0.15 else n for n in self.lead)
        self.tensors = [
            self.tensor(lead, heads, sequence, depth)
            for lead, heads, sequence, depth in (
                (self.lead, self.heads, self.queries, self.depth),
                (kv_lead, self.kv_heads, self.keys, self.depth),
                (kv_lead, self.kv_heads, self.keys, self.value_depth),
            )
        ]

    def tensor(self, lead, heads, sequence, depth):
        """Return the shape of a tensor in this layout and rank."""
        if self.rank == 2:
            return (sequence, depth)
        inner = (sequence, heads) if self.bshd else (heads, sequence)
        return (*lead, *inner, depth)


def _add_score_options(rng, options, shape):
    """Add scale, softcap, ALiBi and sinks."""
    if rng.random() < 0.3:
        choices = [0.0, -0.5, 1.0, 0.05, 1.0 / shape.depth, 30.0]
        options["scale"] = float(rng.choice(choices))
    if rng.random() < 0.2:
        options["softcap"] = float(rng.choice([0.5, 5.0, 30.0]))
    if rng.random() < 0.2:
        size = (shape.batch, shape.heads) if rng.random() < 0.5 else (shape.heads,)
        options["alibi_slopes"] = rng.uniform(-0.1, 0.5, size).astype(np.float32)
    if rng.random() < 0.2:
        options["sinks"] = rng.standard_normal(shape.heads).astype(np.float32)


def _add_positions(rng, options, shape):
    """Add causality, window, offset and key range."""
    if rng.random() < 0.4:
        options["causal"] = True
    if rng.random() < 0.25:
        options["window_size"] = tuple(int(rng.choice([-1, 0, 1, 7, 16, 40])) for _ in range(2))
    if rng.random() < 0.2:
        options["q_offset"] = _per_batch(rng, shape, -5, shape.keys + 5)
    if rng.random() < 0.3:
        options["kv_lengths"] = _per_batch(rng, shape, 0, shape.keys)
    if rng.random() < 0.15:
        options["kv_starts"] = _per_batch(rng, shape, 0, shape.keys)


def _per_batch(rng, shape, low, high):
    """Return an int, or an array of them with one for each batch entry."""
    values = rng.integers(low, high + 1, shape.batch)
    if rng.random() < 0.4:
        return int(values[0])
    return values.astype(rng.choice([np.int32, np.int64]))


def _add_mask(rng, options, shape, dtype):
    """Add a bool or float mask of a rank from 0 to 4, or of all leading axes."""
    if rng.random() < 0.55:
        return
    full = (*shape.lead, shape.heads, shape.queries, shape.keys)
    rank = int(rng.integers(0, len(full) + 1))
    size = tuple(1 if rng.random() < 0.3 else n for n in full[len(full) - rank :])
    kind = rng.choice(["bool", "blocks", "float", "float-inf"])
    if kind == "bool":
        mask = rng.random(size) < rng.choice([0.5, 0.9, 0.05])
    elif kind == "blocks":
        mask = np.ones(size, bool)
        if rank and size[-1] > 1:
            mask[..., size[-1] // 3 :] = False
    else:
        mask = rng.standard_normal(size).astype(dtype) * 3
        if kind == "float-inf":
            mask = np.where(rng.random(size) < 0.3, dtype.type(-np.inf), mask)
    options["attn_mask"] = strided(rng, np.asarray(mask)) if rank else np.asarray(mask)


def unused_keys(options, keys):
    """Return which keys no row of any batch entry may use, (Sk,) bool."""
    j = np.arange(keys)
    ends = np.atleast_1d(options.get("kv_lengths", keys))
    starts = np.atleast_1d(options.get("kv_starts", 0))
    used = ((starts[:, None] <= j) & (j < ends[:, None])).any(0)
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim and mask.shape[-1] == keys:
        allowed = mask if mask.dtype == bool else mask > -np.inf
        used &= allowed.any(tuple(range(mask.ndim - 1)))
    return ~used


def poison(dtype):
    """Return NaN, or what a type has instead of it."""
    return {"b": True, "i": -128}.get(dtype.kind, np.nan)


def poisoned(tensor, unused, axis):
    """Return a copy with the same strides and NaN at the unused keys, which lie on `axis`."""
    if not unused.any():
        return tensor
    copy = _like(tensor)
    copy[...] = tensor
    np.moveaxis(copy, axis, 0)[unused] = poison(tensor.dtype)
    return copy


def _like(array):
    """Return an empty array with the shape and the kind of strides of `array`."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    steps = [max(abs(stride) // array.itemsize, 1) for stride in array.strides]
    extent = sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True)) + 1
    if array.size == 0 or not order:
        return np.empty_like(array)
    memory = np.empty(extent * array.itemsize, np.uint8)  # as_strided knows no types of ml_dtypes
    np.ndarray(extent, array.dtype, memory)[:] = poison(array.dtype)
    strides = [step * array.itemsize for step in steps]
    view = np.ndarray(array.shape, array.dtype, memory, 0, strides)
    return view[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]


def strided(rng, array):
    """Return the same values in memory of some awkward order; what lies between them is NaN."""
    kind = rng.choice(STRIDES)
    axis = int(rng.integers(array.ndim))
    if kind == "plain" or array.size == 0:
        return array
    if kind == "reversed" and array.ndim > 1:
        axis = int(rng.integers(array.ndim - 1))
        return np.ascontiguousarray(np.flip(array, axis))[_reverse(array.ndim, axis)]
    if kind == "swapped" and array.ndim > 1:
        return np.ascontiguousarray(array.swapaxes(axis, -2)).swapaxes(axis, -2)
    if kind == "column-step":
        axis = array.ndim - 1
    shape = [n * 2 if i == axis and kind != "offset" else n for i, n in enumerate(array.shape)]
    shape[-1] += 1 if kind == "offset" else 0
    room = np.full(shape, poison(array.dtype), array.dtype)
    view = room[..., 1:] if kind == "offset" else room[_every_second(array.ndim, axis)]
    view[...] = array
    return view


def _reverse(rank, axis):
    return tuple(slice(None, None, -1 if i == axis else 1) for i in range(rank))


def _every_second(rank, axis):
    return tuple(slice(None, None, 2 if i == axis else 1) for i in range(rank))


def _out(rng, shape, dtype):
    """Return an array for the result, full of NaN, sometimes with gaps."""
    size = shape.tensor(shape.lead, shape.heads, shape.queries, shape.value_depth)
    if rng.random() < 0.5:
        return np.full(size, np.nan, dtype)
    return np.full((*size[:-1], size[-1] + 3), np.nan, dtype)[..., :-3]
