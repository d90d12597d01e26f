# SPDX-License-Identifier: MIT
"""Keys in pages, and their scales, on the short way: see test_plain_calls."""

import cases
import hypothesis.strategies as st
import numpy as np
import pytest
from error_cases import misaligned, swapped_bytes
from error_cases_cache import countless
from hypothesis import given
from test_plain_calls import DTYPES, SETTINGS, Array, check, generally, plainly, scales, views

import fastattn
from fastattn import _check
from fastattn._check_dtypes import NARROWER

B, HQ, HKV, SQ, D, DV = 2, 4, 2, 3, 8, 6
PAGES, PAGE, BLOCKS = 7, 4, 3
TABLE = np.array([[5, 0, 3], [2, 6, 1]], np.int32)


def tensors(rng, dtype="float32", bshd=False):
    """C-contiguous q, and K and V in pages."""
    shapes = (B, HQ, SQ, D), (PAGES, HKV, PAGE, D), (PAGES, HKV, PAGE, DV)
    arrays = [cases.normal(rng, *shape, dtype=cases.dtype_of(dtype)) for shape in shapes]
    return [x.swapaxes(1, 2).copy() if bshd else x for x in arrays]


def plain_options(rng):
    """Options one by one, all of which the short way takes."""
    mask = rng.random((B, HQ, SQ, BLOCKS * PAGE)) < 0.6
    unused, before = np.array([[5, 0, -1], [2, PAGES, -9]]), np.array([[-1, 5, 0], [PAGES, -9, 2]])
    each = scales(rng, PAGES, HKV, PAGE)
    return [
        {}, {"causal": True, "return_lse": True}, {"window_size": (3, 0)}, {"q_offset": 2},
        {"kv_lengths": [4, 0]}, {"kv_lengths": np.array([12, 9]), "causal": True},
        {"block_table": TABLE.astype(np.int64)}, {"block_table": TABLE[:, :1].copy()},
        {"block_table": TABLE[:, :0].copy()}, {"block_table": TABLE * 0},
        {"block_table": unused, "kv_lengths": [8, 4]}, {"attn_mask": mask}, {"kv_starts": 5},
        {"block_table": before, "kv_starts": [4, 8]},
        {"block_table": before[:, :2].copy(), "kv_starts": [5, 3], "kv_lengths": [8, 3]},
        {"attn_mask": mask[0, 0]}, {"k_scale": each, "v_scale": each.T.copy().T},
        {"k_scale": 0.1, "v_scale": scales(rng, HKV)}, {"v_scale": each[::-1]},
        {"num_threads": 2}, {"precision": "medium"},
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_options_give_what_the_general_way_does(dtype, layout, rng):
    q, *kv = tensors(rng, dtype, layout == "bshd")
    for options in plain_options(rng):
        given = {"block_table": TABLE, "layout": layout} | options
        check(q, *kv, **given)
    for stored in NARROWER[dtype]:
        check(q, *(x.astype(cases.dtype_of(stored)) for x in kv), block_table=TABLE, layout=layout)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_public_functions_go_the_short_way(layout, rng, monkeypatch):
    arrays = tensors(rng, bshd=layout == "bshd")
    cache = fastattn.PagedKVCache(PAGES, PAGE, HKV, D, layout=layout)
    ids = [cache.new(), cache.new()]
    cache.append(ids, *(cases.normal(rng, B, *arrays[1].shape[1:]) for _ in range(2)))
    called = {"block_table": TABLE, "kv_lengths": [12, 5], "kv_starts": [0, 2], "layout": layout}
    pages = {"block_table": cache.block_table(ids), "kv_lengths": cache.lengths(ids)}
    expected = generally(*arrays, **called)
    cached = generally(arrays[0], cache.k, cache.v, layout=layout, **pages)
    monkeypatch.setattr(_check, "problem", None)
    assert fastattn.attention(*arrays, **called).tobytes() == expected.tobytes()
    assert cache.attend(ids, arrays[0]).tobytes() == cached.tobytes()


@st.composite
def calls(draw):
    """Pages in any order, of any number of keys, and a table of those that are needed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = cases.dtype_of(draw(st.sampled_from(DTYPES)))
    few = st.sampled_from([1, 1, 2, 3, 0])
    batch, queries, blocks = draw(few), draw(few), draw(st.integers(0, 5))
    pages, page = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 5, 16, 40]))
    heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    depth, value_depth = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    bshd = draw(st.booleans())
    order = [0, 2, 1, 3] if bshd else range(4)
    arrays = []
    for n, shape in enumerate([
        (batch, heads * group, queries, depth), (pages, heads, page, depth),
        (pages, heads, page, value_depth),
    ]):  # fmt: skip
        steps = [1, 1, 2, -1, 0] if n else [1, 1, 1, 2]
        arrays.append(draw(views(rng, [shape[axis] for axis in order], dtype, steps)))
    starts, lengths = rng.integers(0, blocks * page + 1, (2, batch))
    table = rng.integers(-3, pages + 3, (batch, blocks))
    first = np.arange(blocks) * page
    used = np.maximum(first, starts[:, None]) < np.minimum(first + page, lengths[:, None])
    table = np.where(used, table % pages, table).astype(draw(st.sampled_from([int, np.int32])))
    chosen = {"block_table": table, "kv_lengths": lengths, "kv_starts": starts}
    chosen["layout"] = "bshd" if bshd else "bhsd"
    if draw(st.booleans()):
        chosen |= {"causal": True, "return_lse": True}
    for name in "k_scale", "v_scale":
        if draw(st.booleans()):
            shape = [(), (heads,), (pages, heads, page)][draw(st.integers(0, 2))]
            numbers = draw(views(rng, shape, np.dtype(np.float32), [1, 2, -1, 0]))
            chosen[name] = numbers if shape else float(numbers)
    return arrays, chosen


@SETTINGS
@given(calls())
def test_random_calls(call):
    arrays, options = call
    check(*arrays, **options)


def test_unusual_tables_are_left(rng):
    arrays = tensors(rng)
    for table in (
        TABLE.tolist(), TABLE[:1], TABLE[0], TABLE[None], TABLE[:, ::-1], TABLE.T.copy().T,
        TABLE.astype(np.int16), TABLE.astype(np.uint32), TABLE.astype(float), TABLE.view(Array),
        misaligned(TABLE), swapped_bytes(TABLE), np.where(TABLE == 1, PAGES, TABLE),
        np.where(TABLE == 1, -1, TABLE), np.where(TABLE == 1, np.int64(2**32), TABLE), 0, True,
    ):  # fmt: skip
        assert plainly(*arrays, block_table=table) is None, table
    wrong = np.array([[5, 0, PAGES], [2, 6, 1]])
    assert plainly(*arrays, block_table=wrong, kv_lengths=[9, 12]) is None
    assert plainly(*arrays, block_table=wrong, kv_lengths=[8, 12]) is not None
    assert plainly(*arrays, block_table=wrong[:, ::-1].copy(), kv_starts=[3, 0]) is None


def test_pages_up_to_int32(rng):
    q, *kv = tensors(rng)
    k, v = map(countless, kv)
    check(q, k, v, block_table=np.where(TABLE == 1, 2**31 - 1, TABLE))
    for beyond in np.int64([2**31, 2**32 + 3]):
        table = np.where(TABLE == 1, beyond, TABLE)
        assert plainly(q, k, v, block_table=table) is None, beyond
        check(q, k, v, block_table=table, kv_lengths=[12, 8])


def test_unusual_tensors_are_left(rng):
    q, k, v = tensors(rng)
    for unusual in (
        (q, k[:0], v[:0]), (q, k[:, :, :0], v[:, :, :0]), (q, k, v[:-1]), (q, k[:-1], v),
        (q, k[0], v[0]), (q[:1], k, v), (q, k[:, :1], v), (q[..., 1:], k, v),
    ):  # fmt: skip
        assert plainly(*unusual, block_table=TABLE) is None, [x.shape for x in unusual]
    for shape in (B, HKV), (B, HKV, BLOCKS * PAGE), (PAGES, HKV), (PAGES, 1, PAGE):
        assert plainly(q, k, v, block_table=TABLE, k_scale=scales(rng, *shape)) is None, shape


def test_outputs_apart_from_the_table(rng):
    q, k, _ = tensors(rng)
    memory = np.zeros(q.size + 1, np.int32)
    out, table = memory[:-1].view(np.float32).reshape(q.shape), memory[-1 - TABLE.size : -1]
    given = {"block_table": table.reshape(TABLE.shape)}
    assert plainly(q, k, k, out=out, **given) is None
    given["block_table"] = given["block_table"].copy()
    assert plainly(q, k, k, out=out, **given) is out


def unusual_scales():
    usual = np.ones((B, HKV, PAGE), np.float32)
    yield from [
        np.nan, -np.inf, 3.4028236e38, True, 2**60, "1", [1.0] * HKV, np.float32(1), usual[:, 0],
        usual[0], usual[:1], usual[:, :1], usual[:1, :, 0], usual[:, :1, 0], usual[:, :, :1],
        usual[..., None], usual[:, :, 1:], usual.tolist(),
    ]  # fmt: skip
    yield from (np.full(HKV, x, np.float32) for x in (np.nan, np.inf))
    for x in usual, usual[:, :, 0], usual[0, :, 0]:
        yield from [x.astype(np.float64), x.view(Array), misaligned(x), swapped_bytes(x)]


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_unusual_scales_are_left(name, rng):
    q, k, v = (x[:B] for x in tensors(rng))
    assert plainly(q, k, v, **{name: scales(rng, B, HKV, PAGE)}) is not None
    for value in unusual_scales():
        assert plainly(q, k, v, **{name: value}) is None, value
