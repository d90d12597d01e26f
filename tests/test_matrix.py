# SPDX-License-Identifier: MIT
"""Tiles on a matrix unit: problems large enough to go there, every option, every precision."""

import cases
import numpy as np
import pages
import pytest

import fastattn
from fastattn import _kernels, reference

pytestmark = [
    pytest.mark.forces_isa,
    pytest.mark.skipif(
        not _kernels.matrix_pieces(fastattn.isas()[-1]),
        reason="this machine has no unit for bfloat16 (AVX512-BF16, AMX, BFMMLA)",
    ),
]
ISA = fastattn.isas()[-1]
# (dtype, precision): pieces of bfloat16
PIECES = {
    ("bfloat16", "highest"): 1,
    ("float32", "medium"): 1,
    ("float16", "highest"): 2,
    ("float32", "high"): 2,
    ("float32", "highest"): 3,
}
KINDS = [*PIECES]
BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 2, 75, 610, 64
LENGTHS = np.array([531, 610])


def marked(kinds):
    """Parameters; slow are those that are of too many pieces for the unit and go without it."""
    here = _kernels.matrix_pieces(ISA)
    return [
        pytest.param(
            kind, id="-".join(kind), marks=[] if PIECES[kind] in here else pytest.mark.slow
        )
        for kind in kinds
    ]


def rounded(x):
    return x.astype(cases.dtype_of("bfloat16")).astype(x.dtype)


def check(kind, q, k, v, **options):
    """Compare one call with the oracle."""
    result = cases.run(ISA, q, k, v, precision=kind[1], **options)
    if kind[0] != "float32" or kind[1] == "highest":
        cases.check(result, q, k, v, **options)
    else:
        check_pieces(kind, result[0], q, k, v, **options)


def check_pieces(kind, out, q, k, v, **options):
    """Less than all pieces of float32: one is the number rounded, or all of it without the unit."""
    error = np.abs(out - reference.attention(q, k, v, **options)).max()
    if kind[1] == "high":
        # Of p and v: a second piece is at most 2^-8 of a number and leaves 2^-17 of it, and the
        # product of two is left out. Scores are of three pieces, however large they are.
        assert error <= (2 * 2.0**-17 + 2.0**-16) * np.abs(v).max()
        return
    expected = reference.attention(*map(rounded, (q, k, v)), **options)
    # what is left is in the probabilities: rounded, and their polynomial
    assert min(error, np.abs(out - expected).max()) <= 2.0**-8 * np.abs(v).max()


def tensors(rng, kind, **sizes):
    given = dict(batch=BATCH, q_heads=HEADS, queries=QUERIES, keys=KEYS, depth=DEPTH) | sizes
    return [x.astype(cases.dtype_of(kind[0])) for x in cases.tensors(rng, "float32", **given)]


OPTIONS = ["plain", "causal", "causal_top", "window", "softcap", "alibi", "sinks", "lengths",
           "bool", "float", "negative_scale", "zero_scale"]  # fmt: skip


@pytest.mark.parametrize("kind", marked(KINDS))
@pytest.mark.parametrize("name", OPTIONS)
def test_options_match_the_oracle(kind, name, rng):
    options = cases.options_of(name, rng, QUERIES, KEYS)
    if name == "float":
        options["attn_mask"] = options["attn_mask"].astype(cases.dtype_of(kind[0]))
    check(kind, *tensors(rng, kind), **options)


@pytest.mark.parametrize("kind", marked(KINDS))
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("queries", [3, 7, 8])
def test_options_of_few_rows(kind, name, queries, rng):
    """Two heads of a group: one thin tile, whose keys come from memory a few at a time."""
    options = cases.options_of(name, rng, queries, 1300)
    if name == "float":
        options["attn_mask"] = options["attn_mask"].astype(cases.dtype_of(kind[0]))
    check(kind, *tensors(rng, kind, kv_heads=1, queries=queries, keys=1300), **options)


@pytest.mark.parametrize("kind", marked(KINDS))
@pytest.mark.parametrize("depth, dv", [(80, 80), (65, 17), (192, 128), (33, 256), (112, 96)])
@pytest.mark.parametrize("keys", [1025, 1090])
def test_depths_of_few_rows(kind, depth, dv, keys, rng):
    q, k, v = tensors(rng, kind, batch=1, depth=depth, dv=dv, keys=keys, queries=13)
    check(kind, q, k, v, causal=True)


@pytest.mark.parametrize("kind", marked(KINDS))
@pytest.mark.parametrize("depth, dv", [(80, 80), (65, 17), (192, 128), (256, 33), (112, 96)])
@pytest.mark.parametrize("queries", [64, 97])
def test_depths(kind, depth, dv, queries, rng):
    q, k, v = tensors(rng, kind, batch=1, depth=depth, dv=dv, keys=519, queries=queries)
    check(kind, q, k, v, causal=True)


@pytest.mark.parametrize("kind", marked(KINDS))
def test_groups_and_strides(kind, rng):
    q, k, v = tensors(rng, kind, q_heads=6, kv_heads=2, queries=31)
    check(kind, q, k, v)
    wide = np.zeros((*k.shape[:-1], 2 * DEPTH), k.dtype)
    wide[..., ::2] = k
    check(kind, q, wide[..., ::2], v[:, :, ::-1], causal=True)
    check(kind, np.broadcast_to(q[:, :1], q.shape), k, v)


def test_the_unit_is_used(rng):
    """Bits of fewer pieces differ, and so do those of the other kernels."""
    q, k, v = tensors(rng, KINDS[-1])
    results = {cases.run(fastattn.isas()[-2], q, k, v)[0].tobytes()}
    for precision in ("medium", "high", "highest"):
        results.add(cases.run(ISA, q, k, v, precision=precision)[0].tobytes())
    assert len(results) == 1 + len(_kernels.matrix_pieces(ISA))


@pytest.mark.parametrize("kind", marked([("float32", "high")]))
def test_large_scores_of_high_precision(kind, rng):
    """Of scores of some hundreds two pieces would lack what is seen in probabilities."""
    q, k, v = tensors(rng, kind, queries=97, keys=519)
    check(kind, q, k, v, scale=8.0)


@pytest.mark.parametrize("kind", marked([("float32", "high")]))
def test_two_pieces_are_rounded(kind, rng):
    """Which leaves 2^-17 of a number, where pieces that are cut off leave 2^-15."""
    q, k, v = (np.zeros((1, 4, rows, 64), np.float32) for rows in (QUERIES, 128, 128))
    v[:] = rng.uniform(1, 2, (1, 4, 1, 64))
    out = cases.run(ISA, q, k, v, precision=kind[1])[0]
    assert (np.abs(out / v[:, :, :1] - 1) <= 2.0**-17 + 2e-6).all()
    q[..., 0], q[..., 1] = rng.uniform(0, 4, q.shape[:-1]), 1
    k[..., 1, 0], k[..., 2:, 1] = -1, -1000
    v[:] = np.arange(128)[:, None] == 1
    out = cases.run(ISA, q, k, v, precision=kind[1], scale=1.0)[0]
    expected = reference.attention(q, k, v, scale=1.0)
    assert (np.abs(out / expected - 1) <= 2.0**-17 + 4e-6).all()


@pytest.mark.parametrize("kind", marked([KINDS[0], KINDS[2], KINDS[4]]))
@pytest.mark.parametrize("queries, page", [(14, 16), (14, 12), (QUERIES, 16)])
def test_pages_and_packed_sequences(kind, queries, page, rng):
    """The same keys in pages, and the same sequences packed, to the bit."""
    q, k, v = tensors(rng, kind, queries=queries)
    out, lse = cases.run(ISA, q, k, v, kv_lengths=LENGTHS)
    (in_pages, table) = pages.into_pages(rng, [k, v], page)
    options = {"block_table": table, "kv_lengths": LENGTHS}
    paged, paged_lse = cases.run(ISA, q, *in_pages, **options)
    np.testing.assert_array_equal(paged, out)
    np.testing.assert_array_equal(paged_lse, lse)
    packed = [x.swapaxes(1, 2).reshape(-1, HEADS, DEPTH) for x in (q, k, v)]
    with fastattn.use_isa(ISA):
        whole = fastattn.attention(q, k, v)
        varlen = fastattn.attention_varlen(
            *packed, cases.starts_of([queries] * BATCH), cases.starts_of([KEYS] * BATCH)
        )
    np.testing.assert_array_equal(
        varlen.reshape(BATCH, queries, HEADS, DEPTH).swapaxes(1, 2), whole
    )


@pytest.mark.parametrize("kind", marked([KINDS[0], KINDS[2], KINDS[4]]))
@pytest.mark.parametrize("queries", [15, 25, 300])  # few rows, one tile, many
def test_threads(kind, queries, rng):
    q, k, v = tensors(rng, kind, batch=1, queries=queries, keys=4500)
    first = cases.run(ISA, q, k, v, causal=True, num_threads=1)
    for threads in (2, 5):
        again = cases.run(ISA, q, k, v, causal=True, num_threads=threads)
        for x, y in zip(first, again, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("masked", [False, True])
def test_threads_and_numbers_that_pieces_do_not_carry(masked, which, rng):
    """A block of the unit goes there or not as a whole, whatever of it a task or a tile sees."""
    q, k, v = tensors(rng, KINDS[0], batch=1, queries=300, keys=1100)
    {"k": k, "v": v}[which][..., [700, 1000], 5] = np.inf
    options = {"attn_mask": np.ones((300, 1100), bool)} if masked else {}
    options |= {"window_size": (9, 9), "q_offset": 700}
    one, *others = (
        cases.run(ISA, q, k, v, num_threads=threads, **options)[0].astype(np.float32)
        for threads in (1, 2, 16)  # tasks of all tiles, of some, and of one
    )
    assert np.isfinite(one).any() and not np.isfinite(one).all()
    for other in others:
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("kind", marked(KINDS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("queries, at", [(QUERIES, 40), (15, 9), (16, 9)])
def test_containment(kind, bad, which, queries, at, rng):
    """NaN and infinity reach the rows that see them, and no others."""
    q, k, v = tensors(rng, kind, batch=1, queries=queries)
    {"q": q, "k": k, "v": v}[which][0, 1, at, 5] = bad
    result = cases.run(ISA, q, k, v, causal=True, q_offset=0, precision=kind[1])
    out = result[0]
    with np.errstate(invalid="ignore"):
        expected = reference.attention(q, k, v, causal=True, q_offset=0)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(expected))
    assert not np.isfinite(out).all()
    if kind[1] == "highest":  # rows that do not see it are right, whichever kernels they went
        clean = cases.Result(x[:, :, :at] for x in result)
        clean.isa = ISA
        first = [x[:, :, :at] for x in (q, k, v)]
        cases.check(clean, *first, causal=True, q_offset=0)


@pytest.mark.parametrize("queries", [QUERIES, 16])
def test_scores_that_rise_and_numbers_that_pieces_do_not_carry(queries, rng):
    q, k, v = tensors(rng, KINDS[-1], batch=1, queries=queries)
    rising = k * np.linspace(0, 30, KEYS, dtype=np.float32)[:, None]
    check(KINDS[-1], q, rising, v)
    check(KINDS[-1], q, k * np.float32(1e-3), v * np.float32(1e-38))
    check(KINDS[-1], q * np.float32(1e-25), k * np.float32(1e25), v)
    tiny = v.copy()
    tiny[:, :, 100] = 1e-42
    check(KINDS[-1], q, k, tiny)
    flat = np.ones_like(k)
    check(KINDS[-1], q, flat, v)


@pytest.mark.parametrize("queries", [3, 8, 16])
def test_few_rows_and_numbers_that_the_unit_does_not_carry(queries, rng):
    """Nobody looks at K and V beforehand: such numbers have to show in scores and sums."""
    q, k, v = tensors(rng, KINDS[0], batch=1, queries=queries)
    check(KINDS[0], q, k, (v.astype(np.float32) * 1e-38).astype(v.dtype))
    check(KINDS[0], q * v.dtype.type(1e-30), k * v.dtype.type(1e30), v)
    check(KINDS[0], q, k, v, scale=1e-3)
    check(KINDS[0], q * v.dtype.type(1e17), k * v.dtype.type(1e21), v, scale=1.2e-38)
    column = v.copy()
    column[..., 5] = 1e-40  # alone: the others must not hide it
    column[..., 6] = 0
    out = cases.run(ISA, q, k, column)[0]
    np.testing.assert_array_equal(out[..., 5], column[..., :queries, 5])
    np.testing.assert_array_equal(out[..., 6], 0)
    for dv in (33, 65):  # the last of an odd number of features, too
        odd = np.resize(v, (*v.shape[:-1], dv))
        odd[..., -1] = 1e-40
        out = cases.run(ISA, q, k, odd)[0]
        np.testing.assert_array_equal(out[..., -1], odd[..., :queries, -1])


@pytest.mark.parametrize("kind", marked(KINDS))
@pytest.mark.parametrize("queries", [QUERIES, 15])
def test_scores_at_the_limit_of_the_running_maximum(kind, queries, rng):
    """Whole chunks whose probabilities are as great as they may be, rounded up and down."""
    q, k, v = tensors(rng, kind, batch=1, queries=queries)
    limit = 8 / np.log2(np.e)
    for excess in (-1e-2, -1e-6, -1e-7, 0, 1e-7, 1e-6, 1e-2):
        for size in (0, 1e3):
            q[:], k[:] = 0, 0
            q[..., 0], q[..., 1] = 1, size
            k[..., 32:, 0], k[..., 1] = limit * (1 + excess), 1
            check(kind, q, k, v, scale=1.0)


@pytest.mark.parametrize("pair", [("float32", "bfloat16"), ("bfloat16", "int8"),
                                  ("float16", "float8_e4m3fn"), ("float32", "float16")],
                         ids="-".join)  # fmt: skip
def test_narrow_keys(pair, rng):
    q, k, v = tensors(rng, (pair[0],))
    narrow = cases.dtype_of(pair[1])
    extra = {}
    if pair[1] == "int8":
        k, v = (np.round(x.astype(np.float32) * 40).astype(np.int8) for x in (k, v))
        extra = {"k_scale": 1 / 40, "v_scale": 1 / 40}
    else:
        k, v = k.astype(narrow), v.astype(narrow)
    cases.check(cases.run(ISA, q, k, v, **extra), q, k, v, **extra)


@pytest.mark.parametrize("pair", [("float32", "int8"), ("bfloat16", "float8_e4m3fn"),
                                  ("float16", "float8_e5m2"), ("bfloat16", "int8")],
                         ids="-".join)  # fmt: skip
@pytest.mark.parametrize("queries", [9, QUERIES])
def test_narrow_keys_in_pages(pair, queries, rng):
    """A scale for each token; poison everywhere else, in the scales as well."""
    q, k, v = tensors(rng, (pair[0],), queries=queries)
    k, v, k_scale, v_scale = fastattn.quantize_kv(k, v, cases.dtype_of(pair[1]))
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    dense = cases.run(ISA, q, k, v, kv_lengths=LENGTHS, causal=True, **scales)
    cases.check(dense, q, k, v, kv_lengths=LENGTHS, causal=True, **scales)
    poison = 99 if pair[1] == "int8" else np.nan
    narrow, table = pages.into_pages(np.random.default_rng(1), [k, v], 48, poison=poison)
    scales, _ = pages.into_pages(np.random.default_rng(1), [k_scale, v_scale], 48)
    paged = cases.run(ISA, q, *narrow, block_table=table, kv_lengths=LENGTHS, causal=True,
                      k_scale=scales[0], v_scale=scales[1])  # fmt: skip
    for x, y in zip(paged, dense, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", marked(kind for kind in KINDS if kind[0] == "float32"))
@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_scales_of_16_bit_caches(kind, stored, rng):
    """A bfloat16 is a piece as it lies, but not times its scale."""
    q, k, v = tensors(rng, kind)
    k, v = (x.astype(cases.dtype_of(stored)) for x in (k, v))
    scales = {name: rng.uniform(0.5, 1.5, k.shape[:-1]).astype("f4") for name in ("k", "v")}
    scaled = [x.astype(float) * scales[name][..., None] for x, name in ((k, "k"), (v, "v"))]
    given = {"k_scale": scales["k"], "v_scale": scales["v"]}
    result = cases.run(ISA, q, k, v, precision=kind[1], **given)
    if kind[1] == "highest":
        cases.check(result, q, k, v, **given)
    else:
        check_pieces(kind, result[0], q, *scaled)
