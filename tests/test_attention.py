# SPDX-License-Identifier: MIT
"""fastattn.attention against the oracle, every option on every instruction set."""

import itertools

import cases
import numpy as np
import pytest
from cases import run

import fastattn
from fastattn import reference


@pytest.mark.parametrize("queries", cases.SIZES)
def test_query_and_key_counts(isa, dtype, queries, rng):
    for keys in rng.choice(cases.SIZES, 4, replace=False):
        q, k, v = cases.tensors(rng, dtype, queries=queries, keys=int(keys))
        cases.check(run(isa, q, k, v), q, k, v)


@pytest.mark.parametrize(
    "depth", [1, 2, 3, 5, 8, 16, 31, 32, 33, 40, 64, 80, 96, 100, 128, 200, 256]
)
def test_depths(isa, dtype, depth, rng):
    q, k, v = cases.tensors(rng, dtype, queries=25, keys=70, depth=depth)
    cases.check(run(isa, q, k, v), q, k, v)
    v = rng.standard_normal((1, 2, 70, int(rng.integers(1, 140)))).astype(dtype)
    cases.check(run(isa, q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("depth", [512, 1000])
def test_large_depths(isa, dtype, depth, rng):
    q, k, v = cases.tensors(rng, dtype, q_heads=1, queries=9, keys=67, depth=depth)
    cases.check(run(isa, q, k, v), q, k, v)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 12])
def test_grouped_heads_match_the_oracle(isa, dtype, group, rng):
    q, k, v = cases.tensors(rng, dtype, batch=2, q_heads=2 * group, kv_heads=2, queries=19, keys=66)
    for options in ({}, {"causal": True}, {"sinks": rng.standard_normal(2 * group)}):
        cases.check(run(isa, q, k, v, **options), q, k, v, **options)


OPTIONS = {
    "causal": {"causal": True},
    "causal_top_left": {"causal": True, "q_offset": 0},
    "offsets": {"causal": True, "q_offset": np.array([-7, 40])},
    "window": {"window_size": (9, 4)},
    "window_left": {"window_size": (20, -1)},
    "window_causal": {"window_size": (70, None), "causal": True},
    "scale": {"scale": 0.3},
    "scale_zero": {"scale": 0.0},
    "scale_negative": {"scale": -0.2},
    "softcap": {"softcap": 2.0},
    "softcap_50": {"softcap": 50.0, "scale": 1.0},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 1.0, 0.0])},
    "alibi_batch": {"alibi_slopes": np.linspace(0, 1, 8).reshape(2, 4)},
    "sinks": {"sinks": np.array([0.0, -3.0, 5.0, -np.inf])},
    "sinks_high": {"sinks": np.full(4, 80.0)},
    "lengths": {"kv_lengths": np.array([5, 77])},
    "lengths_one": {"kv_lengths": 64},
    "starts": {"kv_starts": np.array([70, 0]), "kv_lengths": np.array([90, 3])},
    "starts_past_end": {"kv_starts": np.array([50, 3]), "kv_lengths": np.array([20, 90])},
    "causal_lengths": {"causal": True, "kv_lengths": np.array([20, 90])},
}
MASKS = {
    "none": None,
    "bool": lambda rng, dtype: rng.random((2, 4, 37, 90)) < 0.5,
    "float": lambda rng, dtype: np.where(
        rng.random((37, 90)) < 0.3, -np.inf, rng.standard_normal((37, 90))
    ).astype(dtype),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_options_match_the_oracle(isa, dtype, name, mask, rng):
    options = dict(OPTIONS[name])
    if MASKS[mask] is not None:
        options["attn_mask"] = MASKS[mask](rng, dtype)
    q, k, v = cases.tensors(
        rng, dtype, batch=2, q_heads=4, kv_heads=2, queries=37, keys=90, depth=24
    )
    cases.check(run(isa, q, k, v, **options), q, k, v, **options)


PAIRS = list(itertools.combinations(["causal", "window", "softcap", "alibi", "sinks", "starts"], 2))


@pytest.mark.parametrize("names", PAIRS, ids="_".join)
def test_pairs_of_options(isa, dtype, names, rng):
    options = {key: value for name in names for key, value in OPTIONS[name].items()}
    q, k, v = cases.tensors(rng, dtype, batch=2, q_heads=4, queries=70, keys=135, depth=20)
    options["attn_mask"] = rng.random((2, 1, 1, 135)) < 0.7
    options.pop("kv_lengths", None)
    cases.check(run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 9])
def test_ranks(isa, dtype, rank, rng):
    lead = (2, 3, 1, 2, 1, 2)[: max(0, rank - 3)]
    heads = (4,) if rank > 2 else ()
    q, k, v = (rng.standard_normal((*lead, *heads, n, 16)).astype(dtype) for n in (21, 40, 40))
    cases.check(run(isa, q, k, v, causal=True), q, k, v, causal=True)


def test_layouts_give_the_same_bits(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, batch=2, q_heads=4, kv_heads=2, queries=30, keys=50)
    expected, lse = run(isa, q, k, v, causal=True)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    out, other_lse = run(isa, *swapped, causal=True, layout="bshd")
    np.testing.assert_array_equal(out.swapaxes(1, 2), expected)
    np.testing.assert_array_equal(other_lse, lse)
    assert out.flags.c_contiguous


def test_result_follows_memory_order(rng):
    """A (B, S, H, D) tensor seen as (B, H, S, D) gives a result in that order, as in torch."""
    q = rng.standard_normal((2, 7, 3, 8)).astype(np.float32).swapaxes(1, 2)
    out = fastattn.attention(q, q, q)
    assert out.swapaxes(1, 2).flags.c_contiguous


@pytest.mark.parametrize("name", cases.STRIDES)
def test_strides(isa, dtype, name, rng):
    q, k, v = cases.tensors(rng, dtype, batch=2, q_heads=4, kv_heads=2, queries=26, keys=75, dv=12)
    view = cases.STRIDES[name]
    expected = run(isa, q, k, v)
    for which in itertools.product([False, True], repeat=3):
        inputs = [view(x) if use else x for x, use in zip((q, k, v), which, strict=True)]
        out = view(np.zeros((2, 4, 26, 12), dtype))
        got = run(isa, *inputs, out=out)
        assert got[0] is out
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])


def test_scattered_out_of_more_features_than_keys_have(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=26, keys=75, depth=3, dv=150)
    memory = np.full((1, 2, 26, 300), 7, dtype)
    got = run(isa, q, k, v, out=memory[..., ::2])
    cases.check(got, q, k, v)
    assert (memory[..., 1::2] == 7).all()


@pytest.mark.parametrize("options", [{}, {"causal": True, "window_size": (90, 0)}], ids=str)
def test_rows_a_power_of_two_apart(isa, dtype, options, rng):
    """Rows that share a few places of the first cache: the bits of rows that lie on end."""
    q, k, v = cases.tensors(rng, dtype, q_heads=6, kv_heads=2, queries=70, keys=205, dv=12)
    v[:, :, 3], v[:, :, 100, 5] = np.inf, np.nan
    expected = run(isa, q, k, v, num_threads=1, **options)

    def apart(x):
        memory = np.zeros((*x.shape[:-1], 4096 // x.itemsize), dtype)
        memory[..., : x.shape[-1]] = x
        return memory[..., : x.shape[-1]]

    for own_k, own_v in ((apart(k), v), (k, apart(v)), (apart(k), apart(v))):
        for threads in (1, 2):
            got = run(isa, q, own_k, own_v, num_threads=threads, **options)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, b)


def test_out_alone(isa, dtype, rng):
    """No other option: the short way. What is not a fit for it takes the long one."""
    q, k, v = cases.tensors(rng, dtype, batch=2, q_heads=4, kv_heads=2, queries=26, keys=75, dv=12)
    outs = [np.zeros((2, 4, 26, 12), dtype), np.zeros((2, 4, 26, 24), dtype)[..., ::2]]
    lse = run(isa, q, k, v)[1]
    for out in outs:
        with fastattn.use_isa(isa):
            assert fastattn.attention(q, k, v, out=out) is out
        cases.check((out, lse), q, k, v)


@pytest.mark.filterwarnings("error")
def test_out_beside_its_inputs(rng):
    """In the same memory, right before them or right behind: no overlap."""
    q, k, v = cases.tensors(rng, "float32", queries=26, keys=26)
    expected = fastattn.attention(q, k, v)
    memory = np.zeros((5, *q.shape), np.float32)
    memory[1:4] = q, k, v
    for place in (0, 4):
        out = fastattn.attention(*memory[1:4], out=memory[place])
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(memory[1:4], [q, k, v])
    with pytest.raises(ValueError, match="out: "):
        fastattn.attention(*memory[1:4], out=memory[2])


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_short_and_long_way(name, rng):
    """What the short way takes gives the bits of the long one, which any other option asks for."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shapes = dict(batch=2, q_heads=4, kv_heads=2, queries=3, keys=75, dv=12)
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    q, k, v = (x.astype(kind) for x in cases.tensors(rng, "float32", **shapes))
    for lengths in (None, 40, 0, [75, 9], np.array([0, 75]), np.array([75, 9], np.int32)):
        for causal in (False, True):
            options = {"kv_lengths": lengths, "causal": causal, "return_lse": True}
            short = fastattn.attention(q, k, v, **options)
            long = fastattn.attention(q, k, v, window_size=(-1, -1), **options)
            for mine, theirs in zip(short, long, strict=True):
                assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
                np.testing.assert_array_equal(mine.astype(float), theirs.astype(float))
            alone = fastattn.attention(q, k, v, kv_lengths=lengths, causal=causal)
            np.testing.assert_array_equal(alone.astype(float), short[0].astype(float))


def test_zero_strides(isa, dtype, rng):
    """One key, broadcast to many, has the weight of all: the output is its value."""
    q, k, v = cases.tensors(rng, dtype, queries=9, keys=1)
    many = [np.broadcast_to(x, (1, 2, 100, 16)) for x in (k, v)]
    cases.check(run(isa, q, *many), q, *many)


def test_broadcast_batch_and_heads(isa, dtype, rng):
    q, _, _ = cases.tensors(rng, dtype, batch=3, q_heads=4)
    _, k, v = cases.tensors(rng, dtype, batch=1, q_heads=4, kv_heads=1)
    cases.check(run(isa, q, k, v), q, k, v)


@pytest.mark.parametrize("shape", [(0, 2, 5, 7), (2, 2, 0, 7), (2, 2, 5, 0)])
def test_empty(isa, dtype, shape):
    batch, heads, queries, keys = shape
    q = np.ones((batch, heads, queries, 8), dtype)
    k = np.ones((batch, heads, keys, 8), dtype)
    out, lse = run(isa, q, k, k)
    assert out.shape == q.shape and not out.any()
    assert np.isneginf(lse).all()


def test_sinks_without_keys(isa, dtype):
    q, k = np.ones((1, 2, 3, 8), dtype), np.ones((1, 2, 0, 8), dtype)
    out, lse = run(isa, q, k, k, sinks=[0.5, -np.inf])
    assert not out.any()
    np.testing.assert_allclose(lse[0, 0], 0.5, rtol=1e-6)
    assert np.isneginf(lse[0, 1]).all()


@pytest.mark.parametrize("depth", [64, 128])
def test_float32_error_at_2048(isa, depth, rng):
    """Far below what is allowed: many keys average out what each of them is wrong by."""
    q, k, v = cases.tensors(rng, "float32", q_heads=1, queries=512, keys=2048, depth=depth)
    out, _ = run(isa, q, k, v)
    error = out - reference.attention(q, k, v)
    assert np.abs(error).max() <= 4e-7
    assert np.sqrt(np.mean(error**2)) <= 2.0e-8


def test_large_scores(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=40, keys=150)
    for scale in (100.0, 1e3, -1e3):
        assert (
            np.abs(reference.attention(q, k, v, scale=scale, return_scores="scaled")[-1]).max()
            > 1e3
        )
        cases.check(run(isa, q, k, v, scale=scale), q, k, v, scale=scale)


def test_rising_maxima(isa, dtype, rng):
    """Every block raises the maximum: the rescale runs each time."""
    q, k, v = cases.tensors(rng, dtype, queries=30, keys=700)
    q[..., 0], k[..., 0] = 40.0, np.linspace(-100, 100, 700)
    cases.check(run(isa, q, k, v), q, k, v)
    k[..., 0] = k[..., ::-1, 0]
    cases.check(run(isa, q, k, v), q, k, v)


def test_equal_scores(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=30, keys=333)
    k[...] = 1.5
    result = run(isa, q, k, v)
    expected = np.broadcast_to(v.mean(-2, dtype=float, keepdims=True), result[0].shape)
    allowed = cases.ALLOWED[dtype] * np.abs(v).max()
    np.testing.assert_allclose(result[0], expected, rtol=0, atol=allowed)
    cases.check(result, q, k, v)


def test_one_huge_key(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=30, keys=300)
    q[..., 0] = 1.0
    for at in (0, 63, 64, 299):
        kk = k.copy()
        kk[..., at, :] = 0.0
        kk[..., at, 0] = 4e4
        out, _ = run(isa, q, kk, v)
        np.testing.assert_array_equal(out, np.broadcast_to(v[:, :, at : at + 1], out.shape))


def test_weights(isa, dtype, rng):
    q, k, _ = cases.tensors(rng, dtype, batch=2, q_heads=4, kv_heads=2, queries=40, keys=135)
    options = {"causal": True, "window_size": (50, -1), "sinks": np.arange(4.0), "softcap": 5.0}
    options["attn_mask"] = rng.random((40, 135)) < 0.6
    with fastattn.use_isa(isa):
        weights = fastattn.attention_weights(q, k, **options)
    expected = reference.attention_weights(q, k, **options)
    assert weights.dtype == q.dtype
    np.testing.assert_allclose(weights, expected, rtol=0, atol=cases.ALLOWED[dtype])
    assert (weights[expected == 0] == 0).all()


def test_weights_with_what_moves_and_scales_keys(isa, rng):
    """The output with v = 1 is the table: that of dense keys of float64, from the oracle."""
    q = cases.normal(rng, 2, 4, 3, 8)
    pages = rng.integers(-100, 100, (5, 2, 4, 8)).astype(np.int8)
    scales = rng.uniform(0.01, 0.03, (5, 2, 4)).astype(np.float32)
    table = np.array([[3, 0, 4], [1, 2, 0]])
    options = {
        "scale": -0.4, "alibi_slopes": rng.random((2, 4)), "q_offset": [3, 7],
        "kv_starts": [1, 4], "kv_lengths": [5, 12], "causal": True,
    }  # fmt: skip
    keys = (pages * scales.astype(np.float64)[..., None])[table]
    keys = keys.swapaxes(1, 2).reshape(2, 2, 12, 8)
    expected = reference.attention(q, keys, np.tile(np.eye(12), (2, 2, 1, 1)), **options)
    given = {"block_table": table, "k_scale": scales, **options}
    with fastattn.use_isa(isa):
        found = fastattn.attention_weights(q, pages, **given)
    for weights in found, reference.attention_weights(q, pages, **given):
        np.testing.assert_allclose(weights, expected, rtol=0, atol=2e-6)


def test_sdpa_is_torch(isa, rng):
    torch = pytest.importorskip("torch")
    q, k, v = cases.tensors(rng, "float32", batch=2, q_heads=3, queries=40, keys=70)
    mask = rng.random((2, 1, 40, 70)) < 0.5
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"scale": 0.4}):
        with fastattn.use_isa(isa):
            out = fastattn.scaled_dot_product_attention(q, k, v, **options)
        if "attn_mask" in options:
            options = {"attn_mask": torch.from_numpy(mask)}
        tensors = (torch.from_numpy(x) for x in (q, k, v))
        expected = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
        np.testing.assert_allclose(out, expected.numpy(), atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_merge_states(dtype, rng):
    q, k, v = cases.tensors(rng, dtype, batch=2, queries=20, keys=100)
    cuts = [0, 1, 40, 40, 100]
    parts = [
        fastattn.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True)
        for a, b in itertools.pairwise(cuts)
    ]
    merged = fastattn.merge_states(*zip(*parts, strict=True))
    cases.check(merged, q, k, v)


def test_weights_of_rows_sum_to_one(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=33, keys=200)
    out, _ = run(isa, q, k, np.ones_like(v))
    np.testing.assert_allclose(out, 1, rtol=0, atol=cases.ALLOWED[dtype])


def test_permuting_keys(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, queries=33, keys=200)
    order = rng.permutation(200)
    expected = reference.attention(q, k, v)
    out, _ = run(isa, q, k[:, :, order], v[:, :, order])
    np.testing.assert_allclose(out, expected, rtol=0, atol=cases.ALLOWED[dtype] * np.abs(v).max())


@pytest.mark.parametrize("queries", [2, 5, 50])
@pytest.mark.parametrize("offset", [2**24 + 70, 2**25 - 60, 2**25, 2**26 + 1])
def test_alibi_of_great_distances(isa, dtype, offset, queries, rng):
    """They are rounded to a type's bits, but each by itself: neighbours do not become one."""
    q, k, v = cases.tensors(rng, dtype, queries=queries, keys=300)
    options = {"q_offset": offset, "alibi_slopes": [0.03, 0.001]}
    cases.check(cases.run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("offset", [-(2**53), -40, 7, 2**53])
@pytest.mark.parametrize("sides", [(0, 2**63 - 1), (2**63 - 1, 0), (2**63 - 1, 2**63 - 1)])
def test_windows_of_any_size(isa, dtype, sides, offset, rng):
    q, k, v = cases.tensors(rng, dtype, queries=30, keys=50)
    options = {"q_offset": offset, "window_size": sides}
    result = cases.run(isa, q, k, v, **options)
    cases.check(result, q, k, v, **options)
    sees_all = sides[0 if offset > 0 else 1] > 0 and abs(offset) > 50
    assert not sees_all or np.isfinite(result[1]).all()
