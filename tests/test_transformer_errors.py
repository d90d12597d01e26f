# SPDX-License-Identifier: MIT
"""What the callables inside encoder and decoder layers may return, and what they are told."""

import numpy as np
import pytest

from fastattn import layers

pytestmark = pytest.mark.forces_isa

W = np.eye(8, dtype=np.float32)
X = np.ones((2, 5, 8), np.float32)


def attention(**options):
    return layers.MultiHeadAttention(W, W, W, W, 2, **options)


LAYERS = {
    "encoder": lambda feed, **options: layers.EncoderLayer(attention(), feed, **options),
    "decoder": lambda feed, **options: layers.DecoderLayer(attention(causal=True), feed, **options),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_what_feed_forward_returns_is_left_as_it_is(kind, norm_first):
    constant = np.full_like(X, 3)
    constant.flags.writeable = False
    layer = LAYERS[kind](lambda x: constant, norm_first=norm_first)
    np.testing.assert_allclose(layer(X), 5)
    constant.flags.writeable = True
    for _ in range(2):
        np.testing.assert_allclose(layer(X), 5)
    np.testing.assert_array_equal(constant, 3)
    np.testing.assert_allclose(LAYERS[kind](lambda x: x)(X), 4)  # attention, identity: twice twice
    np.testing.assert_array_equal(X, 1)


RESULTS = {
    "rank": (
        lambda x: np.stack([x] * 3), ValueError, r"shape \(2, 5, 8\) like x, got \(3, 2, 5, 8\)",
    ),
    "width": (lambda x: x[..., :1], ValueError, r"shape \(2, 5, 8\) like x, got \(2, 5, 1\)"),
    "integers": (lambda x: x.astype(int), TypeError, "dtype float32 like x, got int64"),
    "wide": (lambda x: x.astype(np.float64), TypeError, "dtype float32 like x, got float64"),
    "no array": (lambda x: 5, TypeError, "a numpy.ndarray, got int"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("result", RESULTS)
def test_result_of_feed_forward(kind, norm_first, result):
    function, error, message = RESULTS[result]
    layer = LAYERS[kind](function, norm_first=norm_first)
    with pytest.raises(error, match=rf"^feed_forward\(x\): expected {message}"):
        layer(X)


def test_result_of_attention():
    narrow = layers.MultiHeadAttention(W, W, W, W[:, :1], 2)
    with pytest.raises(ValueError, match=r"^attention\(x\): expected shape \(2, 5, 8\) like x"):
        layers.EncoderLayer(narrow, lambda x: x)(X)
