# SPDX-License-Identifier: MIT
"""Rows of bfloat16 on int8 and fp8, few and many, which several instruction sets have kernels of
their own for, that take what they do not carry to the others: every option, every byte, scales of
any size.
"""

import cases
import numpy as np
import pytest

import fastattn
from fastattn import _kernels, reference

BYTES = ["int8", "float8_e4m3fn", "float8_e5m2"]


def tensors(rng, **sizes):
    given = {"batch": 2, "depth": 64} | sizes
    return [x.astype(cases.dtype_of("bfloat16")) for x in cases.tensors(rng, "float32", **given)]


@pytest.mark.parametrize("stored", BYTES)
@pytest.mark.parametrize("queries", [1, 2, 3, 4, 8, 40])
@pytest.mark.parametrize(
    "name", ["plain", "causal", "softcap", "alibi", "lengths", "bool", "float"]
)
def test_bytes(isa, stored, queries, name, rng):
    """Two heads of a group; a scale for each token of K, for each head of V."""
    q, k, v = tensors(rng, kv_heads=1, queries=queries, keys=1300)
    k, v, k_scale, _ = fastattn.quantize_kv(k, v, cases.dtype_of(stored))
    options = cases.options_of(name, rng, max(queries, 3), 1300)
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"][-queries:].astype(
            bool if name == "bool" else q.dtype
        )
    for scales in ({"k_scale": k_scale, "v_scale": 0.03}, {"k_scale": 0.02}, {"v_scale": k_scale}):
        if name == "plain" or len(scales) == 2:
            given = options | scales
            cases.check(cases.run(isa, q, k, v, **given), q, k, v, **given)


def of_int8(rng, **sizes):
    """q, k, v, and scales of K and V."""
    q, k, v = tensors(rng, **sizes)
    k, v = (np.round(x.astype(np.float32) * 40).astype(np.int8) for x in (k, v))
    return q, k, v, {"k_scale": 1 / 40, "v_scale": 1 / 40}


@pytest.mark.parametrize("stored", ["int8", "float32", "float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize(
    "queries, keys",
    [(5, 1301), (6, 1301), (9, 1301), (11, 1301), (15, 1301), (15, 267), (17, 267)],
)
def test_rows_of_a_few_thin_tiles(isa, stored, queries, keys, rng):
    """Where they are faster than a wide one, two rows a query: of heads that take turns, too, and
    on any threads. The last tile may have fewer rows than the others."""
    sizes = {"q_heads": 6, "kv_heads": 3, "queries": queries, "keys": keys}
    if stored == "int8":
        q, k, v, scales = of_int8(rng, **sizes)
    else:
        q, k, v = tensors(rng, **sizes)
        k, v, scales = k.astype(cases.dtype_of(stored)), v.astype(cases.dtype_of(stored)), {}
        if k.itemsize > 1:
            q = q.astype(k.dtype)
    apart = cases.run(isa, q, k, v, causal=True, num_threads=1, **scales)
    cases.check(apart, q, k, v, causal=True, **scales)
    k, v = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (k, v))
    for threads in (1, 2, 3, 8):
        got = cases.run(isa, q, k, v, causal=True, num_threads=threads, **scales)
        for a, b in zip(apart, got, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("queries", [8, 40])
def test_integers_are_used(isa, queries, rng):
    """They show in the last bits; other kernels have the same for a bfloat16 as for a float32."""
    q, k, v, scales = of_int8(rng, queries=queries, kv_heads=1, keys=300)
    lse = cases.run(isa, q, k, v, **scales)[1]
    as_float32 = cases.run(isa, q.astype(np.float32), k, v, **scales)[1]
    used = "int8" in _kernels.thin_storages(isa)
    if queries > 32:  # which no thin tiles are for
        used = used and 1 in _kernels.matrix_pieces(isa)
    assert used != np.array_equal(lse, as_float32)


@pytest.mark.parametrize("depth, dv", [(80, 96), (65, 17), (192, 128), (33, 256), (5, 3), (520, 7)])
@pytest.mark.parametrize("queries", [1, 2, 3, 4, 7, 8])
def test_depths(isa, depth, dv, queries, rng):
    """Up to 16 rows of a group; 520 features are too many for a sum of integers."""
    q, k, v, scales = of_int8(
        rng, batch=1, depth=depth, dv=dv, kv_heads=1, queries=queries, keys=267
    )
    cases.check(cases.run(isa, q, k, v, causal=True, **scales), q, k, v, causal=True, **scales)
    one = q[:, :1]
    cases.check(cases.run(isa, one, k, v, **scales), one, k, v, **scales)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30], ids=str)
@pytest.mark.parametrize("queries", [4, 40])
def test_queries_that_no_integer_carries(isa, queries, bad, rng):
    """One of several rows that share their keys; of 80 rows, other tiles have panels still."""
    q, k, v, scales = of_int8(rng, batch=1, kv_heads=1, queries=queries, keys=267)
    q[0, 1, 2, 5] = bad
    result = out, lse = cases.run(isa, q, k, v, **scales)
    if np.isfinite(bad):
        cases.check(result, q, k, v, **scales)
        return
    assert np.isnan(out[0, 1, 2]).all()
    others = np.ones(q.shape[:3], bool)
    others[0, 1, 2] = False
    q[0, 1, 2] = 0
    expected, expected_lse = cases.run(isa, q, k, v, **scales)
    np.testing.assert_allclose(lse[others], expected_lse[others], rtol=0, atol=2.0**-10)
    difference = np.abs(out.astype(float) - expected.astype(float))[others]
    assert (difference <= 2.0**-7 * np.abs(v / 40).max()).all()


@pytest.mark.parametrize(
    "which, bad, starts",
    [
        ("k_scale", np.nan, 9),
        ("v_scale", np.nan, 9),
        ("v_scale", np.inf, 9),
        ("k_scale", np.inf, 9),
        ("k_scale", np.inf, 0),
    ],
)
@pytest.mark.parametrize("queries", [3, 40])
def test_scales_that_are_no_numbers(isa, which, bad, starts, queries, rng):
    """At a key that only the last query sees, and at one that nobody does, or all do."""
    q, k, v, scales = of_int8(rng, batch=1, queries=queries, keys=267)
    scales = {name: np.full(k.shape[:3], scale, np.float32) for name, scale in scales.items()}
    scales[which][..., 5], scales[which][..., -1] = bad, bad
    options = {"causal": True, "kv_starts": starts}
    out = cases.run(isa, q, k, v, **options, **scales)[0]
    with np.errstate(invalid="ignore"):
        expected = reference.attention(q, k, v, **options, **scales)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(expected))
    assert np.isfinite(out[:, :, :-1]).all() == (starts > 5)


@pytest.mark.parametrize("which", [0, -1], ids=["seen", "unseen"])
@pytest.mark.parametrize("queries", [3, 40])
def test_negative_scales_beside_what_is_no_number(isa, which, queries, rng):
    """Of V, in fp8: the keys beside it keep their sign, and count."""
    q, k, v = tensors(rng, batch=1, kv_heads=1, queries=queries, keys=267)
    k, v, k_scale, v_scale = fastattn.quantize_kv(k, v, cases.dtype_of("float8_e4m3fn"))
    v[0, 0, which, 7] = np.nan
    scales = {"k_scale": k_scale, "v_scale": -v_scale}
    out = cases.run(isa, q, k, v, causal=True, **scales)[0]
    expected = reference.attention(q, k, v, causal=True, **scales)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_allclose(
        np.nan_to_num(out.astype(float)), np.nan_to_num(expected), rtol=2.0**-6, atol=2.0**-6
    )


@pytest.mark.parametrize("stored", BYTES)
@pytest.mark.parametrize("queries, depth", [(1, 32), (3, 45), (6, 160), (7, 32), (12, 32)])
def test_every_byte_is_what_it_stands_for(isa, stored, queries, depth):
    """One key per byte; each sees itself alone, and denormal numbers count."""
    every = np.arange(256, dtype=np.uint8).view(cases.dtype_of(stored))
    every = every[np.isfinite(every.astype(np.float32))]
    count = len(every)
    q = np.zeros((count, 1, queries, depth), cases.dtype_of("bfloat16"))
    k = np.zeros((count, 1, 640, depth), every.dtype)
    v = np.broadcast_to(every[:, None, None, None], k.shape)
    out, lse = cases.run(isa, q, k, v)
    for row in range(queries):
        np.testing.assert_array_equal(out[:, 0, row, 5], every.astype(out.dtype))
    np.testing.assert_allclose(lse, np.log(640), rtol=1e-6)
    q = np.ones_like(q)
    keys = np.ascontiguousarray(v[:, :, :, ::-1])
    lse = cases.run(isa, q, keys, k, scale=2.0**-6)[1]
    expected = every.astype(np.float64)[:, None] * depth / 64 + np.log(640)
    np.testing.assert_allclose(
        lse[:, 0], np.broadcast_to(expected, (count, queries)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("stored", BYTES[1:])
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("queries", [5, 13, 40])
def test_bytes_that_are_no_numbers(isa, stored, which, queries, rng):
    q, k, v = tensors(rng, batch=1, queries=queries, keys=1300)
    k, v, k_scale, v_scale = fastattn.quantize_kv(k, v, cases.dtype_of(stored))
    {"k": k, "v": v}[which][0, 1, 1301 - queries, 5] = np.nan
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    out, _ = cases.run(isa, q, k, v, causal=True, **scales)
    expected = reference.attention(q, k, v, causal=True, **scales)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    assert np.isnan(out).any() and not np.isnan(out[:, :, 0]).any()


@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-26, 1e30, 0.0, -0.02])
@pytest.mark.parametrize("which", ["k_scale", "v_scale"])
@pytest.mark.parametrize("queries", [6, 40])
def test_scales_that_one_piece_does_not_carry(isa, which, scale, queries, rng):
    q, k, v = tensors(rng, queries=queries, keys=1300)
    k, v = (np.round(x.astype(np.float32) * 40).astype(np.int8) for x in (k, v))
    scales = {"k_scale": 0.02, "v_scale": 0.02} | {which: scale}
    if which == "k_scale" and scale > 1:  # the scores have a size that a softmax is for
        scales["scale"] = 1 / (40 * scale)
    cases.check(cases.run(isa, q, k, v, **scales), q, k, v, **scales)


@pytest.mark.parametrize(
    "queries, great", [(1, ...), (3, ...), (4, ...), (8, ...), (4, 2)], ids=str
)
@pytest.mark.parametrize("cap", [0.0, 20000.0])
@pytest.mark.parametrize("size", [1, 2000, 2**18, 2**24])
@pytest.mark.parametrize("scale, k_scale", [(0.125, -0.1), (-0.125, 0.1)])
def test_small_features_beside_a_great_one(isa, queries, great, cap, size, scale, k_scale, rng):
    """Of which no key has anything: then all digits of the others count, in every row or in one."""
    q, k, v = tensors(rng, batch=1, kv_heads=1, queries=queries, keys=1300)
    k = np.round(k.astype(np.float32) * 40).astype(np.int8)
    q[:, :, great, 7], k[..., 7] = size, 0
    v = np.round(v.astype(np.float32) * 40).astype(np.int8)
    given = {"k_scale": k_scale, "v_scale": 0.025, "softcap": cap, "scale": scale}
    result = cases.run(isa, q, k, v, **given)
    cases.check(result, q, k, v, **given)
    expected, lse = reference.attention(q, k, v, return_lse=True, **given)
    np.testing.assert_allclose(result[1], lse, rtol=0, atol=2.0**-10)
    allowed = 2.0**-8 * np.abs(expected) + 2.0**-9
    if isa == "amx" and queries * 2 > 8:  # more rows than stay integers: p is a bfloat16
        allowed += 2.0**-7 * reference.attention(q, k, np.abs(v.astype(np.int16)), **given)
    assert (np.abs(result[0].astype(float) - expected) <= allowed).all()


@pytest.mark.parametrize("queries", [1, 4, 8, 20])
@pytest.mark.parametrize("stored", [0, 1])
def test_great_scale_of_a_small_value(isa, queries, stored, rng):
    """Probabilities as integers may not lose their bits to a key that counts nothing."""
    q, k, v, scales = of_int8(rng, queries=queries, keys=300)
    v_scale = np.full(k.shape[:-1], 1e-3, np.float32)
    v[:, :, 5], v_scale[..., 5] = stored, 0.1
    scales["v_scale"] = v_scale
    cases.check(cases.run(isa, q, k, v, **scales), q, k, v, **scales)


@pytest.mark.parametrize("queries", [1, 4, 8])
def test_many_small_weights(isa, queries):
    """Of 2^-17, beside one of 1 whose value is 0: integers of 16 bits may lose them, not of 24."""
    q = np.ones((1, 1, queries, 64), cases.dtype_of("bfloat16"))
    k, v = np.zeros((1, 1, 256, 64), np.int8), np.full((1, 1, 256, 64), 100, np.int8)
    k[:, :, 9, 0], v[:, :, 9] = 127, 0
    given = {"scale": 1.0, "k_scale": 17 * np.log(2) / 127, "v_scale": 0.01}
    result = cases.run(isa, q, k, v, **given)
    cases.check(result, q, k, v, **given)
    if isa == "amx":
        expected = reference.attention(q, k, v, **given)
        np.testing.assert_allclose(result[0].astype(float), expected, rtol=0.01)


@pytest.mark.parametrize("stored", ["bfloat16", *BYTES[1:]])
@pytest.mark.parametrize("queries", [2, 8, 16])
def test_values_that_are_not_carried_after_great_scores(isa, stored, queries, rng):
    """Who takes them rounds scores otherwise: the maxima of before would leave no weight at all."""
    q, k, v = tensors(rng, queries=queries, keys=64)
    k, v = (x.astype(cases.dtype_of(stored)) for x in (k, v))
    options = {"scale": 1e9, "causal": True}
    v[:, :, -queries + 1, 3] = np.nan  # of which the first row sees nothing
    v[..., 0] = 1e-38
    out, lse = cases.run(isa, q, k, v, **options)
    expected, expected_lse = reference.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_allclose(out[:, :, 0].astype(float), expected[:, :, 0], rtol=0.01, atol=1e-37)


@pytest.mark.parametrize("stored", ["bfloat16", *BYTES])
@pytest.mark.parametrize("queries", [1, 3, 6, 16, 20, 40])
def test_averages_of_ones(isa, stored, queries, rng):
    """They are 1 however probabilities are rounded, if those that are multiplied are summed."""
    q, k, _ = tensors(rng, batch=1, queries=queries, keys=600)
    k = (k.astype(np.float32) * (40 if stored == "int8" else 1)).astype(cases.dtype_of(stored))
    scales = {"k_scale": 1 / 40, "v_scale": 1} if stored == "int8" else {}
    np.testing.assert_array_equal(cases.run(isa, q, k, np.ones_like(k), **scales)[0], 1)


LIMITS = {
    "tiny queries": (2.0**-118, {"scale": 2.0**60, "k_scale": 2.0**52}),
    "great queries": (2.0**120, {"scale": 2.0**-120, "k_scale": 2.0**-6}),
    "a row of zeros": (0.0, {"scale": 2.0**50, "k_scale": 2.0**-55}),
}


@pytest.mark.parametrize("queries", [1, 2, 5, 8])
@pytest.mark.parametrize("name", LIMITS)
def test_queries_at_the_limits_of_integers(isa, name, queries, rng):
    q, k, v, scales = of_int8(rng, queries=queries, keys=200)
    size, given = LIMITS[name]
    q = q.astype(np.float64)
    q[:, :1] *= size
    q[:, 1:] *= size or 1  # only one head is zeros
    q = q.astype(cases.dtype_of("bfloat16"))
    given = scales | given
    cases.check(cases.run(isa, q, k, v, **given), q, k, v, **given)


@pytest.mark.parametrize("apart", [5, 8, 12, 17, 22])
@pytest.mark.parametrize("queries", [1, 2, 5, 8, 20])
def test_scales_of_values_far_apart(isa, queries, apart, rng):
    """The one of a value of zeros far above the others."""
    q, k, v, _ = of_int8(rng, queries=queries, keys=200)
    v_scale = np.full(k.shape[:-1], 2.0**-apart, np.float32)
    v[:, :, 7], v_scale[..., 7] = 0, 1
    given = {"scale": 0.003, "v_scale": v_scale}
    cases.check(cases.run(isa, q, k, v, **given), q, k, v, **given)


@pytest.mark.parametrize("bits", [15, 16])
@pytest.mark.parametrize("queries", [1, 2, 8])
def test_weights_below_half_a_unit_of_the_greatest(isa, queries, bits):
    """A unit of p as an integer is a share of the greatest, times the scale of its value, which is
    small itself; all others together are not, and may not become 0."""
    q = np.zeros((1, 1, queries, 64), cases.dtype_of("bfloat16"))
    k, v = np.zeros((1, 1, 128, 64), np.int8), np.full((1, 1, 128, 64), 127, np.int8)
    q[..., 0], k[..., 0, 0], v[:, :, 0] = 1, 100, 1
    v_scale = np.full((1, 1, 128), 2.0**-5, np.float32)
    v_scale[..., 0] = 1
    log2_of_a_weight = -(bits + 1 - 5 + 0.02)
    given = {"scale": 1.0, "k_scale": -log2_of_a_weight * np.log(2) / 100, "v_scale": v_scale}
    cases.check(cases.run(isa, q, k, v, **given), q, k, v, **given)
