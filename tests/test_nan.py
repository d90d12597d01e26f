# SPDX-License-Identifier: MIT
"""NaN and infinity: never from a key that is not allowed, always from one that is."""

import cases
import numpy as np
import pytest

import fastattn
from fastattn import reference

BAD = [np.nan, np.inf, -np.inf]
FORBIDDING = {
    "causal": {"causal": True},
    "window": {"window_size": (3, 2), "q_offset": 0},
    "lengths": {"kv_lengths": 70},
    "starts": {"kv_starts": 75},
    "bool": {"attn_mask": None},
    "float": {"attn_mask": None},
}


def options_for(name, rng, dtype, queries, keys):
    options = dict(FORBIDDING[name])
    if "attn_mask" in options:
        allowed = rng.random((queries, keys)) < 0.5
        allowed[:, 0] = True
        options["attn_mask"] = (
            allowed if name == "bool" else np.where(allowed, 0.25, -np.inf).astype(dtype)
        )
    return options


def allowed_keys(queries, keys, options):
    q, k = np.zeros((queries, 1)), np.zeros((keys, 1))
    mask = {"attn_mask": options["attn_mask"].astype(float)} if "attn_mask" in options else {}
    if mask and options["attn_mask"].dtype == bool:
        mask = {"attn_mask": options["attn_mask"]}
    return reference.attention_weights(q, k, **{**options, **mask}) > 0


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("name", FORBIDDING)
def test_containment(isa, dtype, name, which, bad, rng):
    queries, keys = 90, 140
    q, k, v = cases.tensors(rng, dtype, q_heads=1, queries=queries, keys=keys, depth=10)
    options = options_for(name, rng, dtype, queries, keys)
    allowed = allowed_keys(queries, keys, options)
    with fastattn.use_isa(isa):
        clean = fastattn.attention(q, k, v, **options)
        for key in rng.choice(keys, 6, replace=False):
            kk, vv = k.copy(), v.copy()
            (kk if which == "k" else vv)[0, 0, key, 3] = bad
            out = fastattn.attention(q, kk, vv, **options)
            unseen = ~allowed[:, key]
            np.testing.assert_array_equal(out[0, 0, unseen], clean[0, 0, unseen])
            expected = reference.attention(q, kk, vv, **options)
            seen = np.isnan(expected)
            np.testing.assert_array_equal(np.isnan(out), seen)


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("queries", [1, 5, 90])
@pytest.mark.parametrize("name", FORBIDDING)
def test_weights_of_forbidden_keys_are_0(isa, dtype, name, queries, bad, rng):
    """In rows that are NaN as well, whatever the other rows of the tile see."""
    q, k, _ = cases.tensors(rng, dtype, q_heads=1, queries=queries, keys=140, depth=10)
    options = options_for(name, rng, dtype, queries, 140)
    k[0, 0, [0, 70, 90], 3] = bad
    with fastattn.use_isa(isa):
        weights = fastattn.attention_weights(q, k, **options)
    expected = reference.attention_weights(q, k, **options)
    np.testing.assert_array_equal(np.isnan(weights), np.isnan(expected))
    assert (weights[expected == 0] == 0).all()


@pytest.mark.parametrize("queries", [1, 5, 90])
@pytest.mark.parametrize("name", ["none", *FORBIDDING])
def test_allowed_key_of_no_weight(isa, dtype, name, queries, rng):
    """Its score is -inf like that of a forbidden one, but its value counts: 0 * NaN is NaN."""
    keys = 140
    q, k, v = cases.tensors(rng, dtype, q_heads=1, queries=queries, keys=keys, depth=10)
    options = {} if name == "none" else options_for(name, rng, dtype, queries, keys)
    q[..., 3] = abs(q[..., 3])
    some = rng.choice(keys, 12, replace=False)
    k[0, 0, some, 3] = -np.inf
    v[0, 0, some[:8:2], 4] = np.inf
    v[0, 0, some[1:8:2], 9] = np.nan
    with fastattn.use_isa(isa):
        out, lse = fastattn.attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = reference.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(lse), np.isinf(expected_lse))


@pytest.mark.parametrize("queries", [1, 5, 50])
@pytest.mark.parametrize("at", [3, 190, 900])
def test_infinite_value_of_a_tiny_weight(isa, dtype, queries, at, rng):
    """Of 2^-118 of the greatest it is no 0, 2^8 above it before states are merged either."""
    keys = 1000
    q, k, v = cases.tensors(rng, dtype, q_heads=1, queries=queries, keys=keys, depth=10)
    least = -117.9 if dtype == "float32" else -1013.9
    log2 = np.full(keys, least - 7.9)  # the maximum of the first chunk stays where it begins
    log2[at], log2[600] = least, 0
    q[...], k[...] = 0, 0
    q[..., 0], k[..., 0] = 1, log2 * np.log(2)
    v[0, 0, at] = np.inf
    with fastattn.use_isa(isa):
        out = fastattn.attention(q, k, v, scale=1.0)
    assert np.isposinf(out).all()


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("queries", [1, 4, 16, 50])
@pytest.mark.parametrize(
    ("kind", "stored"),
    [("float32", "int8"), ("float32", "float8_e4m3fn"), ("bfloat16", "int8"), ("float64",) * 2],
)
def test_scale_of_a_key(isa, kind, stored, queries, bad, rng):
    """Elements of both signs times infinity: its score is NaN, however few rows there are."""
    kind = cases.dtype_of(kind)
    q, k, v = cases.tensors(rng, kind, q_heads=1, queries=queries, keys=40, depth=24)
    k, v = (np.rint(8 * x).astype(cases.dtype_of(stored)) for x in (k, v))
    scale = np.full((1, 1, 40), 0.1, np.float32)
    scale[0, 0, 5] = bad
    with fastattn.use_isa(isa):
        out, lse = fastattn.attention(q, k, v, k_scale=scale, return_lse=True)
    assert np.isnan(reference.attention(q, k, v, k_scale=scale)).all()
    assert np.isnan(out).all() and np.isnan(lse).all()


@pytest.mark.parametrize("queries", [1, 2, 3, 5, 16, 50])
@pytest.mark.parametrize("stored", ["int8", "float8_e4m3fn", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_scale_of_a_key_of_one_sign(isa, stored, queries, softcap, rng):
    """Times infinity that is a score of -inf, or with a cap one of the cap, and no NaN."""
    kind = cases.dtype_of("float64" if stored == "float64" else "bfloat16")
    if stored == "float32":
        kind = np.dtype(np.float32)
    q, k, v = (abs(x) for x in cases.tensors(rng, kind, queries=queries, keys=40, depth=130))
    k, v = ((8 * x + 1).astype(cases.dtype_of(stored)) for x in (k, v))
    k = k if softcap else -k
    scale = np.full((1, 2, 40), 0.01, np.float32)
    scale[0, :, 5] = np.inf
    given = {"k_scale": scale, "softcap": softcap}
    result = cases.run(isa, q, k, v, **given)
    assert np.isfinite(result[1]).all()
    cases.check(result, q, k, v, **given)


@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("heads", [1, 4, 12])
@pytest.mark.parametrize("stored", ["bfloat16", "float8_e4m3fn"])
def test_later_keys_beside_the_last(isa, stored, heads, bad, rng):
    """Units multiply keys by sixteens where they lie: later ones, too, by nothing."""
    kind = cases.dtype_of("bfloat16")
    q, k, v = cases.tensors(rng, kind, q_heads=heads, kv_heads=1, queries=1, keys=400, depth=128)
    k, v = (x.astype(cases.dtype_of(stored)) for x in (k, v))
    k[:, :, 100:] = v[:, :, 100:] = bad
    result = cases.run(isa, q, k, v, causal=True, q_offset=99)
    cases.check(result, q, k[:, :, :100], v[:, :, :100])


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_query_reaches_its_own_row_only(isa, dtype, bad, rng):
    q, k, v = cases.tensors(rng, dtype, queries=60, keys=70)
    with fastattn.use_isa(isa):
        clean, clean_lse = fastattn.attention(q, k, v, causal=True, return_lse=True)
        q[0, 0, 31, 2] = bad
        out, lse = fastattn.attention(q, k, v, causal=True, return_lse=True)
    rows = np.ones((1, 2, 60), bool)
    rows[0, 0, 31] = False
    np.testing.assert_array_equal(out[rows], clean[rows])
    np.testing.assert_array_equal(lse[rows], clean_lse[rows])
    assert np.isnan(out[~rows]).all()


def test_nan_in_a_float_mask(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=20, keys=70)
    mask = np.zeros((20, 70), dtype)
    mask[5, 66] = np.nan
    with fastattn.use_isa(isa):
        out = fastattn.attention(q, k, v, attn_mask=mask)
    np.testing.assert_array_equal(np.isnan(out).any((0, 1, 3)), np.arange(20) == 5)


def test_memory_outside_the_lengths_is_never_read(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, batch=2, queries=30, keys=200)
    lengths, starts = np.array([77, 130]), np.array([3, 64])
    with fastattn.use_isa(isa):
        options = {"kv_lengths": lengths, "kv_starts": starts, "softcap": 3.0}
        clean = fastattn.attention(q, k, v, **options)
        for batch in range(2):
            for x in (k, v):
                x[batch, :, : starts[batch]] = np.nan
                x[batch, :, lengths[batch] :] = np.nan
        np.testing.assert_array_equal(fastattn.attention(q, k, v, **options), clean)


def test_denormals_and_huge_values(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=10, keys=70)
    tiny = np.finfo(dtype).tiny / 8
    for factor in (tiny, np.finfo(dtype).max / 64):
        vv = v * np.asarray(factor, dtype)
        with fastattn.use_isa(isa):
            out = fastattn.attention(q, k, vv)
        expected = reference.attention(q, k, vv)
        limit = cases.ALLOWED[dtype] * np.abs(vv).max() + 80 * np.finfo(dtype).smallest_subnormal
        assert (np.abs(out - expected) <= limit).all()


@pytest.mark.parametrize("mask_dtype", ["float32", "own"])
@pytest.mark.parametrize("queries", [3, 90])
def test_least_finite_mask(isa, dtype, queries, mask_dtype, rng):
    """Only -inf forbids: where all else is the least finite number, every such key counts alike."""
    q, k, v = cases.tensors(rng, dtype, q_heads=1, queries=queries, keys=140, depth=10)
    mask_dtype = np.dtype(dtype if mask_dtype == "own" else mask_dtype)
    mask = np.zeros((queries, 140), mask_dtype)
    mask[0] = mask[1, 5:] = np.finfo(mask_dtype).min
    mask[0, :7] = -np.inf
    with fastattn.use_isa(isa):
        out, lse = fastattn.attention(q, k, v, attn_mask=mask, return_lse=True)
    np.testing.assert_allclose(out[0, 0, 0], v[0, 0, 7:].mean(0), rtol=0, atol=1e-5)
    assert lse[0, 0, 0] < -1e37
    rest = np.where(mask == np.finfo(mask_dtype).min, -1e30, mask)[1:]
    q_rest = q[:, :, 1:]
    cases.check((out[:, :, 1:], lse[:, :, 1:]), q_rest, k, v, attn_mask=rest)


@pytest.mark.parametrize("queries", [1, 3, 8, 40])
@pytest.mark.parametrize("scale", [3e-45, -1e-43])
def test_scale_that_a_type_has_no_bits_for(isa, queries, scale, rng):
    q, k, v = cases.tensors(rng, np.float32, queries=queries, keys=70)
    q, k = q * np.float32(1e18), k * np.float32(1e-18 / abs(scale))
    result = cases.run(isa, q, k, v, scale=scale)
    cases.check(result, q, k, v, scale=scale)


@pytest.mark.parametrize("softcap", [1e-310, 1e-39, 1e39, 1.7e308])
def test_extreme_softcap(isa, dtype, softcap, rng):
    q, k, v = cases.tensors(rng, dtype, queries=20, keys=70)
    with fastattn.use_isa(isa):
        result = fastattn.attention(q, k, v, softcap=softcap, return_lse=True)
    cases.check(result, q, k, v, softcap=softcap)


EXTREME = {
    "scale": {"scale": 1e39},
    "scale_and_cap": {"scale": 1e300, "softcap": 1e-9},
    "slopes": {"alibi_slopes": [3e38, 1e39]},
    "sinks": {"sinks": [3e38, 1.7e308]},
    "mask": {"attn_mask": np.where(np.arange(1500) == 7, np.float32(3.4e38), np.float32(0))},
}


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_options(isa, dtype, name, rng):
    """Numbers that bits have no room for; scores of 0 besides."""
    q, k, v = cases.tensors(rng, dtype, q_heads=2, queries=40, keys=1500)
    q[...] = 0
    with fastattn.use_isa(isa):
        out = fastattn.attention(q, k, v, **EXTREME[name])
    expected = reference.attention(q, k, v, **EXTREME[name])
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
