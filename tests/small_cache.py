# SPDX-License-Identifier: MIT
"""The least cache that the layers can decode with, for as long as fastattn.KVCache is not there."""

import numpy as np

import fastattn


class KVCache:
    """Keys and values in arrays of fixed capacity, with the interface of fastattn.KVCache."""

    def __init__(
        self, batch, kv_heads, depth, value_depth=None, *, capacity, dtype=np.float32
    ):  # fmt: skip
        self.k = np.full((batch, kv_heads, capacity, depth), np.nan, dtype)
        self.v = np.full((batch, kv_heads, capacity, value_depth or depth), np.nan, dtype)
        self.lengths = np.zeros(batch, np.int64)

    def append(self, k, v, *, lengths=None):
        counts = np.full(len(k), k.shape[2]) if lengths is None else np.asarray(lengths)
        if (self.lengths + counts > self.k.shape[2]).any():
            raise ValueError(f"k: expected at most {self.k.shape[2]} tokens in all")
        for b, (begin, count) in enumerate(zip(self.lengths, counts, strict=True)):
            self.k[b, :, begin : begin + count] = k[b, :, :count]
            self.v[b, :, begin : begin + count] = v[b, :, :count]
        self.lengths += counts

    def attend(self, q, **options):
        options.setdefault("q_offset", self.lengths - q.shape[2])
        return fastattn.attention(q, self.k, self.v, kv_lengths=self.lengths, **options)


def install():
    """Make it `fastattn.KVCache`, unless there is one."""
    if not hasattr(fastattn, "KVCache"):
        fastattn.KVCache = KVCache
