# SPDX-License-Identifier: MIT
"""A cache of one capacity for every sequence of a batch."""

from typing import Any, Literal

import numpy as np

from fastattn import _check_options as options
from fastattn.attention import attention
from fastattn.caches.base import Array, Cache, DType, Indices, Int, Result, check_sequences, shorter


class KVCache(Cache):
    """Keys and values of a batch of sequences, in two plain arrays of fixed capacity.

    Parameters
    ----------
    batch, kv_heads, depth : int
    value_depth : int, optional
        Default: `depth`.
    capacity : int
        Most tokens of a sequence. Memory that no token was written to is not taken yet on most
        systems.
    dtype : dtype
        float32, float64, float16, `ml_dtypes.bfloat16`; or int8, float8_e4m3fn, float8_e5m2: then
        each token is quantized by itself when it comes, as `quantize_kv` does.
    layout : {"bhsd", "bshd"}
        Order of axes of everything that goes in and out.

    Attributes
    ----------
    k, v : ndarray, (B, Hkv, capacity, D) and (B, Hkv, capacity, Dv)
        All the room, in the layout.
    k_scale, v_scale : ndarray or None
        float32 (B, Hkv, capacity) if the type is narrow.
    layout : str

    Raises
    ------
    TypeError, ValueError
        Of a wrong type, size or word.

    Notes
    -----
    A cache has no lock: one thread at a time may change it.

    Examples
    --------
    >>> import numpy as np, fastattn
    >>> cache = fastattn.KVCache(1, 1, 2, capacity=8)
    >>> k = v = np.eye(2, dtype=np.float32)[None, None]
    >>> cache.append(k, v)
    >>> cache.attend(k, scale=1.0, causal=True).round(3)
    array([[[[1.   , 0.   ],
             [0.269, 0.731]]]], dtype=float32)
    """

    _AXES = ("batch", "kv_heads", "capacity", "depth")
    _BOOKKEEPING = ("lengths",)

    def __init__(
        self,
        batch: Int,
        kv_heads: Int,
        depth: Int,
        value_depth: Int | None = None,
        *,
        capacity: Int,
        dtype: DType = np.float32,
        layout: Literal["bhsd", "bshd"] = "bhsd",
    ) -> None:
        sizes = {"batch": batch, "kv_heads": kv_heads, "capacity": capacity, "depth": depth}
        self._create(sizes, value_depth, dtype, layout)
        self._lengths = np.zeros(batch, np.int64)

    @property
    def capacity(self) -> int:
        """Most tokens of a sequence."""
        return self._targets[0].shape[2]

    @property
    def lengths(self) -> Array:
        """Tokens of each sequence: a new int64 array (B,)."""
        return self._lengths.copy()

    def append(self, k: Array, v: Array, *, lengths: Indices | None = None) -> None:
        """Write tokens behind those that are there.

        Parameters
        ----------
        k, v : ndarray, (B, Hkv, T, D) and (B, Hkv, T, Dv)
            In the layout and of the type of the cache, or of a wider one, from which they are
            rounded: float32 for 16-bit caches, float32 or 16-bit for narrow ones.
        lengths : int or array_like (B,), optional
            Only the first ``lengths[b]`` of the T tokens count for sequence b.

        Raises
        ------
        TypeError, ValueError
            Of a wrong type or shape, or more tokens than there is room for. Nothing is written.
        """
        sources = self._sources(k, v)
        batch, _, tokens, _ = sources[0].shape
        if batch != self._lengths.size:
            raise ValueError(f"k: expected {self._lengths.size} sequences, got shape {k.shape}")
        counts = np.full(batch, tokens)
        if lengths is not None:
            counts = options.per_batch("lengths", lengths, (batch,), 0, tokens)
        over = np.flatnonzero(self._lengths + counts > self.capacity)
        if over.size:
            b = over[0]
            raise ValueError(
                f"k: expected at most {self.capacity - self._lengths[b]} tokens more for sequence "
                f"{b}, which has {self._lengths[b]} of {self.capacity}, got {counts[b]}"
            )
        stored = self._stored(sources, None if lengths is None else counts)
        for target, source in zip(self._targets, stored, strict=True):
            _write(target, source, self._lengths, counts)
        self._lengths = self._lengths + counts  # not in place: of a pickle they may be read-only

    def attend(self, q: Array, **given: Any) -> Result:
        """`fastattn.attention` of queries over what is cached.

        Parameters
        ----------
        q : ndarray, (B, Hq, Sq, D)
            In the layout. The queries are those of the last tokens, unless `q_offset` is given.
        **given
            Options of `attention`, but for `layout`, `block_table`, `k_scale` and `v_scale`. A mask
            is over all the capacity. `kv_lengths` may leave out the last tokens.

        Returns
        -------
        What `attention` returns.
        """
        given = self._attend_options(given, self._lengths)
        batch = self._lengths.size
        check_sequences(q, (batch, 1), f"{batch} sequences")
        self._check_heads(q)
        return attention(q, self.k, self.v, layout=self.layout, **given)

    def truncate(self, lengths: Indices) -> None:
        """Forget all but the first tokens of each sequence.

        Parameters
        ----------
        lengths : int or array_like (B,)
            Tokens to keep.

        Raises
        ------
        TypeError, ValueError
            No integers, or more tokens than a sequence has. Nothing is forgotten.
        """
        self._lengths = shorter("lengths", lengths, self._lengths, self.capacity)

    def reset(self) -> None:
        """Forget all tokens."""
        self._lengths = np.zeros_like(self._lengths)

    def _all_lengths(self):
        return self._lengths.tolist()

    def _bookkeeping(self):
        return {"lengths": self.lengths}

    def _restore(self, arrays):
        self._lengths = options.per_batch(
            "lengths", arrays["lengths"], self.k.shape[:1], 0, self.capacity
        )


def _write(target, source, begins, counts):
    """Write the first counts[b] of source[b, :, :] to target[b, :, begins[b]:]."""
    tokens = source.shape[2]
    first = begins[0]
    if (begins == first).all() and (counts == tokens).all():
        target[:, :, first : first + tokens] = source
    elif tokens == 1:
        rows = np.flatnonzero(counts)
        target[rows, :, begins[rows]] = source[rows, :, 0]
    else:
        for b, (begin, count) in enumerate(zip(begins, counts, strict=True)):
            target[b, :, begin : begin + count] = source[b, :, :count]
