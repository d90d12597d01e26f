# SPDX-License-Identifier: MIT
"""Tokens that are drawn by their probability: from what, and each row by itself."""

import numpy as np
import pytest
from cases import normal

from fastattn import layers


@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 5}, {"top_k": 41}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.6}],
    ids=str,
)
def test_probabilities_match_transformers(rng, options):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    logits = 3 * normal(rng, 4, 40)
    scores = torch.from_numpy(logits) / 0.7
    if "top_k" in options:
        scores = transformers.TopKLogitsWarper(options["top_k"])(None, scores)
    if "top_p" in options:
        scores = transformers.TopPLogitsWarper(options["top_p"])(None, scores)
    found = layers.Sampler(0.7, **options).probabilities(logits)
    np.testing.assert_allclose(found, scores.softmax(-1).numpy(), atol=1e-6)


def test_top_p_that_is_reached_exactly():
    for top_p, likely in (0.25, [[1, 0, 0, 0]]), (0.5, [[0.5, 0.5, 0, 0]]):
        found = layers.Sampler(top_p=top_p).probabilities(np.zeros((1, 4)))
        np.testing.assert_array_equal(found, likely)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}], ids=str)
@pytest.mark.parametrize("temperature", [1e-308, 5e-324])
def test_smallest_temperature_is_greedy(temperature, options):
    logits = np.array([[1.0, 3.0, 2.0, -np.inf], [-5.0, -7.0, -6.0, -5.5]], np.float32)
    sampler = layers.Sampler(temperature, **options)
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_array_equal(sampler.probabilities(logits), np.eye(4)[[1, 0]])
        assert sampler(logits).tolist() == [1, 0]


def test_samples_follow_the_probabilities():
    logits = np.log(np.array([[0.5, 0.0, 0.3, 0.2]]) + 1e-30)
    draws = layers.Sampler(seed=0)(np.repeat(logits, 20000, axis=0))
    shares = np.bincount(draws, minlength=4) / 20000
    # Four standard deviations of a share of 20000 draws.
    np.testing.assert_allclose(shares, [0.5, 0.0, 0.3, 0.2], atol=4 * 0.5 / 20000**0.5)
    assert shares[1] == 0


def test_a_row_is_drawn_by_itself(rng):
    logits = normal(rng, 6, 3, 40)  # steps, rows
    many, one = layers.Sampler(seed=5), layers.Sampler(seed=5)
    found = np.array([many(step) for step in logits])
    assert found[:, 0].tolist() == [one(step[:1])[0] for step in logits]
    assert one(logits[0])[1:].tolist() == found[0, 1:].tolist()  # rows that come later
    alike = np.repeat(logits[:1, :1], 50, axis=1)[0]
    assert len(set(layers.Sampler(seed=5)(alike))) > 10  # but each row is another sample
    generator = np.random.default_rng(5)
    shared = [layers.Sampler(seed=generator)(alike).tolist() for _ in range(2)]
    assert shared[0] == layers.Sampler(seed=5)(alike).tolist() != shared[1]


def test_samplers_of_equal_settings_are_equal():
    assert layers.Sampler(0.5, 3, 0.9, 1) == layers.Sampler(0.5, 3, 0.9, 1)
    assert layers.Sampler(0.5) != layers.Sampler()
