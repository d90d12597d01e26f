# SPDX-License-Identifier: MIT
"""The problems that are measured: shapes, masks, the operations they take, and named suites."""

import dataclasses
import functools
import math

import numpy as np

MASK_BLOCK = 64  # side of the blocks of which mask "blocks" leaves out half
MASKS = ("none", "blocks", "random", "float")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arrays of one problem, in layout (batch, heads, sequence, depth), C-contiguous.

    `mask` is bool or float, (Sq, Sk), or None; `kv_lengths` is int64, (B,), or None.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray | None = None
    kv_lengths: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Problem:
    """One attention problem.

    Attributes
    ----------
    name : str
        Row label; made from the shape if empty.
    B, Hq, Hkv, Sq, Sk, D, Dv : int
        Batch, heads of queries and of keys, queries, keys, depth of keys and of values. Hkv, Sk
        and Dv follow Hq, Sq and D if 0.
    causal : bool
        Bottom-right aligned: the last query sees every key.
    mask : {"none", "blocks", "random", "float"}
        "blocks": bool, half of the 64 x 64 blocks empty, chosen at random, the diagonal kept;
        "random": bool, each entry allowed with probability 0.9; "float": standard normal.
    padded : bool
        Each sequence of the batch has its own length, uniform in Sk/4 ... Sk (kv_lengths).
    dtype : str
        "float32" or "float64".
    """

    name: str = ""
    B: int = 1
    Hq: int = 1
    Hkv: int = 0
    Sq: int = 1
    Sk: int = 0
    D: int = 64
    Dv: int = 0
    causal: bool = False
    mask: str = "none"
    padded: bool = False
    dtype: str = "float32"

    def __post_init__(self):
        object.__setattr__(self, "Hkv", self.Hkv or self.Hq)
        object.__setattr__(self, "Sk", self.Sk or self.Sq)
        object.__setattr__(self, "Dv", self.Dv or self.D)
        if self.mask not in MASKS:
            raise ValueError(f"mask: expected one of {', '.join(MASKS)}, got {self.mask!r}")
        if min(self.B, self.Hq, self.Hkv, self.Sq, self.Sk, self.D, self.Dv) < 1:
            raise ValueError(f"shape: expected sizes of at least 1, got {self.shape}")
        if self.Hq % self.Hkv:
            raise ValueError(f"shape: Hq is no multiple of Hkv in {self.shape}")
        if not self.name:
            object.__setattr__(self, "name", self.label)

    @property
    def shape(self):
        """(B, Hq, Hkv, Sq, Sk, D)."""
        return self.B, self.Hq, self.Hkv, self.Sq, self.Sk, self.D

    @property
    def label(self):
        """Short description: the shape and what is special."""
        heads = f"{self.Hq}" if self.Hq == self.Hkv else f"{self.Hq}/{self.Hkv}"
        sequence = f"{self.Sq}" if self.Sq == self.Sk else f"{self.Sq}:{self.Sk}"
        depth = f"{self.D}" if self.Dv == self.D else f"{self.D}:{self.Dv}"
        words = [f"{self.B}x{heads}x{sequence}x{depth}"]
        words += ["causal"] if self.causal else []
        words += [f"mask {self.mask}"] if self.mask != "none" else []
        words += ["padded"] if self.padded else []
        return " ".join(words)

    def inputs(self, seed=0):
        """Return the `Inputs`: standard normal, the same for the same seed.

        Arrays of the last problem are kept, because peers are prepared one by one.
        """
        return _inputs(dataclasses.replace(self, name="-"), seed)

    def pairs(self, seed=0):
        """Return the number of (query, key) pairs that are allowed, over batch and query heads."""
        if not (self.causal or self.padded or self.mask in ("blocks", "random")):
            return self.B * self.Hq * self.Sq * self.Sk  # without making the inputs
        inputs = self.inputs(seed)
        offset = self.Sk - self.Sq
        lengths = [self.Sk] if inputs.kv_lengths is None else inputs.kv_lengths
        mask = inputs.mask if inputs.mask is not None and inputs.mask.dtype == bool else None
        per_head = [
            allowed_pairs(
                self.Sq, self.Sk, causal=self.causal, q_offset=offset, kv_end=end, mask=mask
            )
            for end in lengths
        ]
        return self.Hq * sum(per_head) * (self.B // len(per_head))

    def flops(self, seed=0):
        """Return the floating point operations of the allowed pairs: 2 (D + Dv) for each."""
        return 2 * (self.D + self.Dv) * self.pairs(seed)


def allowed_pairs(
    queries, keys, *, causal=False, window=(-1, -1), q_offset=0, kv_begin=0, kv_end=None, mask=None
):
    """Count the pairs of one head that causality, window, key range and a mask allow.

    Parameters
    ----------
    queries, keys : int
    causal : bool
    window : (int, int)
        Left and right; negative is unbounded.
    q_offset, kv_begin, kv_end : int
        Position of query 0; range of keys.
    mask : ndarray, optional
        bool or float, broadcast to (queries, keys).

    Returns
    -------
    int
    """
    position = np.arange(queries, dtype=np.int64) + q_offset
    end = keys if kv_end is None else min(int(kv_end), keys)
    last = np.full(queries, end, np.int64)
    first = np.full(queries, max(int(kv_begin), 0), np.int64)
    if causal:
        last = np.minimum(last, position + 1)
    if window[1] >= 0:
        last = np.minimum(last, position + window[1] + 1)
    if window[0] >= 0:
        first = np.maximum(first, position - window[0])
    if mask is None:
        return int(np.maximum(last - first, 0).sum())
    forbidden = False if mask.dtype == bool else -np.inf
    rows = np.broadcast_to(mask, (queries, keys))
    bounds = zip(rows, np.maximum(first, 0), np.maximum(last, 0), strict=True)
    return sum(int(np.count_nonzero(row[begin:stop] != forbidden)) for row, begin, stop in bounds)


@functools.lru_cache(maxsize=1)
def _inputs(problem, seed):
    """Make the inputs of `problem`."""
    p, rng = problem, np.random.default_rng(seed)
    dtype = np.dtype(p.dtype)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=dtype)

    q, k = normal(p.B, p.Hq, p.Sq, p.D), normal(p.B, p.Hkv, p.Sk, p.D)
    v = normal(p.B, p.Hkv, p.Sk, p.Dv)
    mask = lengths = None
    if p.mask == "blocks":
        mask = _block_mask(rng, p.Sq, p.Sk)
    elif p.mask == "random":
        mask = rng.random((p.Sq, p.Sk)) < 0.9
        mask[:, 0] = True  # a row without keys is defined differently by everybody
    elif p.mask == "float":
        mask = normal(p.Sq, p.Sk)
    if p.padded:
        lengths = rng.integers(max(p.Sk // 4, 1), p.Sk + 1, p.B)
        lengths[0] = p.Sk  # a batch is padded to its longest sequence
    return Inputs(q, k, v, mask, lengths)


def _block_mask(rng, queries, keys):
    """Bool mask of which half of the blocks are empty; each row keeps its diagonal block."""
    rows, columns = math.ceil(queries / MASK_BLOCK), math.ceil(keys / MASK_BLOCK)
    blocks = np.zeros((rows, columns), bool)
    for row in range(rows):
        diagonal = row * columns // rows
        others = np.delete(np.arange(columns), diagonal)
        blocks[row, rng.permutation(others)[: max(columns // 2 - 1, 0)]] = True
        blocks[row, diagonal] = True
    mask = blocks.repeat(MASK_BLOCK, 0).repeat(MASK_BLOCK, 1)
    return np.ascontiguousarray(mask[:queries, :keys])


LENGTHS = (256, 512, 1024, 2048, 4096)
DEPTHS = (64, 128)
HEADS = 8

TINY = Problem("tiny 1x12x16x64", Hq=12, Sq=16, D=64)
MINILM = Problem("MiniLM 32x12x128x32", B=32, Hq=12, Sq=128, D=32)
PADDED = Problem("padded 32x12x128x32", B=32, Hq=12, Sq=128, D=32, padded=True)


def prefill(causal=False, lengths=LENGTHS, depths=DEPTHS, dtype="float32"):
    """Return the prefill grid: batch 1, 8 heads, every length with every depth."""
    return [
        Problem(Hq=HEADS, Sq=length, D=depth, causal=causal, dtype=dtype)
        for depth in depths
        for length in lengths
    ]


def masks(length=2048, depth=64, dtype="float32"):
    """Return the same problem without a mask, causal, and with each kind of mask."""
    base = Problem(Hq=HEADS, Sq=length, D=depth, dtype=dtype)
    variants = [dataclasses.replace(base, name="", mask=mask) for mask in MASKS]
    return [*variants, dataclasses.replace(base, name="", causal=True)]


def small(dtype="float32"):
    """Return the problems of which overhead is a good part."""
    return [dataclasses.replace(problem, dtype=dtype) for problem in (TINY, MINILM, PADDED)]


def short(dtype="float32"):
    """Return four problems that give a first impression."""
    grid = [*prefill(lengths=(512, 1024), depths=(64,), dtype=dtype)]
    causal = prefill(causal=True, lengths=(1024,), depths=(64,), dtype=dtype)
    return [dataclasses.replace(TINY, dtype=dtype), *grid, *causal]


SUITES = {
    "short": short,
    "prefill": prefill,
    "causal": functools.partial(prefill, True),
    "masks": masks,
    "small": small,
}


def suite(name, dtype="float32"):
    """Return the problems of a suite; "all" is every one but "short"."""
    if name == "all":
        grids = [make(dtype=dtype) for key, make in SUITES.items() if key != "short"]
        return list(dict.fromkeys(problem for grid in grids for problem in grid))
    if name not in SUITES:
        raise ValueError(f"suite: expected one of {', '.join([*SUITES, 'all'])}, got {name!r}")
    return SUITES[name](dtype=dtype)
