# SPDX-License-Identifier: MIT
"""Blocks whose rows see different numbers of keys: vectors of rows drop out step by step."""

import subprocess
from pathlib import Path

import cases
import numpy as np
import programs
import pytest

from fastattn import _kernels

ROOT = Path(__file__).parent.parent
DEPTH, VALUE_DEPTH = 24, 20
ENDS = {
    "diagonal": lambda width, keys: np.arange(width) * keys // width + 1,
    "late diagonal": lambda width, keys: np.arange(width) - width // 2,
    "steep": lambda width, keys: np.arange(width) * 3,
    "nearly level": lambda width, keys: keys // 2 + np.arange(width) * 4 // width,
    "falling": lambda width, keys: keys - np.arange(width),
    "one row": lambda width, keys: np.where(np.arange(width) == width // 3, keys, 1),
}


class Reference:
    """Softmax and output over all blocks so far, in float64."""

    def __init__(self, width):
        self.scores, self.values = np.empty((0, width)), np.empty((0, VALUE_DEPTH))

    def add(self, scores, values):
        self.scores = np.concatenate([self.scores, scores])
        self.values = np.concatenate([self.values, values.astype(float)])

    def output(self):
        """Return the output (value_depth, width), 0 where a row has seen no key."""
        most = np.maximum(self.scores.max(0), -1e30)
        weights = np.exp(self.scores - most)
        values = np.where(np.isfinite(self.values), self.values, 0)  # forbidden, or looked at apart
        total = weights.sum(0)
        return values.T @ weights / np.where(total == 0, 1, total)


@pytest.mark.parametrize("vectors", [2, 3, 4])
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("infinite", [False, True])
def test_steps(isa, dtype, vectors, ends, masked, infinite, rng):
    """From the first block on, and again; counted from an earlier key; forbidden infinities."""
    sizes = _kernels.tile(isa, dtype)
    if vectors > sizes["tile_vectors"]:
        pytest.skip(f"tiles have {sizes['tile_vectors']} vectors")
    tile = _kernels.Tile(isa, dtype, vectors, DEPTH, VALUE_DEPTH)
    keys, width = sizes["key_block"] - 1, tile.width
    q, k = (cases.normal(rng, n, DEPTH, dtype=dtype) for n in (width, keys))
    tile.pack(q, np.log2(np.e))
    expected, finite = Reference(width), np.ones(width, bool)
    tile.o[:] = np.nan  # nobody has written it yet
    for first, shape in (0, ends), (5, ends), (0, "diagonal"):
        v = cases.normal(rng, keys, VALUE_DEPTH, dtype=dtype)
        end = ENDS[shape](width, keys).clip(0, keys)
        j = np.arange(keys)[:, None]
        scores = k.astype(float) @ q.T.astype(float)
        bounds = _kernels.aligned((4, width), dtype, 0)
        bounds[1] = end + first
        modifiers = {"begin": bounds[0], "end": bounds[1], "keys_before": first}
        if masked:
            bounds[2], bounds[3] = rng.random(width), np.arange(width)
            mask = np.where(rng.random((width, keys + first)) < 0.3, -np.inf, 0.5).astype(dtype)
            modifiers |= {"mask": mask, "slope": bounds[2], "position": bounds[3]}
            distance = np.abs(bounds[3].astype(float) - (j + first))
            scores += mask.T[first:] - bounds[2] * distance * np.log(2)  # slopes are in log2
        scores = np.where(j < end, scores, -np.inf)
        if infinite:
            key = rng.integers(keys)
            v[key] = np.inf
            finite &= np.isneginf(scores[key])
        tile.run("update", k, v, modifiers=modifiers)
        expected.add(scores, v)
        got = np.where(tile.l == 0, 0, tile.o / np.where(tile.l == 0, 1, tile.l))
        allowed = cases.tolerance(dtype, v, expected.scores)
        np.testing.assert_allclose(
            got[:, finite], expected.output()[:, finite], rtol=0, atol=allowed
        )
        assert not np.isfinite(got[:, ~finite]).any() and not tile.fresh


@pytest.mark.no_sanitizer
def test_asks(tmp_path):
    """Every line of later keys and values, as in blocks without steps."""
    source, target = ROOT / "tests" / "c" / "asks.c", tmp_path / "asks"
    if not (ROOT / "src_c").exists() or programs.COMPILER is None:
        pytest.skip("needs the source tree and a C compiler")
    command = [programs.COMPILER, "-std=gnu11", "-O1", f"-I{ROOT / 'src_c'}", "-DFA_REAL_BITS=32"]
    subprocess.run([*command, source, "-lm", "-o", target], check=True)
    lines, asked = subprocess.check_output([target]).split()
    assert asked == lines
