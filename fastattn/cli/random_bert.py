# SPDX-License-Identifier: MIT
"""A small text encoder with random weights, for the demo on a machine without a real model."""

import zlib

import numpy as np

from fastattn import layers
from fastattn.models import Bert

WIDTH, HEADS, DEPTH, HIDDEN, LAYERS, VOCABULARY, LONGEST = 96, 6, 16, 384, 3, 4096, 256


class _Encoding:
    def __init__(self, text, limit):
        self.tokens = ["[CLS]", *text.lower().split(), "[SEP]"][:limit]
        self.ids = [zlib.crc32(token.encode()) % VOCABULARY for token in self.tokens]


class WordTokenizer:
    """One token for each word, its id a hash of the word."""

    def __init__(self):
        self.limit = LONGEST

    def enable_truncation(self, limit):
        """Cut texts to `limit` tokens from now on."""
        self.limit = limit

    def encode_batch(self, texts):
        """Return the tokens of each text."""
        return [_Encoding(text, self.limit) for text in texts]


def make(seed=0):
    """Return a `fastattn.models.Bert` whose weights are random numbers of the usual size."""
    rng = np.random.default_rng(seed)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)

    def layer():
        return layers.EncoderLayer(
            layers.MultiHeadAttention(*(matrix(WIDTH, WIDTH) for _ in range(4)), heads=HEADS),
            layers.FeedForward(matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH), activation="gelu"),
            layers.LayerNorm(),
            layers.LayerNorm(),
        )

    words = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    return Bert(
        layers.Embedding(words, 0.1 * layers.sinusoidal_positions(LONGEST, WIDTH)),
        layers.LayerNorm(),
        layers.Encoder([layer() for _ in range(LAYERS)]),
        tokenizer=WordTokenizer(),
        max_tokens=LONGEST,
    )
