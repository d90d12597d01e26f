# SPDX-License-Identifier: MIT
"""ALiBi: keys that are too far away to count are left out (src_c/reach.h), and no others are."""

import cases
import numpy as np
import pages
import pytest

import fastattn
from fastattn import reference

DTYPES = ["float64", "float32", "float16", "bfloat16"]
# What falls below every weight of the type at a distance of 220 keys, in a chunk of keys.
SLOPES = {"float64": 3.2, "float32": 0.4, "bfloat16": 0.4}
# The squares of which, all together, are finite.
LARGE = {"float64": 1e150, "float32": 1e17, "bfloat16": 1e17}
# Of 2 KV heads, and of more queries than few.
WALKS = {
    "causal": (400, 400, {"causal": True}),
    "both sides": (150, 1500, {"q_offset": 700}),
    "window": (900, 900, {"causal": True, "window_size": (400, 30)}),
    "past the end": (150, 1200, {"q_offset": 1500}),
    "before the start": (150, 1200, {"q_offset": -100, "kv_starts": 300, "kv_lengths": 1100}),
    "softcap and sinks": (300, 900, {"softcap": 5.0, "sinks": np.array([1.0, -2.0, 0.0, 3.0])}),
}


def tensors(rng, dtype, queries, keys, depth=24):
    dtype = cases.dtype_of(dtype)
    return [
        cases.normal(rng, 1, heads, rows, depth, dtype=dtype)
        for heads, rows in ((4, queries), (2, keys), (2, keys))
    ]


@pytest.mark.parametrize("dtype_name", SLOPES)
def test_far_keys_are_left_out(isa, dtype_name):
    """Their values are so large that what weights below the least normal number leave is seen."""
    dtype = cases.dtype_of(dtype_name)
    q, k, v = (np.zeros((1, 1, 512, 16), dtype) for _ in range(3))
    v[..., :210, :] = LARGE[dtype_name]
    options = {"causal": True, "alibi_slopes": np.array([SLOPES[dtype_name]])}
    out, _ = cases.run(isa, q, k, v, **options)
    assert not out[..., 500:, :].any()
    if dtype_name != "bfloat16":  # a mask, which may forbid the nearest key, leaves none out
        out, _ = cases.run(isa, q, k, v, attn_mask=np.ones((1, 512), bool), **options)
        assert out[..., 500:, :].all()


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("dtype_name", DTYPES)
def test_all_that_counts_is_there(isa, dtype_name, walk, rng):
    queries, keys, options = WALKS[walk]
    q, k, v = tensors(rng, dtype_name, queries, keys)
    for slopes in ([8.0, 0.05, 0.5, 4.0], [0.5, 0.3, -0.1, 0.7]):
        options["alibi_slopes"] = np.array(slopes)
        cases.check(cases.run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("stored", ["float32", "int8"])
@pytest.mark.parametrize("size, cap", [(1, 0), (200, 0), (-200, 0), (200, 150), (1e4, 0)])
def test_large_scores_reach_further(isa, size, cap, stored, rng):
    """The nearest key may have the least score that there can be, and a far one the greatest."""
    q, k, v = tensors(rng, "float32", 300, 900, 16)
    q[:], k[:] = np.sign(size), -1
    k[..., 180, :] *= -1
    options = {"causal": True, "alibi_slopes": np.array([0.7, 0.9, 1.5, 3.0])}
    options |= {"scale": size / 16, "softcap": cap}
    if stored == "int8":
        k, v = k.astype(np.int8), np.rint(30 * v).astype(np.int8)
        options |= {"k_scale": np.float32(abs(size)), "v_scale": np.float32(0.1)}
        options["scale"] /= abs(size)
    cases.check(cases.run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("tiny, large", [(-80, 40), (40, -80)])
def test_squares_below_all_numbers(isa, tiny, large, rng):
    """Numbers whose squares are 0 in float32 make large scores with others, and a large scale."""
    q, k, v = tensors(rng, "float32", 300, 900, 16)
    q[:], k[:] = 2.0**tiny, -(2.0**large)
    k[..., 180, :] *= -1
    options = {"causal": True, "alibi_slopes": np.array([0.7, 0.9, 1.5, 3.0])}
    options["scale"] = 200 / 16 / 2.0 ** (tiny + large)
    cases.check(cases.run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_what_is_not_finite_is_seen_from_afar(isa, cap, which, value, rng):
    q, k, v = tensors(rng, "float32", 300, 900)
    (k if which == "k" else v)[0, 1, 17, 5] = value
    q[..., 5] = 0  # times infinity is NaN, which no cap makes finite
    options = {"causal": True, "alibi_slopes": np.array([2.0, 3.0, 2.0, 3.0]), "softcap": cap}
    out, _ = cases.run(isa, q, k, v, **options)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = reference.attention(q, k, v, **options)
    lost = ~np.isfinite(expected)
    assert lost[0, 2:].any() and not lost[0, :2].any()
    assert not np.isfinite(out[lost]).any()


def test_storage(isa, rng):
    """Scales make keys larger than what is stored, and pages are read where there are keys."""
    q, k, v = tensors(rng, "bfloat16", 160, 1000, 32)
    k[..., ::100, :] *= cases.dtype_of("bfloat16").type(30)
    stored = fastattn.quantize_kv(k.astype(np.float32), v.astype(np.float32))
    tables = {"alibi_slopes": np.array([1.5, 0.5, 2.0, 4.0]), "causal": True}
    scales = {"k_scale": stored[2], "v_scale": stored[3]}
    result = cases.run(isa, q, *stored[:2], **tables, **scales)
    cases.check(result, q, *stored[:2], **tables, **scales)
    paged, table = pages.into_pages(rng, [k, v], 16)
    out, lse = cases.run(isa, q, *paged, block_table=table, kv_lengths=1000, **tables)
    cases.check((out, lse), q, k, v, **tables)


def test_alone_or_not(isa, rng):
    """The same bits in a batch, in a pack and by two threads."""
    q, k, v = (
        cases.normal(rng, 2, heads, rows, 16) for heads, rows in ((2, 200), (1, 900), (1, 900))
    )
    k[1] *= 20
    options = {"alibi_slopes": np.array([0.9, 2.0]), "causal": True}
    together = cases.run(isa, q, k, v, **options, num_threads=2)
    with fastattn.use_isa(isa):
        packed = fastattn.attention_varlen(
            *(np.concatenate(list(x.swapaxes(1, 2))) for x in (q, k, v)),
            *(np.array([0, n, 2 * n]) for n in (200, 900)),
            **options,
        )
    for b in (0, 1):
        one = slice(b, b + 1)
        out, lse = cases.run(isa, q[one], k[one], v[one], **options, num_threads=1)
        np.testing.assert_array_equal(out, together[0][one])
        np.testing.assert_array_equal(lse, together[1][one])
        np.testing.assert_array_equal(packed[b * 200 :][:200], out[0].swapaxes(0, 1))
