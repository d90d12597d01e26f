# SPDX-License-Identifier: MIT
"""float16 of some rows of queries, which AMX multiplies as the sums of two bfloat16."""

import cases
import numpy as np
import pytest
from cases import run

EXPONENTS = 31  # of finite numbers: each has 2^10, of either sign
ROWS = [5, 8, 9, 16]  # with room for 8 and for 16
LEAST = 150000  # rows times keys times features: those of fewer go another way


def all_finite():
    """Return every finite float16, those of one exponent beside each other."""
    positive = np.arange(EXPONENTS << 10, dtype=np.uint16).view(np.float16)
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("rows", [8, 16])
def test_numbers_of_keys(isa, rows, rng):
    """A row of queries picks one feature, and so the lse is that number and what many keys add.

    Each exponent and sign with the last three bits, which are a piece of their own, and others.
    """
    depth = 128
    keys = LEAST // rows // depth + 1
    numbers = all_finite().reshape(2 * EXPONENTS, 128, 8)[:, ::8].reshape(-1, rows)
    k = rng.uniform(1, 2, (len(numbers), 1, keys, depth)).astype(np.float16)
    k[..., :rows] = numbers[:, None, None]
    q = np.zeros((len(numbers), rows, 1, depth), np.float16)
    q[:, range(rows), 0, range(rows)] = 2.0**10
    v = np.ones((len(numbers), 1, keys, 32), np.float16)
    _, lse = run(isa, q, k, v, scale=2.0**10)
    expected = numbers.astype(np.float64) * 2**20 + np.log(keys)
    np.testing.assert_allclose(lse[..., 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [8, 16])
def test_every_number_of_values(isa, rows, rng):
    """One key outweighs all others: results are its values, to the last bit."""
    depth = 128
    keys = LEAST // rows // depth + 1
    numbers = all_finite().reshape(-1, depth)
    k = rng.standard_normal((len(numbers), 1, keys, depth)).astype(np.float16)
    best = rng.integers(keys, size=len(numbers))
    k[range(len(numbers)), 0, best] = 40
    q = rng.uniform(1, 2, (len(numbers), rows, 1, depth)).astype(np.float16)
    v = rng.standard_normal((len(numbers), 1, keys, depth)).astype(np.float16)
    v[range(len(numbers)), 0, best] = numbers
    out, _ = run(isa, q, k, v)
    np.testing.assert_array_equal(out[:, :, 0], np.repeat(numbers[:, None], rows, axis=1))


@pytest.mark.parametrize("rows", ROWS)
def test_depths(isa, rows, rng):
    """In parts of 64 features or less, keys in parts of 16, and of 512 a block."""
    depths = [20, 32, 33, 63, 64, 65, 80, 96, 100, 127, 128, 129, 160, 192, 200, 256]
    for depth, dv, more in zip(depths, depths[::-1], range(16), strict=True):
        keys = max(505, LEAST // rows // depth) + more
        q, k, v = cases.tensors(
            rng, np.float16, q_heads=rows, kv_heads=1, queries=1, keys=keys, depth=depth, dv=dv
        )
        cases.check(run(isa, q, k, v), q, k, v)


@pytest.mark.parametrize("name", ["plain", "causal", "window", "softcap", "alibi", "sinks",
                                  "lengths", "bool", "float", "negative_scale"])  # fmt: skip
def test_options(isa, name, rng):
    keys, queries = 700, 4
    q, k, v = cases.tensors(
        rng, np.float16, batch=2, q_heads=2, kv_heads=1, queries=queries, keys=keys, depth=72
    )
    options = cases.options_of(name, rng, queries, keys)
    if name == "float":
        options = {"attn_mask": options["attn_mask"].astype(np.float32)}
    cases.check(run(isa, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("forbidden", [3, 690])
def test_no_numbers_where_nobody_looks(isa, special, where, forbidden, rng):
    """Whoever meets them gives the block back as it was: maxima and sums do not count twice."""
    q, k, v = cases.tensors(rng, np.float16, q_heads=8, kv_heads=1, queries=1, keys=700, depth=64)
    k[:, :, 600:] *= 3  # the last block raises the maxima
    allowed = np.arange(700) != forbidden
    expected = run(isa, q, k, v, attn_mask=allowed[None])
    given = {"k": k.copy(), "v": v.copy()}
    given[where][:, :, forbidden] = special
    found = run(isa, q, **given, attn_mask=allowed[None])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-3)
    assert not np.isfinite(run(isa, q, **given)[0].astype(float)).all()


def test_zeros_and_denormal_numbers_among_others(isa, rng):
    """Each row with one is split with more care, and the products beside it go on."""
    q, k, v = cases.tensors(rng, np.float16, q_heads=8, kv_heads=1, queries=2, keys=900, depth=128)
    for x in (k, v):
        x[rng.random(x.shape) < 0.01] = 0
        x[rng.random(x.shape) < 0.01] = np.float16(3e-7)
        x[:, :, 100:120] *= np.float16(2.0**-14)
    cases.check(run(isa, q, k, v), q, k, v)
