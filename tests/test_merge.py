# SPDX-License-Identifier: MIT
"""merge_states: 16-bit states, empty states, and the recipes that its documentation promises."""

import cases
import numpy as np
import pytest

import fastattn
from fastattn import reference

# Relative error of rounding to each type; below its normal numbers float16 has a fixed step.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
STEP = {"float16": 2.0**-24}
# exp(lse_n - lse) in float64, with an argument of up to about 100 that was rounded twice.
WEIGHT = 200 * 2.0**-53


@pytest.mark.parametrize("dtype", UNIT)
def test_states(dtype, rng):
    """Computed in float64 and rounded once."""
    dtype = cases.dtype_of(dtype)
    outs = rng.standard_normal((3, 2, 4, 9, 5)).astype(dtype)
    of_state = np.float64 if dtype == np.float64 else np.float32
    lses = rng.normal(0, 20, (3, 2, 4, 9)).astype(of_state)
    lses[rng.random(lses.shape) < 0.3] = -np.inf
    outs[np.isneginf(lses)] = np.nan
    expected, expected_lse = reference.merge_states(outs, lses)
    given = np.empty(outs.shape[1:], dtype)
    for out, lse in (
        fastattn.merge_states(outs, lses),
        fastattn.merge_states(list(outs), tuple(lses), out=given),
    ):
        assert out.dtype == dtype and lse.dtype == of_state
        absolute = STEP.get(dtype.name, 0) / 2 + WEIGHT * np.nanmax(np.abs(outs.astype(np.float64)))
        error = np.abs(out.astype(np.float64) - expected)
        assert (error <= UNIT[dtype.name] * np.abs(expected) + absolute).all()
        np.testing.assert_allclose(lse, expected_lse, rtol=4 * UNIT[np.dtype(of_state).name])
    assert out is given


STATES = {  # outputs and log-sum-exp of two sets of keys
    "infinite sum": ((1.0, 2.0), (np.inf, -np.inf)),
    "infinite sums": ((1.0, 2.0), (np.inf, np.inf)),
    "infinite beside a number": ((1.0, 2.0), (3.0, np.inf)),
    "NaN": ((1.0, 2.0), (np.nan, 0.0)),
    "share that underflows": ((1.0, 2.0), (500.0, -500.0)),
    "share of infinity that underflows": ((1.0, np.inf), (500.0, -500.0)),
    "no keys, infinity": ((1.0, np.inf), (500.0, -np.inf)),
    "nothing": ((1.0, np.nan), (-np.inf, -np.inf)),
}


@pytest.mark.parametrize("values, logs", STATES.values(), ids=STATES)
def test_numbers_at_the_edge(values, logs):
    """As the oracle says, and without a warning whatever the caller has NumPy warn about."""
    outs = [np.full((1, 2), value, np.float32) for value in values]
    lses = [np.full(1, log, np.float32) for log in logs]
    with np.errstate(all="raise"):
        merged = fastattn.merge_states(outs, lses)
    for ours, expected in zip(merged, reference.merge_states(outs, lses), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_infinity_of_a_share_that_underflows_is_that_of_the_whole():
    q, k = np.full((1, 1), 800, np.float32), np.array([[1], [-1]], np.float32)
    v = np.array([[1], [np.inf]], np.float32)
    parts = [fastattn.attention(q, k[i : i + 1], v[i : i + 1], return_lse=True) for i in (0, 1)]
    merged, _ = fastattn.merge_states(*zip(*parts, strict=True))
    np.testing.assert_array_equal(merged, fastattn.attention(q, k, v))
    assert np.isnan(merged).all()


@pytest.mark.parametrize("more", [-(2.0**-22), 0.0, 2.0**-22])
def test_bfloat16_is_rounded_once(more):
    """Nearly in the middle of two numbers, where float32 is: to that of the larger share."""
    low = np.array([[0x3F80, 0x3F81, 0xBF80, 0xBF81, 0x80, 0x3, 0x7F7E]], np.uint16)
    high = low + np.uint16(1)
    nearer = np.where(low % 2, high, low) if more == 0 else high if more > 0 else low
    outs = [each.view(cases.dtype_of("bfloat16")) for each in (low, high)]
    merged, _ = fastattn.merge_states(outs, [np.zeros(1, np.float32), np.full(1, more, np.float32)])
    np.testing.assert_array_equal(merged.view(np.uint16), nearer)


def halves(q, k, v, cut, **options):
    """Results over the keys before and from `cut` on; options of position are those of each."""
    parts = (k[..., :cut, :], v[..., :cut, :]), (k[..., cut:, :], v[..., cut:, :])
    offset = k.shape[-2] - q.shape[-2]
    return [
        fastattn.attention(q, *part, q_offset=offset - begin, return_lse=True, **options)
        for part, begin in zip(parts, (0, cut), strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"window_size": (30, 3), "softcap": 4.0},
        {"alibi_slopes": [0.5, 0.25, 0.1, 0.0], "causal": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_positions_of_parts(options, rng):
    q, k, v = cases.tensors(rng, "float32", batch=2, q_heads=4, kv_heads=2, queries=9, keys=70)
    merged = fastattn.merge_states(*zip(*halves(q, k, v, 40, **options), strict=True))
    cases.check(merged, q, k, v, **options)


def test_sinks_in_one_part(rng):
    q, k, v = cases.tensors(rng, "float32", q_heads=4, kv_heads=2)
    sinks = rng.standard_normal(4)
    first, _ = halves(q, k, v, 20, sinks=sinks)
    _, second = halves(q, k, v, 20)
    cases.check(fastattn.merge_states(*zip(first, second, strict=True)), q, k, v, sinks=sinks)


def test_shared_prefix_with_a_window(rng):
    """The prefix gets a leading axis of 1, and each sequence the offset of its own length."""
    q, prefix, _ = cases.tensors(rng, "float32", q_heads=4, kv_heads=2, queries=3, keys=50)
    q = np.repeat(q, 3, axis=0)
    suffix = rng.standard_normal((3, 2, 12, 16)).astype(np.float32)
    lengths, window = np.array([3, 12, 7]), {"window_size": (40, -1), "causal": True}
    common = fastattn.attention(
        q, prefix, prefix, q_offset=50 + lengths - 3, return_lse=True, **window
    )
    own = fastattn.attention(q, suffix, suffix, kv_lengths=lengths, return_lse=True, **window)
    whole = np.concatenate([np.broadcast_to(prefix, (3, 2, 50, 16)), suffix], axis=2)
    merged = fastattn.merge_states(*zip(common, own, strict=True))
    cases.check(merged, q, whole, whole, kv_lengths=50 + lengths, **window)
