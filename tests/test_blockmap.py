# SPDX-License-Identifier: MIT
"""blockmap.c: which blocks of an explicit mask need work, whatever the mask is broadcast over."""

import sys

import cases
import numpy as np
import programs
import pytest

import fastattn

BATCH, HEADS, QUERIES, KEYS = 2, 4, 150, 330
N = 2**18  # many
SHAPES = [
    (KEYS,),
    (QUERIES, 1),
    (QUERIES, KEYS),
    (HEADS, 1, KEYS),
    (HEADS, QUERIES, 1),
    (HEADS, 1, 1),
    (BATCH, 1, 1, KEYS),
    (BATCH, 1, QUERIES, 1),
    (BATCH, HEADS, QUERIES, KEYS),
]
SEEN = {
    "all": {},
    "causal": {"causal": True},
    "window": {"window_size": (70, 3), "q_offset": np.array([180, 12])},
    "lengths": {"kv_lengths": np.array([70, 301]), "kv_starts": np.array([3, 140])},
    "causal_lengths": {"causal": True, "kv_lengths": np.array([KEYS, 160])},
}


def mask_of(shape, kind, rng):
    """Blocks of 64 that allow everything, nothing, or some."""
    shape = (1,) * (4 - len(shape)) + shape
    coarse = rng.integers(0, 3, [*shape[:2], *(-(-size // 64) for size in shape[2:])])
    coarse = coarse.repeat(64, 2).repeat(64, 3)[:, :, : shape[2], : shape[3]]
    allowed = (coarse == 2) | ((coarse == 1) & (rng.random(shape) < 0.5))
    return allowed if kind == "bool" else np.where(allowed, 0.0, -np.inf).astype(np.float32)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_broadcast(isa, shape, seen, kind, rng):
    q, k, v = cases.tensors(
        rng, np.float32, batch=BATCH, q_heads=HEADS, kv_heads=2, queries=QUERIES, keys=KEYS
    )
    options = {"attn_mask": mask_of(shape, kind, rng), **SEEN[seen]}
    cases.check(cases.run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 1, 1, 1, 300), 0),
        ((1, 3, 1, 1, 300), 1),
        ((4, 1, 300), 0),
        ((1, 3, 4, 1, 300), 2),
    ],
    ids=str,
)
def test_whole_blocks_differ_along_an_axis(isa, shape, axis, kind, queries, rng):
    q = rng.standard_normal((2, 3, 4, queries, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 3, 2, 300, 16)).astype(np.float32)
    mask = np.ones(shape, bool)
    for index, own in enumerate(np.moveaxis(mask, axis, 0)):
        own[..., 128:] &= index % 3 != 1
        own[..., :128] &= index % 3 != 2
    if kind == "float":
        mask = np.where(mask, np.float32(0), np.float32(-np.inf))
    cases.check(cases.run(isa, q, k, v, attn_mask=mask), q, k, v, attn_mask=mask)


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("kind", ["bool", "float32", "float64", "float16", "bfloat16"])
def test_one_element_of_a_block(kind, others, step):
    """The first or the last one of a row, of a block and of all; the only value is that key's."""
    dtype = np.dtype(np.float32) if kind == "bool" else cases.dtype_of(kind)
    for row in (0, 63, 64, 69):
        for key in (0, 63, 64, 127, 199):
            q, k, v = (np.zeros((1, 1, rows, 4), dtype) for rows in (70, 200, 200))
            v[..., key, :] = 1
            mask = np.full((70, 200), others)
            mask[row, key] = not others
            if kind != "bool":
                mask = np.where(mask, 0, -np.inf).astype(dtype)
            out = fastattn.attention(q, k, v, attn_mask=mask[:, ::step].copy()[:, ::step])
            seen = out.astype(np.float32).any(axis=(0, 1, 3))
            np.testing.assert_array_equal(seen == others, np.arange(70) != row)


@pytest.mark.parametrize(
    "name, pattern, expected", [("float16", 0xFF80, np.nan), ("bfloat16", 0xFC00, 1.0)]
)
def test_what_is_infinite_in_the_other_type(isa, name, pattern, expected):
    """NaN in float16, and in bfloat16 a number."""
    q, k, v = np.ones((3, 1, 1, 70, 4), cases.dtype_of(name))
    mask = np.full((70, 70), pattern, np.uint16).view(q.dtype)
    out, _ = cases.run(isa, q, k, v, attn_mask=mask)
    np.testing.assert_array_equal(out.astype(np.float32), np.full_like(out, expected, np.float32))


@pytest.mark.parametrize("heads", [3, 5, 7])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_heads_of_a_query_in_two_tiles(isa, kind, heads, rng):
    """Which share a row of the mask: it is looked at for both tiles."""
    q, k, v = cases.tensors(rng, np.float32, q_heads=heads, kv_heads=1, queries=40, depth=4)
    for query in range(40):
        mask = np.arange(40)[:, None] == query
        mask = mask if kind == "bool" else np.where(mask, np.float32(0), np.float32(-np.inf))
        out, _ = cases.run(isa, q, k[:, :, :1], v[:, :, :1], attn_mask=mask)
        expected = np.zeros_like(out)
        expected[:, :, query] = v[:, :, 0]
        np.testing.assert_array_equal(out, expected)


@pytest.mark.no_sanitizer  # it needs more memory than is allowed here
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS")
@pytest.mark.parametrize(("shape", "rows"), [((N, 1), -2), ((2, 1, N), 0), ((2, N, 1), -1)])
def test_memory_follows_the_mask(shape, rows):
    """Not the table that it stands for, whose blocks alone are 45 megabytes here."""
    result = programs.run(f"""
        import resource
        import numpy as np
        import fastattn

        x, mask = np.ones((2, {N}, 1), np.float32), np.ones({shape}, bool)
        mask.flat[-1] = False
        options = dict(window_size=(3, 0), attn_mask=mask, num_threads=1, out=x.copy())
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20),) * 2)
        print(fastattn.attention(x, x, x, **options).sum())
    """)
    assert float(result.stdout) == 2 * N + rows, result.stderr
