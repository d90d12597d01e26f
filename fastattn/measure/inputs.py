# SPDX-License-Identifier: MIT
"""The arrays of a problem: random, each time the same."""

import dataclasses
import functools
import math

import numpy as np

from fastattn import _aligned as aligned
from fastattn import _check_dtypes as dtypes
from fastattn.layers.positions import alibi_slopes

MASK_BLOCK = 64  # side of the blocks that mask "blocks" consists of
INT8_SCALE = 1 / 32  # of stored int8 numbers: standard normal up to 4


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arrays of one problem, in the order of axes (batch, heads, sequence, depth).

    C-contiguous, but those of packed sequences, which lie as (tokens, heads, depth); they begin at
    a line of the cache, for us and for peers. `mask` is bool or float, (Sq, Sk), or None;
    `kv_lengths` is int64, (B,), or None; `sinks` is float32, (Hq,), or None;
    `slopes` are (Hq,), or None. Stored int8 numbers of k and v stand for `scale` times themselves.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray | None = None
    kv_lengths: np.ndarray | None = None
    sinks: np.ndarray | None = None
    slopes: np.ndarray | None = None
    scale: float | None = None


@functools.lru_cache(maxsize=1)
def make(problem):
    """Make the inputs of `problem`; those of the last one are kept, peers are prepared one by one.

    Raises
    ------
    ImportError
        bfloat16 or fp8 without ml_dtypes.
    """
    p, rng = problem, np.random.default_rng(0)
    q = _normal(rng, p, p.Hq, p.Sq, p.D, p.dtype)
    k = _normal(rng, p, p.Hkv, p.Sk, p.D, p.kv_dtype)
    v = _normal(rng, p, p.Hkv, p.Sk, p.Dv, p.kv_dtype)
    mask = lengths = sinks = slopes = None
    if p.mask == "blocks":
        mask = _block_mask(rng, p.Sq, p.Sk, p.allowed)
    elif p.mask == "random":
        mask = rng.random((p.Sq, p.Sk)) < 0.9
        mask[:, 0] = True  # a row without keys is defined differently by everybody
    elif p.mask == "float":
        mask = rng.standard_normal((p.Sq, p.Sk), dtype=np.float32)
        mask = mask.astype(dtypes.named(p.dtype), copy=False)
    if mask is not None:
        mask = aligned.copy(mask)
    if p.padded:
        lengths = rng.integers(max(p.Sk // 4, 1), p.Sk + 1, p.B)
        lengths[0] = p.Sk  # a batch is padded to its longest sequence
    if p.sinks:
        sinks = rng.standard_normal(p.Hq, dtype=np.float32)
    if p.alibi:
        slopes = alibi_slopes(p.Hq)
    scale = INT8_SCALE if p.kv_dtype == "int8" else None
    return Inputs(q, k, v, mask, lengths, sinks, slopes, scale)


def _normal(rng, problem, heads, length, depth, dtype):
    """Return standard normal numbers (B, heads, length, depth)."""
    shape = (problem.B, heads, length, depth)
    if problem.packed:
        shape = (length, heads, depth)
    wide = np.float64 if dtype == "float64" else np.float32
    numbers = rng.standard_normal(shape, dtype=wide)
    if dtype == "int8":
        numbers = (numbers / INT8_SCALE).round().clip(-127, 127)
    numbers = aligned.copy(numbers.astype(dtypes.named(dtype), copy=False))
    return numbers.swapaxes(0, 1)[None] if problem.packed else numbers


def _block_mask(rng, queries, keys, allowed):
    """Bool mask with this share of its blocks allowed; each row keeps its diagonal block."""
    rows, columns = math.ceil(queries / MASK_BLOCK), math.ceil(keys / MASK_BLOCK)
    blocks = np.zeros((rows, columns), bool)
    more = max(int(columns * allowed) - 1, 0)  # beside the diagonal
    for row in range(rows):
        diagonal = row * columns // rows
        others = np.delete(np.arange(columns), diagonal)
        blocks[row, rng.permutation(others)[:more]] = True
        blocks[row, diagonal] = True
    mask = blocks.repeat(MASK_BLOCK, 0).repeat(MASK_BLOCK, 1)
    return np.ascontiguousarray(mask[:queries, :keys])


def sequence(problem, inputs, index):
    """Return (Problem, Inputs) of one of the packed sequences, contiguous."""
    queries, keys = problem.packed[index]
    before = problem.packed[:index]
    first_query, first_key = (sum(pair[n] for pair in before) for n in (0, 1))
    alone = dataclasses.replace(problem, name="", packed=(), Sq=queries, Sk=keys)
    q = inputs.q[:, :, first_query : first_query + queries]
    k, v = (each[:, :, first_key : first_key + keys] for each in (inputs.k, inputs.v))
    q, k, v = map(aligned.copy, (q, k, v))
    return alone, dataclasses.replace(inputs, q=q, k=k, v=v)
