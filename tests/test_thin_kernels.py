# SPDX-License-Identifier: MIT
"""Thin tiles, whose vectors hold features of several rows: against a wide tile and the formula."""

import cases
import numpy as np
import pytest

from fastattn import _kernels

# 150: strips of values on every ISA, of which the longest have 128, and what is left
SHAPES = [
    (64, 64, 37),
    (33, 17, 64),
    (5, 3, 9),
    (1, 1, 1),
    (80, 100, 21),
    (128, 16, 4),
    (144, 150, 21),
]


def tiles(isa, dtype, rows, depth, value_depth):
    """A thin tile and a wide one."""
    return [_kernels.Tile(isa, dtype, 1, depth, value_depth, thin) for thin in (rows, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_thin_against_formula(isa, dtype, shape, rng):
    depth, value_depth, keys = shape
    for rows in range(1, _kernels.tile(isa, dtype)["lanes"] + 1):
        q = rng.standard_normal((rows, depth)).astype(dtype)
        k = rng.standard_normal((2 * keys, depth)).astype(dtype)
        v = rng.standard_normal((2 * keys, value_depth)).astype(dtype)
        results = []
        for tile in tiles(isa, dtype, rows, depth, value_depth):
            tile.pack(q, np.log2(np.e) / np.sqrt(depth))
            tile.run("scores", k[:keys])
            scores = tile.s[:keys, :rows].copy()
            tile.run("update", k[:keys], v[:keys])
            tile.run("update", k[keys:], v[keys:])
            canvas = np.full((rows, value_depth + 3), 7, dtype)
            tile.finish(canvas[:, :-3])
            assert (canvas[:, -3:] == 7).all()
            results.append((canvas[:, :-3], scores, tile.m[:rows].copy(), tile.l[:rows].copy()))
        s = k.astype(float) @ q.T.astype(float) / np.sqrt(depth)
        p = np.exp(s - s.max(0))
        allowed = cases.tolerance(dtype, v, s)
        np.testing.assert_allclose(
            results[0][0], (p / p.sum(0)).T @ v.astype(float), rtol=0, atol=allowed
        )
        unit = cases.UNIT[dtype]
        error = (depth + 4) * unit * (np.abs(k[:keys]) @ np.abs(q.T))
        assert (np.abs(results[0][1] - results[1][1]) <= 2 * error).all()
        np.testing.assert_allclose(results[0][2], results[1][2], rtol=0, atol=2 * error.max())
        np.testing.assert_allclose(results[0][3], results[1][3], rtol=4 * error.max() + 8 * unit)


def test_modifiers_and_nan(isa, dtype, rng):
    """Bounds and a mask forbid keys; what is NaN or infinite there stays out of the output."""
    keys, depth = 41, 24
    for rows in {1, _kernels.tile(isa, dtype)["lanes"]}:
        q = rng.standard_normal((rows, depth)).astype(dtype)
        k, v = rng.standard_normal((2, keys, depth)).astype(dtype)
        allowed = rng.random((rows, keys)) < 0.6
        allowed[:, 0], allowed[:, 5:9] = True, False
        v[5], v[6], k[7], v[8, -1] = np.nan, np.inf, np.nan, -np.inf
        tile, wide = tiles(isa, dtype, rows, depth, depth)
        for each in tile, wide:
            each.pack(q, np.log2(np.e) / np.sqrt(depth))
            mask = np.resize(allowed, (each.width, keys))
            for _ in range(2):
                each.run("update", k, v, modifiers={"mask": mask})
        expected = np.empty((rows, depth), dtype)
        got = expected.copy()
        wide.finish(expected)
        tile.finish(got)
        assert np.isfinite(got).all()
        atol = 2 * cases.ALLOWED[dtype] * np.abs(v[np.isfinite(v)]).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
        v[0] = np.nan  # allowed: it reaches every row
        tile.run("update", k, v, modifiers={"mask": np.resize(allowed, (tile.width, keys))})
        tile.finish(got)
        assert np.isnan(got).all()


def test_rescale_and_merge(isa, dtype, rng):
    """Maxima that rise from block to block, and states put together."""
    depth, keys = 20, 16
    for rows in range(1, _kernels.tile(isa, dtype)["lanes"] + 1):
        q = np.abs(rng.standard_normal((rows, depth))).astype(dtype)
        k = np.abs(rng.standard_normal((4 * keys, depth))).astype(dtype)
        k *= np.repeat([1, 6, 3, 20], keys)[:, None].astype(dtype)
        v = rng.standard_normal((4 * keys, depth)).astype(dtype)
        states = []
        for half in range(2):
            tile, _ = tiles(isa, dtype, rows, depth, depth)
            tile.pack(q, np.log2(np.e))
            for n in (2 * half, 2 * half + 1):
                tile.run("update", k[n * keys : n * keys + keys], v[n * keys : n * keys + keys])
            states.append(tile)
        states[0].merge(states[1])
        out = np.empty((rows, depth), dtype)
        states[0].finish(out)
        s = k.astype(float) @ q.T.astype(float)
        p = np.exp(s - s.max(0))
        allowed = cases.tolerance(dtype, v, s)
        np.testing.assert_allclose(out, (p / p.sum(0)).T @ v.astype(float), rtol=0, atol=allowed)
