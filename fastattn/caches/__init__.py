# SPDX-License-Identifier: MIT
"""Keys and values that stay between calls: one capacity for all, or pages."""

from fastattn.caches.dense import KVCache
from fastattn.caches.paged import PagedKVCache

__all__ = ["KVCache", "PagedKVCache"]
