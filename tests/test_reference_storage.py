# SPDX-License-Identifier: MIT
"""The oracle on pages, scales, 16-bit types and packed sequences, against the loop over scores."""

import math

import numpy as np
import pytest
from cases import dtype_of, starts_of
from pages import into_pages
from score_loop import bool_mask, float_mask, loop, tensors

from fastattn import reference

pytestmark = pytest.mark.forces_isa

TOLERANCE = {"rtol": 0, "atol": 1e-13}
LENGTHS = np.array([7, 4])

OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window_size": (2, 1), "q_offset": np.array([2, 0])},
    "starts": {"kv_starts": np.array([2, 3])},
    "no key": {"kv_starts": np.array([7, 1])},
    "alibi": {"alibi_slopes": np.arange(8.0).reshape(2, 4) / 8},
    "sinks": {"sinks": np.array([0.3, -1.0, 2.0, -np.inf])},
    "softcap": {"softcap": 0.5, "scale": 0.8},
    "float mask": {"attn_mask": float_mask(2, 4, 5, 7)},
    "bool mask": {"attn_mask": bool_mask(5, 1)},
}


def equal(found, expected):
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, **TOLERANCE)


# ---- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("page", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_pages_match_the_loop(options, page, layout):
    q, k, v = tensors()
    expected = loop(q, k, v, kv_lengths=LENGTHS, **options)
    [k, v], table = into_pages(np.random.default_rng(5), [k, v], page)
    if "attn_mask" in options and options["attn_mask"].shape[-1] > 1:
        wide = np.zeros((2, 4, 5, table.shape[1] * page))  # a mask has all blocks * page keys
        wide[..., :7] = options["attn_mask"]
        options = {**options, "attn_mask": wide}
    starts = options.get("kv_starts", np.zeros(2, int))
    for b, (start, length) in enumerate(zip(starts, LENGTHS, strict=True)):
        table[b, : start // page] = table[b, -(-length // page) :] = -9  # no key, no page
    if layout == "bshd":
        q, k, v = (tensor.swapaxes(1, 2) for tensor in (q, k, v))
    options = {**options, "kv_lengths": LENGTHS, "block_table": table, "layout": layout}
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    equal((out.swapaxes(1, 2) if layout == "bshd" else out, lse), expected)


def test_pages_are_full_without_lengths():
    q, k, v = tensors(keys=6)
    [k_pages, v_pages], table = into_pages(np.random.default_rng(5), [k, v], 3)
    found = reference.attention(q, k_pages, v_pages, block_table=table, return_lse=True)
    equal(found, loop(q, k, v))
    weights = reference.attention_weights(q, k_pages, block_table=table)
    np.testing.assert_array_equal(weights, reference.attention_weights(q, k))


def test_sequences_share_pages():
    q, k, v = tensors(batch=3, keys=6)
    k[1:, :, :4], v[1:, :, :4] = k[0, :, :4], v[0, :, :4]
    [k_pages, v_pages], table = into_pages(np.random.default_rng(5), [k, v], 2)
    table[1:, :2] = table[0, :2]
    found = reference.attention(q, k_pages, v_pages, block_table=table, return_lse=True)
    equal(found, loop(q, k, v))


def test_a_table_serves_all_leading_axes():
    q, k, v = tensors(batch=6)
    [k, v], table = into_pages(np.random.default_rng(5), [k, v], 4)
    lengths = np.array([7, 0, 3, 4, 5, 6])
    options = {"kv_lengths": lengths, "causal": True}
    expected = reference.attention(q, k, v, block_table=table, **options)
    folded = q.reshape(2, 3, *q.shape[1:])
    for shape in (6, 2), (2, 3, 2):
        out = reference.attention(folded, k, v, block_table=table.reshape(shape), **options)
        np.testing.assert_array_equal(out.reshape(expected.shape), expected)
    one = reference.attention(q[0], k, v, block_table=table[0], kv_lengths=7, causal=True)
    np.testing.assert_array_equal(one, expected[0])


def test_used_entry_without_a_page():
    q, k, v = tensors(batch=1)
    for entry in -1, 3:
        with pytest.raises(ValueError, match=r"block_table\[0, 1\]"):
            reference.attention(q, k[[0] * 3], v[[0] * 3], block_table=[[0, entry]], kv_lengths=8)


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 2, 0), (0, 2, 3)])
def test_no_pages(shape):
    batch, blocks, page = shape
    q, k, v = tensors(batch=batch, keys=page)
    pages = [np.ones((4, *tensor.shape[1:])) for tensor in (k, v)]
    table = np.zeros((batch, blocks), int)
    options = {"kv_lengths": np.zeros(batch, int), "return_lse": True}
    out, lse = reference.attention(q, *pages, block_table=table, **options)
    assert out.shape == (batch, 4, 5, 3) and (out == 0).all() and (lse == -np.inf).all()


# ---- scales and narrow types ---------------------------------------------------------------------

SCALES = {
    "number": lambda rng: 0.02,
    "head": lambda rng: rng.uniform(0.01, 0.04, 2),
    "batch and head": lambda rng: rng.uniform(0.01, 0.04, (2, 2)),
    "key": lambda rng: rng.uniform(0.01, 0.04, (2, 2, 7)),
}


def stored(rng, dtype, *shape):
    """Random integers that every narrow type holds, so that scales of 0.02 make them about one."""
    return rng.choice([-112, -64, -40, -3, 0, 1, 2, 28, 64, 96], shape).astype(dtype)


def dequantised(tensor, scale):
    """Each element times its scale, element by element."""
    scale = np.asarray(scale)
    result = np.empty(tensor.shape)
    for b, h, j, d in np.ndindex(tensor.shape):
        index = [(), (h,), (b, h), (b, h, j)][scale.ndim]
        result[b, h, j, d] = float(tensor[b, h, j, d]) * scale[index]
    return result


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2", "float16", "float32"])
@pytest.mark.parametrize("form", SCALES)
def test_scales(form, dtype, layout):
    rng = np.random.default_rng(6)
    q, _, _ = tensors()
    k, v = (stored(rng, dtype_of(dtype), 2, 2, 7, depth) for depth in (6, 3))
    scales = [SCALES[form](rng) for _ in "kv"]
    expected = loop(q, *map(dequantised, (k, v), scales), causal=True)
    options = {"k_scale": scales[0], "v_scale": scales[1], "causal": True, "layout": layout}
    inputs = [each.swapaxes(1, 2) if layout == "bshd" else each for each in (q, k, v)]
    out, lse = reference.attention(*inputs, return_lse=True, **options)
    equal((out.swapaxes(1, 2) if layout == "bshd" else out, lse), expected)
    if form == "key":
        [*pages, k_scale, v_scale], table = into_pages(rng, [k, v, *scales], 3, poison=1)
        options = {"block_table": table, "kv_lengths": 7, "return_lse": True, "causal": True}
        found = reference.attention(q, *pages, k_scale=k_scale, v_scale=v_scale, **options)
        equal(found, expected)
    elif form in ("number", "head"):
        pages, table = into_pages(rng, [k, v], 3, poison=1)
        options = {"k_scale": scales[0], "v_scale": scales[1], "block_table": table}
        found = reference.attention(q, *pages, **options, kv_lengths=7, causal=True)
        equal([found], expected[:1])


def test_scales_of_shared_keys_and_of_more_leading_axes():
    rng = np.random.default_rng(6)
    q, k, v = tensors(batch=6)
    scales = rng.uniform(0.5, 2, (6, 2, 7))
    expected = loop(q, dequantised(k, scales), v)
    folded = [tensor.reshape(2, 3, *tensor.shape[1:]) for tensor in (q, k, v)]
    for k_scale in scales, scales.reshape(2, 3, 2, 7):
        found = reference.attention(*folded, k_scale=k_scale)
        np.testing.assert_allclose(found.reshape(expected[0].shape), expected[0], **TOLERANCE)
    k, v = k[:1], v[:1]  # one cache for all: its scales have its own leading axis
    found = reference.attention(q, k, v, k_scale=scales[:1], v_scale=scales[:1])
    inputs = [np.repeat(dequantised(tensor, scales[:1]), 6, axis=0) for tensor in (k, v)]
    equal([found], loop(q, *inputs)[:1])
    with pytest.raises(ValueError, match="scale of shape"):
        reference.attention(q, k, v, k_scale=scales[:, :, :5])


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_16_bit_types(dtype, kv_dtype):
    """The values that a type holds are exact in float64: nothing is rounded before the result."""
    q, k, v = tensors()
    q, k, v = q.astype(dtype_of(dtype)), k.astype(dtype_of(kv_dtype)), v.astype(dtype_of(kv_dtype))
    mask = float_mask(5, 7).astype(dtype_of(dtype))
    exact = [tensor.astype(np.float64) for tensor in (q, k, v, mask)]
    found = reference.attention(q, k, v, attn_mask=mask, return_lse=True)
    equal(found, loop(*exact[:3], attn_mask=exact[3]))
    out = np.empty(found[0].shape, dtype_of(dtype))
    assert reference.attention(q, k, v, attn_mask=mask, out=out) is out
    np.testing.assert_array_equal(out, found[0].astype(dtype_of(dtype)))
    rounded, lse = reference.attention(q, k, v, return_lse=True, dtype=dtype_of(dtype))
    assert rounded.dtype == lse.dtype == dtype_of(dtype)


# ---- packed sequences ----------------------------------------------------------------------------

QUERIES, KEYS = (3, 0, 1, 4, 2), (5, 2, 0, 4, 7)
VARLEN_OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "offset": {"causal": True, "q_offset": 2},
    "offsets": {"causal": True, "q_offset": np.array([0, 5, 1, -2, 3])},
    "window": {"window_size": (1, 1)},
    "lengths": {"kv_lengths": np.array([3, 0, 0, 4, 6]), "causal": True},
    "starts": {"kv_starts": np.array([3, 0, 0, 4, 6])},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0])},
    "alibi of each": {"alibi_slopes": np.arange(20.0).reshape(5, 4) / 8},
    "sinks": {"sinks": np.array([0.3, -1.0, 2.0, -np.inf]), "softcap": 1.5, "scale": 0.9},
}


def packed(options, k_scales=1.0, v_scales=1.0):
    """A pack q, k, v (tokens, heads, D), and its result by the loop over scores."""
    rng = np.random.default_rng(7)
    q, k, v = (
        rng.standard_normal((sum(counts), heads, depth))
        for counts, heads, depth in ((QUERIES, 4, 6), (KEYS, 2, 6), (KEYS, 2, 3))
    )
    k_true, v_true = (
        tensor * np.broadcast_to(scales, (2, sum(KEYS))).T[..., None]
        for tensor, scales in ((k, k_scales), (v, v_scales))
    )
    outs, lses = [], []
    rows, keys = starts_of(QUERIES), starts_of(KEYS)
    for b in range(5):
        parts = (
            tensor[begin:end].swapaxes(0, 1)[None]
            for tensor, begin, end in (
                (q, *rows[b : b + 2]), (k_true, *keys[b : b + 2]), (v_true, *keys[b : b + 2]),
            )
        )  # fmt: skip
        own = {
            name: value[b : b + 1] if np.shape(value)[:1] == (5,) else value
            for name, value in options.items()
        }
        out, lse = loop(*parts, **own)
        outs.append(out[0].swapaxes(0, 1))
        lses.append(lse[0])
    return (q, k, v), (np.concatenate(outs), np.concatenate(lses, axis=-1))


@pytest.mark.parametrize("options", VARLEN_OPTIONS.values(), ids=VARLEN_OPTIONS)
def test_varlen(options):
    (q, k, v), expected = packed(options)
    cuts = starts_of(QUERIES), starts_of(KEYS)
    equal(reference.attention_varlen(q, k, v, *cuts, return_lse=True, **options), expected)


@pytest.mark.parametrize("options", VARLEN_OPTIONS.values(), ids=VARLEN_OPTIONS)
def test_varlen_pages(options):
    (q, k, v), expected = packed(options)
    dense = np.full((2, 5, 2, max(KEYS), 6), np.nan)
    for b, begin in enumerate(starts_of(KEYS)[:-1]):
        for j in range(KEYS[b]):
            dense[0, b, :, j], dense[1, b, :, j, :3] = k[begin + j], v[begin + j]
    pages, table = into_pages(np.random.default_rng(5), [dense[0], dense[1, ..., :3]], 2)
    pages = [tensor.swapaxes(1, 2) for tensor in pages]
    arguments = {"block_table": table, "return_lse": True, **options}
    cuts = starts_of(QUERIES)
    equal(reference.attention_varlen(q, *pages, cuts, starts_of(KEYS), **arguments), expected)
    arguments.setdefault("kv_lengths", np.array(KEYS))
    equal(reference.attention_varlen(q, *pages, cuts, **arguments), expected)


@pytest.mark.parametrize("form", ["number", "head", "head of each pack", "key"])
def test_varlen_scales(form):
    rng = np.random.default_rng(8)
    shapes = {"number": (), "head": (2,), "head of each pack": (1, 2), "key": (2, sum(KEYS))}
    scales = [rng.uniform(0.5, 2, shapes[form]) for _ in "kv"]
    every = scales if form == "number" else [scale.reshape(2, -1) for scale in scales]
    (q, k, v), expected = packed({}, *every)
    cuts = starts_of(QUERIES), starts_of(KEYS)
    options = {"k_scale": scales[0], "v_scale": scales[1], "return_lse": True}
    equal(reference.attention_varlen(q, k, v, *cuts, **options), expected)


def test_varlen_of_itself_and_dtype():
    (q, _, _), _ = packed({})
    cuts = [0, 4, 4, 10]
    out, lse = reference.attention_varlen(q, q, q, cuts, causal=True, return_lse=True)
    assert out.shape == (10, 4, 6) and lse.shape == (4, 10) and out.dtype == np.float64
    first = reference.attention(q[:4], q[:4], q[:4], layout="bshd", causal=True)
    np.testing.assert_array_equal(out[:4], first)
    given = np.empty((10, 4, 6), np.float32)
    assert reference.attention_varlen(q, q, q, cuts, causal=True, out=given) is given
    rounded, lse = reference.attention_varlen(
        q, q, q, cuts, causal=True, dtype=np.float32, return_lse=True
    )
    np.testing.assert_array_equal(given, rounded)
    assert rounded.dtype == lse.dtype == np.float32
    one = reference.attention_varlen(q[:1], q[:1], q[:1], [0, 1], return_lse=True, scale=2.0)[1]
    assert math.isclose(one[0, 0], 2 * q[0, 0] @ q[0, 0])
