# SPDX-License-Identifier: MIT
"""PagedKVCache against a model that keeps the tokens of each sequence in a list of its own."""

import cases
import hypothesis.strategies as st
import numpy as np
import pytest
from cache_cases import DEPTH, HEADS, LAYOUTS, OPTIONS, VALUE_DEPTH, logical, tokens
from hypothesis import HealthCheck, given, settings

import fastattn
from fastattn import reference


def make(pages=12, page_size=4, **changes):
    return fastattn.PagedKVCache(pages, page_size, HEADS, DEPTH, VALUE_DEPTH, **changes)


def content(cache, name):
    """Keys and values of a sequence that were not evicted, (heads, tokens, depth)."""
    [table], [start], length = cache.block_table(name), cache.starts(name), cache.length(name)
    results = []
    for pages in logical(cache.k, cache.layout), logical(cache.v, cache.layout):
        keys = [pages[table[j // cache.page_size], :, j % cache.page_size] for j in range(length)]
        results.append(np.stack([np.zeros_like(pages[0, :, 0]), *keys[start:]], axis=1)[:, 1:])
    return results


def holds(cache, name, k, v):
    for got, want in zip(content(cache, name), (k, v), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 3, np.uint8(4), 16])
def test_append_puts_tokens_behind_those_before(page_size, layout, rng):
    cache = make(60, page_size, layout=layout)
    first, second = cache.new(), cache.new()
    parts = {first: [], second: []}
    for ids, count, lengths in (
        ([first], 5, None), ([second, first], 1, None), ([first, second], 7, [2, 7]),
        ([first, second], 0, None), ([second, first], 1, [0, 1]), ([second], 9, None),
    ):  # fmt: skip
        given = tokens(rng, len(ids), count, layout)
        cache.append(ids, *given, lengths=lengths)
        counts = np.broadcast_to(count if lengths is None else lengths, len(ids))
        for b, name in enumerate(ids):
            parts[name].append([logical(each, layout)[b, :, : counts[b]] for each in given])
    for name, each in parts.items():
        holds(cache, name, *(np.concatenate(part, axis=1) for part in zip(*each, strict=True)))
    assert cache.lengths([second, first]).tolist() == [cache.length(second), cache.length(first)]
    assert cache.free_pages == 60 - sum(-(-cache.length(i) // cache.page_size) for i in cache.ids)
    assert all(cache._pool.one(name).table.size <= 32 for name in cache.ids)  # for 17 pages at most


@pytest.mark.parametrize("layout", LAYOUTS)
def test_append_varlen(layout, rng):
    cache = make(layout=layout)
    ids = [cache.new() for _ in range(3)]
    expected = {name: [] for name in ids}
    for cuts in [0, 5, 5, 9], [0, 1, 2, 3], [0, 0, 6, 7]:
        k, v = (rng.standard_normal((cuts[-1], HEADS, d)).astype(np.float32) for d in (8, 5))
        cache.append_varlen(ids, k, v, cuts)
        for b, name in enumerate(ids):
            part = slice(*cuts[b : b + 2])
            expected[name].append([k[part].swapaxes(0, 1), v[part].swapaxes(0, 1)])
    for name, each in expected.items():
        holds(cache, name, *(np.concatenate(part, axis=1) for part in zip(*each, strict=True)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float8_e4m3fn"])
def test_tokens_are_stored_in_the_type_of_the_cache(dtype, rng):
    cache = make(dtype=cases.dtype_of(dtype))
    name = cache.new()
    k, v = tokens(rng, 1, 10)
    for begin, end in (0, 3), (3, 4), (4, 10):
        cache.append(name, k[:, :, begin:end], v[:, :, begin:end])
    [table] = cache.block_table(name)
    if cache.k_scale is None:
        expected = (cache.k, k.astype(cache.dtype)), (cache.v, v.astype(cache.dtype))
    else:
        held = cache.k, cache.v, cache.k_scale, cache.v_scale
        expected = zip(held, fastattn.quantize_kv(k, v, cache.dtype), strict=True)
        assert cache.k_scale.shape == (12, HEADS, 4) and cache.k_scale.dtype == np.float32
    for got, want in expected:
        for j in range(10):
            np.testing.assert_array_equal(got[table[j // 4], :, j % 4], want[0, :, j])


def test_padding_may_be_nan_in_narrow_pages(rng):
    """Where a token that counts is, nothing is written and no page taken."""
    cache, expected = make(dtype="int8"), make(dtype="int8")
    ids = [cache.new(), cache.new()]
    assert [expected.new(), expected.new()] == ids
    k, v = tokens(rng, 2, 3)
    expected.append(ids, k, v, lengths=[3, 2])
    k[1, :, 2] = np.nan
    with pytest.raises(ValueError, match="k: expected finite values, got NaN or infinity"):
        cache.append(ids, k, v, lengths=[2, 3])
    assert cache.free_pages == 12
    cache.append(ids, k, v, lengths=[3, 2])
    for name, array in expected.state().items():
        np.testing.assert_array_equal(cache.state()[name], array)


def test_new_cache_has_its_sizes_and_no_sequences():
    cache = make()
    assert cache.k.shape == (12, 2, 4, 8) and cache.v.shape == (12, 2, 4, 5)
    assert make(layout="bshd").v.shape == (12, 4, 2, 5)
    assert cache.page_size == 4 and cache.free_pages == 12 and cache.ids == []
    assert cache.nbytes == 12 * 2 * 4 * 13 * 4
    names = [cache.new(), cache.new()]
    assert cache.block_table(names).shape == (2, 0) and cache.block_table(names).dtype == np.int32
    assert cache.lengths(names).tolist() == [0, 0] and cache.lengths(names).dtype == np.int64


# ---- sequences -----------------------------------------------------------------------------------


def test_fork_copies_the_last_page_only_when_it_is_written(rng):
    cache = make()
    first = cache.new()
    k, v = tokens(rng, 1, 6)
    cache.append(first, k, v)
    second, third = cache.fork(first), cache.fork(first)
    assert cache.free_pages == 10 and cache.block_table(second).tolist() == [[0, 1]]
    new = [tokens(rng, 1, 1) for _ in range(3)]
    cache.append([third, first], *map(np.concatenate, zip(new[2], new[0], strict=True)))
    assert cache.free_pages == 8  # two copies; the second sequence has the page alone
    cache.append(second, *new[1])
    assert cache.free_pages == 8
    for name, (k_new, v_new) in zip((first, second, third), new, strict=True):
        holds(cache, name, np.concatenate([k, k_new], 2)[0], np.concatenate([v, v_new], 2)[0])
    tables = cache.block_table([first, second, third])
    assert (tables[:, 0] == 0).all() and len(set(tables[:, 1].tolist())) == 3


def test_fork_at_the_border_of_a_page_copies_nothing(rng):
    cache = make()
    first = cache.new()
    cache.append(first, *tokens(rng, 1, 4))
    second = cache.fork(first)
    cache.append([first, second], *tokens(rng, 2, 1))
    assert cache.block_table([first, second]).tolist() == [[0, 1], [0, 2]]


def test_free_pages_come_back(rng):
    cache = make()
    first = cache.new()
    cache.append(first, *tokens(rng, 1, 9))
    second = cache.fork(first)
    cache.free(first)
    assert cache.free_pages == 9 and cache.ids == [second]
    cache.free(second)
    assert cache.free_pages == 12
    third = cache.new()
    assert third not in (first, second)
    cache.append(third, *tokens(rng, 1, 48))
    assert cache.free_pages == 0


def test_truncate(rng):
    cache = make()
    first = cache.new()
    k, v = tokens(rng, 1, 10)
    cache.append(first, k, v)
    second = cache.fork(first)
    cache.truncate(second, 6)
    assert cache.lengths([first, second]).tolist() == [10, 6] and cache.free_pages == 9
    new = tokens(rng, 1, 3)
    cache.append(second, *new)
    holds(cache, first, k[0], v[0])
    pairs = zip((k, v), new, strict=True)
    holds(cache, second, *(np.concatenate([a[0, :, :6], b[0]], 1) for a, b in pairs))
    cache.truncate(first, 0)
    assert cache.length(first) == 0 and cache.free_pages == 12 - 3


@pytest.mark.parametrize("window, gone", [(0, 2), (1, 2), (2, 2), (3, 1), (6, 1), (7, 0), (99, 0)])
def test_evict(window, gone, rng):
    """Of 10 tokens in pages of 4, the query at 10 sees those from 10 - window on."""
    cache = make()
    name = cache.new()
    k, v = tokens(rng, 1, 10)
    cache.append(name, k, v)
    other = cache.fork(name)
    assert cache.evict(name, window) == gone and cache.free_pages == 9
    assert cache.starts(name).tolist() == [4 * gone] and cache.length(name) == 10
    holds(cache, name, k[0, :, 4 * gone :], v[0, :, 4 * gone :])
    holds(cache, other, k[0], v[0])
    assert cache.evict(name, window) == 0
    cache.free(other)
    assert cache.free_pages == 9 + gone
    new = tokens(rng, 1, 4)
    cache.append(name, *new)
    pairs = zip((k, v), new, strict=True)
    holds(cache, name, *(np.concatenate([a, b], 2)[0, :, 4 * gone :] for a, b in pairs))


@st.composite
def operations(draw):
    """Names of operations and numbers that they may use as they like."""
    names = ["new", "append", "append", "append", "varlen", "fork", "free", "truncate", "evict"]
    one = st.tuples(st.sampled_from(names), st.lists(st.integers(0, 10**6), min_size=4, max_size=4))
    return draw(st.lists(one, min_size=1, max_size=40))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(operations=operations(), page_size=st.integers(1, 5))
def test_any_operations(operations, page_size):
    cache, model, starts, counter = make(10, page_size), {}, {}, iter(range(10**9))

    def some(count):
        """Tokens with a number of their own, as k (HEADS, count, DEPTH)."""
        numbers = [next(counter) for _ in range(count)]
        return np.broadcast_to(np.array(numbers, np.float32)[:, None], (HEADS, count, DEPTH))

    for operation, numbers in operations:
        name = list(model)[numbers[0] % len(model)] if model else None
        if operation == "new" or name is None:
            name = cache.new()
            model[name], starts[name] = some(0), 0
        elif operation in ("append", "varlen"):
            ids = [each for i, each in enumerate(model) if numbers[1] >> i & 1]
            counts = [(numbers[2] >> 2 * i) % 4 for i in range(len(ids))]
            new = [some(count) for count in counts]
            before = cache.free_pages
            try:
                if operation == "append" and ids:
                    k = np.zeros((len(ids), HEADS, 3, DEPTH), np.float32)
                    for row, each in zip(k, new, strict=True):
                        row[:, : each.shape[1]] = each
                    cache.append(ids, k, k[..., :VALUE_DEPTH], lengths=counts)
                elif ids:
                    k = np.concatenate(new, axis=1).swapaxes(0, 1)
                    cuts = np.cumsum([0, *counts])
                    cache.append_varlen(ids, k, k[..., :VALUE_DEPTH], cuts)
            except ValueError:
                assert cache.free_pages == before < sum(counts) + len(ids)
                new = [some(0)] * len(ids)
            for each, more in zip(ids, new, strict=True):
                model[each] = np.concatenate([model[each], more], axis=1)
        elif operation == "fork":
            copy = cache.fork(name)
            model[copy], starts[copy] = model[name], starts[name]
        elif operation == "free":
            cache.free(name)
            del model[name], starts[name]
        elif operation == "truncate":
            kept = starts[name] + numbers[1] % (model[name].shape[1] - starts[name] + 1)
            cache.truncate(name, kept)
            model[name] = model[name][:, :kept]
        else:
            cache.evict(name, numbers[1] % 12)
            seen = max(model[name].shape[1] - numbers[1] % 12, 0)
            starts[name] = max(starts[name], seen - seen % page_size)
        for each, k in model.items():
            assert cache.length(each) == k.shape[1] and cache.starts(each) == starts[each]
            holds(cache, each, k[:, starts[each] :], k[:, starts[each] :, :VALUE_DEPTH])
        used = {
            int(page)
            for each in model
            for page in cache.block_table(each)[0][starts[each] // page_size :]
        }
        assert len(used) + cache.free_pages == 10


# ---- attention -----------------------------------------------------------------------------------


def filled(rng, layout, lengths=(9, 2, 5)):
    """A cache of three sequences, and the same tokens as dense tensors."""
    cache = make(layout=layout)
    ids = [cache.new() for _ in lengths]
    k, v = tokens(rng, 3, max(lengths), layout)
    cache.append(ids, k, v, lengths=lengths)
    return cache, ids, logical(k, layout), logical(v, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [*OPTIONS.values(), "mask"], ids=[*OPTIONS, "mask"])
def test_attend(options, layout, rng):
    cache, ids, k, v = filled(rng, layout)
    q = rng.standard_normal((3, 4, 2, DEPTH)).astype(np.float32)
    expected = {"kv_lengths": [9, 2, 5]}
    if options == "mask":  # over all blocks: 3 pages of 4
        options = {"attn_mask": rng.random((3, 1, 2, 12)) < 0.7}
        expected["attn_mask"] = options["attn_mask"][..., :9]
    else:
        expected |= options
    found, lse = cache.attend(ids, logical(q, layout), return_lse=True, **options)
    cases.check((logical(found, layout), lse), q, k, v, **expected)
    twice = cache.attend([ids[1], ids[1]], logical(q[1:2].repeat(2, 0), layout))
    np.testing.assert_array_equal(twice[0], twice[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attend_varlen(layout, rng):
    cache, ids, k, v = filled(rng, layout)
    cuts = [0, 3, 4, 4]
    q = rng.standard_normal((4, 4, DEPTH)).astype(np.float32)
    out, lse = cache.attend_varlen(ids, q, cuts, causal=True, return_lse=True)
    for b, length in enumerate([9, 2, 5]):
        part = slice(*cuts[b : b + 2])
        keys = k[b : b + 1, :, :length], v[b : b + 1, :, :length]
        if part.start < part.stop:
            result = out[part].swapaxes(0, 1)[None], lse[:, part][None]
            cases.check(result, q[part].swapaxes(0, 1)[None], *keys, causal=True)


@pytest.mark.parametrize("dtype", ["float16", "int8", "float8_e5m2"])
def test_attend_to_narrow_pages(dtype, rng):
    cache = make(dtype=cases.dtype_of(dtype))
    name = cache.new()
    k, v = tokens(rng, 1, 10)
    cache.append(name, k, v)
    scales = {}
    held = k.astype(cache.dtype), v.astype(cache.dtype)
    if cache.k_scale is not None:
        *held, scales["k_scale"], scales["v_scale"] = fastattn.quantize_kv(k, v, cache.dtype)
    q = rng.standard_normal((1, 4, 3, DEPTH)).astype(np.float32)
    expected = reference.attention(q, *held, causal=True, **scales)
    allowed = {"rtol": 0, "atol": 2e-6 * np.abs(v).max()}
    np.testing.assert_allclose(cache.attend(name, q, causal=True), expected, **allowed)
    packed = q[0].swapaxes(0, 1)
    found = cache.attend_varlen(name, packed, [0, 3], causal=True)
    np.testing.assert_allclose(found.swapaxes(0, 1)[None], expected, **allowed)


@pytest.mark.parametrize("varlen", [False, True])
def test_eviction_leaves_the_window(varlen, rng):
    """Decoding with a window: evicted or not makes no difference, and room stays bounded."""
    cache, window = make(6), (5, 0)
    name = cache.new()
    k, v = tokens(rng, 1, 40)
    q = rng.standard_normal((1, 4, 40, DEPTH)).astype(np.float32)
    rows = []
    for i in range(40):
        cache.append(name, k[:, :, i : i + 1], v[:, :, i : i + 1])
        query = q[:, :, i : i + 1]
        if varlen:
            row = cache.attend_varlen(name, query[0].swapaxes(0, 1), [0, 1], window_size=window)
            rows.append(row.swapaxes(0, 1)[None])
        else:
            rows.append(cache.attend(name, query, window_size=window))
        cache.evict(name, 5)
        assert 6 - cache.free_pages <= 3
    expected = reference.attention(q, k, v, window_size=window)
    found = np.concatenate(rows, axis=2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(v).max())
    [start] = cache.starts(name)
    late = cache.attend(name, q[:, :, -1:], kv_starts=int(start) + 2)
    expected = reference.attention(q[:, :, -1:], k, v, kv_starts=start + 2)
    np.testing.assert_allclose(late, expected, rtol=0, atol=2e-6 * np.abs(v).max())
    early = cache.attend(name, q[:, :, -1:], kv_starts=1)
    expected = reference.attention(q[:, :, -1:], k, v, kv_starts=start)
    np.testing.assert_allclose(early, expected, rtol=0, atol=2e-6 * np.abs(v).max())
