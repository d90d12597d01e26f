# SPDX-License-Identifier: MIT
"""Cross-attention that goes by positions: step by step, padded, and from keys formed once."""

import numpy as np
import pytest
from cases import normal

from fastattn import layers

TOLERANCE = 1e-5
WIDTH = 8
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 2}
BY_POSITION = {
    "rotary": {"rotary": layers.Rotary(base=100.0)},
    "window": {"window_size": (2, 1)},
    "alibi": {"alibi_slopes": np.array([1.0, 0.5])},
}


def random_attention(rng, **options):
    weights = normal(rng, 4, WIDTH, WIDTH) / WIDTH**0.5
    return layers.MultiHeadAttention(*weights, heads=2, **options)


@pytest.mark.parametrize("formed_once", [False, True])
@pytest.mark.parametrize("options", BY_POSITION.values(), ids=BY_POSITION)
def test_step_by_step_equals_the_whole(rng, options, formed_once):
    """Tokens of a step stand behind those in the cache for the memory, too."""
    decoder = layers.Decoder(
        [
            layers.DecoderLayer(
                random_attention(rng, causal=True), np.zeros_like, random_attention(rng, **options)
            )
            for _ in range(2)
        ]
    )
    x, memory, lengths = normal(rng, 2, 6, WIDTH), normal(rng, 2, 7, WIDTH), np.array([7, 4])
    whole = decoder(x, memory, memory_lengths=lengths)
    if formed_once:
        memory = decoder.keys_values(memory, lengths=lengths)
    caches = decoder.new_caches(2, 6)
    parts = [
        decoder(x[:, part], memory, caches=caches, memory_lengths=lengths)
        for part in (slice(3), slice(3, 4), slice(4, 6))
    ]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=TOLERANCE)


@pytest.mark.parametrize("options", BY_POSITION.values(), ids=BY_POSITION)
def test_queries_that_begin_behind_others(rng, options):
    """In sequences of any leading axes, each from its own position on."""
    layer = random_attention(rng, **options)
    x, context = normal(rng, 2, 3, 6, WIDTH), normal(rng, 2, 3, 5, WIDTH)
    begins = np.array([[0, 1, 2], [3, 4, 4]])
    parts = np.stack([x[i, j, begin : begin + 2] for (i, j), begin in np.ndenumerate(begins)])
    found = layer(parts.reshape(2, 3, 2, WIDTH), context, q_offset=begins.reshape(-1))
    whole = layer(x, context)
    for (i, j), begin in np.ndenumerate(begins):
        np.testing.assert_allclose(found[i, j], whole[i, j, begin : begin + 2], atol=TOLERANCE)


@pytest.mark.parametrize("shared", [False, True])
def test_dynamic_turns_go_by_the_length_of_the_context(rng, shared):
    """Not by its padding; one context of several lengths is turned for each."""
    layer = random_attention(rng, rotary=layers.Rotary(scaling=DYNAMIC))
    x, context = normal(rng, 3, 4, WIDTH), normal(rng, 1 if shared else 3, 9, WIDTH)
    lengths = [9, 3, 5]
    padded = layer(x, context, lengths=lengths)
    for b, length in enumerate(lengths):
        alone = layer(x[b], context[0 if shared else b, :length])
        np.testing.assert_allclose(padded[b], alone, atol=TOLERANCE)
    if not shared:
        formed_once = layer.keys_values(context, lengths=lengths)
        found = layer(x, keys_values=formed_once, lengths=lengths)
        np.testing.assert_array_equal(found, padded)


def test_dynamic_turns_of_several_leading_axes(rng):
    layer = random_attention(rng, rotary=layers.Rotary(scaling=DYNAMIC))
    x = normal(rng, 2, 3, 5, WIDTH)
    lengths = np.array([[5, 1, 4], [2, 5, 3]])
    padded = layer(x, lengths=lengths.reshape(-1))
    for place, length in np.ndenumerate(lengths):
        alone = layer(x[place][:length])
        np.testing.assert_allclose(padded[place][:length], alone, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["context", "memory"])
def test_another_batch_is_named(rng, name):
    x, context = normal(rng, 3, 6, WIDTH), normal(rng, 2, 7, WIDTH)
    layer = random_attention(rng)
    if name == "memory":
        layer = layers.DecoderLayer(random_attention(rng, causal=True), np.zeros_like, layer)
    expected = rf"{name}: expected leading axes that broadcast with \(3,\) of x, got shape \(2, 7"
    with pytest.raises(ValueError, match=f"^{expected}"):
        layer(x, context)


@pytest.mark.parametrize(
    "heads, rotary_dim, expected",
    [(8, None, "an even number of features, got 1"), (4, 4, "at least 4 features, got 2")],
)
def test_heads_that_do_not_turn(rng, heads, rotary_dim, expected):
    weights = normal(rng, 4, WIDTH, WIDTH)
    rotary = layers.Rotary(rotary_dim=rotary_dim)
    with pytest.raises(ValueError, match=f"^rotary: expected heads of {expected}$"):
        layers.MultiHeadAttention(*weights, heads=heads, rotary=rotary)
