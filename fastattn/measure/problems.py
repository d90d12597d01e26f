# SPDX-License-Identifier: MIT
"""The problems that are measured: shapes, masks, and the operations and bytes that they take."""

import dataclasses

import numpy as np

from fastattn._check_dtypes import WIDTHS
from fastattn._check_options import MOST_NUMBERS
from fastattn.measure import inputs as arrays

MASKS = ("none", "blocks", "random", "float")


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
        "blocks": bool, the share `allowed` of the 64 x 64 blocks, chosen at random, the diagonal
        kept; "random": bool, each entry allowed with probability 0.9; "float": standard normal.
    padded : bool
        Each sequence of the batch has its own length, uniform in Sk/4 ... Sk (kv_lengths).
    dtype : str
        "float32", "float64", "float16" or "bfloat16".
    kv_dtype : str
        Of stored keys and values: "int8" or an fp8 type, or that of the queries if empty.
    window : int
        Keys at most so far before the query's position; -1 is unbounded. With `causal`.
    softcap : float
    alibi : bool
        With the slopes of `fastattn.layers.alibi_slopes`.
    sinks : bool
        A number for each head in the denominator.
    allowed : float
        Share of mask "blocks".
    packed : tuple of (int, int)
        Queries and keys of each packed sequence; then B is 1, Sq and Sk are the sums.
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
    kv_dtype: str = ""
    window: int = -1
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    allowed: float = 0.5
    packed: tuple = ()

    def __post_init__(self):
        if self.packed:
            object.__setattr__(self, "Sq", sum(queries for queries, _ in self.packed))
            object.__setattr__(self, "Sk", sum(keys for _, keys in self.packed))
        object.__setattr__(self, "Hkv", self.Hkv or self.Hq)
        object.__setattr__(self, "kv_dtype", self.kv_dtype or self.dtype)
        object.__setattr__(self, "Sk", self.Sk or self.Sq)
        object.__setattr__(self, "Dv", self.Dv or self.D)
        if self.mask not in MASKS:
            raise ValueError(f"mask: expected one of {', '.join(MASKS)}, got {self.mask!r}")
        if min(self.B, self.Hq, self.Hkv, self.Sq, self.Sk, self.D, self.Dv) < 1:
            raise ValueError(f"shape: expected sizes of at least 1, got {self.shape}")
        largest = self.B * max(self.Hq * self.Sq, self.Hkv * self.Sk) * max(self.D, self.Dv)
        if largest > MOST_NUMBERS:
            raise ValueError(f"shape: expected arrays of less than 2^60 numbers, got {self.shape}")
        if self.Hq % self.Hkv:
            raise ValueError(f"shape: Hq is no multiple of Hkv in {self.shape}")
        if self.packed and (self.B > 1 or self.padded or self.mask != "none"):
            raise ValueError(f"shape: packed sequences have no batch and no mask in {self.shape}")
        if self.window >= 0 and not self.causal:
            raise ValueError("window: expected causal=True with it")
        if not self.name:
            object.__setattr__(self, "name", self.label)

    @property
    def shape(self):
        """(B, Hq, Hkv, Sq, Sk, D)."""
        return self.B, self.Hq, self.Hkv, self.Sq, self.Sk, self.D

    @property
    def heads(self):
        """Heads in words: of queries, and of keys if they differ."""
        return f"{self.Hq}" if self.Hq == self.Hkv else f"{self.Hq}/{self.Hkv}"

    @property
    def depth(self):
        """Depth in words: of keys, and of values if it differs."""
        return f"{self.D}" if self.Dv == self.D else f"{self.D}:{self.Dv}"

    @property
    def label(self):
        """Short description: the shape and what is special."""
        length = f"{self.Sq}" if self.Sq == self.Sk else f"{self.Sq}:{self.Sk}"
        words = [f"{self.B}x{self.heads}x{length}x{self.depth}"]
        if self.packed:
            words = [f"{len(self.packed)} sequences {self.heads}x{length}x{self.depth}"]
        words += ["causal"] if self.causal else []
        words += [f"window {self.window}"] if self.window >= 0 else []
        words += ["softcap"] if self.softcap else []
        words += ["ALiBi"] if self.alibi else []
        words += ["sinks"] if self.sinks else []
        if self.mask != "none":
            share = f" {self.allowed:.0%}" if self.mask == "blocks" and self.allowed != 0.5 else ""
            words.append(f"mask {self.mask}{share}")
        words += ["padded"] if self.padded else []
        words += [self.kv_dtype] if self.kv_dtype != self.dtype else []
        return " ".join(words)

    @property
    def features(self):
        """What of this problem not every library can do, by the names of `peers.Peer.features`."""
        present = {
            "grouped heads": self.Hq != self.Hkv,
            "values of another depth": self.Dv != self.D,
            "window": self.window >= 0,
            "softcap": self.softcap > 0,
            "ALiBi": self.alibi,
            "sinks": self.sinks,
            "packed sequences": bool(self.packed),
            "two masks": self.mask == "float" and (self.causal or self.padded),
        }
        return [name for name, there in present.items() if there]

    @property
    def arithmetic(self):
        """The type that the products are summed in: of the FMA peak that applies."""
        return "float64" if self.dtype == "float64" else "float32"

    def inputs(self):
        """Return the `Inputs`: standard normal, each time the same."""
        return arrays.make(dataclasses.replace(self, name="-"))

    def pairs(self):
        """Return the number of (query, key) pairs that are allowed, over batch and query heads."""
        if self.packed:
            per_head = [self._pairs_of(queries, keys) for queries, keys in self.packed]
            return self.Hq * sum(per_head)
        if not (self.padded or self.mask in ("blocks", "random")):
            return self.B * self.Hq * self._pairs_of(self.Sq, self.Sk)  # without making the inputs
        inputs = self.inputs()
        lengths = [self.Sk] if inputs.kv_lengths is None else inputs.kv_lengths
        mask = inputs.mask if inputs.mask is not None and inputs.mask.dtype == bool else None
        per_head = [self._pairs_of(self.Sq, self.Sk, kv_end=end, mask=mask) for end in lengths]
        return self.Hq * sum(per_head) * (self.B // len(per_head))

    def _pairs_of(self, queries, keys, **rest):
        window = (self.window, -1)
        causal, offset = self.causal, keys - queries
        return allowed_pairs(queries, keys, causal=causal, window=window, q_offset=offset, **rest)

    def flops(self):
        """Return the floating point operations of the allowed pairs: 2 (D + Dv) for each."""
        return 2 * (self.D + self.Dv) * self.pairs()

    def keys_seen(self):
        """Return how many keys some query may see by position, summed over the batch."""
        if self.padded:
            return int(self.inputs().kv_lengths.sum())
        reach = [(queries, keys) for queries, keys in self.packed] or [(self.Sq, self.Sk)] * self.B
        if self.window < 0:
            return sum(keys for _, keys in reach)
        return sum(min(keys, self.window + queries) for queries, keys in reach)

    def kv_bytes(self):
        """Return the bytes of the keys and values that have to be read at least once."""
        return self.keys_seen() * self.Hkv * (self.D + self.Dv) * WIDTHS[self.kv_dtype]

    def bytes(self):
        """Return `kv_bytes` and those of the queries and of the result."""
        rows = self.B * self.Hq * self.Sq
        return self.kv_bytes() + rows * (self.D + self.Dv) * WIDTHS[self.dtype]


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
