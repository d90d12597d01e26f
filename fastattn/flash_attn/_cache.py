# SPDX-License-Identifier: MIT
"""The cache of `flash_attn_with_kvcache`: what is in it, what comes in, and how it is rotated."""

import numpy as np

import fastattn
from fastattn._check_dtypes import dtype_name
from fastattn._check_options import array, integers, per_batch, rename
from fastattn._rotary import turned


class Cache:
    """A cache as arrays, seen as rows or as pages.

    Attributes
    ----------
    k, v : ndarray
        (rows, capacity, Hkv, D) or (pages, page, Hkv, D).
    table : ndarray or None
        The rows or pages of each sequence, (B, 1) or (B, blocks); None is the rows in order.
    lengths : ndarray, (B,)
        Keys that each sequence has before the call.
    """

    def __init__(self, k_cache, v_cache, lengths, rows, block_table, q):
        self.k, self.v = array("k_cache", k_cache), array("v_cache", v_cache)
        for name, tensor in ("q", q), ("k_cache", self.k), ("v_cache", self.v):
            if len(tensor.shape) != 4:
                raise ValueError(f"{name}: expected 4 axes, got shape {tuple(tensor.shape)}")
        if self.v.shape[:3] != self.k.shape[:3]:
            expected = f"shape {(*self.k.shape[:3], 'Dv')} like k_cache"
            raise ValueError(f"v_cache: expected {expected}, got {self.v.shape}")
        if rows is not None and block_table is not None:
            raise ValueError("cache_batch_idx: expected None with block_table, got both")
        self.batch = q.shape[0]
        self.table = self._table(rows, block_table)
        capacity = self.k.shape[1] * (1 if self.table is None else self.table.shape[1])
        self.given = lengths is not None
        lengths = lengths if self.given else capacity
        self.lengths = per_batch("cache_seqlens", lengths, (self.batch,), 0, capacity)
        self.capacity = capacity

    def _table(self, rows, block_table):
        batch, count = self.batch, len(self.k)
        if rows is not None:  # a row is a page as long as the cache
            return per_batch("cache_batch_idx", rows, (batch,), 0, count - 1).reshape(batch, 1)
        if block_table is None:
            if count < batch:
                raise ValueError(f"k_cache: expected at least {batch} rows, got {count}")
            self.k, self.v = self.k[:batch], self.v[:batch]
            return None
        table = integers("block_table", block_table, "an array of integers")
        if table.ndim != 2 or len(table) != batch:
            raise ValueError(f"block_table: expected shape ({batch}, blocks), got {table.shape}")
        return table

    def starts(self, leftpad):
        """The first key of each sequence; None is the first of the cache."""
        if leftpad is None:
            return None
        return per_batch("cache_leftpad", leftpad, (self.batch,), 0, self.capacity)

    def attend(self, q, **options):
        """`attention` over the cache."""
        options |= {} if self.table is None else {"block_table": self.table}
        try:
            return fastattn.attention(
                q, self.k, self.v, kv_lengths=self.lengths, layout="bshd", **options
            )
        except (TypeError, ValueError) as error:
            rename(error, {"k": "k_cache", "v": "v_cache"})
            raise

    def fitting(self, name, new, into):
        """New keys or values as an array that can be written into the cache."""
        new = array(name, new)
        expected = (self.batch, *into.shape[2:])
        if new.ndim != 4 or (new.shape[0], *new.shape[2:]) != expected:
            expected = f"({expected[0]}, T, {expected[1]}, {expected[2]})"
            raise ValueError(f"{name}: expected shape {expected}, got {new.shape}")
        if new.dtype != into.dtype:
            expected = f"dtype {into.dtype.name} like {name}_cache"
            raise TypeError(f"{name}: expected {expected}, got {dtype_name(new.dtype)}")
        if not self.given:
            raise ValueError(f"cache_seqlens: expected lengths with {name}, got None")
        if not into.flags.writeable:
            raise ValueError(f"{name}_cache: expected a writable array, got a read-only one")
        longest = int(self.lengths.max(initial=0)) + new.shape[1]
        if longest > self.capacity:
            raise ValueError(
                f"{name}_cache: expected room for {longest} keys, got {self.capacity} in "
                f"shape {into.shape}"
            )
        return new

    def append(self, k, v):
        """Write new keys and values behind what each sequence has."""
        if k.shape[1] != v.shape[1]:
            raise ValueError(f"v: expected {k.shape[1]} keys like k, got shape {v.shape}")
        places = self.lengths[:, None] + np.arange(k.shape[1])
        sequence = np.arange(self.batch)[:, None]
        if self.table is None:
            rows = sequence
        else:
            rows = self.table[sequence, places // self.k.shape[1]]
            places = places % self.k.shape[1]
            if rows.size and (rows.min() < 0 or rows.max() >= len(self.k)):
                raise ValueError(
                    f"block_table: expected pages from 0 to {len(self.k) - 1} where k is written, "
                    f"got {rows.min() if rows.min() < 0 else rows.max()}"
                )
        self.k[rows, places], self.v[rows, places] = k, v
        self.lengths = self.lengths + k.shape[1]


def rotation(cos, sin, interleaved, lengths):
    """A function that rotates the tokens of a tensor (B, T, H, D) by their positions.

    Rotary embedding (Su et al. 2021, arXiv:2104.09864): features are taken in pairs, and pair i of
    the token at position p is rotated by the angle whose cosine and sine are ``cos[p, i]``,
    ``sin[p, i]``.

    Parameters
    ----------
    cos, sin : array, (positions, R / 2)
    interleaved : bool
        Pairs are neighbors; otherwise the halves of the first R features are paired.
    lengths : ndarray, (B,)
        Position of the first token.
    """
    if cos is None or sin is None:
        raise ValueError("rotary_cos, rotary_sin: expected both or neither, got one of them")
    cos, sin = array("rotary_cos", cos), array("rotary_sin", sin)
    if cos.ndim != 2 or sin.shape != cos.shape:
        raise ValueError(
            f"rotary_sin: expected shape (positions, R / 2) like rotary_cos, got {cos.shape} and "
            f"{sin.shape}"
        )

    def rotate(name, tokens, each_by_its_own):
        features = 2 * cos.shape[1]
        if features > tokens.shape[-1]:
            raise ValueError(
                f"rotary_cos: expected at most {tokens.shape[-1] // 2} columns for {name}, got "
                f"shape {cos.shape}"
            )
        steps = np.arange(tokens.shape[1]) if each_by_its_own else np.zeros(tokens.shape[1], int)
        places = lengths[:, None] + steps
        if places.size and places.max() >= len(cos):
            raise ValueError(
                f"rotary_cos: expected at least {places.max() + 1} positions, got shape {cos.shape}"
            )
        work = np.float64 if tokens.dtype == np.float64 else np.float32
        c, s = (table[places][:, :, None].astype(work) for table in (cos, sin))
        rotated = tokens.copy()
        rotated[..., :features] = turned(tokens[..., :features].astype(work), c, s, interleaved)
        return rotated

    return rotate
