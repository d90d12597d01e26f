# SPDX-License-Identifier: MIT
"""What `_core.attend_plain` takes it does as `_check` and `_core.attend` do; the rest it leaves."""

import cases
import hypothesis.strategies as st
import numpy as np
import pytest
from error_cases import misaligned, swapped_bytes
from hypothesis import HealthCheck, given, settings

import fastattn
from fastattn import _check, _core
from fastattn._check_dtypes import NARROWER
from fastattn.isa import active

B, HQ, HKV, SQ, SK, D, DV = 2, 4, 2, 3, 5, 8, 6
DTYPES = ["float32", "float64", "float16", "bfloat16"]
DEFAULTS = {
    "attn_mask": None, "causal": False, "window_size": None, "scale": None, "softcap": 0.0,
    "alibi_slopes": None, "sinks": None, "q_offset": None, "kv_lengths": None, "kv_starts": None,
    "block_table": None, "k_scale": None, "v_scale": None, "layout": "bhsd",
    "precision": "highest", "out": None, "return_lse": False, "num_threads": 1,
}  # fmt: skip
SETTINGS = settings(
    max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def plainly(q, k, v, **options):
    """Return what the short way makes of a call, or None if it does not take it."""
    return _core.attend_plain(q, k, v, *(DEFAULTS | options).values(), active())


def generally(q, k, v, **options):
    """Return what validation and `_core.attend` make of a call."""
    problem = _check.problem(q, k, v, **options)
    _core.attend(problem, 1, active())
    return (problem.result, problem.lse_result) if problem.lse is not None else problem.result


def same(found, expected):
    """Results are equal to the bit, and lie in memory in the same way."""
    assert type(found) is type(expected)
    if type(found) is np.ndarray:
        found, expected = (found,), (expected,)
    for x, y in zip(found, expected, strict=True):
        assert type(x) is np.ndarray and x.dtype == y.dtype and x.shape == y.shape
        assert x.strides == y.strides and x.flags.owndata == y.flags.owndata
        assert x.tobytes() == y.tobytes()


def check(q, k, v, **options):
    """The short way takes the call, and gives what the long way does."""
    same(plainly(q, k, v, **options), generally(q, k, v, **options))


def tensors(rng, dtype="float32", bshd=False):
    """C-contiguous q, k, v of the sizes above."""
    shapes = (B, HQ, SQ, D), (B, HKV, SK, D), (B, HKV, SK, DV)
    arrays = [cases.normal(rng, *shape, dtype=cases.dtype_of(dtype)) for shape in shapes]
    return [x.swapaxes(1, 2).copy() if bshd else x for x in arrays]


def scales(rng, *shape):
    """Numbers for each head, or each key, as `quantize_kv` returns them."""
    return rng.uniform(0.5, 2, shape).astype(np.float32)


def plain_options(rng):
    """Options one by one, all of which the short way takes."""
    mask = rng.random((B, HQ, SQ, SK)) < 0.6
    return [
        {}, {"causal": True}, {"return_lse": True}, {"scale": 0.3}, {"scale": np.float64(0.3)},
        {"softcap": 3.0}, {"softcap": 3}, {"softcap": 0}, {"precision": "high"},
        {"precision": "medium"}, {"num_threads": 2}, {"window_size": (1, 0)},
        {"window_size": (None, 1)}, {"window_size": (2, -1)}, {"window_size": (None, None)},
        {"window_size": (2**54, 0)}, {"q_offset": 0}, {"q_offset": 1, "causal": True},
        {"q_offset": -1, "window_size": (1, None)}, {"q_offset": -1, "window_size": (None, 1)},
        {"q_offset": 2**53, "causal": True}, {"q_offset": -(2**53), "causal": True},
        {"kv_lengths": 3}, {"kv_lengths": [4, 0]}, {"kv_lengths": (5, 1), "causal": True},
        {"kv_lengths": np.array([2, 5])}, {"kv_lengths": np.array([2, 5], np.int32)},
        {"kv_lengths": [1, 2], "q_offset": 1, "causal": True}, {"attn_mask": mask},
        {"kv_starts": 2}, {"kv_starts": np.array([4, 1], np.int32), "kv_lengths": [3, 5]},
        {"alibi_slopes": rng.random(HQ), "kv_lengths": [4, 2]}, {"alibi_slopes": np.zeros(HQ)},
        {"alibi_slopes": rng.random(2 * HQ).astype(np.float32)[::-2], "q_offset": -1},
        {"sinks": rng.standard_normal(HQ).astype(np.float32)}, {"sinks": np.full(HQ, -np.inf)},
        {"sinks": rng.standard_normal(3 * HQ)[::-3], "softcap": 3.0, "return_lse": True},
        {"k_scale": scales(rng, B, HKV, SK)}, {"v_scale": scales(rng, B, HKV, SK)},
        {"k_scale": scales(rng, B, HKV, SK), "v_scale": scales(rng, SK, HKV, B).T},
        {"k_scale": np.broadcast_to(np.float32(0.5), (B, HKV, SK)), "v_scale": 0.1},
        {"k_scale": -2, "v_scale": np.float64(3.4028235e38)}, {"v_scale": scales(rng, HKV)},
        {"k_scale": scales(rng, HKV, B).T, "v_scale": scales(rng, 2 * HKV)[::-2]},
        {"attn_mask": mask[0, 0]}, {"attn_mask": mask[:, :1]}, {"attn_mask": mask[:, :, :1]},
        {"attn_mask": mask[..., :1]}, {"attn_mask": mask[0, :, ::-1, ::-1]},
        {"attn_mask": mask[0, 0, 0]}, {"attn_mask": np.array(True)},
        {"attn_mask": np.where(mask, 0.5, -np.inf).astype(np.float32)},
        {"attn_mask": mask.transpose(3, 2, 1, 0).copy().transpose(3, 2, 1, 0)},
        {"attn_mask": np.broadcast_to(mask[:, :1, :, :1], mask.shape)},
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_options_give_what_the_general_way_does(dtype, layout, rng):
    arrays = tensors(rng, dtype, layout == "bshd")
    views = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in arrays]
    for options in plain_options(rng):
        check(*arrays, layout=layout, **options)
        check(*views, layout=layout, **options)
    own = cases.normal(rng, B, 1, SQ, SK, dtype=arrays[0].dtype)
    check(*arrays, layout=layout, attn_mask=own)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_types(dtype, layout, rng):
    q, *kv = tensors(rng, dtype, layout == "bshd")
    numbers = {name: scales(rng, B, HKV, SK) for name in ("k_scale", "v_scale")}
    for stored in NARROWER[dtype]:
        k, v = (x.astype(cases.dtype_of(stored)) for x in kv)
        check(q, k, v, layout=layout)
        check(q, k, v, layout=layout, causal=True, return_lse=True, **numbers)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_public_functions_go_the_short_way(layout, rng, monkeypatch):
    arrays = tensors(rng, bshd=layout == "bshd")
    chosen = [{"layout": layout, **options} for options in plain_options(rng)]
    expected = [generally(*arrays, **options) for options in chosen]
    q, k, v = tensors(rng)
    grouped = generally(q, k, v, causal=True, q_offset=0)
    alike = generally(q[:, :HKV], k, v, q_offset=0, scale=0.5)
    monkeypatch.setattr(_check, "problem", None)
    for options, outcome in zip(chosen, expected, strict=True):
        same(fastattn.attention(*arrays, **options), outcome)
    sdpa = fastattn.scaled_dot_product_attention
    same(sdpa(q, k, v, is_causal=True, enable_gqa=True), grouped)
    same(sdpa(q[:, :HKV], k, v, scale=0.5), alike)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_precision(precision, isa, rng):
    """Of so many numbers, that a matrix unit computes them."""
    q, k, v = (cases.normal(rng, 1, 2, n, 64) for n in (128, 256, 256))
    with fastattn.use_isa(isa):
        check(q, k, v, precision=precision)


def test_slices_of_one_projection(rng):
    for batch, heads, length in (2, 4, 3), (1, 4, 3), (2, 1, 3), (2, 4, 1), (1, 1, 1):
        fused = cases.normal(rng, batch, length, 3 * heads * D)
        for layout in "bhsd", "bshd":
            arrays = [part.reshape(batch, length, heads, D) for part in np.split(fused, 3, axis=-1)]
            if layout == "bhsd":
                arrays = [x.swapaxes(1, 2) for x in arrays]
            check(*arrays, layout=layout, return_lse=True)
            arrays = [x.copy(order="K") for x in arrays]
            check(*arrays, layout=layout, causal=True)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_out(layout, rng):
    q, k, v = tensors(rng, bshd=layout == "bshd")
    expected = generally(q, k, v, layout=layout)
    mask, lengths = np.ones((SQ, SK), bool), np.array([SK, SK])
    for name, view in cases.STRIDES.items():
        out = view(np.zeros((*q.shape[:-1], DV), np.float32))
        options = {"out": out, "layout": layout, "attn_mask": mask, "kv_lengths": lengths}
        for tensor in q, q.swapaxes(1, 2).copy().swapaxes(1, 2):
            out[...] = np.nan
            forward = not name.startswith("reversed")
            assert plainly(tensor, k, v, **options) is (out if forward else None), name
            assert not forward or out.tobytes() == expected.tobytes()


def test_outputs_of_any_strides(rng):
    """Only such are taken as have a place of its own for every element."""
    q, k, _ = tensors(rng)
    v = cases.normal(rng, *k.shape)
    memory = np.zeros(4000, np.float32)
    taken = 0
    for _ in range(3000):
        strides = 4 * rng.choice([1, 2, 3, 8, 9, 24, 32, 72, 96, 300], 4)
        out = np.lib.stride_tricks.as_strided(memory, q.shape, strides)
        found = plainly(q, k, v, out=out)
        assert (found is None) == _check.options._may_overlap_itself(out), strides
        taken += found is not None
    assert 100 < taken < 2900


@st.composite
def views(draw, rng, shape, dtype, steps):
    """An array of any order of axes and any of these steps; 0 repeats one element."""
    axes = draw(st.permutations(range(len(shape))))
    chosen = [draw(st.sampled_from(steps)) for _ in shape]
    full = [n * abs(step) if step else 1 for n, step in zip(shape, chosen, strict=True)]
    memory = rng.standard_normal([full[axis] for axis in axes])
    memory = memory > -0.5 if dtype.kind == "b" else memory.astype(dtype)
    view = memory.transpose(np.argsort(axes))
    view = view[(..., *(slice(None, None, step or 1) for step in chosen))]
    return np.broadcast_to(view, shape) if 0 in chosen else view


@st.composite
def calls(draw):
    """A call that the short way takes: tensors of any order, and options."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = cases.dtype_of(draw(st.sampled_from(DTYPES)))
    few = st.sampled_from([1, 1, 2, 3, 0])
    batch, queries, keys = draw(few), draw(few), draw(st.sampled_from([1, 2, 5, 70, 0]))
    heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    depth, value_depth = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    bshd = draw(st.booleans())
    arrays = []
    for n, shape in enumerate([
        (batch, heads * group, queries, depth), (batch, heads, keys, depth),
        (batch, heads, keys, value_depth),
    ]):  # fmt: skip
        steps = [1, 1, 2, -1, 0] if n else [1, 1, 1, 2]
        order = [0, 2, 1, 3] if bshd else range(4)
        arrays.append(draw(views(rng, [shape[axis] for axis in order], dtype, steps)))
    if draw(st.booleans()) and NARROWER[dtype.name]:
        stored = cases.dtype_of(draw(st.sampled_from(NARROWER[dtype.name])))
        arrays[1:] = [x.astype(stored, order="K") for x in arrays[1:]]
    number = st.integers(0, keys)
    numbers = number | st.lists(number, min_size=batch, max_size=batch).map(
        lambda x: x if x and x[0] % 2 else np.array(x, np.int64)
    )
    chosen = {"layout": "bshd" if bshd else "bhsd"}
    for name, values in {
        "causal": st.just(True),
        "return_lse": st.just(True),
        "scale": st.floats(-2, 2) | st.floats(-2, 2).map(np.float64) | st.integers(-2, 2),
        "softcap": st.floats(0, 50),
        "precision": st.sampled_from(_check.options.PRECISIONS),
        "num_threads": st.integers(1, 3),
        "q_offset": st.integers(-5, 75) | st.integers(-(2**53), 2**53),
        "window_size": st.tuples(*[st.none() | st.integers(-1, 70)] * 2),
        "kv_lengths": numbers,
        "kv_starts": numbers,
    }.items():
        if draw(st.booleans()):
            chosen[name] = draw(values)
    if draw(st.booleans()):
        kind = np.dtype(draw(st.sampled_from([np.float32, np.float64])))
        name = draw(st.sampled_from(["sinks", "alibi_slopes"]))
        chosen[name] = draw(views(rng, [heads * group], kind, [1, 2, -1, 0]))
    for name in "k_scale", "v_scale":
        if draw(st.booleans()):
            shape = [(), (heads,), (batch, heads), (batch, heads, keys)][draw(st.integers(0, 3))]
            numbers = draw(views(rng, shape, np.dtype(np.float32), [1, 2, -1, 0]))
            chosen[name] = numbers if shape else float(numbers)
    if draw(st.booleans()):
        whole = [n if draw(st.booleans()) else 1 for n in (batch, heads * group, queries, keys)]
        kind = draw(st.sampled_from([np.dtype(bool), np.dtype(np.float32), dtype]))
        mask = draw(views(rng, whole[draw(st.integers(0, 4)) :], kind, [1, 1, 2, -1, 0]))
        chosen["attn_mask"] = mask
    return arrays, chosen


@SETTINGS
@given(calls())
def test_random_calls(call):
    arrays, options = call
    check(*arrays, **options)


class Array(np.ndarray):
    """A subclass."""


class Text(str):
    """A subclass."""


def unusual_tensors(q, k, v):
    for odd in misaligned, swapped_bytes, np.ndarray.tolist:
        yield from [(odd(q), k, v), (q, odd(k), v), (q, k, odd(v))]
    yield from [(q.view(Array), k, v), (q, k.view(Array), v), (q, k, v.view(Array))]
    yield from (
        (q[tuple(slice(None, None, -1 if axis == n else 1) for axis in range(4))], k, v)
        for n in range(4)
    )
    yield from ((np.broadcast_to(q[:, :1], q.shape), k, v), (q[0], k[0], v[0]))
    yield np.broadcast_to(q[..., :1], q.shape), k, v
    yield q[None], k[None], v[None]
    yield tuple(x.astype(np.int8) for x in (q, k, v))
    yield q, k.astype(np.float16), v.astype(cases.dtype_of("bfloat16"))
    yield q, k.astype(np.float16), v
    yield q, k.astype(np.int16), v.astype(np.int16)
    yield q, k.astype(np.float64), v.astype(np.float64)
    yield q.astype(np.float64), k, v
    yield q.astype(np.float16), k, v
    yield q, k, v.astype(np.float64)
    yield from ((q, k[:1], v[:1]), (q, k[:, :1], v), (q, k, v[:, :1]), (q[:1], k, v))
    yield from ((q[:, :3], k, v), (q[:, :0], k, v), (q, k[:, :0], v[:, :0]))
    yield from ((q[..., :0], k[..., :0], v), (q, k, v[..., :0]), (q[..., 1:], k, v))
    yield q, k[:, :, 1:], v


UNUSUAL = {
    "causal": [1, 0, None, np.True_, "yes"],
    "return_lse": [1, 0, None, np.True_],
    "scale": [np.nan, np.inf, -np.inf, True, "1", 2**60, 2**2000, np.float32(1), np.int64(1)],
    "softcap": [-1.0, -1, np.nan, np.inf, False, True, None, np.float32(1)],
    "window_size": [
        3, (1,), (1, 0, 0), [1, 0], (True, 0), (0, False), (-2, 0), (0, -2), (2**54 + 1, 0),
        (0, 2**70), (np.int64(1), 0), (1.0, 0), np.array([1, 0]),
    ],
    "q_offset": [
        True, 0.0, np.int64(0), [0, 0], np.array([0, 0]), 2**53 + 1, -(2**53) - 1, 2**70, "0",
    ],
    "kv_lengths": [
        SK + 1, -1, True, 1.0, 2**70, np.int64(1), np.array(1), [SK], [SK, SK + 1], [-1, SK],
        [SK, True], [SK, 2.0], [[1], [1]], [1, np.int64(1)], [], (), (1, 1, 1), [2**70, 1],
        np.array([1, -1], np.int32), np.array([1, 1], np.uint64), np.array([1, 1, 1]),
        np.array([[1, 1]]), np.array([1, SK + 1]), np.array([-1, 1]), np.array([1, 1, 1])[::2],
        np.array([1, 1]).view(Array), swapped_bytes(np.array([1, 1])), misaligned(np.array([1, 1])),
    ],
    "sinks": [
        1.0, [1.0] * HQ, np.ones((1, HQ)), np.ones(HQ - 1), np.ones(HQ, int),
        np.ones(HQ, np.float16), np.full(HQ, np.nan), np.full(HQ, np.inf, np.float32),
        np.ones(HQ).view(Array), misaligned(np.ones(HQ)), swapped_bytes(np.ones(HQ)),
    ],
    "layout": ["BSHD", "", None, Text("bhsd"), Text("bshd"), b"bhsd", 1, []],
    "precision": ["low", "", None, Text("highest"), Text("high"), b"high", 1, []],
    "num_threads": [0, -1, True, None, 1.0, 2**31, 2**70, np.int64(1)],
    "attn_mask": [
        True, [True] * SK, np.True_, np.float32(0), np.ones(SK, np.int8), np.ones(SK, np.float64),
        np.ones(SK, np.float16), np.ones(2, bool), np.ones((2, 1), bool), np.ones((3, 1, 1), bool),
        np.ones((1, 1, 1, 1, SK), bool), np.ones(0, bool), np.ones(SK, bool).view(Array),
        np.ma.ones(SK, dtype=bool), misaligned(np.ones(SK, np.float32)),
        swapped_bytes(np.ones(SK, np.float32)),
    ],
}  # fmt: skip


UNUSUAL["kv_starts"] = UNUSUAL["kv_lengths"]
UNUSUAL["alibi_slopes"] = [*UNUSUAL["sinks"], np.full(HQ, -np.inf), np.ones((B, HQ))]


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_options_are_left(name, rng):
    arrays = tensors(rng)
    for value in UNUSUAL[name]:
        assert plainly(*arrays, **{name: value}) is None, value


def test_unusual_tensors_are_left(rng):
    arrays = tensors(rng)
    for unusual in unusual_tensors(*arrays):
        assert plainly(*unusual) is None, [getattr(x, "shape", x) for x in unusual]
    none = [x[:0] for x in arrays]
    check(*none, kv_lengths=np.zeros(0, np.int64))
    assert plainly(*none, kv_lengths=[]) is None  # NumPy takes it for floats


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_unusual_outputs_are_left(layout, rng):
    bshd = layout == "bshd"
    q, k, _ = tensors(rng, bshd=bshd)
    v = cases.normal(rng, *k.shape)
    out = np.zeros(q.shape, np.float32)
    wide = np.zeros((*q.shape[:-1], 2 * D), np.float32)
    fixed = np.zeros_like(out)
    fixed.flags.writeable = False
    unusual = [
        q, fixed, wide[..., D - 1 :: -1], wide, out[:1], out.swapaxes(1, 2), out.astype(np.float64),
        out.tolist(), out.view(Array), misaligned(out), swapped_bytes(out), np.float32(0), True,
    ]  # fmt: skip
    for value in unusual:
        assert plainly(q, k, v, layout=layout, out=value) is None, value
    memory = np.zeros(out.size + 1, np.float32)
    shared = memory[:-1].reshape(out.shape)
    mask = memory[-SK - 1 : -1]
    assert plainly(q, k, v, layout=layout, attn_mask=mask.copy(), out=shared) is shared
    assert plainly(q, k, v, layout=layout, attn_mask=mask, out=shared) is None
    memory = np.zeros(out.size // 2 + 1, np.int64)
    shared, lengths = memory[:-1].view(np.float32).reshape(out.shape), memory[-B - 1 : -1]
    assert plainly(q, k, v, layout=layout, kv_lengths=memory[-1:].repeat(B), out=shared) is shared
    assert plainly(q, k, v, layout=layout, kv_lengths=lengths, out=shared) is None
    numbers = shared.reshape(-1)[: B * HKV * SK].reshape(B, HKV, SK)
    for name in "k_scale", "v_scale":
        assert plainly(q, k, v, layout=layout, out=shared, **{name: numbers.copy()}) is shared
        assert plainly(q, k, v, layout=layout, out=shared, **{name: numbers}) is None
    for n in range(1, 3):
        arrays = [q, k, v]
        room = np.zeros(max(out.size, arrays[n].size), np.float32)
        arrays[n] = room[room.size - arrays[n].size :].reshape(arrays[n].shape)
        assert plainly(*arrays, layout=layout, out=room[: out.size].reshape(out.shape)) is None


def test_what_no_way_takes(rng):
    """Errors of the long way that a short look could miss."""
    q, k, v = tensors(rng)
    with pytest.raises(TypeError, match="softcap"):
        fastattn.attention(q, k, v, softcap=False)
    with pytest.raises(ValueError, match="at least 1 head"):
        fastattn.attention(q[:, :0], k, v)
