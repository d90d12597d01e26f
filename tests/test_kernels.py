# SPDX-License-Identifier: MIT
"""Every entry of the kernel table on its own: against scalar, and against the formula in float64.

A table entry without a check here fails `test_entry`: nothing can be added and left untested.
"""

import cases
import numpy as np
import pytest

from fastattn import _kernels

# (vectors, depth, value_depth, keys): full tiles, tails of every loop, one of everything
SHAPES = [
    (3, 64, 64, 64),
    (3, 33, 17, 37),
    (2, 16, 20, 61),
    (1, 5, 3, 8),
    (1, 1, 1, 1),
    (3, 8, 9, 2),
]
UNIT = cases.UNIT


class Problem:
    """A tile's inputs, and what each stage must make of them, in float64."""

    def __init__(self, isa, dtype, shape, rng):
        vectors, depth, value_depth, keys = shape
        self.tile = _kernels.Tile(isa, dtype, vectors, depth, value_depth)
        self.depths = depth, value_depth
        width = self.tile.width
        self.isa, self.dtype, self.keys, self.width = isa, dtype, keys, width
        self.q = rng.standard_normal((width, depth)).astype(dtype)
        self.k = rng.standard_normal((keys, depth)).astype(dtype)
        self.v = rng.standard_normal((keys, value_depth)).astype(dtype)
        self.factor = 1 / np.sqrt(depth)
        self.tile.pack(self.q, self.factor)
        self.scores = (self.k.astype(float) @ self.q.T.astype(float)) * self.factor
        products = np.abs(self.k.astype(float)) @ np.abs(self.q.T.astype(float)) * self.factor
        # gamma_n of Higham, "Accuracy and Stability", section 3.1: n products, n sums, the factor
        self.score_error = (depth + 3) * UNIT[dtype] * products

    def other(self):
        """Another tile of the same shape."""
        tile = self.tile
        return _kernels.Tile(tile.isa, self.dtype, tile.vectors, *self.depths)

    def run(self, stage, **options):
        self.tile.run(stage, self.k, self.v, **options)

    def bounds(self, begin, end):
        both = _kernels.aligned((2, self.width), self.dtype, 0)
        both[0], both[1] = begin, end
        return {"begin": both[0], "end": both[1]}


def check_pack(p, rng):
    packed = p.tile.q_packed
    factor = np.dtype(p.dtype).type(p.factor)
    np.testing.assert_array_equal(packed, p.q.T * factor)
    assert p.tile.fresh and (p.tile.m < -1e38).all() and not p.tile.l.any()
    sinks = _kernels.aligned((p.width,), p.dtype, -np.inf)
    sinks[::2] = 3.0
    p.tile.pack(p.q[:1], 1.0, sinks)  # one row: the others repeat it
    np.testing.assert_array_equal(packed, np.repeat(p.q[:1].T, p.width, axis=1))
    np.testing.assert_array_equal(p.tile.m[::2], 3.0)
    np.testing.assert_array_equal(p.tile.l, np.arange(p.width) % 2 == 0)
    for storage in ("float16", "bfloat16") if p.dtype == "float32" else ():
        stored = p.q.astype(cases.dtype_of(storage))
        p.tile.pack(stored, p.factor, storage=storage)
        np.testing.assert_array_equal(packed, stored.astype(p.dtype).T * factor)


def check_begin(p, rng):
    sinks = _kernels.aligned((p.width,), p.dtype, -np.inf)
    sinks[::2] = 3.0
    p.run("update")
    p.tile.begin(sinks)
    assert p.tile.fresh
    np.testing.assert_array_equal(p.tile.m[::2], 3.0)
    np.testing.assert_array_equal(p.tile.l, np.arange(p.width) % 2 == 0)


def check_merge(p, rng):
    """Two tiles of different keys against one tile of all, rows without keys in either included."""
    factor = p.factor * np.log2(np.e)
    both, first = p.tile, p.other()
    none = np.arange(p.width) % 3
    for tile in both, first:
        tile.pack(p.q, factor)
    second = p.other()
    second.pack(p.q, factor)
    ends = [np.where(none == n, 0, p.keys) for n in (0, 1)]
    for tile, end in zip((first, second), ends, strict=True):
        for each in (tile, both):
            each.run("update", p.k, p.v, modifiers=p.bounds(0, end))
    first.merge(second)
    np.testing.assert_allclose(first.m + np.log2(first.l), both.m + np.log2(both.l), rtol=0,
                               atol=16 * UNIT[p.dtype] * (1 + np.abs(p.scores).max()))  # fmt: skip
    allowed = cases.tolerance(p.dtype, p.v, p.scores)
    np.testing.assert_allclose(first.o / first.l, both.o / both.l, rtol=0, atol=2 * allowed)
    empty = p.other()
    empty.pack(p.q, factor)
    before = first.o.copy(), first.m.copy(), first.l.copy()
    first.merge(empty)
    for state, kept in zip((first.o, first.m, first.l), before, strict=True):
        np.testing.assert_array_equal(state, kept)
    empty.merge(first)
    np.testing.assert_array_equal(empty.o, first.o)


def stored_rows(p, rng):
    """(storage, row as stored, row as float64) of everything that this type can be stored as."""
    rows = {"real": rng.standard_normal(p.keys).astype(p.dtype)}
    if p.dtype == "float32":
        for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
            every = np.dtype(f"u{cases.dtype_of(name).itemsize}")
            bits = np.arange(2 ** (8 * every.itemsize), dtype=every)
            rows[name] = np.concatenate([bits, bits[: p.keys]]).view(cases.dtype_of(name))
        rows["int8"] = np.concatenate([np.arange(256), np.arange(p.keys)]).astype(np.int8)
    return rows


def check_widen(p, rng):
    """Every number that there is, exactly; tails of every length through the shapes."""
    for storage, row in stored_rows(p, rng).items():
        rows = np.stack([row, row[::-1]])
        expected = rows.astype(p.dtype)
        np.testing.assert_array_equal(_kernels.widen(p.isa, p.dtype, storage, rows), expected)
        scales = np.array([0.3, -2.0], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = expected * scales[:, None].astype(p.dtype)
        got = _kernels.widen(p.isa, p.dtype, storage, rows, scales)
        np.testing.assert_array_equal(got, scaled)


def check_greatest_square(p, rng):
    """Of one row or of many, the greatest anywhere; what is not finite does not get lost."""
    for storage, row in stored_rows(p, rng).items():
        with np.errstate(invalid="ignore"):  # NaN that signal
            numbers = row.astype(float)
        size = np.abs(numbers)
        rows = rng.choice(row[(size < 1e4) & ((size > 1e-4) | (size == 0))], (37, p.keys))
        scales = rng.standard_normal(len(rows)).astype(np.float32)
        for count in (1, len(rows)):
            for factors in (None, scales[:count]):
                size = 1 if factors is None else factors[:, None].astype(float)
                expected = ((rows[:count].astype(float) * size) ** 2).sum(-1).max()
                got = _kernels.greatest_square(p.isa, p.dtype, storage, rows[:count], factors)
                assert abs(got - expected) <= (p.keys + 4) * UNIT[p.dtype] * expected
        for value in numbers[~np.isfinite(numbers)][:3]:
            spoiled = rows.copy()
            spoiled[rng.integers(len(rows)), rng.integers(p.keys)] = value
            assert _kernels.greatest_square(p.isa, p.dtype, storage, spoiled) == np.inf


def check_narrow(p, rng):
    """To nearest even: on numbers, between them, in the middle, and where there is nothing."""
    for storage, row in stored_rows(p, rng).items():
        if row.dtype.itemsize < 2:
            continue
        numbers = row.astype(p.dtype)
        finite = np.sort(numbers[np.isfinite(numbers)])
        middle = finite[:-1] + (finite[1:] - finite[:-1]) / 2
        near = np.nextafter(middle, np.dtype(p.dtype).type(np.inf))
        special = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 65519, 65520, 1e-45], p.dtype)
        nan = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32).view(p.dtype)
        values = np.concatenate([numbers, middle, near, -near, special, nan])[: 1 << 18]
        stored = np.full(values.size + 1, 7).astype(row.dtype)
        _kernels.narrow(p.isa, storage, values, stored[:-1])
        with np.errstate(over="ignore", invalid="ignore"):
            expected = values.astype(row.dtype).astype(float)
            np.testing.assert_array_equal(stored[:-1].astype(float), expected)
        assert stored[-1] == 7


def check_scores(p, rng):
    p.run("scores")
    error = np.abs(p.tile.s[: p.keys] - p.scores)
    assert (error <= p.score_error).all()


def check_modify(p, rng):
    mask = np.where(
        rng.random((p.width, p.keys)) < 0.3, -np.inf, rng.standard_normal((p.width, p.keys))
    )
    mask = mask.astype(p.dtype)
    slope, position = (_kernels.aligned((p.width,), p.dtype, 0) for _ in range(2))
    slope[:], position[:] = rng.random(p.width), rng.integers(-5, 90, p.width)
    begin, end = rng.integers(0, p.keys + 1, (2, p.width))
    cap = 3.0
    j = np.arange(p.keys)[:, None]
    expected = cap * np.tanh(p.scores) * np.log2(np.e) - slope * np.abs(position - j)
    expected = expected + mask.T * np.log2(np.e)
    expected[(j < begin) | (j >= end)] = -np.inf
    p.run("scores")
    p.run("modify", modifiers={
        "cap": cap, "slope": slope, "position": position, "mask": mask, **p.bounds(begin, end),
    })  # fmt: skip
    got = p.tile.s[: p.keys]
    forbidden = np.isneginf(expected)
    np.testing.assert_array_equal(np.isneginf(got), forbidden)
    scale = 8 * UNIT[p.dtype] * (cap + slope * 100 + 10) + 2 * cap * p.score_error
    assert (np.abs(got[~forbidden] - expected[~forbidden]) <= scale[~forbidden]).all()


def exp2_error(p, x):
    """Relative: of the polynomial and its last steps, as check_exp2 has it, and of x, rounded."""
    error = (4 + np.abs(x)) * UNIT["float32"] + 9e-8
    return error if p.dtype == "float32" else error / 2**28


def check_softmax(p, rng):
    p.run("scores")
    p.tile.s[: p.keys] *= 30  # some rows rescale, some do not
    scores = p.tile.s[: p.keys].astype(float)
    for _ in range(2):
        before = p.tile.m.astype(float), p.tile.l.astype(float)
        p.tile.s[: p.keys] = scores
        p.run("softmax")
        top = scores.max(0)
        raised = top > before[0] + 8
        np.testing.assert_array_equal(p.tile.m, np.where(raised, top, before[0]))
        x = np.concatenate([scores, np.maximum(before[:1], -1e300)]) - p.tile.m
        expected = np.exp2(x)
        bound = exp2_error(p, x) * expected + 2e-38
        assert (np.abs(p.tile.s[: p.keys] - expected[:-1]) <= bound[:-1]).all()
        expected[-1] *= before[1]
        bound[-1] *= before[1]
        error = np.abs(p.tile.l - expected.sum(0))
        assert (error <= bound.sum(0) + (p.keys + 2) * UNIT[p.dtype] * expected.sum(0)).all()


def check_output(p, rng):
    weights = rng.random((p.keys, p.width)).astype(p.dtype)
    expected, size = 0.0, 0.0
    for _ in range(3):
        p.tile.s[: p.keys] = weights
        p.run("output")
        expected = expected + p.v.T.astype(float) @ weights
        size = size + np.abs(p.v.T).astype(float) @ weights
        assert (np.abs(p.tile.o - expected) <= (p.keys + 4) * UNIT[p.dtype] * size).all()
    assert not p.tile.fresh


def check_update(p, rng):
    p.tile.pack(p.q, p.factor * np.log2(np.e))
    p.run("update")
    p.run("update", modifiers=p.bounds(0, np.maximum(1, p.keys - np.arange(p.width) % 3)))
    scores = np.concatenate([p.scores, p.scores])
    j = np.arange(p.keys)[:, None]
    scores[p.keys :][j >= np.maximum(1, p.keys - np.arange(p.width) % 3)] = -np.inf
    weights = np.exp(scores - scores.max(0))
    expected = (np.concatenate([p.v, p.v]).T.astype(float) @ weights) / weights.sum(0)
    allowed = cases.tolerance(p.dtype, p.v, p.scores)
    np.testing.assert_allclose(p.tile.o / p.tile.l, expected, rtol=0, atol=allowed)


def check_finish(p, rng):
    check_update(p, rng)
    p.tile.l[0] = 0
    canvas = np.full((p.width, p.v.shape[1] + 3), 7.0, p.dtype)
    p.tile.finish(canvas[: p.width - 1, :-3])
    expected = p.tile.o.T / np.where(p.tile.l == 0, np.inf, p.tile.l)[:, None]
    np.testing.assert_allclose(canvas[:-1, :-3], expected[:-1], rtol=4 * UNIT[p.dtype])
    assert (canvas[:, -3:] == 7).all() and (canvas[-1] == 7).all()


def check_weigh(p, rng):
    check_update(p, rng)
    p.tile.pack(p.q, p.factor * np.log2(np.e))
    p.run("update")
    canvas = np.full((p.width, p.keys + 2), 7.0, p.dtype)
    p.run("weigh", weights=canvas[:, :-2])
    weights = np.exp(p.scores - p.scores.max(0))
    expected = (weights / weights.sum(0)).T
    np.testing.assert_allclose(canvas[:, :-2], expected, rtol=0, atol=cases.ALLOWED[p.dtype])
    assert (canvas[:, -2:] == 7).all()


def check_exp2(p, rng):
    values = np.concatenate([np.linspace(-1070, 90, 4096), rng.uniform(-130, 10, 4096)])
    lowest = {"float32": -126.0, "float64": -1022.0}[p.dtype]
    # polynomial 9.2e-8 (vec_math.inc), last rounding 6e-8, roundings of r * q(r) below 9e-8
    allowed = {"float32": 2.4e-7, "float64": 4.5e-16}
    error_of("exp2", p.tile, values[values >= lowest], np.exp2, allowed)
    special = np.array([-np.inf, lowest - 1, -1e30, 0.0, -0.0, 1.0, np.nan, -2000.0], p.dtype)
    got = elementwise("exp2", p, special)
    np.testing.assert_array_equal(got, [0, 0, 0, 1, 1, 2, np.nan, 0])


def check_tanh(p, rng):
    values = np.concatenate([np.linspace(-12, 12, 4097), rng.normal(0, 0.3, 4096), [1e-6, -1e-30]])
    error_of("tanh", p.tile, values, np.tanh, {"float32": 2.5e-7, "float64": 5e-16})
    special = np.array([-np.inf, np.inf, 0.0, np.nan, 100.0, -100.0], p.dtype)
    got = elementwise("tanh", p, special)
    np.testing.assert_array_equal(got, [-1, 1, 0, np.nan, 1, -1])


def check_fma_loop(p, rng):
    lanes = _kernels.tile(p.isa, p.dtype)["lanes"]
    assert _kernels.fma_loop(p.isa, p.dtype, 10) == 10 * 48 * lanes * 2


def check_read_loop(p, rng):
    parts = [np.ones(1 << 12, np.float32), np.ones(1 << 11, np.float32)]
    assert _kernels.read_loop(p.isa, parts, 3) == 3 * (parts[0].nbytes + parts[1].nbytes)


def elementwise(kernel, p, values):
    """With every value once in every lane, and other values in the other lanes."""
    lanes = _kernels.tile(p.isa, p.dtype)["lanes"]
    padded = np.concatenate([values, np.full(-len(values) % lanes, 0.25, p.dtype)])
    results = [
        np.roll(_kernels.elementwise(kernel, p.isa, np.roll(padded, shift).copy()), -shift)
        for shift in range(lanes)
    ]
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    return results[0][: len(values)]


def error_of(kernel, tile, values, function, allowed):
    dtype = tile.dtype.name
    x = values.astype(dtype)
    padded = np.resize(x, -(-x.size // 64) * 64)
    got = _kernels.elementwise(kernel, tile.isa, padded)
    expected = function(padded.astype(np.longdouble))
    nonzero = expected != 0
    error = np.abs(got[nonzero] / expected[nonzero] - 1).max()
    assert error <= allowed[dtype], (kernel, float(error))


CHECKS = {
    name.removeprefix("check_"): f for name, f in globals().items() if name.startswith("check_")
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_entry(kernel, isa, dtype, shape, rng):
    CHECKS[kernel](Problem(isa, dtype, shape, rng), rng)


@pytest.mark.parametrize("stage", _kernels.STAGES)
@pytest.mark.parametrize("vectors", [1, 2, 3])
def test_stage_against_scalar(isa, dtype, stage, vectors, rng):
    """The same stage on the same numbers: all instruction sets within rounding of scalar."""
    p = Problem(isa, dtype, (vectors, 24, 24, 40), rng)
    for begin in range(0, p.width, 3):
        other = _kernels.Tile("scalar", dtype, 3, 24, 24)
        rows = slice(begin, min(begin + 3, p.width))
        fill = np.resize(p.q[rows], (3, 24))
        p.tile.pack(p.q, p.factor)
        other.pack(np.ascontiguousarray(fill), p.factor)
        for tile in (p.tile, other):
            tile.run("update", p.k, p.v)
            bounds = _kernels.aligned((2, tile.width), dtype, 0)
            bounds[1] = 37
            modifiers = {"begin": bounds[0], "end": bounds[1]} if stage == "modify" else None
            tile.run("scores", p.k, p.v)
            tile.run(stage, p.k, p.v, modifiers=modifiers)
        count = rows.stop - rows.start
        for name in ("s", "o", "m", "l"):
            a, b = getattr(p.tile, name)[..., rows], getattr(other, name)[..., :count]
            a, b = (x[:40] if name == "s" else x for x in (a, b))
            np.testing.assert_allclose(a, b, rtol=64 * UNIT[dtype], atol=256 * UNIT[dtype])


def test_masks_of_every_kind(isa, dtype, rng):
    """bool, float32 and float64, contiguous and strided, to the last key of a block."""
    p = Problem(isa, dtype, (2, 4, 4, 29), rng)
    for kind, stride in [(bool, 1), (bool, 3), ("float32", 1), ("float32", -2), ("float64", 1)]:
        p.run("scores")
        plain = p.tile.s[: p.keys].copy()
        allowed = rng.random((p.width, p.keys * abs(stride))) < 0.6
        mask = allowed if kind is bool else np.where(allowed, 0.5, -np.inf).astype(kind)
        mask = mask[:, ::stride]
        p.run("modify", modifiers={"mask": mask})
        added = 0 if kind is bool else 0.5 * np.log2(np.e)
        expected = np.where(mask.T if kind is bool else np.isfinite(mask.T), plain + added, -np.inf)
        # log2(e), its product with what is added, and the sum are rounded
        np.testing.assert_allclose(p.tile.s[: p.keys], expected, rtol=UNIT[dtype],
                                   atol=4 * UNIT[dtype])  # fmt: skip


def test_every_entry_has_a_check():
    assert set(CHECKS) == {kernel for kernel, _, _ in _kernels.table()}
