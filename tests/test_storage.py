# SPDX-License-Identifier: MIT
"""16-bit tensors, narrow K and V, scales: against the oracle fed the same rounded inputs."""

import cases
import numpy as np
import pytest
from cases import run

import fastattn

# (q, k and v)
PAIRS = [
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float32", "int8"),
    ("float32", "float8_e4m3fn"),
    ("float16", "float8_e5m2"),
    ("bfloat16", "int8"),
]
SHAPES = [(1, 700), (5, 90), (40, 130)]  # queries, keys: thin tiles and chunks, thin, wide
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "softcap_window": {"softcap": 5.0, "window_size": (50, 3)},
    "sinks_lengths": {"sinks": np.array([0.5, -1.0, 2.0, 0.0]), "kv_lengths": np.array([60, 81])},
}


def narrow(x, dtype):
    """Numbers of a type, as large as it takes to use its range."""
    return np.round(x * 40).astype(dtype) if dtype == np.int8 else x.astype(dtype)


def problem(rng, pair, queries, keys, depth=48):
    of_q, of_k = map(cases.dtype_of, pair)
    q, k, v = cases.tensors(
        rng, "float32", batch=2, q_heads=4, kv_heads=2, queries=queries, keys=keys, depth=depth
    )
    return q.astype(of_q), narrow(k, of_k), narrow(v, of_k)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS)
def test_stored_types_match_the_oracle(isa, pair, shape, options, rng):
    q, k, v = problem(rng, pair, *shape)
    extra = dict(OPTIONS[options])
    if k.dtype == np.int8:
        extra |= {"k_scale": 1 / 40, "v_scale": 1 / 40}
    cases.check(run(isa, q, k, v, **extra), q, k, v, **extra)


@pytest.mark.parametrize("depth", [1, 7, 33, 80, 128])
def test_depths(isa, depth, rng):
    for pair in PAIRS[:5:2]:
        q, k, v = problem(rng, pair, 3, 40, depth)
        cases.check(run(isa, q, k, v), q, k, v)


@pytest.mark.parametrize("depth", [33, 520, 960, 1100, 2048])
@pytest.mark.parametrize("queries", [1, 5])
def test_greatest_sums_of_integers(isa, depth, queries, rng):
    """Every feature of a key counts as much as it can, with either sign."""
    q = np.full((1, 2, queries, depth), 1.9921875, cases.dtype_of("bfloat16"))
    q[:, 1] *= -1
    k = np.where(rng.random((1, 2, 150, 1)) < 0.5, -128, 64) * np.ones(depth)
    v = rng.integers(-128, 128, k.shape)
    k, v = k.astype(np.int8), v.astype(np.int8)
    given = {"scale": np.log(2) / 2**17, "v_scale": 0.1}  # with it, sums of float32 are exact
    cases.check(cases.run(isa, q, k, v, **given), q, k, v, **given)


@pytest.mark.parametrize(
    "pair", [*PAIRS, ("float32", "float32"), ("float64", "float64")], ids="-".join
)
def test_every_number_of_few_rows(isa, pair, rng):
    """Rows beside each other in a vector; features and keys that are left over; no number where
    nobody may look."""
    allowed = np.ones(141, bool)  # of two blocks of any kernel's few rows
    allowed[[20, 140]] = False
    of_q, of_k = map(cases.dtype_of, pair)
    for rows in range(1, 17):
        q, k, v = cases.tensors(
            rng, "float32", q_heads=rows, kv_heads=1, queries=1, keys=141, depth=150, dv=141
        )
        q, k, v = q.astype(of_q), narrow(k, of_k), narrow(v, of_k)
        scales = {"k_scale": 1 / 40, "v_scale": 1 / 40} if of_k == np.int8 else {}
        cases.check(run(isa, q, k, v, **scales), q, k, v, **scales)
        if of_k != np.int8:
            v[:, :, 20, 3] = v[:, :, 140, 140] = np.nan
        options = scales | {"attn_mask": allowed}
        cases.check(run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_scales_of_every_shape(isa, layout, rng):
    q, k, v = problem(rng, ("float32", "int8"), 6, 150)
    scales = rng.random((2, 2, 150)).astype(np.float32) / 40
    given = [x.swapaxes(1, 2).copy() if layout == "bshd" else x for x in (q, k, v)]
    every = (0.02, np.float16(0.02), np.array(0.02), scales[0, :, 0], scales[..., 0], scales)
    for scale in (*every, scales.astype(">f4")[..., 0], scales[:, :, ::-1][:, :, ::-1]):
        options = {"k_scale": scale, "v_scale": np.asarray(scale) * 2}
        out, lse = run(isa, *given, layout=layout, **options)
        out = out.swapaxes(1, 2) if layout == "bshd" else out
        cases.check((out, lse), q, k, v, **options)


@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5, 30])
def test_scales_of_whole_numbers(isa, dtype, queries, rng):
    q, k, v = cases.tensors(rng, dtype, batch=2, kv_heads=2, queries=queries, keys=150, depth=20)
    scales = rng.random((2, 2, 150)).astype(np.float32)
    options = {"k_scale": scales, "v_scale": scales[..., 0]}
    cases.check(run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (2, 2, 40)], ids=str)
def test_scales_of_torch(shape, rng):
    torch = pytest.importorskip("torch")
    q, k, v = problem(rng, ("float32", "int8"), 3, 40)
    scales = rng.random((2, *shape), np.float32)
    expected = fastattn.attention(q, k, v, k_scale=scales[0], v_scale=scales[1])
    k_scale, v_scale = torch.from_numpy(scales)
    found = fastattn.attention(q, k, v, k_scale=k_scale, v_scale=v_scale)
    np.testing.assert_array_equal(found, expected)


def test_numbers_of_bfloat16(rng):
    q, k, v = problem(rng, ("bfloat16", "int8"), 3, 40)
    numbers = {"scale": 0.25, "softcap": 30.0, "k_scale": 0.125, "v_scale": 2.0}
    expected = fastattn.attention(q, k, v, **numbers)
    found = fastattn.attention(q, k, v, **{name: q.dtype.type(n) for name, n in numbers.items()})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_strided_and_offset(isa, pair, rng):
    """Elements apart, rows reversed, of bytes at odd addresses: read where they are."""
    q, k, v = problem(rng, pair, 3, 60, 20)
    scales = {"k_scale": 1 / 40, "v_scale": 1 / 40} if k.dtype == np.int8 else {}
    wide = np.zeros((*k.shape[:-1], 40), k.dtype)
    wide[..., ::2] = k
    given = q, wide[..., ::2], cases.STRIDES["offset"](v)
    result = run(isa, *(x[:, :, ::-1] for x in given), **scales)
    cases.check(result, *(x[:, :, ::-1] for x in (q, k, v)), **scales)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_masks_of_16_bits(isa, name, rng):
    dtype = cases.dtype_of(name)
    q, k, v = problem(rng, (name, name), 21, 75)
    mask = np.where(rng.random((21, 75)) < 0.4, -np.inf, rng.standard_normal((21, 75)))
    mask[0], mask[3, :64] = 0, -np.inf
    for each in (mask.astype(dtype), mask[:1].astype(dtype), mask.T.astype(dtype).T):
        cases.check(run(isa, q, k, v, attn_mask=each), q, k, v, attn_mask=each)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_adversarial(isa, name, rng):
    """Large, tiny and special values: right, or NaN where the formula is."""
    dtype = cases.dtype_of(name)
    q, k, v = problem(rng, (name, name), 4, 70, 16)
    tiny = np.finfo(np.float16).smallest_subnormal if name == "float16" else 1e-40
    for factor in (200.0, tiny):
        scaled = (k.astype(np.float32) * np.float32(factor)).astype(dtype)
        cases.check(run(isa, q, scaled, v), q, scaled, v)
    v = v.copy()
    v[:, :, 5] = np.inf
    k = k.copy()
    k[:, :, 6] = np.nan
    allowed = np.ones((4, 70), bool)
    allowed[:, [5, 6]] = False
    out, _ = run(isa, q, k, v, attn_mask=allowed)
    assert np.isfinite(out.astype(float)).all()
    assert np.isnan(run(isa, q, k, v)[0].astype(float)).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_weights_are_of_the_type_of_q(isa, name, rng):
    q, k, _ = problem(rng, (name, name), 5, 30)
    with fastattn.use_isa(isa):
        weights = fastattn.attention_weights(q, k)
    expected = fastattn.reference.attention_weights(q, k)
    assert weights.dtype == q.dtype
    bound = cases.UNIT[name] * expected + cases.ALLOWED["float32"]
    assert (np.abs(weights.astype(float) - expected) <= bound).all()
