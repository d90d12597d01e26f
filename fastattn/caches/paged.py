# SPDX-License-Identifier: MIT
"""A cache in pages, which sequences take as they grow, share and give back."""

from typing import Any, Literal

import numpy as np

from fastattn import _check_options as options
from fastattn._check_varlen import check_end, cut_points
from fastattn.attention import attention, attention_varlen
from fastattn.caches.base import MOST, Array, Cache, DType, Indices, Int, Result, check_sequences
from fastattn.caches.pool import PagePool, Sequence, lengths_of, table_of


def _check_cuts(name, cuts, batch):
    """Refuse cuts of another number of sequences: `attention_varlen` would blame the table."""
    shape = (len(cuts),) if isinstance(cuts, list | tuple) else getattr(cuts, "shape", ())
    if len(shape) == 1 and shape[0] != batch + 1:
        raise ValueError(
            f"{name}: expected shape ({batch + 1},) for these ids, got shape {tuple(shape)}"
        )


class PagedKVCache(Cache):
    """Keys and values of any number of sequences in pages of a common pool.

    A sequence takes a page when its last one is full, so that nothing that is there ever moves, and
    gives its pages back when it is freed. Forked sequences share pages; the last one is copied when
    one of them writes to it.

    Parameters
    ----------
    pages : int
        Size of the pool. Memory of pages that were never written is not taken yet on most systems.
    page_size : int
        Tokens of a page.
    kv_heads, depth : int
    value_depth : int, optional
        Default: `depth`.
    dtype : dtype
        float32, float64, float16, `ml_dtypes.bfloat16`; or int8, float8_e4m3fn, float8_e5m2: then
        each token is quantized by itself when it comes, as `quantize_kv` does.
    layout : {"bhsd", "bshd"}
        Order of axes of `append`, `attend`, and the pages.

    Attributes
    ----------
    k, v : ndarray, (pages, Hkv, page, D) and (pages, Hkv, page, Dv)
        The pool, in layout "bshd" (pages, page, Hkv, ...).
    k_scale, v_scale : ndarray or None
        float32 (pages, Hkv, page) if the type is narrow.
    layout : str

    Raises
    ------
    TypeError, ValueError
        Of a wrong type, size or word.

    Notes
    -----
    Sequences are named by integers that `new` and `fork` return; none is used twice. Where `ids`
    are asked for, one integer stands for a batch of one. Another name is a ValueError everywhere,
    what is no integer a TypeError, and nothing is changed then. A cache has no lock: one thread at
    a time may change it.

    Examples
    --------
    >>> import numpy as np, fastattn
    >>> cache = fastattn.PagedKVCache(pages=8, page_size=2, kv_heads=1, depth=2)
    >>> first = cache.new()
    >>> k = v = np.ones((1, 1, 3, 2), dtype=np.float32)
    >>> cache.append(first, k, v)
    >>> both = [first, cache.fork(first)]
    >>> cache.append(both, *np.ones((2, 2, 1, 1, 2), dtype=np.float32))
    >>> cache.block_table(both)  # the first page is shared, the second was copied
    array([[0, 2],
           [0, 1]], dtype=int32)
    >>> cache.lengths(both), cache.free_pages
    (array([4, 4]), 5)
    """

    _AXES = ("pages", "kv_heads", "page_size", "depth")
    _BOOKKEEPING = ("ids", "lengths", "evicted", "tables", "next_id")

    def __init__(
        self,
        pages: Int,
        page_size: Int,
        kv_heads: Int,
        depth: Int,
        value_depth: Int | None = None,
        *,
        dtype: DType = np.float32,
        layout: Literal["bhsd", "bshd"] = "bhsd",
    ) -> None:
        sizes = {"pages": pages, "kv_heads": kv_heads, "page_size": page_size, "depth": depth}
        self._create(sizes, value_depth, dtype, layout)
        self._pool = PagePool(self.k.shape[0], self.page_size)

    # ---- sequences -------------------------------------------------------------------------------

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._targets[0].shape[2]

    @property
    def free_pages(self) -> int:
        """Number of pages that no sequence has."""
        return len(self._pool.free)

    @property
    def ids(self) -> list[int]:
        """The sequences that there are, oldest first."""
        return list(self._pool.sequences)

    def new(self) -> int:
        """Begin an empty sequence.

        Returns
        -------
        int
            Its name.
        """
        return self._pool.add(Sequence())

    def fork(self, id: Int) -> int:
        """Begin a sequence with the tokens of another one.

        It shares the pages. What is appended to either goes to a copy of the last page, if that is
        not full, or to a new one.

        Parameters
        ----------
        id : int

        Returns
        -------
        int
            The name of the new sequence.
        """
        return self._pool.fork(id)

    def free(self, id: Int) -> None:
        """Forget a sequence; pages that it alone had are free again.

        Parameters
        ----------
        id : int
        """
        self._pool.remove(id)

    def truncate(self, id: Int, length: Int) -> None:
        """Forget all but the first tokens of a sequence, and give back the pages behind them.

        Parameters
        ----------
        id : int
        length : int
            Tokens to keep; at least those that were evicted. A window that reaches back to these
            holds less than its size then.

        Raises
        ------
        TypeError, ValueError
            No integer, fewer tokens than that, or more that were evicted. Nothing is forgotten.
        """
        self._pool.truncate(id, length)

    def evict(self, id: Int, window: Int) -> int:
        """Give back whole pages that no later query sees through a window.

        The next token's query, at position ``length(id)``, sees keys from ``length(id) - window``
        on; what lies before goes, in whole pages. The positions of the rest stay what they were:
        `attend` begins at the first key that is left.

        Parameters
        ----------
        id : int
        window : int
            The left side of `window_size`.

        Returns
        -------
        int
            How many pages the sequence gave back.
        """
        return self._pool.evict(id, window)

    def length(self, id: Int) -> int:
        """Return the tokens of a sequence, those that were evicted included.

        Parameters
        ----------
        id : int

        Returns
        -------
        int
        """
        return self._pool.one(id).length

    def lengths(self, ids: Indices) -> Array:
        """Return the tokens of each of several sequences, as `length` counts them.

        Parameters
        ----------
        ids : int or sequence of int
            Any order; one may come twice.

        Returns
        -------
        ndarray of int64, (B,)
        """
        return lengths_of(self._pool.several(ids))

    def starts(self, ids: Indices) -> Array:
        """Return the first token of each sequence that was not evicted.

        Parameters
        ----------
        ids : int or sequence of int
            As in `lengths`.

        Returns
        -------
        ndarray of int64, (B,)
            Positions, counted in tokens from the first that was appended.
        """
        return self._starts(self._pool.several(ids))

    def block_table(self, ids: Indices) -> Array:
        """Return the pages of several sequences, as `attention` takes them.

        Parameters
        ----------
        ids : int or sequence of int
            As in `lengths`.

        Returns
        -------
        ndarray of int32, (B, blocks)
            Of as many blocks as the longest sequence has; 0 where there is no page.
        """
        return table_of(self._pool.several(ids))

    # ---- tokens ----------------------------------------------------------------------------------

    def append(self, ids: Indices, k: Array, v: Array, lengths: Indices | None = None) -> None:
        """Write tokens behind those of several sequences.

        Parameters
        ----------
        ids : int or sequence of int
            Each sequence once.
        k, v : ndarray, (B, Hkv, T, D) and (B, Hkv, T, Dv)
            In the layout and of the type of the cache, or of a wider one, from which they are
            rounded: float32 for 16-bit caches, float32 or 16-bit for narrow ones.
        lengths : int or array_like (B,), optional
            Only the first ``lengths[b]`` of the T tokens count for sequence ``ids[b]``.

        Raises
        ------
        TypeError, ValueError
            Of a wrong type or shape, or more tokens than there are free pages for. Nothing is
            written.
        """
        sequences = self._pool.several(ids, once=True)
        sources = self._sources(k, v)
        batch, _, tokens, _ = sources[0].shape
        if batch != len(sequences):
            raise ValueError(
                f"k: expected {len(sequences)} sequences like ids, got shape {k.shape}"
            )
        counts = [tokens] * batch
        if lengths is not None:
            counts = options.per_batch("lengths", lengths, (batch,), 0, tokens).tolist()
        stored = self._stored(sources, None if lengths is None else counts)
        self._write(sequences, stored, counts, [(b, 0) for b in range(batch)])

    def append_varlen(self, ids: Indices, k: Array, v: Array, cu_seqlens: Indices) -> None:
        """Write packed tokens behind those of several sequences.

        Parameters
        ----------
        ids : int or sequence of int
            Each sequence once.
        k, v : ndarray, (tokens, Hkv, D) and (tokens, Hkv, Dv)
            In this order in both layouts; types as in `append`.
        cu_seqlens : array_like of int, (B + 1,)
            Sequence ``ids[b]`` gets the tokens from ``cu_seqlens[b]`` up to ``cu_seqlens[b + 1]``.

        Raises
        ------
        TypeError, ValueError
            As in `append`.
        """
        sequences = self._pool.several(ids, once=True)
        sources = [source[None] for source in self._sources(k, v, packed=True)]
        cuts = cut_points("cu_seqlens", cu_seqlens)
        _check_cuts("cu_seqlens", cuts, len(sequences))
        check_end("cu_seqlens", cuts, sources[0].shape[2], "the tokens of k")
        counts = np.diff(cuts).tolist()
        stored = self._stored(sources)
        self._write(sequences, stored, counts, [(0, begin) for begin in cuts[:-1].tolist()])

    def attend(self, ids: Indices, q: Array, **given: Any) -> Result:
        """`fastattn.attention` of queries over what is cached for several sequences.

        Parameters
        ----------
        ids : int or sequence of int
            May name a sequence more than once.
        q : ndarray, (B, Hq, Sq, D)
            In the layout. The queries are those of the last tokens, unless `q_offset` is given.
        **given
            Options of `attention`, but for `layout`, `block_table`, `k_scale` and `v_scale`. A mask
            is over ``block_table(ids).shape[1] * page_size`` keys. `kv_lengths` may leave out the
            last tokens.

        Returns
        -------
        What `attention` returns.
        """
        given = self._paged_options(ids, given)
        batch = given["kv_lengths"].size
        check_sequences(q, (batch,), f"{batch} sequences like ids")
        self._check_heads(q)
        return attention(q, self.k, self.v, layout=self.layout, **given)

    def attend_varlen(self, ids: Indices, q: Array, cu_seqlens_q: Indices, **given: Any) -> Result:
        """`fastattn.attention_varlen` of packed queries over what is cached.

        Parameters
        ----------
        ids : int or sequence of int
        q : ndarray, (tokens, Hq, D)
            In this order in both layouts.
        cu_seqlens_q : array_like of int, (B + 1,)
        **given
            Options of `attention_varlen`, but for `cu_seqlens_k`, `block_table`, `k_scale` and
            `v_scale`.

        Returns
        -------
        What `attention_varlen` returns.
        """
        given = self._paged_options(ids, given)
        _check_cuts("cu_seqlens_q", cu_seqlens_q, given["kv_lengths"].size)
        self._check_heads(q, packed=True)
        k, v = (target.swapaxes(1, 2) for target in self._targets[:2])
        return attention_varlen(q, k, v, cu_seqlens_q, **given)

    def _paged_options(self, ids, given):
        """Return the options of attend, with the table and what eviction left."""
        sequences = self._pool.several(ids)
        given = self._attend_options(given, lengths_of(sequences))
        if any(each.evicted for each in sequences):
            starts = self._starts(sequences)
            asked = given.get("kv_starts")
            if asked is not None:
                asked = options.per_batch("kv_starts", asked, starts.shape, 0, MOST)
                starts = np.maximum(starts, asked)
            given["kv_starts"] = starts
        given["block_table"] = table_of(sequences)
        return given

    def _starts(self, sequences):
        return np.array([each.evicted for each in sequences], np.int64) * self.page_size

    def _write(self, sequences, sources, counts, begins):
        """Write counts[b] tokens behind sequence b, from (row, token) begins[b] of sources on."""
        pages, copies = self._pool.reserve(sequences, counts)
        for old, new in copies.values():
            for target in self._targets:
                target[new] = target[old]
        places = []  # page, place in it, row of the source, token of it, how many
        for b, (row, token) in enumerate(begins):
            for page, offset, step in self._pool.places(sequences[b], counts[b], copies.get(b)):
                places.append((page, offset, row, token, step))
                token += step
        if places and len(places) == sum(counts):  # one token each
            into, offsets, rows, tokens, _ = np.array(places).T
            for target, source in zip(self._targets, sources, strict=True):
                target[into, :, offsets] = source[rows, :, tokens]
        else:
            for page, offset, row, token, step in places:
                for target, source in zip(self._targets, sources, strict=True):
                    target[page, :, offset : offset + step] = source[row, :, token : token + step]
        self._pool.commit(sequences, counts, pages, copies)

    def _all_lengths(self):
        return {name: each.length for name, each in self._pool.sequences.items()}

    def _bookkeeping(self):
        return self._pool.state()

    def _restore(self, arrays):
        self._pool = PagePool(self.k.shape[0], self.page_size)
        self._pool.restore(arrays)
