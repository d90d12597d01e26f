# SPDX-License-Identifier: MIT
"""PagedKVCache refuses what it cannot do, and is afterwards what it was before."""

import numpy as np
import pytest

import fastattn

pytestmark = pytest.mark.forces_isa

K, V = np.ones((2, 2, 3, 8), np.float32), np.ones((2, 2, 3, 5), np.float32)
PACK = {"k": np.ones((6, 2, 8), np.float32), "v": np.ones((6, 2, 5), np.float32)}
APPEND_ERRORS = {
    "unknown": ({"ids": [0, 7]}, ValueError, "ids: expected sequences of this cache, got 7"),
    "freed": ({"ids": [2, 0]}, ValueError, "ids: expected sequences of this cache, got 2"),
    "twice": ({"ids": [1, 1]}, ValueError, "ids: expected each sequence once, got 1 again"),
    "word": ({"ids": "0"}, TypeError, "ids: expected an integer or integers, got str"),
    "float": ({"ids": [0.0, 1.0]}, TypeError, "ids: expected integers, got dtype float64"),
    "count": ({"ids": [0]}, ValueError, "k: expected 1 sequences like ids, got shape (2, 2, 3, 8)"),
    "dtype": ({"k": K.astype(np.float64)}, TypeError, "k: expected dtype float32 for a cache of "),
    "shape": ({"k": K[:, 0]}, ValueError, "k: expected shape (sequences, 2, tokens, 8), got shape"),
    "lengths": ({"lengths": 4}, ValueError, "lengths: expected values from 0 to 3, got 4"),
    "full": ({}, ValueError, "k: expected tokens that fit into the free pages, 1, got tokens that "
             "need 3 (free or evict sequences)"),
    "full by copies": ({"ids": [1, 3], "lengths": 1}, ValueError,
                       "k: expected tokens that fit into the free pages, 1, got tokens that n"),
}  # fmt: skip
VARLEN_ERRORS = {
    "rank": ({"k": K}, ValueError, "k: expected shape (tokens, 2, 8), got shape (2, 2, 3, 8)"),
    "axis": ({"k": K[0, 0, 0]}, ValueError, "k: expected shape (tokens, 2, 8), got shape (8,)"),
    "cuts": ({"cu_seqlens": [0, 6]}, ValueError,
             "cu_seqlens: expected shape (3,) for these ids, got shape (2,)"),
    "fall": ({"cu_seqlens": [0, 7, 6]}, ValueError, "cu_seqlens: expected values that do not fall"),
    "end": ({"cu_seqlens": [0, 1, 5]}, ValueError,
            "cu_seqlens: expected 6 at last, the tokens of k, got 5"),
    "full": ({"cu_seqlens": [0, 6, 6]}, ValueError, "k: expected tokens that fit into the fr"),
    "none": ({"ids": None}, TypeError, "ids: expected an integer or integers, got NoneType"),
}  # fmt: skip


def crowded():
    """Sequences 0, 1, 3 and 4 (2 was freed) in 6 pages of 4; 1, 3 and 4 share their last page."""
    cache = fastattn.PagedKVCache(6, 4, 2, 8, 5)
    ids = [cache.new() for _ in range(3)]
    cache.append(ids, np.ones((3, 2, 7, 8), np.float32), np.ones((3, 2, 7, 5), np.float32))
    cache.free(2)
    assert [cache.fork(1), cache.fork(1)] == [3, 4]
    blocker = cache.new()
    cache.append(blocker, K[:1], V[:1])
    assert cache.free_pages == 1
    return cache


@pytest.mark.parametrize(
    "method, changes, exception, message",
    [
        *(pytest.param("append", *case, id=name) for name, case in APPEND_ERRORS.items()),
        *(pytest.param("append_varlen", *case, id=f"v {n}") for n, case in VARLEN_ERRORS.items()),
    ],
)
def test_append_errors(method, changes, exception, message):
    cache = crowded()
    before = {name: np.array(array) for name, array in cache.state().items()}
    valid = {"k": K, "v": V} if method == "append" else {**PACK, "cu_seqlens": [0, 3, 6]}
    with pytest.raises(exception) as caught:
        getattr(cache, method)(**{"ids": [0, 1], **valid, **changes})
    assert str(caught.value).startswith(message)
    assert cache.free_pages == 1
    for name, array in cache.state().items():
        np.testing.assert_array_equal(array, before[name])


class Breaking:
    """An array of which some writes succeed, before one is interrupted."""

    def __init__(self, array, writes):
        self.array, self.writes = array, writes

    def __getitem__(self, index):
        return self.array[index]

    def __setitem__(self, index, value):
        if self.writes == 0:
            raise KeyboardInterrupt
        self.writes -= 1
        self.array[index] = value


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("method, ids, counts", [
    ("append", [0, 1], [1, 1]), ("append", [0], [3]), ("append_varlen", [1, 4], [1, 0]),
])  # fmt: skip
def test_append_that_breaks_off(method, ids, counts, writes):
    """Neither tokens nor pages are taken, be it in the copy of a page or in that of the tokens."""
    cache, q = crowded(), np.ones((5, 4, 1, 8), np.float32)
    before = {name: np.array(cache.state()[name]) for name in cache._BOOKKEEPING}
    out = cache.attend(cache.ids, q)
    whole, owners = cache._targets[1], cache._pool.owners.copy()
    k, v = 2 * K[: len(ids), :, : max(counts)], 2 * V[: len(ids), :, : max(counts)]
    arguments = ids, k, v, counts
    if method == "append_varlen":
        arguments = ids, 2 * PACK["k"][:1], 2 * PACK["v"][:1], np.cumsum([0, *counts])
    cache._targets[1] = Breaking(whole, writes)
    with pytest.raises(KeyboardInterrupt):
        getattr(cache, method)(*arguments)
    cache._targets[1] = whole
    assert cache.free_pages == 1
    np.testing.assert_array_equal(cache._pool.owners, owners)
    for name, array in before.items():
        np.testing.assert_array_equal(cache.state()[name], array)
    np.testing.assert_array_equal(cache.attend(cache.ids, q), out)
    getattr(cache, method)(*arguments)
    assert cache.free_pages == 0
    assert cache.lengths(ids).tolist() == [7 + count for count in counts]


def test_append_that_breaks_off_leaves_the_tokens_of_a_longer_fork(rng):
    """The shorter one would write to the common page where the longer one has a token."""
    cache = fastattn.PagedKVCache(6, 4, 1, 8)
    first = cache.new()
    k, v = rng.standard_normal((2, 1, 1, 7, 8)).astype(np.float32)
    cache.append(first, k, v)
    second = cache.fork(first)
    cache.truncate(second, 6)
    cache._targets[1] = Breaking(cache._targets[1], 1)
    with pytest.raises(KeyboardInterrupt):
        cache.append([first, second], *np.ones((2, 2, 1, 1, 8), np.float32))
    pages = cache.k[cache.block_table(first)[0], 0]
    np.testing.assert_array_equal(pages.reshape(8, 8)[:7], k[0, 0])


def test_the_last_owner_needs_no_copy():
    """Three share a page: two copies, and the pages of two are enough."""
    cache = crowded()
    cache.free(0)
    cache.append([1, 3, 4], np.ones((3, 2, 1, 8), np.float32), np.ones((3, 2, 1, 5), np.float32))
    assert cache.free_pages == 1


OF_CACHE = "q: expected depth 8 and a multiple of 2 heads for this cache, got shape "
METHODS = {
    "fork": (("fork", 9), ValueError, "id: expected a sequence of this cache, got 9"),
    "fork list": (("fork", [0]), TypeError, "id: expected an integer, got list"),
    "free": (("free", -1), ValueError, "id: expected an integer not below 0, got -1"),
    "length": (("length", True), TypeError, "id: expected an integer, got bool"),
    "lengths": (("lengths", [5, 9]), ValueError, "ids: expected sequences of this cache, got 9"),
    "evict": (("evict", 0, -1), ValueError, "window: expected an integer not below 0, got -1"),
    "truncate": (("truncate", 0, 8), ValueError, "length: expected values from 0 to 7, got 8"),
    "attend": (("attend", [0, 9], K), ValueError, "ids: expected sequences of this cache, got 9"),
    "fewer": (("attend", [0], np.ones((2, 4, 1, 8), np.float32)), ValueError,
              "q: expected 1 sequences like ids, got shape (2, 4, 1, 8)"),
    "more": (("attend", [0, 1], np.ones((1, 4, 1, 8), np.float32)), ValueError,
             "q: expected 2 sequences like ids, got shape (1, 4, 1, 8)"),
    "more of rank 3": (("attend", [0, 1], np.ones((4, 1, 8), np.float32)), ValueError,
                       "q: expected 2 sequences like ids, got shape (4, 1, 8)"),
    "more of rank 5": (("attend", [0, 1], np.ones((3, 1, 4, 1, 8), np.float32)), ValueError,
                       "q: expected 2 sequences like ids, got shape (3, 1, 4, 1, 8)"),
    "depth": (("attend", [0], np.ones((1, 4, 1, 5), np.float32)), ValueError, OF_CACHE),
    "packed depth": (("attend_varlen", [0], np.ones((2, 4, 5), np.float32), [0, 2]), ValueError,
                     OF_CACHE),
    "packed heads": (("attend_varlen", [0], np.ones((2, 3, 8), np.float32), [0, 2]), ValueError,
                     OF_CACHE),
    "packed axes": (("attend_varlen", [0], np.ones((2, 8), np.float32), [0, 2]), ValueError,
                    "q: expected 3 axes (tokens, heads, depth), got shape (2, 8)"),
    "cuts": (("attend_varlen", [0], np.ones((3, 4, 8), np.float32), [0, 1, 3]), ValueError,
             "cu_seqlens_q: expected shape (2,) for these ids, got shape (3,)"),
    "array of cuts": (
        ("attend_varlen", [0, 1], np.ones((3, 4, 8), np.float32), np.array([0, 3])), ValueError,
        "cu_seqlens_q: expected shape (3,) for these ids, got shape (2,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call, exception, message", METHODS.values(), ids=METHODS)
def test_method_errors(call, exception, message):
    cache = crowded()
    with pytest.raises(exception) as caught:
        getattr(cache, call[0])(*call[1:])
    assert str(caught.value).startswith(message)


def test_truncate_before_what_was_evicted():
    cache = fastattn.PagedKVCache(12, 4, 2, 8)
    name = cache.new()
    cache.append(name, *np.ones((2, 1, 2, 10, 8), np.float32))
    cache.evict(name, 1)
    with pytest.raises(ValueError, match="length: expected values from 8 to 10, got 7"):
        cache.truncate(name, 7)
    cache.truncate(name, 8)
    assert cache.length(name) == 8 and cache.free_pages == 12


@pytest.mark.parametrize("method", ["attend", "attend_varlen"])
@pytest.mark.parametrize("option", ["block_table", "k_scale", "v_scale", "layout", "cu_seqlens_k"])
def test_options_that_the_cache_gives(method, option):
    cache = crowded()
    cuts = [[0, 1]] if method == "attend_varlen" else []
    with pytest.raises(
        ValueError, match=f"{option}: expected none, as the cache gives its own, got"
    ):
        getattr(cache, method)(0, np.ones((1, 4, 8), np.float32), *cuts, **{option: 1})


def test_lengths_that_are_not_there():
    with pytest.raises(ValueError, match="kv_lengths: expected at most the 7 tokens of sequence 1"):
        crowded().attend([5, 1], np.ones((2, 4, 1, 8), np.float32), kv_lengths=[3, 8])


@pytest.mark.parametrize("name", ["pages", "page_size", "kv_heads", "depth"])
def test_new_errors(name):
    sizes = {"pages": 2, "page_size": 4, "kv_heads": 1, "depth": 8, name: 0}
    with pytest.raises(ValueError, match=f"{name}: expected an integer not below 1, got 0"):
        fastattn.PagedKVCache(**sizes)


def test_ids_may_be_a_range():
    cache = crowded()
    np.testing.assert_array_equal(cache.lengths(range(2)), cache.lengths([0, 1]))
    q = np.ones((2, 4, 1, 8), np.float32)
    np.testing.assert_array_equal(cache.attend(range(2), q), cache.attend([0, 1], q))
    with pytest.raises(ValueError, match="ids: expected sequences of this cache, got -1"):
        cache.lengths(range(-1, 1))
