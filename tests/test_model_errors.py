# SPDX-License-Identifier: MIT
"""Bad input to models made of a few numbers: nothing of Hugging Face's is needed."""

import dataclasses

import numpy as np
import pytest

from fastattn import layers
from fastattn.models import Bert, Llama

pytestmark = pytest.mark.forces_isa

W = np.eye(8, dtype=np.float32)
FEED = layers.FeedForward(W, W)


class Words:
    """A tokenizer of one token for each word, with the methods that the models use."""

    ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()

    def enable_truncation(self, limit):
        pass

    def encode(self, text):
        words = Words()
        words.tokens = tuple(text.split())
        words.ids = (1,) * len(words.tokens)
        return words

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def decode(self, ids):
        return " ".join("w" for _ in ids)


def attention(**options):
    return layers.MultiHeadAttention(W, W, W, W, 2, **options)


def bert(**options):
    encoder = layers.Encoder([layers.EncoderLayer(attention(), FEED)])
    embedding = layers.Embedding(W, W)
    return Bert(embedding, layers.LayerNorm(), encoder, **{"tokenizer": Words(), **options})


def llama(**options):
    decoder = layers.Decoder([layers.DecoderLayer(attention(causal=True), FEED)])
    return Llama(layers.Embedding(W), decoder, **{"tokenizer": Words(), **options})


CASES = {
    "no tokens": (lambda: bert().tokenize(5), "texts: expected a sequence of str, got int"),
    "one of none": (lambda: bert().encode(["a", None]), r"texts\[1\]: expected a str, got None"),
    "bytes": (lambda: bert().encode([b"a"]), r"texts\[0\]: expected a str, got bytes"),
    "lowered": (lambda: bert(lowercase=True).encode([1]), r"texts\[0\]: expected a str, got int"),
    "patterns": (lambda: bert().patterns(["a"]), "text: expected a str, got list"),
    "complete": (lambda: llama().complete(b"a"), "text: expected a str, got bytes"),
    "tokenizer": (lambda: bert(tokenizer=5), "tokenizer: expected a method encode_batch, got int"),
    "tokenizer of llama": (lambda: llama(tokenizer=5), "tokenizer: expected a method encode, got "),
    "last_only": (lambda: llama()([[1]], last_only=1), "last_only: expected True or False, got"),
    "dtype": (lambda: llama().new_caches(1, 1, dtype=0), "dtype: expected float32, float64, "),
    "first_position": (
        lambda: dataclasses.replace(
            bert(), embedding=layers.Embedding(W), max_tokens=4, first_position="x"
        ), "first_position: expected an integer, got str",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_error(case):
    call, message = CASES[case]
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


def test_the_same_without_errors():
    assert bert().encode(["a b", "c"]).shape == (2, 8)
    assert bert(lowercase=True).tokenize(each for each in ["A"])[0].tolist() == [1]
    assert bert().patterns("a b")[1].shape == (1, 2, 2, 2)
    assert llama().complete("a", max_new_tokens=2) == "w w"
    assert llama()([[1, 2]], last_only=np.True_).shape == (1, 8)


@pytest.mark.parametrize("second", [None, layers.Rotary(base=10.0)])
def test_layers_of_different_turns(second):
    """As in models with layers that go without: each turns by its own."""
    stack = [
        layers.DecoderLayer(attention(causal=True, rotary=rotary), FEED)
        for rotary in (layers.Rotary(), second)
    ]
    model = Llama(layers.Embedding(W), layers.Decoder(stack))
    ids = np.array([[1, 2, 3, 1]])
    whole = model(ids)
    np.testing.assert_array_equal(whole, model.decoder(model.embedding(ids)) @ W)
    caches = model.new_caches(1, 4)
    parts = [model(ids[:, part], caches=caches) for part in (slice(3), slice(3, 4))]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-5)


def test_a_prompt_is_neither_padded_nor_cut():
    """Whatever its tokenizer was set up for, which stays as it is with the caller."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{n}": n for n in range(8)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    plain = llama(tokenizer=tokenizer)
    tokenizer.enable_padding(length=3)
    tokenizer.enable_truncation(3)
    for model in plain, llama(tokenizer=tokenizer):
        assert model.tokenizer.encode("w1 w2").ids == [1, 2]
        assert model.tokenizer.encode("w1 w2 w3 w4").ids == [1, 2, 3, 4]
    assert tokenizer.encode("w1 w2").ids == [1, 2, 0]
