# SPDX-License-Identifier: MIT
"""A worked example of attention as it is taught, with the usual mistakes put right.

A mother, a father and a daughter are vectors of two features plus the sine and cosine of their
position in the sentence; the mother attends to the other two. Slides print her sin(4) = -0.757 with
the wrong sign: then she attends to the father by 0.82, not to the daughter by 0.84. Their products
do not even follow from the vectors that they print, and give 0.95.

More mistakes to know: K = W_Q X for W_K X; a factor 1 / sqrt(d_k) that is left out, or is
1 / sqrt(D), which is right for a single head with d_k = D only; and shares of the scores, which may
be negative, taken for attention weights.

Once through the oracle, and once through the layers, as a reader would write it: token vectors plus
sinusoids, identity projections, one head.
"""

import math

import numpy as np

from fastattn import layers, reference

FATHER = np.array([1.0, 1.0]) + [math.sin(8), math.cos(8)]
MOTHER = np.array([1.0, -1.0]) + [math.sin(4), math.cos(4)]
DAUGHTER = np.array([-1.0, -1.0])
SLIDE_MOTHER = np.array([1.75680, -1.65364])  # with sin(4) of the wrong sign, as printed


def worked_example(query):
    people = np.stack([FATHER, DAUGHTER])
    results = {
        stage: reference.attention(query[None], people, people, return_scores=stage)
        for stage in ("scaled", "weights")
    }
    return results["scaled"][1][0], results["weights"][1][0], results["weights"][0][0]


def test_worked_example():
    np.testing.assert_allclose(MOTHER, [0.24320, -1.65364], atol=5e-6)
    np.testing.assert_allclose(FATHER, [1.98936, 0.85450], atol=5e-6)
    scaled, weights, out = worked_example(MOTHER)
    np.testing.assert_allclose(scaled * math.sqrt(2), [-0.9292, 1.4104], atol=1e-4)
    np.testing.assert_allclose(scaled, [-0.6571, 0.9973], atol=1e-4)
    np.testing.assert_allclose(weights, [0.1605, 0.8395], atol=1e-4)
    np.testing.assert_allclose(out, [-0.5202, -0.7023], atol=1e-4)


def test_worked_example_with_the_vector_of_the_slides():
    scaled, weights, out = worked_example(SLIDE_MOTHER)
    np.testing.assert_allclose(scaled * math.sqrt(2), [2.0818, -0.1032], atol=1e-4)
    np.testing.assert_allclose(scaled, [1.4721, -0.0730], atol=1e-4)
    np.testing.assert_allclose(weights, [0.8242, 0.1758], atol=1e-4)
    np.testing.assert_allclose(out, [1.4638, 0.5285], atol=1e-4)


def test_worked_example_through_the_layers():
    places = layers.sinusoidal_positions(9, 2, dtype=np.float64)
    tokens = np.array([[1.0, 1.0], [1.0, -1.0]])  # the father at 8, the mother at 4
    father, mother = tokens + places[[8, 4]]
    np.testing.assert_allclose(mother, MOTHER, atol=1e-15)
    np.testing.assert_allclose(father, FATHER, atol=1e-15)
    identity = np.eye(2)
    attend = layers.MultiHeadAttention(identity, identity, identity)
    people = np.stack([father, DAUGHTER])
    out, weights = attend(mother[None], people, need_weights=True)
    np.testing.assert_allclose(weights, [[[0.1605, 0.8395]]], atol=1e-4)
    np.testing.assert_allclose(out, [[-0.5202, -0.7023]], atol=1e-4)


def test_a_share_of_the_scores_is_no_attention_weight():
    """Scores may be negative, so score / sum of scores is not one; exp makes them positive."""
    scaled, weights, _ = worked_example(MOTHER)
    shares = scaled / scaled.sum()
    assert shares.min() < 0
    np.testing.assert_allclose(weights, np.exp(scaled) / np.exp(scaled).sum())
