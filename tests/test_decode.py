# SPDX-License-Identifier: MIT
"""Few queries, many keys: chunks of keys, split over threads, paged, packed."""

import functools

import cases
import numpy as np
import pages
import pytest
from cases import run, starts_of

import fastattn
from fastattn import _kernels, reference

OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (700, -1), "causal": True},
    "narrow_window": {"window_size": (5, 5), "q_offset": 1100},
    "sinks": {"sinks": np.linspace(-2, 30, 6)},
    "sinks_window": {"sinks": np.linspace(-2, 2, 6), "window_size": (300, 0)},
    "softcap": {"softcap": 3.0},
    "alibi": {"alibi_slopes": np.linspace(0, 0.3, 6)},
    "lengths": {"kv_lengths": np.array([3, 1205])},
    "past_the_keys": {
        "window_size": (5, 0),
        "q_offset": np.array([1290, 2**40]),
        "sinks": np.linspace(-2, 2, 6),
    },
    "starts": {"kv_starts": np.array([600, 1300]), "kv_lengths": np.array([1301, 1201])},
}


@pytest.mark.parametrize("queries", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("options", OPTIONS)
def test_options_match_the_oracle(isa, dtype, queries, options, rng):
    q, k, v = cases.tensors(
        rng, dtype, batch=2, q_heads=6, kv_heads=2, queries=queries, keys=1301, depth=24
    )
    got = run(isa, q, k, v, num_threads=2, **OPTIONS[options])
    cases.check(got, q, k, v, **OPTIONS[options])


@pytest.mark.parametrize("kind", ["bool", "float", "rows"])
def test_masks(isa, dtype, kind, rng):
    q, k, v = cases.tensors(rng, dtype, q_heads=4, kv_heads=1, queries=2, keys=1500, depth=16)
    allowed = rng.random((2, 1500)) < 0.5
    allowed[:, 100:900] = False
    mask = {
        "bool": allowed,
        "float": np.where(allowed, rng.standard_normal((2, 1500)), -np.inf).astype(dtype),
        "rows": np.array([[True], [False]]),
    }[kind]
    cases.check(run(isa, q, k, v, attn_mask=mask, num_threads=2), q, k, v, attn_mask=mask)


@pytest.mark.parametrize("stored", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 2, 4, 8, 13])
def test_all_options_at_once(isa, stored, queries, rng):
    """Every kind of mask, softcap, ALiBi and a window, in vectors of one row and of several."""
    dtype, keys = cases.dtype_of(stored), 330
    q, k, v = cases.tensors(rng, dtype, kv_heads=1, q_heads=1, queries=queries, keys=keys)
    flags = rng.random((queries, keys)) < 0.7
    numbers = np.where(flags, rng.standard_normal(flags.shape), -np.inf)
    masks = [flags, np.repeat(flags, 2, axis=1)[:, ::2]]
    for mask_dtype in {np.dtype("float32"), dtype} if stored != "float64" else {dtype}:
        own = numbers.astype(mask_dtype)
        masks += [own, own[:, ::-1].copy()[:, ::-1]]
    options = {"softcap": 4.0, "alibi_slopes": np.array([0.05]), "window_size": (200, 40)}
    for mask in masks:
        given = options | {"attn_mask": mask, "q_offset": 170}
        got = run(isa, q, k, v, **given)
        cases.check(got, q, k, v, **given)


@pytest.mark.parametrize("stored", ["float32", "float64", "float16", "bfloat16"])
def test_one_row_of_every_depth(isa, stored, rng):
    """In one piece or more, whose last one may share features with the one before."""
    for depth in range(1, 150):
        q, k, v = cases.tensors(
            rng, cases.dtype_of(stored), batch=1, q_heads=1, kv_heads=1, queries=1, keys=21,
            depth=depth, dv=150 - depth,
        )  # fmt: skip
        cases.check(run(isa, q, k, v), q, k, v)


@pytest.mark.parametrize("stored", ["float16", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_one_row_of_every_depth_of_narrow_keys(isa, stored, rng):
    for depth in range(1, 150):
        q, k, v = cases.tensors(
            rng, "float32", batch=1, q_heads=1, kv_heads=1, queries=1, keys=21, depth=depth,
            dv=150 - depth,
        )  # fmt: skip
        k, v = (np.round(x * 30).clip(-128, 127).astype(cases.dtype_of(stored)) for x in (k, v))
        scales = {"k_scale": 0.03, "v_scale": 0.04}
        cases.check(run(isa, q, k, v, **scales), q, k, v, **scales)


@pytest.mark.parametrize("stored", ["float32", "float64", "float16", "bfloat16"])
def test_one_row_and_an_infinity_of_any_feature(isa, stored, rng):
    """A key that is infinitely far away counts as if it were not there."""
    q, k, v = cases.tensors(
        rng, cases.dtype_of(stored), batch=1, q_heads=1, kv_heads=1, queries=1, keys=19, depth=40
    )
    without = [np.delete(x, 7, axis=2) for x in (k, v)]
    for d in range(40):
        far = k.copy()
        far[0, 0, 7, d] = -np.inf * np.sign(q[0, 0, 0, d])
        cases.check(run(isa, q, far, v), q, *without)


@pytest.mark.parametrize("group", range(1, 17))
def test_grouped_heads_match_the_oracle(isa, group, rng):
    q, k, v = cases.tensors(
        rng, "float32", q_heads=2 * group, kv_heads=2, queries=1, keys=650, depth=40, dv=72
    )
    cases.check(run(isa, q, k, v), q, k, v)


def test_extreme_scores(isa, dtype, rng):
    """Maxima that rise from chunk to chunk, and one key that outweighs all in the last one."""
    q, k, v = cases.tensors(rng, dtype, q_heads=3, kv_heads=1, queries=1, keys=2000, depth=16)
    k *= np.linspace(0.1, 60, 2000)[:, None].astype(dtype)
    cases.check(run(isa, q, k, v, num_threads=2), q, k, v)
    k[:, :, -1] *= 50
    cases.check(run(isa, q, k, v, num_threads=2), q, k, v)


@pytest.mark.parametrize("options", OPTIONS)
def test_bits_do_not_depend_on_the_split(isa, options, rng):
    """Threads, batch, position in the batch: the same bits."""
    q, k, v = cases.tensors(
        rng, "float32", batch=2, q_heads=6, kv_heads=2, queries=3, keys=1301, depth=24
    )
    given = OPTIONS[options]
    one = run(isa, q, k, v, num_threads=1, **given)
    for threads in (2, 3, 8):
        for a, b in zip(one, run(isa, q, k, v, num_threads=threads, **given), strict=True):
            np.testing.assert_array_equal(a, b)
    for b in range(2):
        own = {
            name: value[b : b + 1] if np.shape(value) == (2,) and name != "window_size" else value
            for name, value in given.items()
        }
        alone = run(isa, *(x[b : b + 1] for x in (q, k, v)), num_threads=4, **own)
        for a, c in zip(one, alone, strict=True):
            np.testing.assert_array_equal(a[b : b + 1], c)


@pytest.mark.parametrize("queries", [1, 17])
@pytest.mark.parametrize("options", ["plain", "begin", "sinks", "mask"])
def test_bits_of_long_caches(isa, options, queries, rng):
    """Chunks of several eras, of which some, or the first ones, are empty."""
    keys = 34_000
    q, k, v = cases.tensors(rng, "float32", q_heads=1, queries=queries, keys=keys, depth=4)
    allowed = np.ones(keys, bool)
    allowed[300:19_000] = False
    given = {
        "plain": {},
        "begin": {"kv_starts": 16_000, "kv_lengths": 33_500},
        "sinks": {"sinks": np.array([1.0]), "window_size": (18_000, 0)},
        "mask": {"attn_mask": allowed, "sinks": np.array([1.0])},
    }[options]
    one = run(isa, q, k, v, num_threads=1, **given)
    cases.check(one, q, k, v, **given)
    for threads in (2, 3):
        for a, b in zip(one, run(isa, q, k, v, num_threads=threads, **given), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("keys", "queries"), [(512, 1), (512, 2), (5000, 4), (5000, 8), (140_000, 1), (140_000, 17)]
)
def test_equal_keys_and_values(isa, keys, queries, rng):
    """All sums are wrong in the same direction, and the more so the longer they are."""
    q, _, v = cases.tensors(rng, "float32", q_heads=1, queries=queries, keys=1, depth=4, dv=8)
    v = np.repeat(v, keys, axis=2)
    k = np.zeros((1, 1, keys, 4), np.float32)
    cases.check(run(isa, q, k, v), q, k, v)


def sum_of_eras(parts, first):
    """Of chunks `first` and on, 32 to an era."""
    cuts = range(32 - first % 32, len(parts), 32)
    return sum(functools.reduce(np.add, era) for era in np.split(parts, cuts))


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("first", [0, 20, 32])
def test_eras(isa, first, queries, rng):
    """Counted from key 0 on and merged in order: seen where nothing is left but what is rounded."""
    block = _kernels.tile(isa, "float32")["key_block"]
    chunk = 512 // block * block
    parts = cases.normal(rng, 70, 8)
    parts[-1] -= sum_of_eras(parts, first)
    q, k, v = np.zeros((3, 1, 1, (first + 70) * chunk, 8), np.float32)
    v[0, 0, first * chunk :: chunk] = parts
    expected = np.tile(sum_of_eras(parts, first) / np.float32(70 * chunk), (queries, 1))
    for threads in (1, 3):
        out, _ = run(isa, q[:, :, :queries], k, v, kv_starts=first * chunk, num_threads=threads)
        np.testing.assert_allclose(out[0, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("depth", [24, 200, 1000])  # three heads at a time, or two, then one
@pytest.mark.parametrize("options", OPTIONS)
def test_heads_side_by_side(isa, options, depth, rng):
    """Heads that take turns, block by block: the bits of heads one after another."""
    q, k, v = cases.tensors(
        rng, "float32", batch=2, q_heads=6, kv_heads=3, queries=3, keys=1301, depth=depth
    )
    apart = run(isa, q, k, v, num_threads=1, **OPTIONS[options])
    k, v = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (k, v))
    for threads in (1, 2, 3, 8):
        got = run(isa, q, k, v, num_threads=threads, **OPTIONS[options])
        for a, b in zip(apart, got, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "group", "heads"), [("float16", 12, 20), ("float16", 12, 40), ("float32", 6, 40)]
)
def test_many_heads_of_several_tiles(isa, name, group, heads, rng):
    """No more of them take turns than a task has room for tiles."""
    q, k, v = cases.tensors(
        rng, name, q_heads=group * heads, kv_heads=heads, queries=1, keys=700, depth=8
    )
    k, v = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (k, v))
    for threads in (1, 2, 3):
        cases.check(run(isa, q, k, v, num_threads=threads), q, k, v)


def test_nan_at_forbidden_keys(isa, dtype, rng):
    q, k, v = cases.tensors(rng, dtype, q_heads=4, kv_heads=1, queries=2, keys=1000, depth=16)
    k[:, :, 950:], v[:, :, :30], v[:, :, 700] = np.nan, np.inf, np.nan
    allowed = np.ones(1000, bool)
    allowed[700] = False
    options = {"attn_mask": allowed, "kv_starts": 30, "kv_lengths": 950}
    cases.check(run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("page", [1, 7, 16, 300])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("queries", [1, 30])
def test_pages_give_the_bits_of_one_piece(isa, page, layout, queries, rng):
    """Bit for bit what the same keys give in one piece; memory that no key is in is poison."""
    q, k, v = cases.tensors(
        rng, "float32", batch=3, q_heads=4, kv_heads=2, queries=queries, keys=610, depth=24
    )
    lengths = np.array([610, 300, 0])
    (k_pages, v_pages), table = pages.into_pages(rng, (k, v), page)
    if layout == "bshd":
        k_pages, v_pages = (x.swapaxes(1, 2).copy() for x in (k_pages, v_pages))
        q = q.swapaxes(1, 2).copy()
    table[2] = -5  # never used
    options = {"kv_lengths": lengths, "causal": True, "layout": layout}
    got = run(isa, q, k_pages, v_pages, block_table=table, **options)
    if layout == "bshd":
        k, v = (x.swapaxes(1, 2) for x in (k, v))
    expected = run(isa, q, k, v, **options)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_shared_pages_and_narrow_storage(isa, rng):
    cases.dtype_of("bfloat16")
    q, k, v = cases.tensors(rng, "float32", batch=2, q_heads=4, kv_heads=2, queries=1, keys=96)
    k[1, :, :64], v[1, :, :64] = k[0, :, :64], v[0, :, :64]
    k8, v8 = (np.round(x * 30).astype(np.int8) for x in (k, v))
    scale = np.repeat(rng.random((2, 2, 3)).astype(np.float32) / 30, 32, 2)
    scale[1, :, :64] = scale[0, :, :64]
    (k_pages, v_pages, scales), table = pages.into_pages(rng, (k8, v8, scale), 32, poison=0)
    table[1, :2] = table[0, :2]
    options = {"k_scale": scales, "v_scale": scales, "block_table": table}
    got = run(isa, q, k_pages, v_pages, **options)
    cases.check(got, q, k8, v8, k_scale=scale, v_scale=scale)


LENGTHS = [(1, 700), (40, 40), (0, 30), (3, 0), (1, 1), (130, 130), (2, 515), (9, 96)]


def pack(rng, dtype, depth=24):
    queries, keys = np.array(LENGTHS).T
    cu = [starts_of(n) for n in (queries, keys)]
    q = rng.standard_normal((cu[0][-1], 6, depth)).astype(dtype)
    k, v = rng.standard_normal((2, cu[1][-1], 2, depth)).astype(dtype)
    return q, k, v, cu


VARLEN = {
    "plain": {},
    "causal": {"causal": True},
    "window_sinks": {"window_size": (60, 0), "sinks": np.linspace(-1, 1, 6)},
    "alibi_softcap": {"alibi_slopes": np.linspace(0, 0.2, 48).reshape(8, 6), "softcap": 5.0},
    "lengths": {"kv_lengths": np.array([600, 40, 3, 0, 1, 100, 515, 1])},
    "offsets": {"causal": True, "q_offset": np.array([650, -3, 0, 0, 0, 5, 514, 90])},
}


@pytest.mark.parametrize("options", VARLEN)
def test_varlen(isa, dtype, options, rng):
    """Each sequence bit for bit as alone; all of them as the oracle says."""
    q, k, v, cu = pack(rng, dtype)
    given = VARLEN[options]
    with fastattn.use_isa(isa):
        out, lse = fastattn.attention_varlen(q, k, v, *cu, return_lse=True, **given)
        for threads in (1, 2, 5):
            again = fastattn.attention_varlen(q, k, v, *cu, num_threads=threads, **given)
            np.testing.assert_array_equal(again, out)
        for b in range(len(LENGTHS)):
            rows, columns = (slice(c[b], c[b + 1]) for c in cu)
            own = {n: _own(x, b) for n, x in given.items()}
            alone, alone_lse = fastattn.attention(
                q[None, rows], k[None, columns], v[None, columns], layout="bshd", return_lse=True,
                **own,
            )  # fmt: skip
            np.testing.assert_array_equal(out[rows], alone[0])
            np.testing.assert_array_equal(lse[:, rows], alone_lse[0])
    expected, expected_lse = reference.attention_varlen(q, k, v, *cu, return_lse=True, **given)
    allowed = cases.tolerance(dtype, v, np.array([12.0]))
    np.testing.assert_allclose(out, expected, rtol=0, atol=allowed)
    seen = np.isfinite(expected_lse)
    np.testing.assert_array_equal(np.isfinite(lse), seen)
    np.testing.assert_allclose(lse[seen], expected_lse[seen], rtol=0, atol=allowed)


def _own(value, b):
    """One sequence's part of an option."""
    if np.shape(value) == (8, 6):
        return value[b]
    return value[b : b + 1] if np.shape(value) == (8,) else value


def test_varlen_pages(isa, rng):
    q, k, v, cu = pack(rng, "float32")
    lengths = np.diff(cu[1])
    dense = np.zeros((2, len(LENGTHS), 2, 700, 24), np.float32)
    for b, n in enumerate(lengths):
        for to, tensor in zip(dense, (k, v), strict=True):
            to[b, :, :n] = tensor[cu[1][b] : cu[1][b + 1]].swapaxes(0, 1)
    (k_pages, v_pages), table = pages.into_pages(rng, dense, 16)
    k_pages, v_pages = (x.swapaxes(1, 2).copy() for x in (k_pages, v_pages))
    with fastattn.use_isa(isa):
        got = fastattn.attention_varlen(
            q, k_pages, v_pages, cu[0], kv_lengths=lengths, block_table=table, causal=True
        )
        expected = fastattn.attention_varlen(q, k, v, *cu, causal=True)
    np.testing.assert_array_equal(got, expected)


def test_common_prefix(isa, rng):
    """The recipe of merge_states: the prefix once for the whole batch, then each suffix."""
    q, k, v = cases.tensors(
        rng, "float32", batch=3, q_heads=4, kv_heads=2, queries=1, keys=900, depth=24
    )
    k[1:, :, :600], v[1:, :, :600] = k[0, :, :600], v[0, :, :600]
    with fastattn.use_isa(isa):
        rows = q.transpose(2, 1, 0, 3)  # one sequence of three queries
        prefix = fastattn.attention(rows, k[:1, :, :600], v[:1, :, :600], return_lse=True)
        suffix = fastattn.attention(q, k[:, :, 600:], v[:, :, 600:], return_lse=True)
        first = prefix[0].transpose(2, 1, 0, 3), prefix[1].transpose(2, 1, 0)
        out, lse = fastattn.merge_states([first[0], suffix[0]], [first[1], suffix[1]])
    cases.check((out, lse), q, k, v)
