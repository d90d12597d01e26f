# SPDX-License-Identifier: MIT
"""A real model on real sentences: all-MiniLM-L6-v2 with fastattn inside, against the oracle inside.

The bound 1e-5 is on numbers of size 0.05 (unit vectors of 384): six layers deep, with LayerNorm
dividing by small deviations, float32 rounding alone leaves about 1e-7 of it.
"""

import importlib.metadata

import numpy as np
import pytest
from torch_layers import layer_state, load

import fastattn
from fastattn import reference
from fastattn.cli import minilm
from fastattn.layers import pack, pad

try:
    minilm.find_directory()
except importlib.metadata.PackageNotFoundError:
    pytest.skip(f"{minilm.DISTRIBUTION} is not installed", allow_module_level=True)
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
def model():
    return minilm.load()


def test_vectors_match_the_oracle(model):
    truth = model.encode(SENTENCES, attention=reference.attention)
    assert np.abs(model.encode(SENTENCES) - truth).max() <= TOLERANCE


@pytest.mark.parametrize("packed", [False, True])
def test_each_layer_matches_the_oracle(model, packed):
    """The same input to both at every layer, so that no error hides behind the pooling."""

    def both(q, k, v, **options):
        assert not q.flags.c_contiguous, "q must be a view of the projection"
        ours = fastattn.attention(q, k, v, **options)
        truth = reference.attention(q, k, v, **options)
        errors.append(np.abs(ours - truth).max() / np.abs(v).max())
        return ours

    errors = []
    rows = model.tokenize(SENTENCES)
    if packed:
        ids, cu_seqlens = pack(rows)
        model(ids, cu_seqlens=cu_seqlens, attention=both)
    else:
        ids, lengths = pad(rows)
        model(ids, lengths=lengths, attention=both)
    assert len(errors) == len(model.encoder.layers) * (len(rows) if packed else 1)
    assert max(errors) <= 2e-6


def test_similarities_are_the_published_ones(model):
    vectors = model.encode(PUBLISHED)
    np.testing.assert_allclose(vectors[1:] @ vectors[0], PUBLISHED_SIMILARITIES, atol=2e-6)


@pytest.mark.parametrize("triple", TRIPLES, ids=lambda triple: triple[0].split()[-1].strip(".?"))
def test_paraphrase_is_nearer_than_another_subject(model, triple):
    sentence, paraphrase, other = model.encode(triple)
    assert sentence @ paraphrase > 0.4
    assert sentence @ other < 0.2


def test_each_paraphrase_finds_its_sentence(model):
    sentences = model.encode([triple[0] for triple in TRIPLES])
    paraphrases = model.encode([triple[1] for triple in TRIPLES])
    assert (paraphrases @ sentences.T).argmax(1).tolist() == list(range(len(TRIPLES)))


def test_alone_equals_in_a_batch(model):
    batch = model.encode(SENTENCES)
    alone = np.stack([model.encode(one) for one in SENTENCES])
    # Not to the bit: the BLAS of NumPy rounds its products differently for other batch sizes.
    assert np.abs(batch - alone).max() <= 1e-6


def test_padded_equals_packed(model):
    ids, lengths = pad(model.tokenize(SENTENCES))
    real = np.arange(ids.shape[1]) < lengths[:, None]
    padded = model(ids, lengths=lengths)[real]
    vectors = model.pool(padded, np.cumsum([0, *lengths]))
    assert np.abs(vectors - model.encode(SENTENCES)).max() <= 1e-6


def test_padding_tokens_never_reach_a_real_one(model):
    ids, lengths = pad(model.tokenize(SENTENCES))
    real = np.arange(ids.shape[1]) < lengths[:, None]
    noise = np.random.default_rng(0).integers(1000, 30000, ids.shape)
    clean = model(ids, lengths=lengths)
    dirty = model(np.where(real, ids, noise), lengths=lengths)
    np.testing.assert_array_equal(dirty[real], clean[real])


def test_text_is_cut_at_the_length_the_model_was_made_for(model):
    [ids] = model.tokenize(["word " * 400])
    assert len(ids) == 256


def test_layers_match_torch(model):
    """The model with fastattn inside, against torch's own encoder layers."""
    torch = pytest.importorskip("torch")
    ids, lengths = pad(model.tokenize(SENTENCES))
    padding = torch.from_numpy(np.arange(ids.shape[1]) >= lengths[:, None])
    hidden = torch.from_numpy(model.embed(ids))
    with torch.inference_mode():
        for layer in model.encoder.layers:
            block = torch.nn.TransformerEncoderLayer(
                384, 12, 1536, dropout=0.0, activation="gelu", layer_norm_eps=1e-12,
                batch_first=True,
            )  # fmt: skip
            hidden = load(torch, block, layer_state(layer))(hidden, src_key_padding_mask=padding)
    truth = model.pool(hidden[~padding].numpy(), np.cumsum([0, *lengths]))
    assert np.abs(model.encode(SENTENCES) - truth).max() <= TOLERANCE


def test_hidden_states_match_transformers(model):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(minilm.find_directory()).eval()
    ids, lengths = pad(model.tokenize(SENTENCES))
    real = np.arange(ids.shape[1]) < lengths[:, None]
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids), attention_mask=torch.from_numpy(real))[0]
    found = model(ids, lengths=lengths)
    # Hidden states have numbers of up to 3.
    np.testing.assert_allclose(found[real], expected.numpy()[real], atol=TOLERANCE)


def test_vectors_match_sentence_transformers(model):
    """64 sentences of 5 to 90 words."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    rng = np.random.default_rng(0)
    words = " ".join(SENTENCES).split()
    texts = [" ".join(rng.choice(words, size)) for size in rng.integers(5, 90, 64)]
    theirs = sentence_transformers.SentenceTransformer(str(minilm.find_directory()), device="cpu")
    assert np.abs(model.encode(texts) - theirs.encode(texts)).max() <= TOLERANCE


def test_numpy_attention_is_attention(rng):
    """What the demo and the bench compare with."""
    q, k, v = rng.standard_normal((3, 2, 3, 5, 4)).astype(np.float32)
    for options in ({}, {"kv_lengths": [5, 2]}):
        found = minilm.numpy_attention(q, k, v, **options)
        np.testing.assert_allclose(found, reference.attention(q, k, v, **options), atol=1e-6)
