# SPDX-License-Identifier: MIT
"""A real model on real sentences: all-MiniLM-L6-v2 with fastattn inside, against the oracle inside.

The bound 1e-5 is on numbers of size 0.05 (unit vectors of 384): six layers deep, with LayerNorm
dividing by small deviations, float32 rounding alone leaves about 1e-7 of it.
"""

import importlib.metadata

import numpy as np
import pytest

import fastattn
from fastattn import reference
from fastattn.cli import minilm

try:
    minilm.find_directory()
except importlib.metadata.PackageNotFoundError:
    pytest.skip(f"{minilm.DISTRIBUTION} is not installed", allow_module_level=True)
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

TOLERANCE = 1e-5

# 4 to 72 tokens: one tile, several tiles, and a row that is mostly padding in every batch.
SENTENCES = [
    "Rain.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun by the window.",
    "Parliament passed the annual budget after a long debate.",
    "Attention weighs every value by how well its key matches the query, and the softmax makes "
    "the weights of each query sum to one.",
    "When the expedition finally reached the far shore of the lake, the guides unloaded the boats, "
    "lit a fire to dry the blankets, counted what was left of the flour and the coffee, and argued "
    "until dark about whether to follow the river north or to wait for the second party, which had "
    "been due three days earlier and had sent no word.",
]

# (sentence, paraphrase, a sentence on another subject): the first two must be nearer.
TRIPLES = [
    (
        "A man is playing a guitar on stage.",
        "Someone performs guitar music in front of an audience.",
        "The recipe calls for two cups of flour.",
    ),
    (
        "How do I reset my password?",
        "I forgot my login credentials and need new ones.",
        "The train to Vienna leaves at noon.",
    ),
    (
        "The stock market fell sharply today.",
        "Share prices dropped a lot this afternoon.",
        "Penguins huddle together to keep warm.",
    ),
    (
        "She adopted a puppy from the shelter.",
        "A young dog was taken home from the animal rescue centre by her.",
        "The function returns the largest eigenvalue of the matrix.",
    ),
]

# What the model's publisher prints for these: similarity of the first to each of the others.
PUBLISHED = ["That is a happy person", "That is a happy dog", "That is a very happy person"]
PUBLISHED += ["Today is a sunny day"]
PUBLISHED_SIMILARITIES = [0.6945773, 0.9429150, 0.2568760]


@pytest.fixture(scope="module")
def encoder():
    return minilm.Encoder()


def test_embeddings_match_the_oracle(encoder):
    ours = encoder.embed(SENTENCES, fastattn.attention)
    truth = encoder.embed(SENTENCES, reference.attention)
    assert np.abs(ours - truth).max() <= TOLERANCE


def test_each_layer_matches_the_oracle(encoder):
    """The same input to both at every layer, so that no error hides behind the pooling."""

    def both(q, k, v, **options):
        assert not q.flags.c_contiguous, "q must be a view of the projection"
        ours = fastattn.attention(q, k, v, **options)
        truth = reference.attention(q, k, v, **options)
        errors.append(np.abs(ours - truth).max() / np.abs(v).max())
        return ours

    errors = []
    encoder.embed(SENTENCES, both)
    assert len(errors) == len(encoder.layers)
    assert max(errors) <= 2e-6


def test_similarities_are_the_published_ones(encoder):
    vectors = encoder.embed(PUBLISHED, fastattn.attention)
    np.testing.assert_allclose(vectors[1:] @ vectors[0], PUBLISHED_SIMILARITIES, atol=2e-6)


@pytest.mark.parametrize("triple", TRIPLES, ids=lambda triple: triple[0].split()[-1].strip(".?"))
def test_paraphrase_is_nearer_than_another_subject(encoder, triple):
    sentence, paraphrase, other = encoder.embed(triple, fastattn.attention)
    assert sentence @ paraphrase > 0.4
    assert sentence @ other < 0.2


def test_each_paraphrase_finds_its_sentence(encoder):
    sentences = encoder.embed([triple[0] for triple in TRIPLES], fastattn.attention)
    paraphrases = encoder.embed([triple[1] for triple in TRIPLES], fastattn.attention)
    assert (paraphrases @ sentences.T).argmax(1).tolist() == list(range(len(TRIPLES)))


def test_embedding_alone_equals_embedding_in_a_batch(encoder):
    batch = encoder.embed(SENTENCES, fastattn.attention)
    alone = np.concatenate([encoder.embed([one], fastattn.attention) for one in SENTENCES])
    # Not to the bit: the BLAS of NumPy rounds its products differently for other batch sizes.
    assert np.abs(batch - alone).max() <= 1e-6


def test_padding_tokens_never_reach_an_embedding(encoder):
    ids, lengths = encoder.tokenize(SENTENCES)
    clean = encoder.embed_ids(ids, lengths, fastattn.attention)
    padding = np.arange(ids.shape[1]) >= lengths[:, None]
    noise = np.random.default_rng(0).integers(1000, 30000, ids.shape)
    dirty = encoder.embed_ids(np.where(padding, noise, ids), lengths, fastattn.attention)
    np.testing.assert_array_equal(dirty, clean)


def test_encoder_matches_torch(encoder):
    """The NumPy model itself, with fastattn inside, against torch's own encoder layers."""
    torch = pytest.importorskip("torch")
    ids, lengths = encoder.tokenize(SENTENCES)
    x = encoder.embeddings(ids)
    padding = torch.from_numpy(np.arange(ids.shape[1]) >= lengths[:, None])
    hidden = torch.from_numpy(x)
    with torch.inference_mode():
        for index, layer in enumerate(encoder.layers):
            block = torch_layer(torch, encoder.weights, f"encoder.layer.{index}.", layer)
            hidden = block(hidden, src_key_padding_mask=padding)
    truth = encoder.pool(hidden.numpy(), lengths)
    ours = encoder.embed_ids(ids, lengths, fastattn.attention)
    assert np.abs(ours - truth).max() <= TOLERANCE


def torch_layer(torch, weights, prefix, layer):
    """torch's post-norm encoder layer, which is BERT's, with the weights of one layer."""
    block = torch.nn.TransformerEncoderLayer(
        384, 12, 1536, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
    )
    names = {
        "self_attn.out_proj": "attention.output.dense",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm1": "attention.output.LayerNorm",
        "norm2": "output.LayerNorm",
    }
    state = {
        f"{ours}.{part}": weights[f"{prefix}{theirs}.{part}"]
        for ours, theirs in names.items()
        for part in ("weight", "bias")
    }
    state["self_attn.in_proj_weight"] = layer["qkv"][0].T
    state["self_attn.in_proj_bias"] = layer["qkv"][1]
    block.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return block.eval()
