# SPDX-License-Identifier: MIT
"""What the layers need of a cache of keys and values: `fastattn.KVCache` has it."""

from typing import Any, Protocol

import numpy.typing as npt


class Cache(Protocol):
    """Keys and values of the tokens so far, of one attention layer."""

    @property
    def k(self) -> npt.NDArray:
        """Keys, (batch, kv_heads, capacity, d_k)."""

    @property
    def lengths(self) -> npt.NDArray:
        """Tokens that are there, (batch,) int64."""

    def append(self, k: npt.NDArray, v: npt.NDArray, *, lengths: Any = None) -> None:
        """Write k, v (batch, kv_heads, tokens, depth) behind what is there.

        With `lengths` (batch,), only the first lengths[b] tokens of sequence b count.
        """

    def attend(self, q: npt.NDArray, **options: Any) -> Any:
        """Return `fastattn.attention` of q (batch, heads, tokens, d_k) with all that is there."""
