# SPDX-License-Identifier: MIT
"""What the layers need of a cache of keys and values: `fastattn.KVCache` has it."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options


class Cache(Protocol):
    """Keys and values of the tokens so far, of one attention layer."""

    @property
    def k(self) -> npt.NDArray:
        """Keys, (batch, kv_heads, capacity, d_k)."""

    @property
    def lengths(self) -> npt.NDArray:
        """Tokens that are there, (batch,) int64."""

    def append(self, k: npt.NDArray, v: npt.NDArray, *, lengths: Any = None) -> None:
        """Write keys and values behind what is there.

        Parameters
        ----------
        k, v : ndarray, (batch, kv_heads, tokens, d_k) and (batch, kv_heads, tokens, d_v)
        lengths : array of int, (batch,), optional
            Only the first lengths[b] tokens of sequence b count.

        Raises
        ------
        TypeError, ValueError
            Of a wrong type or shape, or more tokens than there is room for. Nothing is written.
        """

    def attend(self, q: npt.NDArray, **options: Any) -> Any:
        """Return what `fastattn.attention` gives for queries over all that is there.

        Parameters
        ----------
        q : ndarray, (batch, heads, tokens, d_k)
        **options
            Of `fastattn.attention`, but for those that say how keys are stored.

        Returns
        -------
        ndarray, (batch, heads, tokens, d_v)
        """

    def truncate(self, lengths: npt.NDArray) -> None:
        """Forget all but the first tokens of each sequence.

        Parameters
        ----------
        lengths : array of int, (batch,)
            Tokens to keep, not more than there are.
        """


def check_cache(cache: Any, name: str = "cache") -> None:
    """Refuse what is no `Cache`: a `fastattn.PagedKVCache`, say, whose `lengths` asks for ids."""
    if not isinstance(getattr(cache, "lengths", None), np.ndarray):
        found = options.described(cache)
        raise TypeError(f"{name}: expected one like fastattn.KVCache, got {found}")


def check_caches(caches: Any, count: int) -> None:
    """Refuse what is no sequence of a `Cache` for each of `count` layers, nor None.

    A cache of two layers, or one that is behind the others, would take tokens all the same: at
    places where they do not belong.
    """
    if caches is None:
        return
    if not isinstance(caches, Sequence):
        raise TypeError(f"caches: expected a sequence, got {options.described(caches)}")
    if len(caches) != count:
        raise ValueError(f"caches: expected {count}, one for each layer, got {len(caches)}")
    seen: dict[int, int] = {}
    for index, cache in enumerate(caches):
        name = f"caches[{index}]"
        check_cache(cache, name)
        first = seen.setdefault(id(cache), index)
        if first != index:
            raise ValueError(f"{name}: expected a cache of its own, got caches[{first}] again")
        if not np.array_equal(cache.lengths, caches[0].lengths):
            expected = f"lengths {caches[0].lengths} like caches[0]"
            raise ValueError(f"{name}: expected {expected}, got {cache.lengths}")


@contextlib.contextmanager
def restored_on_error(caches: Iterable[Cache]) -> Iterator[None]:
    """Forget what was appended to the caches where the block ends with an exception.

    Much of what can be wrong is seen behind the first append only: options by the attention, and
    weights by the products that follow. Called again, the layers would append the tokens twice.
    """
    caches = list(caches)
    for cache in caches:
        check_cache(cache)
    before = [(cache, cache.lengths.copy()) for cache in caches]
    try:
        yield
    except BaseException:
        for cache, lengths in before:
            cache.truncate(lengths)
        raise
