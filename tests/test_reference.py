# SPDX-License-Identifier: MIT
"""The oracle itself, against a loop over single scores, torch, and tables worked out by hand."""

import math

import numpy as np
import pytest
from score_loop import bool_mask, float_mask, loop, tensors

from fastattn import reference

pytestmark = pytest.mark.forces_isa

TOLERANCE = {"rtol": 0, "atol": 1e-13}  # float64, depth and key counts of a few dozen

OPTIONS = {
    "none": {},
    "scale": {"scale": 0.3},
    "scale zero": {"scale": 0.0},
    "scale negative": {"scale": -0.7},
    "softcap": {"softcap": 0.5},
    "causal": {"causal": True},
    "causal offset": {"causal": True, "q_offset": 0},
    "causal offsets": {"causal": True, "q_offset": np.array([-2, 4])},
    "causal far": {"causal": True, "q_offset": 100},
    "window": {"window_size": (2, 1)},
    "window left": {"window_size": (1, None)},
    "window right": {"window_size": (-1, 0)},
    "window none": {"window_size": (None, None)},
    "window causal": {"window_size": (2, 2), "causal": True},
    "lengths": {"kv_lengths": np.array([3, 7])},
    "length": {"kv_lengths": 4, "causal": True},
    "starts": {"kv_starts": np.array([2, 0])},
    "start": {"kv_starts": 3},
    "no key": {"kv_starts": np.array([5, 2]), "kv_lengths": np.array([3, 6]), "causal": True},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0])},
    "alibi batch": {"alibi_slopes": np.arange(8.0).reshape(2, 4) / 8, "causal": True},
    "sinks": {"sinks": np.array([0.3, -1.0, 2.0, -np.inf])},
    "float mask": {"attn_mask": float_mask(2, 4, 5, 7)},
    "bool mask": {"attn_mask": bool_mask(2, 4, 5, 7)},
    "mask rank 0": {"attn_mask": np.array(True)},
    "mask rank 1": {"attn_mask": bool_mask(7)},
    "mask rank 2": {"attn_mask": float_mask(5, 1)},
    "mask rank 3": {"attn_mask": float_mask(4, 1, 7)},
    "mask batch": {"attn_mask": bool_mask(2, 1, 1, 7)},
    "all": {
        "attn_mask": float_mask(4, 5, 7), "causal": True, "window_size": (3, 5), "scale": 0.9,
        "softcap": 1.5, "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0]),
        "sinks": np.array([0.3, -1.0, 2.0, 0.0]), "q_offset": np.array([1, 3]),
        "kv_lengths": np.array([6, 5]), "kv_starts": np.array([0, 2]),
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_equals_a_loop_over_scores(options):
    q, k, v = tensors()
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    expected_out, expected_lse = loop(q, k, v, **options)
    np.testing.assert_allclose(out, expected_out, **TOLERANCE)
    np.testing.assert_allclose(lse, expected_lse, **TOLERANCE)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_layouts_agree(options):
    q, k, v = tensors()
    expected, expected_lse = reference.attention(q, k, v, return_lse=True, **options)
    swapped = [tensor.swapaxes(1, 2) for tensor in (q, k, v)]
    out, lse = reference.attention(*swapped, layout="bshd", return_lse=True, **options)
    np.testing.assert_array_equal(out, expected.swapaxes(1, 2))
    np.testing.assert_array_equal(lse, expected_lse)
    np.testing.assert_array_equal(
        reference.attention_weights(*swapped[:2], layout="bshd", **options),
        reference.attention_weights(q, k, **options),
    )


def test_weights_times_v_is_attention():
    q, k, v = tensors(kv_heads=4)
    weights = reference.attention_weights(q, k, causal=True)
    np.testing.assert_allclose(weights.sum(-1), 1.0, **TOLERANCE)
    expected = reference.attention(q, k, v, causal=True)
    np.testing.assert_allclose(weights @ v, expected, **TOLERANCE)


def test_heads_and_leading_axes_broadcast():
    q, k, v = tensors(batch=6, heads=4, kv_heads=4)
    expected = reference.attention(q, k[:1, :1], v[:1, :1])
    full = [np.broadcast_to(tensor[:1, :1], (6, 4, *tensor.shape[2:])) for tensor in (k, v)]
    np.testing.assert_allclose(expected, reference.attention(q, *full), **TOLERANCE)
    five = reference.attention(q.reshape(2, 3, 4, 5, 6), k[:1, :1][None], v[0, 0])
    np.testing.assert_allclose(five.reshape(expected.shape), expected, **TOLERANCE)
    np.testing.assert_allclose(reference.attention(q[0, 0], k[0, 0], v[0, 0]), expected[0, 0])


def test_leading_axes_that_v_alone_has():
    q, k, v = tensors(batch=3)
    q, k = q[:1], k[:1]
    options = {"kv_lengths": np.array([3, 7, 5]), "return_lse": True}
    found = reference.attention(q, k, v, **options)
    full = [np.repeat(tensor, 3, axis=0) for tensor in (q, k)]
    for got, want in zip(found, loop(*full, v, kv_lengths=options["kv_lengths"]), strict=True):
        np.testing.assert_allclose(got, want, **TOLERANCE)


def test_per_batch_arguments_take_the_leading_shape():
    q, k, v = tensors(batch=6)
    values = np.array([1, 7, 0, 3, 4, 5])
    expected = reference.attention(q, k, v, kv_lengths=values)
    folded = [tensor.reshape(2, 3, *tensor.shape[1:]) for tensor in (q, k, v)]
    for lengths in values, values.reshape(2, 3):
        out = reference.attention(*folded, kv_lengths=lengths)
        np.testing.assert_array_equal(out.reshape(expected.shape), expected)
    values = np.arange(24.0).reshape(6, 4) / 8
    expected = reference.attention(q, k, v, alibi_slopes=values)
    for slopes in values, values.reshape(2, 3, 4):
        out = reference.attention(*folded, alibi_slopes=slopes)
        np.testing.assert_array_equal(out.reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_lengths_of_any_integers(dtype):
    """What is less than the queries are long does not wrap."""
    q, k, v = tensors()
    k, v = np.tile(k, (1, 1, 30, 1)), np.tile(v, (1, 1, 30, 1))
    for lengths in np.array([3, 120]), np.array(2):
        options = {"causal": True, "window_size": (3, 0), "return_lse": True}
        expected = reference.attention(q, k, v, kv_lengths=lengths, **options)
        found = reference.attention(q, k, v, kv_lengths=lengths.astype(dtype), **options)
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_rank_2_has_no_head_axis():
    q, k, v = (tensor[0, 0] for tensor in tensors())
    out, lse, table = reference.attention(q, k, v, return_lse=True, return_scores="masked")
    assert out.shape == (5, 3) and lse.shape == (5,) and table.shape == (5, 7)
    mask = float_mask(5, 7)
    np.testing.assert_array_equal(
        reference.attention(q, k, v, attn_mask=mask[None, None]),
        reference.attention(q, k, v, attn_mask=mask),
    )


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_empty(shape):
    batch, queries, keys = shape
    out, lse = reference.attention(
        *tensors(batch=batch, queries=queries, keys=keys), return_lse=True, causal=True
    )
    np.testing.assert_array_equal(out, np.zeros((batch, 4, queries, 3)))
    assert lse.shape == (batch, 4, queries) and (keys > 0 or (lse == -np.inf).all())


def test_dtype_and_out():
    q, k, v = (tensor.astype(np.float32) for tensor in tensors())
    assert reference.attention(q, k, v).dtype == np.float64
    out, lse = reference.attention(q, k, v, return_lse=True, dtype=np.float32)
    assert out.dtype == lse.dtype == np.float32
    given = np.empty_like(out)
    assert reference.attention(q, k, v, out=given) is given
    np.testing.assert_array_equal(given, out)


# ---- order of the stages -------------------------------------------------------------------------


def test_stages_in_order():
    """Softcap sees the scaled score alone; ALiBi and the mask are added uncapped, then -inf."""
    q, k, v = np.array([[3.0]]), np.array([[2.0], [1.0], [4.0]]), np.eye(3)
    options = {
        "scale": 0.5, "softcap": 2.0, "alibi_slopes": np.array([10.0]),
        "attn_mask": np.array([[100.0, 0.0, -np.inf]]),
    }  # fmt: skip
    table = {
        stage: reference.attention(q, k, v, return_scores=stage, **options)[1]
        for stage in reference.STAGES
    }
    capped = [2 * math.tanh(1.5), 2 * math.tanh(0.75), 2 * math.tanh(3.0)]
    np.testing.assert_allclose(table["scaled"], [[3.0, 1.5, 6.0]], **TOLERANCE)
    np.testing.assert_allclose(table["capped"], [capped], **TOLERANCE)
    masked = [[capped[0] - 20 + 100, capped[1] - 10, -np.inf]]  # the query sits at key 2
    np.testing.assert_allclose(table["masked"], masked, **TOLERANCE)
    assert table["weights"][0, 2] == 0
    np.testing.assert_allclose(table["weights"].sum(), 1.0, **TOLERANCE)


def test_sink_is_neither_scaled_nor_capped():
    q, k, v = np.array([[0.0]]), np.array([[1.0]]), np.array([[1.0]])
    out, lse = reference.attention(
        q, k, v, scale=0.1, softcap=1.0, sinks=np.array([3.0]), return_lse=True
    )
    np.testing.assert_allclose(out, [[1 / (1 + math.exp(3))]], **TOLERANCE)
    np.testing.assert_allclose(lse, [math.log(1 + math.exp(3))], **TOLERANCE)


def test_large_scores_do_not_overflow():
    q, k, v = tensors()
    out, lse = reference.attention(q * 1e4, k, v, return_lse=True)
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    out, lse = reference.attention(q, k, v, sinks=np.full(4, 2000.0), return_lse=True)
    assert (out == 0).all() and (lse == 2000).all()


# ---- rows without keys, NaN and infinity ---------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": np.array(False)},
        {"attn_mask": np.array(-np.inf)},
        {"kv_lengths": 0},
        {"kv_starts": 7},
        {"causal": True, "q_offset": -5},
        {"window_size": (0, 0), "q_offset": 50},
    ],
    ids=lambda options: "-".join(options),
)
def test_row_without_keys(options):
    q, k, v = tensors()
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    assert (out == 0).all() and (lse == -np.inf).all()
    sinks = np.array([1.0, -2.0, 0.0, -np.inf])
    out, lse = reference.attention(q, k, v, return_lse=True, sinks=sinks, **options)
    assert (out == 0).all() and (lse == sinks[:, None]).all()
    assert (reference.attention_weights(q, k, **options) == 0).all()


FORBIDDING = {
    "bool mask": {"attn_mask": np.arange(7) != 3},
    "float mask": {"attn_mask": np.where(np.arange(7) == 3, -np.inf, 0.5)},
    "causal": {"causal": True, "q_offset": -2},
    "window left": {"window_size": (2, -1), "q_offset": 6},
    "window right": {"window_size": (-1, 0), "q_offset": -2},
    "length": {"kv_lengths": 3},
    "start": {"kv_starts": 4},
}


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", FORBIDDING.values(), ids=FORBIDDING)
def test_forbidden_key_stays_out(options, poison):
    q, k, v = tensors()
    expected = reference.attention(q, k, v, return_lse=True, **options)
    k[:, :, 3], v[:, :, 3] = poison, poison
    found = reference.attention(q, k, v, return_lse=True, **options)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_allowed_nan_reaches_only_its_rows():
    q, k, v = tensors(queries=7)
    clean = reference.attention(q, k, v, causal=True)
    k[:, :, 3] = np.nan
    out, lse = reference.attention(q, k, v, causal=True, return_lse=True)
    np.testing.assert_array_equal(out[:, :, :3], clean[:, :, :3])
    assert np.isnan(out[:, :, 3:]).all() and np.isnan(lse[:, :, 3:]).all()


def test_allowed_value_that_is_not_finite_reaches_only_its_column():
    q, k, v = tensors(queries=7)
    clean = reference.attention(q, k, v, causal=True)
    v[:, :, 3, 1] = np.inf
    v[:, :, 5, 1] = -np.inf
    v[:, :, 6, 2] = np.nan
    out = reference.attention(q, k, v, causal=True)
    assert (out[:, :, 3:5, 1] == np.inf).all()
    assert np.isnan(out[:, :, 5:, 1]).all() and np.isnan(out[:, :, 6, 2]).all()
    out[:, :, 3:, 1], out[:, :, 6, 2] = clean[:, :, 3:, 1], clean[:, :, 6, 2]
    np.testing.assert_allclose(out, clean, **TOLERANCE)


def test_infinite_scores():
    """A score of -inf is a weight of zero, and 0 * NaN is NaN, where no mask forbids the key; +inf
    has no softmax."""
    q, k = np.array([[1.0]]), np.array([[-np.inf], [0.0]])
    out, lse = reference.attention(q, k, np.array([[7.0], [5.0]]), return_lse=True)
    assert out == 5.0 and lse == 0.0
    v = np.array([[np.nan], [5.0]])
    out, lse = reference.attention(q, k, v, return_lse=True)
    assert np.isnan(out) and lse == 0.0
    assert reference.attention(q, k, v, attn_mask=np.array([False, True])) == 5.0
    assert np.isnan(reference.attention(-q, k, np.array([[1.0], [5.0]])))


# ---- merge_states --------------------------------------------------------------------------------


def test_merge_of_parts_is_the_whole():
    q, k, v = tensors(keys=12)
    whole = reference.attention(q, k, v, return_lse=True)
    cuts = [(0, 5), (5, 5), (5, 6), (6, 12)]
    parts = [reference.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in cuts]
    outs, lses = zip(*parts, strict=True)
    rounded = reference.merge_states(outs, lses, dtype=np.float32)
    assert [each.dtype for each in rounded] == [np.float32] * 2
    for arguments in (outs, lses), (np.stack(outs), np.stack(lses)):
        for got, want in zip(reference.merge_states(*arguments), whole, strict=True):
            np.testing.assert_allclose(got, want, **TOLERANCE)


def test_merge_of_empty_states():
    out, lse = reference.merge_states([np.zeros((2, 3))] * 2, [np.full(2, -np.inf)] * 2)
    assert (out == 0).all() and (lse == -np.inf).all()
    states = [np.full((2, 3), np.nan), np.ones((2, 3))]
    given = np.empty((2, 3))
    out, lse = reference.merge_states(states, [np.full(2, -np.inf), np.full(2, 4.0)], out=given)
    assert out is given and (out == 1).all() and (lse == 4).all()


# ---- torch ---------------------------------------------------------------------------------------

SHAPES = {
    "rank 4": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3)),
    "rank 3": ((4, 5, 8), (4, 7, 8), (4, 7, 8)),
    "rank 2": ((5, 8), (7, 8), (7, 8)),
    "rank 5": ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8)),
    "one key head": ((2, 4, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "one query head": ((2, 1, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    "heads of v alone": ((2, 1, 5, 8), (2, 1, 7, 8), (2, 4, 7, 8)),
    "rank 2 query": ((5, 8), (4, 7, 8), (4, 7, 8)),
    "batches broadcast": ((2, 1, 4, 5, 8), (3, 4, 7, 8), (2, 3, 4, 7, 8)),
    "more queries": ((2, 4, 9, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("variant", ["plain", "causal", "bool", "float", "scale"])
def test_equals_torch(shapes, variant):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    table = (shapes[0][-2], shapes[1][-2])
    options = {
        "plain": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": bool_mask(*table)},
        "float": {"attn_mask": float_mask(*table)},
        "scale": {"scale": 0.2},
    }[variant]
    found = reference.scaled_dot_product_attention(*arrays, **options)
    if "attn_mask" in options:
        options = {"attn_mask": torch.from_numpy(options["attn_mask"])}
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, arrays), **options
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-12)


def test_grouped_heads_equal_torch_and_need_the_flag():
    torch = pytest.importorskip("torch")
    q, k, v = tensors(heads=8, kv_heads=2)
    found = reference.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), enable_gqa=True
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="enable_gqa"):
        reference.scaled_dot_product_attention(q, k, v)


# ---- what it refuses -----------------------------------------------------------------------------


def test_refusals():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="return_scores"):
        reference.attention(q, k, v, return_scores="raw")
    with pytest.raises(ValueError, match="layout"):
        reference.attention(q, k, v, layout="sbhd")
    with pytest.raises(ValueError, match="multiple"):
        reference.attention(q[:, :3], k, v)
    with pytest.raises(NotImplementedError, match="dropout_p"):
        reference.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    with pytest.raises(ValueError, match="attn_mask"):
        reference.scaled_dot_product_attention(
            q, k, v, attn_mask=np.array(True), is_causal=True, enable_gqa=True
        )
