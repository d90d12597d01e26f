# SPDX-License-Identifier: MIT
"""What `_core.attend_varlen_plain` takes it does as validation and `_core.attend_varlen` do."""

import cases
import hypothesis.strategies as st
import numpy as np
import pytest
from error_cases import misaligned, swapped_bytes
from hypothesis import given
from test_plain_calls import DTYPES, SETTINGS, Array, same, scales, views

import fastattn
from fastattn import _check, _core
from fastattn._check_dtypes import NARROWER
from fastattn.isa import active

HQ, HKV, D, DV = 4, 2, 8, 6
QUERIES, KEYS = np.array([0, 2, 2, 5]), np.array([0, 4, 5, 11], np.int32)
PAGES, PAGE = 7, 4
TABLE = np.array([[5, 0, 3], [2, 6, 1], [1, 4, 2]], np.int32)
DEFAULTS = {
    "cu_seqlens_q": QUERIES, "cu_seqlens_k": KEYS, "causal": False, "window_size": None,
    "scale": None, "softcap": 0.0, "alibi_slopes": None, "sinks": None, "q_offset": None,
    "kv_lengths": None, "kv_starts": None, "block_table": None, "k_scale": None, "v_scale": None,
    "precision": "highest", "out": None, "return_lse": False, "num_threads": 1,
}  # fmt: skip


def plainly(*arrays, **options):
    """Return what the short way makes of a call, or None if it does not take it."""
    return _core.attend_varlen_plain(*arrays, *(DEFAULTS | options).values(), active())


def generally(*arrays, **options):
    """Return what validation and `_core.attend_varlen` make of a call."""
    problem = _check.varlen_problem(*arrays, **(DEFAULTS | options))
    _core.attend_varlen(problem, 1, active())
    return (problem.result, problem.lse_result) if problem.lse is not None else problem.result


def check(*arrays, **options):
    """The short way takes the call, and gives what the long way does."""
    same(plainly(*arrays, **options), generally(*arrays, **options))


def tensors(rng, dtype="float32", paged=False):
    """C-contiguous q, k, v of the sizes above."""
    keys = (PAGES, PAGE) if paged else (KEYS[-1],)
    shapes = (QUERIES[-1], HQ, D), (*keys, HKV, D), (*keys, HKV, DV)
    return [cases.normal(rng, *shape, dtype=cases.dtype_of(dtype)) for shape in shapes]


def packed_options(rng):
    """Options of packed keys one by one, all of which the short way takes."""
    return [
        {}, {"causal": True, "return_lse": True}, {"window_size": (2, 0)}, {"scale": 0.3},
        {"softcap": 3.0}, {"sinks": np.ones(HQ)}, {"q_offset": 1, "causal": True},
        {"alibi_slopes": np.ones(HQ)}, {"cu_seqlens_q": QUERIES.tolist()},
        {"cu_seqlens_k": tuple(KEYS.tolist()), "kv_lengths": [3, 0, 6]},
        {"kv_lengths": [3, 0, 6]}, {"kv_starts": np.array([1, 1, 5]), "kv_lengths": [4, 0, 4]},
        {"cu_seqlens_q": QUERIES.astype(np.int32)}, {"k_scale": 0.1, "v_scale": scales(rng, HKV)},
        {"k_scale": scales(rng, HKV, KEYS[-1]), "v_scale": scales(rng, KEYS[-1], HKV).T},
        {"num_threads": 2}, {"precision": "medium"}, {"cu_seqlens_k": np.array([0, 0, 11, 11])},
    ]  # fmt: skip


def paged_options(rng):
    """The same of keys in pages."""
    each, wrong = scales(rng, PAGES, HKV, PAGE), np.where(TABLE == 1, -1, TABLE)
    lengths = {"kv_lengths": [12, 0, 9], "cu_seqlens_k": None}
    return [
        {}, {"causal": True, "return_lse": True}, lengths, {**lengths, "kv_starts": [4, 12, 5]},
        {"kv_lengths": [2, 1, 6]}, {"k_scale": each, "v_scale": each.T.copy().T},
        {"k_scale": scales(rng, HKV), "v_scale": 2}, {"block_table": TABLE.astype(np.int64)},
        {"block_table": wrong, "cu_seqlens_k": np.array([0, 12, 20, 20])},
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_options_give_what_the_general_way_does(dtype, rng):
    arrays, pages = tensors(rng, dtype), tensors(rng, dtype, paged=True)
    for options in packed_options(rng):
        check(*arrays, **options)
    for options in paged_options(rng):
        check(*pages, **{"block_table": TABLE, **options})
    for stored in NARROWER[dtype]:
        check(arrays[0], *(x.astype(cases.dtype_of(stored)) for x in arrays[1:]))
    out = np.zeros((QUERIES[-1], HQ, DV), arrays[0].dtype)
    assert plainly(*arrays, out=out) is out
    assert out.tobytes() == generally(*arrays).tobytes()


def test_one_kind_of_cuts(rng):
    q = cases.normal(rng, 5, HQ, D)
    k, v = cases.normal(rng, 5, HKV, D), cases.normal(rng, 5, HKV, DV)
    check(q, k, v, cu_seqlens_k=None)


def test_public_functions_go_the_short_way(rng, monkeypatch):
    arrays, pages = tensors(rng), tensors(rng, paged=True)
    cache = fastattn.PagedKVCache(PAGES, PAGE, HKV, D)
    ids = [cache.new() for _ in range(3)]
    cache.append(ids, *(cases.normal(rng, 3, HKV, PAGE, D) for _ in range(2)))
    expected = generally(*arrays), generally(*pages, block_table=TABLE)
    monkeypatch.setattr(_check, "varlen_problem", None)
    same(fastattn.attention_varlen(*arrays, QUERIES, KEYS), expected[0])
    same(fastattn.attention_varlen(*pages, QUERIES, KEYS, block_table=TABLE), expected[1])
    assert cache.attend_varlen(ids, arrays[0], QUERIES).shape == arrays[0].shape


def cuts(rng, total, batch):
    inside = np.sort(rng.integers(0, total + 1, batch - 1))
    return np.array([0, *inside, total], rng.choice([np.int32, np.int64]))


@st.composite
def calls(draw):
    """Packed sequences in any strides, or pages for them, and options."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = cases.dtype_of(draw(st.sampled_from(DTYPES)))
    batch, queries, keys = (
        draw(st.integers(1, 4)),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 70)),
    )
    heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    depth, value_depth = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    pages, page, blocks = draw(st.integers(1, 6)), draw(st.sampled_from([1, 5, 40])), 3
    paged = draw(st.booleans())
    lead = (pages, page) if paged else (keys,)
    steps = [1, 1, 2, -1, 0]
    arrays = [cases.normal(rng, queries, heads * group, depth, dtype=dtype)]
    for size in depth, value_depth:
        arrays.append(draw(views(rng, (*lead, heads, size), dtype, steps)))
    most = np.full(batch, blocks * page)
    chosen = {"cu_seqlens_q": cuts(rng, queries, batch)}
    if paged:
        chosen["block_table"] = rng.integers(0, pages, (batch, blocks))
        chosen["cu_seqlens_k"], chosen["kv_lengths"] = None, rng.integers(0, most + 1)
    else:
        chosen["cu_seqlens_k"] = cuts(rng, keys, batch)
        most = np.diff(chosen["cu_seqlens_k"])
    for name, values in {
        "causal": st.just(True),
        "return_lse": st.just(True),
        "softcap": st.floats(0, 50),
        "q_offset": st.integers(-5, 75),
        "window_size": st.tuples(*[st.none() | st.integers(-1, 70)] * 2),
        "kv_lengths": st.just(rng.integers(0, most + 1)),
        "kv_starts": st.just(rng.integers(0, most + 1)),
        "sinks": st.just(rng.standard_normal(heads * group)),
        "alibi_slopes": st.just(rng.random(heads * group)),
        "k_scale": st.just(scales(rng, heads)) | st.floats(-2, 2),
        "v_scale": st.just(scales(rng, *((pages, heads, page) if paged else (heads, keys)))),
    }.items():
        if draw(st.booleans()):
            chosen[name] = draw(values)
    return arrays, chosen


@SETTINGS
@given(calls())
def test_random_calls(call):
    arrays, options = call
    check(*arrays, **options)


def test_unusual_calls_are_left(rng):
    arrays, pages = tensors(rng), tensors(rng, paged=True)
    for value in (
        QUERIES.tolist()[1:], [0], [], [0, 2.0, 5], QUERIES[None], QUERIES[:1], np.array(5),
        QUERIES[::-1], QUERIES + 1,
        np.array([0, 3, 2, 5]), np.array([0, 2, 2, 4]), np.array([0, 2, 2, 6]), QUERIES.view(Array),
        QUERIES.astype(float), misaligned(QUERIES), swapped_bytes(QUERIES), None,
    ):  # fmt: skip
        assert plainly(*arrays, cu_seqlens_q=value) is None, value
    for options in (
        {"cu_seqlens_k": KEYS[:-1]}, {"cu_seqlens_k": None}, {"cu_seqlens_k": [0, 4, 3, 11]},
        {"cu_seqlens_k": np.array([0, 4, 3, 11])}, {"cu_seqlens_k": KEYS * 2},
        {"kv_lengths": [5, 0, 0]}, {"kv_lengths": [1, 1]}, {"kv_starts": [0, 2, 0]},
        {"kv_starts": -1}, {"q_offset": [0, 0, 0]}, {"sinks": [0.0] * HQ}, {"return_lse": 1},
        {"alibi_slopes": [0.0] * HQ},
        {"k_scale": scales(rng, HKV, 1)}, {"k_scale": scales(rng, KEYS[-1], HKV)},
        {"v_scale": scales(rng, 3, HKV)}, {"scale": "1"}, {"block_table": TABLE},
    ):  # fmt: skip
        assert plainly(*arrays, **options) is None, options
    for options in (
        {"cu_seqlens_k": None}, {"cu_seqlens_k": np.array([0, 13, 13, 13])},
        {"block_table": TABLE[:2]}, {"block_table": TABLE + 3}, {"kv_lengths": [0, 2, 0]},
        {"k_scale": scales(rng, HKV, 11)},
    ):  # fmt: skip
        assert plainly(*pages, **{"block_table": TABLE, **options}) is None, options


def test_unusual_tensors_are_left(rng):
    q, k, v = tensors(rng)
    for odd in misaligned, swapped_bytes, np.ndarray.tolist, lambda x: x.view(Array):
        for arrays in (odd(q), k, v), (q, odd(k), v), (q, k, odd(v)):
            assert plainly(*arrays) is None
    for arrays in (q[None], k, v), (q, k[None], v[None]), (q[..., 1:], k, v), (q, k[1:], v[1:]):
        assert plainly(*arrays) is None
    assert plainly(q[:, ::-1], k, v) is None
    assert plainly(q.swapaxes(0, 1).copy().swapaxes(0, 1), k, v) is None
    like_k = cases.normal(rng, *k.shape)
    for out in q, np.zeros_like(q)[:-1], np.zeros_like(q)[None], np.zeros_like(q, np.float64):
        assert plainly(q, k, like_k, out=out) is None
    memory = np.zeros(q.size, np.float32)
    shared = memory.view(np.int32)[: KEYS.size]
    shared[...] = KEYS
    assert plainly(q, k, like_k, out=memory.reshape(q.shape), cu_seqlens_k=shared) is None
