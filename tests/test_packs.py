# SPDX-License-Identifier: MIT
"""Packed sequences and pages through the public functions: right, and the same bits anywhere."""

import cases
import numpy as np
import pytest
from cases import starts_of
from pages import into_pages

import fastattn
from fastattn import reference

QUERIES, KEYS = (3, 0, 1, 70, 1, 16), (9, 4, 0, 70, 300, 40)
OPTIONS = {
    "none": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "q_offset": 0},
    "window": {"window_size": (20, 3), "softcap": 5.0},
    "alibi": {"alibi_slopes": np.linspace(0, 1, 24).reshape(6, 4), "causal": True},
    "sinks": {"sinks": np.array([0.5, 0.0, -1.0, 2.0]), "scale": 0.4},
    "lengths": {"kv_lengths": [5, 4, 0, 33, 299, 1], "kv_starts": [2, 0, 0, 40, 7, 0]},
}


def pack(rng, dtype, queries=QUERIES, keys=KEYS):
    return [
        rng.standard_normal((sum(counts), heads, depth)).astype(dtype)
        for counts, heads, depth in ((queries, 4, 16), (keys, 2, 16), (keys, 2, 12))
    ]


def close(result, expected, v, dtype):
    allowed = {"rtol": 0, "atol": cases.ALLOWED[dtype] * max(np.abs(v).max(), 1)}
    np.testing.assert_allclose(result[0], expected[0], **allowed)
    empty = np.isneginf(expected[1])
    np.testing.assert_array_equal(np.isneginf(result[1]), empty)
    allowed["atol"] = cases.ALLOWED[dtype] * 10
    np.testing.assert_allclose(result[1][~empty], expected[1][~empty], **allowed)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_packs(isa, dtype, options, rng):
    q, k, v = pack(rng, dtype)
    cuts = starts_of(QUERIES), starts_of(KEYS)
    expected = reference.attention_varlen(q, k, v, *cuts, return_lse=True, **options)
    out = np.full((sum(QUERIES), 4, 12), np.nan, dtype)
    with fastattn.use_isa(isa):
        found = fastattn.attention_varlen(q, k, v, *cuts, return_lse=True, **options)
        close(found, expected, v, dtype)
        kept = fastattn.attention_varlen(q, k, v, *cuts, out=out, **options)
        np.testing.assert_array_equal(kept, found[0])


@pytest.mark.parametrize("page", [1, 7, 16, 64])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_packs_of_pages(isa, options, page, rng):
    q, k, v = pack(rng, "float32")
    cuts = starts_of(QUERIES), starts_of(KEYS)
    expected = reference.attention_varlen(q, k, v, *cuts, return_lse=True, **options)
    dense = [np.full((6, 2, max(KEYS), each.shape[2]), np.nan, np.float32) for each in (k, v)]
    for b, first in enumerate(cuts[1][:-1]):
        for rows, each in zip(dense, (k, v), strict=True):
            rows[b, :, : KEYS[b]] = each[first : first + KEYS[b]].swapaxes(0, 1)
    pages, table = into_pages(rng, dense, page)
    pages = [each.swapaxes(1, 2) for each in pages]
    given = {"kv_lengths": KEYS, **options, "block_table": table, "return_lse": True}
    with fastattn.use_isa(isa):
        close(fastattn.attention_varlen(q, *pages, cuts[0], **given), expected, v, "float32")


@pytest.mark.parametrize("queries", [1, 5, 40])
@pytest.mark.parametrize("page", [1, 7, 16, 64])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_pages_match_the_oracle(isa, layout, page, queries, rng):
    q, k, v = cases.tensors(
        rng, "float32", batch=3, q_heads=6, kv_heads=2, queries=queries, keys=90
    )
    options = {"kv_lengths": [90, 17, 64], "causal": True, "alibi_slopes": rng.random(6)}
    pages, table = into_pages(rng, [k, v], page)
    inputs = [each.swapaxes(1, 2) if layout == "bshd" else each for each in (q, *pages)]
    with fastattn.use_isa(isa):
        out, lse = fastattn.attention(
            *inputs, block_table=table, layout=layout, return_lse=True, **options
        )
    cases.check((out.swapaxes(1, 2) if layout == "bshd" else out, lse), q, k, v, **options)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_the_place_in_a_pack(isa, threads, rng):
    q, k, v = pack(rng, "float32")
    rows, keys = starts_of(QUERIES), starts_of(KEYS)
    order = rng.permutation(6)
    parts = [
        np.concatenate([each[cuts[b] : cuts[b + 1]] for b in order])
        for each, cuts in ((q, rows), (k, keys), (v, keys))
    ]
    other_rows = starts_of(np.take(QUERIES, order))
    with fastattn.use_isa(isa):
        whole, lse = fastattn.attention_varlen(q, k, v, rows, keys, causal=True, return_lse=True)
        other, other_lse = fastattn.attention_varlen(
            *parts, other_rows, starts_of(np.take(KEYS, order)), causal=True, return_lse=True,
            num_threads=threads,
        )  # fmt: skip
        for place, b in enumerate(order):
            own, moved = slice(*rows[b : b + 2]), slice(*other_rows[place : place + 2])
            np.testing.assert_array_equal(other[moved], whole[own])
            np.testing.assert_array_equal(other_lse[:, moved], lse[:, own])
            alone = (
                each[slice(*cuts[b : b + 2])] for each, cuts in ((q, rows), (k, keys), (v, keys))
            )
            cuts = [0, QUERIES[b]], [0, KEYS[b]]
            np.testing.assert_array_equal(
                fastattn.attention_varlen(*alone, *cuts, causal=True), whole[own]
            )


@pytest.mark.parametrize("queries", [1, 3, 33])
def test_bits_do_not_depend_on_where_pages_are(isa, queries, rng):
    q, k, v = cases.tensors(
        rng, "float32", batch=3, q_heads=4, kv_heads=2, queries=queries, keys=200
    )
    lengths = np.array([200, 31, 128])
    with fastattn.use_isa(isa):
        results = []
        for _ in range(2):
            pages, table = into_pages(rng, [k, v], 16)
            options = {"causal": True, "return_lse": True}
            results.append(
                fastattn.attention(q, *pages, block_table=table, kv_lengths=lengths, **options)
            )
        for b in range(3):
            one = fastattn.attention(
                q[b : b + 1], *pages, block_table=table[b : b + 1], kv_lengths=lengths[b : b + 1],
                **options,
            )  # fmt: skip
            results.append([np.concatenate([each[:b], own, each[b + 1 :]]) for each, own in
                            zip(results[0], one, strict=True)])  # fmt: skip
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(got, want)


def test_shared_pages(isa, rng):
    """A prefix of two pages that three sequences have."""
    q, k, v = cases.tensors(rng, "float32", batch=3, q_heads=4, kv_heads=2, queries=2, keys=48)
    k[1:, :, :32], v[1:, :, :32] = k[0, :, :32], v[0, :, :32]
    pages, table = into_pages(rng, [k, v], 16)
    table[1:, :2] = table[0, :2]
    with fastattn.use_isa(isa):
        found = fastattn.attention(q, *pages, block_table=table, causal=True, return_lse=True)
    cases.check(found, q, k, v, causal=True)
