# SPDX-License-Identifier: MIT
"""What stacks of layers hand on to their parts, and what they take where nothing is given."""

import dataclasses

import numpy as np
import pytest
from cases import normal

from fastattn import layers
from fastattn.models import Llama

TOLERANCE = 1e-5


def attention(rng, value_depth=4, **options):
    """Two query heads and one of keys and values, over 8 features."""
    shapes = (8, 8), (8, 4), (8, value_depth), (2 * value_depth, 8)
    weights = (normal(rng, *shape) / shape[0] ** 0.5 for shape in shapes)
    return layers.MultiHeadAttention(*weights, 2, 1, **options)


def decoder_layer(rng, **options):
    feed_forward = layers.FeedForward(normal(rng, 8, 8), normal(rng, 8, 8))
    return layers.DecoderLayer(attention(rng, causal=True, **options), feed_forward)


def model(rng, **options):
    """An encoder-decoder of a single layer, whose encoder leaves the source as it is."""
    layer = dataclasses.replace(decoder_layer(rng), cross_attention=attention(rng))
    stacks = layers.Encoder([]), layers.Decoder([layer], layers.LayerNorm())
    return layers.EncoderDecoder(
        *stacks, *(layers.Embedding(normal(rng, 9, 8)) for _ in range(2)), **options
    )


@pytest.mark.parametrize("kind", [layers.EncoderLayer, layers.DecoderLayer])
def test_mask_and_positions_reach_the_attention(rng, kind):
    part = attention(rng, causal=True, rotary=layers.Rotary())
    layer, x = kind(part, np.zeros_like), normal(rng, 1, 3, 8)
    for given in {"positions": np.array([4, 0, 9])}, {"attn_mask": np.eye(3, dtype=bool)}:
        np.testing.assert_allclose(layer(x, **given), x + part(x, **given), atol=TOLERANCE)
        assert not np.allclose(part(x, **given), part(x), atol=1e-3)


def test_new_caches_of_values_of_another_depth(rng):
    decoder = layers.Decoder([decoder_layer(rng, value_depth=6)])
    x = normal(rng, 1, 3, 8)
    found = decoder(x, caches=decoder.new_caches(1, 3))
    np.testing.assert_allclose(found, decoder(x), atol=TOLERANCE)


def test_head_that_is_the_table_of_the_target(rng):
    tied, ids = model(rng), np.array([[3, 1, 4]])
    hidden = tied.decoder(tied.target_embedding(ids), tied.encode(ids))
    expected = hidden @ tied.target_embedding.table.T
    np.testing.assert_allclose(tied(ids, ids), expected, atol=TOLERANCE)


def widened(part):
    """A layer, or a list of them, with all arrays in float64."""
    if isinstance(part, np.ndarray):
        return part.astype(np.float64)
    if isinstance(part, list):
        return [widened(each) for each in part]
    if not dataclasses.is_dataclass(part):
        return part
    fields = (field.name for field in dataclasses.fields(part))
    return dataclasses.replace(part, **{name: widened(getattr(part, name)) for name in fields})


def test_steps_of_float64_are_as_exact(rng):
    wide, source, target = widened(model(rng)), np.array([[3, 1, 4]]), np.array([[1, 5, 2, 6]])
    whole, step = wide(source, target), wide._steps(source, None, 4)
    for i in range(4):
        np.testing.assert_allclose(step(target[:, i : i + 1], None), whole[:, i], atol=1e-12)


def test_places_of_a_language_model_with_a_table_of_them(rng):
    embedding = layers.Embedding(normal(rng, 9, 8), normal(rng, 6, 8))
    model = Llama(embedding, layers.Decoder([decoder_layer(rng)], layers.LayerNorm()))
    ids, sizes = rng.integers(0, 9, (3, 6)), np.array([6, 2, 5])
    whole, caches = model(ids), model.new_caches(3, 6)
    for begin, end in (0, 4), (4, 5), (5, 6):
        lengths = np.clip(sizes - begin, 0, end - begin)
        found = model(ids[:, begin:end], caches=caches, lengths=lengths)
        for b, length in enumerate(lengths):
            expected = whole[b, begin : begin + length]
            np.testing.assert_allclose(found[b, :length], expected, atol=TOLERANCE)
    prompts = [ids[0, :2], ids[1, :4]]
    for prompt, tokens in zip(prompts, model.generate(prompts, max_new_tokens=3), strict=True):
        expected = list(prompt)
        for _ in range(3):
            expected.append(model(np.array([expected]))[0, -1].argmax())
        assert tokens.tolist() == expected[len(prompt) :]
