# SPDX-License-Identifier: MIT
"""Random problems over all options of `attention`, for the check and for tests.

A problem follows from its seed and index alone, so that naming the two reproduces it. Shapes are
the awkward ones: around multiples of the tile sizes. Memory that the call must not read (keys
outside the range, padding between rows) is poisoned with NaN; the oracle gets the same values
without the poison.
"""

import dataclasses

import numpy as np

from fastattn import reference

QUERIES = (1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 47, 48, 49, 63, 65, 97, 129)
KEYS = (0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 129, 200, 257)
DEPTHS = (1, 2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 40, 64, 65, 80, 96, 128)
DTYPES = ("float32", "float64")
STRIDES = ("plain", "plain", "gap", "reversed", "swapped", "column-step", "offset")

# Error allowed relative to max|v| at |scores| <= 30; a score's own rounding error grows with it.
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}
SCORE_RANGE = 30.0


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
    """

    seed: int
    index: int
    arrays: tuple
    clean: tuple
    options: dict

    @property
    def dtype(self):
        """Name of the dtype."""
        return self.arrays[0].dtype.name

    def describe(self):
        """Return one line: shapes, dtype and options."""
        shapes = ", ".join(
            f"{name} {'x'.join(map(str, array.shape))}"
            for name, array in zip("qkv", self.arrays, strict=True)
        )
        options = ", ".join(f"{name}={_brief(value)}" for name, value in self.options.items())
        return f"{shapes} {self.dtype}; {options or 'no options'}"

    def expected(self):
        """Return (out, lse, allowed error of out, allowed error of lse) from the oracle."""
        oracle_options = {key: value for key, value in self.options.items() if key != "out"}
        out, lse, scores = reference.attention(
            *self.clean, **oracle_options, return_lse=True, return_scores="masked"
        )
        scaled = reference.attention(*self.clean, **oracle_options, return_scores="scaled")[1]
        largest = max(_largest(scores), _largest(np.where(scores > -np.inf, scaled, 0.0)))
        # A score that is small because large terms cancel is rounded like a large one; half of the
        # Cauchy-Schwarz bound stands for that, which no ordinary scale brings beyond the range.
        growth = max(1.0, largest / SCORE_RANGE, self._score_bound() / 2 / SCORE_RANGE)
        of_v = max(_largest(self.clean[2]), np.finfo(self.dtype).tiny)
        tolerance = TOLERANCE[self.dtype] * growth
        # The D roundings in a score add up like a random walk, and the log of the sum is taken in
        # base two from numbers as large as the scores, rounded in each of about four steps. In
        # `out` that averages out; the log-sum-exp of a row with one high score has all of it.
        unit = float(np.finfo(self.dtype).eps) / 2
        rounding = unit * (self.clean[0].shape[-1] ** 0.5 * self._score_bound() + 4 * largest)
        return out, lse, tolerance * of_v, tolerance + rounding

    def _score_bound(self):
        """Return |scale| max|q| max|k|, which no scaled score exceeds (Cauchy-Schwarz)."""
        q, k = (tensor.astype(np.float64) for tensor in self.clean[:2])
        if not q.size or not k.size:
            return 0.0
        norms = [float(np.sqrt(np.square(tensor).sum(-1).max())) for tensor in (q, k)]
        return abs(self.options.get("scale", q.shape[-1] ** -0.5)) * norms[0] * norms[1]


def _largest(array):
    """Largest absolute value of the finite elements; 0 of none."""
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))


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
    q, k, v = (_strided(rng, rng.standard_normal(each).astype(dtype)) for each in shape.tensors)
    clean = (q, k, v)
    unused = _unused_keys(options, shape)
    k, v = _poisoned(k, unused, shape), _poisoned(v, unused, shape)
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
    options["attn_mask"] = _strided(rng, np.asarray(mask)) if rank else np.asarray(mask)


def _unused_keys(options, shape):
    """Return which keys no row of any batch entry may use, (Sk,) bool."""
    j = np.arange(shape.keys)
    ends = np.atleast_1d(options.get("kv_lengths", shape.keys))
    starts = np.atleast_1d(options.get("kv_starts", 0))
    used = ((starts[:, None] <= j) & (j < ends[:, None])).any(0)
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim and mask.shape[-1] == shape.keys:
        allowed = mask if mask.dtype == bool else mask > -np.inf
        used &= allowed.any(tuple(range(mask.ndim - 1)))
    return ~used


def _poisoned(tensor, unused, shape):
    """Return a copy with the same strides and NaN at the unused keys."""
    if not unused.any():
        return tensor
    copy = _like(tensor)
    copy[...] = tensor
    axis = -3 if shape.bshd else -2
    np.moveaxis(copy, axis, 0)[unused] = np.nan
    return copy


def _like(array):
    """Return an empty array with the shape and the kind of strides of `array`."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    steps = [max(abs(stride) // array.itemsize, 1) for stride in array.strides]
    extent = sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True)) + 1
    if array.size == 0 or not order:
        return np.empty_like(array)
    base = np.full(extent, np.nan, array.dtype)
    view = np.lib.stride_tricks.as_strided(
        base, array.shape, [step * array.itemsize for step in steps]
    )
    return view[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]


def _strided(rng, array):
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
    poison = np.nan if array.dtype.kind == "f" else True
    room = np.full(shape, poison, array.dtype)
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
