# SPDX-License-Identifier: MIT
"""Norms, activations and the feed-forward layer, which work on one token at a time."""

import numpy as np
import pytest
from cases import normal

from fastattn import layers
from fastattn.layers import _blocks


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("affine", [False, True])
def test_norms_match_torch(rng, dtype, affine):
    torch = pytest.importorskip("torch")
    x = (3 * normal(rng, 2, 7, 24) + 5).astype(dtype)
    before = x.copy()
    weight, bias = (normal(rng, 24, dtype=dtype) for _ in range(2)) if affine else (None, None)
    as_torch = [None if part is None else torch.from_numpy(part) for part in (weight, bias)]
    tolerance = 2e-6 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(
        layers.layer_norm(x, weight, bias, eps=1e-3),
        torch.nn.functional.layer_norm(torch.from_numpy(x), (24,), *as_torch, eps=1e-3).numpy(),
        atol=4 * tolerance,
    )
    np.testing.assert_allclose(
        layers.rms_norm(x, weight, eps=1e-3),
        torch.nn.functional.rms_norm(torch.from_numpy(x), (24,), as_torch[0], eps=1e-3).numpy(),
        atol=tolerance,
    )
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("shape", [(3, 1), (1,), (0, 1), (2, 0)])
def test_norms_of_hardly_any_features(shape):
    """One feature is its own mean, and of size 1 by its own measure."""
    x = np.full(shape, 4, np.float32)
    weight, bias = np.full(shape[-1:], 3, np.float32), np.full(shape[-1:], 2, np.float32)
    np.testing.assert_array_equal(layers.layer_norm(x), np.zeros(shape))
    np.testing.assert_array_equal(layers.LayerNorm(weight, bias)(x), np.full(shape, 2))
    np.testing.assert_allclose(layers.rms_norm(x), np.ones(shape), rtol=1e-6)
    np.testing.assert_allclose(layers.RMSNorm(weight)(x), np.full(shape, 3), rtol=1e-6)


def test_default_eps():
    x = np.array([[1e-3, -1e-3]])
    for norm in layers.layer_norm, layers.LayerNorm():
        np.testing.assert_allclose(norm(x), x / np.sqrt(1e-6 + 1e-5))
    for norm in layers.rms_norm, layers.RMSNorm():
        np.testing.assert_allclose(norm(x), x / np.sqrt(1e-6 + 1e-6))


ACTIVATIONS = {
    "relu": (layers.relu, lambda f, x: f.relu(x)),
    "gelu": (layers.gelu, lambda f, x: f.gelu(x)),
    "gelu_tanh": (
        lambda x, out=None: layers.gelu(x, approximate="tanh", out=out),
        lambda f, x: f.gelu(x, approximate="tanh"),
    ),
    "silu": (layers.silu, lambda f, x: f.silu(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_match_torch(name, dtype):
    torch = pytest.importorskip("torch")
    function, theirs = ACTIVATIONS[name]
    x = np.concatenate([
        np.linspace(-12, 12, 20011), [-1e4, -100, -90, 90, 1e4, 0.0, -0.0, np.nan, np.inf],
    ]).astype(dtype)  # fmt: skip
    truth = theirs(torch.nn.functional, torch.from_numpy(x.astype(np.float64))).numpy()
    found = function(x)
    # x times the rounding of a number below 1, and of the tail 1 + erf.
    bound = (2e-7 if dtype == np.float32 else 1e-14) * np.maximum(1, np.abs(x))
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.isnan(found), np.isnan(truth))
    finite = np.isfinite(truth)
    assert (np.abs(found[finite] - truth[finite]) <= bound[finite]).all()
    assert found[-1] == np.inf
    same = x.copy()
    assert function(same, out=same) is same
    np.testing.assert_array_equal(same, found)
    other = np.zeros_like(x)
    before = x.copy()
    assert function(x, out=other) is other
    np.testing.assert_array_equal(other, found)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_has_no_tail(dtype):
    """x Phi(x) of large negative x is 0, however large."""
    x = np.array([-6.5, -40, -1e3, -1e6, -1e30], dtype)
    np.testing.assert_allclose(layers.gelu(x), 0, rtol=0, atol=6e-9)
    assert not layers.gelu(x[1:]).any()
    with np.errstate(invalid="ignore"):
        assert np.isnan(layers.gelu(np.array([-np.inf], dtype)))  # -inf times 0


def test_blocks_and_threads_change_nothing(rng, monkeypatch):
    x = normal(rng, 37, 24)
    whole = [layers.gelu(x), layers.silu(x), layers.layer_norm(x), layers.rms_norm(x)]
    monkeypatch.setattr(_blocks, "BLOCK", 30)
    monkeypatch.setattr(_blocks, "get_num_threads", lambda: 3)
    parts = [layers.gelu(x), layers.silu(x), layers.layer_norm(x), layers.rms_norm(x)]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_matches_torch(rng, gated, activation):
    torch = pytest.importorskip("torch")
    x, w_in, w_gate, w_out = (normal(rng, *s) for s in ((2, 3, 8), (8, 20), (8, 20), (20, 6)))
    b_in, b_gate, b_out = normal(rng, 20), normal(rng, 20), normal(rng, 6)
    linear, act = torch.nn.functional.linear, ACTIVATIONS[activation][1]
    x_, w1, wg, w2, b1, bg, b2 = map(
        torch.from_numpy, (x, w_in.T, w_gate.T, w_out.T, b_in, b_gate, b_out)
    )
    inner = linear(x_, w1, b1)
    if gated:
        inner = act(torch.nn.functional, linear(x_, wg, bg)) * inner
    else:
        inner = act(torch.nn.functional, inner)
    expected = linear(inner, w2, b2).numpy()
    options = {"b_in": b_in, "b_out": b_out, "activation": activation}
    if gated:
        options |= {"w_gate": w_gate, "b_gate": b_gate}
    scale = np.abs(expected).max()
    for found in (
        layers.feed_forward(x, w_in, w_out, **options),
        layers.FeedForward(w_in, w_out, **options)(x),
    ):
        np.testing.assert_allclose(found, expected, atol=2e-6 * scale)
