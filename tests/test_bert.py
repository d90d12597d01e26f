# SPDX-License-Identifier: MIT
"""load_bert against Hugging Face's encoders with random weights, and what it refuses."""

import dataclasses
import json

import numpy as np
import pytest

from fastattn import reference
from fastattn.models import load_bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-5
SMALL = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 20,
}  # fmt: skip
FAMILIES = {
    "bert": ("BertModel", {}),
    "bert_masked": ("BertForMaskedLM", {}),
    "bert_relu": ("BertModel", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "bert_new": ("BertModel", {"hidden_act": "gelu_new"}),
    "roberta": ("RobertaModel", {"type_vocab_size": 1}),
    "xlm_roberta": ("XLMRobertaForMaskedLM", {"type_vocab_size": 1, "pad_token_id": 3}),
    "camembert": ("CamembertModel", {}),
    "distilbert": ("DistilBertModel", {}),
}


def saved(tmp_path, family, **more):
    """Return Hugging Face's model, its files written, with norms and biases that show."""
    name, config = FAMILIES[family]
    kind = getattr(transformers, name)
    if family == "distilbert":
        config = {
            "vocab_size": 60, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40,
            "max_position_embeddings": 20,
        }  # fmt: skip
    else:
        config = {**SMALL, **config}
    torch.manual_seed(0)
    model = kind(kind.config_class(**config, **more)).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    return getattr(model, model.base_model_prefix, model)


def edit(path, **changes):
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_match_transformers(tmp_path, family, rng):
    theirs = saved(tmp_path, family)
    model = load_bert(tmp_path)
    # 16 tokens: RoBERTa's positions begin behind the padding id. No id is that of padding, from
    # which Hugging Face would derive positions.
    ids, lengths = rng.integers(4, 60, (3, 16)), np.array([16, 5, 11])
    real = np.arange(16) < lengths[:, None]
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids), attention_mask=torch.from_numpy(real))[0].numpy()
    expected = expected[real]
    np.testing.assert_allclose(model(ids, lengths=lengths)[real], expected, atol=TOLERANCE)
    borders = np.cumsum([0, *lengths])
    np.testing.assert_allclose(model(ids[real], cu_seqlens=borders), expected, atol=TOLERANCE)
    by_oracle = model(ids[real], cu_seqlens=borders, attention=reference.attention)
    np.testing.assert_allclose(by_oracle, expected, atol=TOLERANCE)


def test_token_types(tmp_path, rng):
    theirs = saved(tmp_path, "bert")
    ids, types = rng.integers(0, 60, (2, 9)), rng.integers(0, 2, (2, 9))
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids), token_type_ids=torch.from_numpy(types))[0]
    model = load_bert(tmp_path)
    found = model(ids, type_ids=types)
    np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)
    shared = model(ids, type_ids=types[0])
    np.testing.assert_allclose(shared[0], expected[0].numpy(), atol=TOLERANCE)


def test_patterns_match_transformers(tmp_path, rng):
    theirs = saved(tmp_path, "bert", attn_implementation="eager")
    ids = rng.integers(0, 60, (2, 9))
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids), output_attentions=True).attentions
    _, patterns = load_bert(tmp_path)(ids, need_weights=True)
    for ours, other in zip(patterns, expected, strict=True):
        np.testing.assert_allclose(ours, other.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_narrow_weights_stay_as_they_are(tmp_path, stored, rng):
    theirs = saved(tmp_path, "bert")
    theirs.to(getattr(torch, stored)).save_pretrained(tmp_path)
    model = load_bert(tmp_path)
    assert model.embedding.table.dtype.name == stored
    assert model.encoder.layers[0].attention.w_q.dtype.name == stored
    ids = rng.integers(0, 60, (2, 9))
    found = model(ids)
    assert found.dtype == np.float32
    with torch.inference_mode():  # the rounded weights, computed in float32
        expected = theirs.to(torch.float32)(torch.from_numpy(ids))[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)
    wide = load_bert(tmp_path, dtype=np.float32)
    assert wide.encoder.layers[0].attention.w_q.dtype == np.float32
    np.testing.assert_allclose(wide(ids), found, atol=TOLERANCE)


# --- texts ---------------------------------------------------------------------------------------


class Encoding:
    def __init__(self, text, limit):
        self.tokens = ["[CLS]", *text.split(), "[SEP]"][:limit]
        self.ids = [sum(map(ord, token)) % 60 for token in self.tokens]


class Words:
    """A tokenizer with the two methods that `Bert` uses."""

    limit = None

    def enable_truncation(self, limit):
        self.limit = limit

    def encode_batch(self, texts):
        return [Encoding(text, self.limit) for text in texts]


class Uncut:
    """A tokenizer that cannot cut: which token must stay at the end is known to it alone."""

    def encode_batch(self, texts):
        return [Encoding(text, None) for text in texts]


TEXTS = ["the cat sleeps on the sill", "rain", "a kitten naps in the sun by the window", "no"]


def write_modules(directory, mode, *more):
    kinds = ["Transformer", "Pooling", *more]
    modules = [{"path": kind, "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "Pooling").mkdir()
    (directory / "Pooling" / "config.json").write_text(json.dumps(mode))


def load_with_words(directory, **options):
    return dataclasses.replace(load_bert(directory, **options), tokenizer=Words())


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_encode_pools_as_the_files_say(tmp_path, pooling, normalize):
    saved(tmp_path, "bert")
    flags = {f"pooling_mode_{mode}_tokens": mode == pooling for mode in ("mean", "max")}
    flags["pooling_mode_cls_token"] = pooling == "cls"
    write_modules(tmp_path, flags, *(["Normalize"] if normalize else []))
    model = load_with_words(tmp_path)
    vectors = model.encode(TEXTS)
    reduce = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "max": lambda x: x.max(0)}
    for text, vector in zip(TEXTS, vectors, strict=True):
        [ids] = model.tokenize([text])
        expected = reduce[pooling](model(ids[None])[0])
        if normalize:
            expected = expected / np.linalg.norm(expected)
        np.testing.assert_allclose(vector, expected, atol=TOLERANCE)


def test_pooling_by_name(tmp_path):
    saved(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode": "cls"})
    assert load_bert(tmp_path).pooling == "cls"


def test_texts_are_lowered_and_cut_as_the_files_say(tmp_path):
    saved(tmp_path, "bert")
    limits = {"max_seq_length": 100, "do_lower_case": True}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(limits))
    model = load_with_words(tmp_path)
    assert model.max_tokens == 20  # there are no more positions
    large, small = model.tokenize(["RAIN", "rain"])
    assert large.tolist() == small.tolist()


def test_encode_does_not_depend_on_the_grouping(tmp_path):
    saved(tmp_path, "bert")
    model = load_with_words(tmp_path)
    vectors = model.encode(TEXTS)
    assert vectors.shape == (4, 24) and vectors.dtype == np.float32
    for batch_tokens in (1, 8, 14):
        np.testing.assert_allclose(
            model.encode(TEXTS, batch_tokens=batch_tokens), vectors, atol=TOLERANCE
        )
    np.testing.assert_allclose(model.encode(TEXTS[2]), vectors[2], atol=TOLERANCE)
    assert model.encode([]).shape == (0, 24)
    wide = load_with_words(tmp_path, dtype=np.float64)
    assert {wide.encode(TEXTS).dtype, wide.encode([]).dtype} == {np.dtype(np.float64)}


def test_texts_are_cut_at_the_last_position(tmp_path):
    saved(tmp_path, "roberta")
    model = load_with_words(tmp_path)
    assert model.max_tokens == 20 - 2  # positions begin at 2, behind the padding id
    [ids] = model.tokenize(["word " * 50])
    assert len(ids) == 18
    assert np.isfinite(model.encode("word " * 50)).all()
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    [ids] = load_with_words(tmp_path).tokenize(["word " * 50])
    assert len(ids) == 7


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_texts_are_cut_where_positions_end(tmp_path, family):
    saved(tmp_path, family)
    model = dataclasses.replace(load_with_words(tmp_path), max_tokens=None)
    longest = 20 - model.first_position
    [ids] = model.tokenize(["word " * 50])
    assert len(ids) == model.max_tokens == longest
    assert np.isfinite(model.encode("word " * 50)).all()
    for wrong, limit in (0, "below 1"), (longest + 1, f"above {longest}"):
        message = f"max_tokens: expected an integer not {limit}, got {wrong}"
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(model, max_tokens=wrong)
    with pytest.raises(ValueError, match="first_position: expected an integer not above 19, got 2"):
        dataclasses.replace(model, first_position=20)


@pytest.mark.parametrize("max_tokens", [None, 7])
def test_a_tokenizer_must_be_able_to_cut(tmp_path, max_tokens):
    saved(tmp_path, "bert")
    model = load_bert(tmp_path)
    message = r"tokenizer: expected a method enable_truncation, got test_bert\.Uncut"
    with pytest.raises(TypeError, match=message):
        dataclasses.replace(model, tokenizer=Uncut(), max_tokens=max_tokens)
    if max_tokens is None:  # nothing to cut for
        embedding = dataclasses.replace(model.embedding, positions=None)
        free = dataclasses.replace(model, embedding=embedding, tokenizer=Uncut(), max_tokens=None)
        [ids] = free.tokenize(["word " * 50])
        assert free.max_tokens is None and len(ids) == 52


def word_level():
    """A tokenizer of the package, with the settings that files of sentence encoders have."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{n}": n for n in range(60)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(16)
    return tokenizer


def test_the_tokenizer_of_the_caller_is_left_as_it_is(tmp_path):
    saved(tmp_path, "bert")
    tokenizer = word_level()
    model = dataclasses.replace(load_bert(tmp_path), tokenizer=tokenizer, max_tokens=3)
    tokenizer.no_truncation()
    assert model.tokenize(["w1 w2 w3 w4"])[0].tolist() == [1, 2, 3]
    assert tokenizer.encode("w1 w2 w3 w4").ids == [1, 2, 3, 4]


def test_a_tokenizer_that_pads(tmp_path):
    """Many files of sentence encoders pad to a fixed length."""
    saved(tmp_path, "bert")
    padding, plain = word_level(), word_level()
    padding.enable_padding(length=12)
    models = [dataclasses.replace(load_bert(tmp_path), tokenizer=each) for each in (padding, plain)]
    vectors = [model.encode(["w1 w2", "w3"]) for model in models]
    np.testing.assert_array_equal(*vectors)
    assert len(padding.encode("w1").ids) == 12


def test_a_tokenizer_that_cannot_be_copied(tmp_path):
    class Fixed(Words):
        def __deepcopy__(self, memo):
            raise Exception("Custom PreTokenizer cannot be serialized")

    saved(tmp_path, "bert")
    model = dataclasses.replace(load_bert(tmp_path), tokenizer=Fixed(), max_tokens=3)
    assert len(model.tokenize(["a b c d e"])[0]) == 3


def test_patterns_of_a_text(tmp_path):
    saved(tmp_path, "bert")
    model = load_with_words(tmp_path)
    tokens, weights = model.patterns("the cat sleeps")
    assert tokens == ["[CLS]", "the", "cat", "sleeps", "[SEP]"]
    assert weights.shape == (2, 4, 5, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    _, patterns = model(model.tokenize(["the cat sleeps"])[0][None], need_weights=True)
    np.testing.assert_array_equal(weights[:, None], patterns)


# --- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "mpnet"}, "model_type: expected one of bert, roberta.*got mpnet"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: expected one of"),
        ({"hidden_act": "gelu_fast"}, "hidden_act: expected one of gelu.*got gelu_fast"),
        ({"is_decoder": True}, "is_decoder: expected an encoder"),
        ({"num_attention_heads": 5}, "num_attention_heads: expected a divisor of 24, got 5"),
        ({"hidden_size": None}, "expected hidden_size or dim, there is none"),
        ({"num_hidden_layers": "2"}, "json: num_hidden_layers: expected an integer, got str"),
        ({"num_hidden_layers": 2.0}, "json: num_hidden_layers: expected an integer, got float"),
        ({"num_attention_heads": "4"}, "json: num_attention_heads: expected an integer, got str"),
        ({"layer_norm_eps": "1e-12"}, "json: layer_norm_eps: expected a number, got str"),
        ({"is_decoder": "false"}, "json: is_decoder: expected True or False, got str"),
        ({"num_hidden_layers": 3}, "encoder.layer.2.attention.self.query.weight: expected a tens"),
        ({"num_hidden_layers": 1}, "encoder.layer.1.*: expected no such tensor"),
        ({"intermediate_size": 41}, r"intermediate.dense.weight: expected shape \(41, 24\), got"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_configurations(tmp_path, changes, message):
    saved(tmp_path, "bert")
    edit(tmp_path / "config.json", **changes)
    with pytest.raises(ValueError, match=message):
        load_bert(tmp_path)


def test_unsupported_modules(tmp_path):
    saved(tmp_path, "bert")
    write_modules(tmp_path, {"pooling_mode_mean_tokens": True}, "Dense")
    with pytest.raises(ValueError, match="expected modules Transformer, Pooling, Normalize, got"):
        load_bert(tmp_path)
    write = (tmp_path / "Pooling" / "config.json").write_text
    write(json.dumps({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="expected one pooling of mean, cls, max, got"):
        load_bert(tmp_path)
    for modules, message in (
        ({}, "expected a JSON array, got dict"),
        ([3], "expected a JSON object, got int"),
        ([{"type": 3}], "type: expected a string, got int"),
        ([{"type": "Pooling"}], "expected path, there is none"),
    ):
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ValueError, match=f"modules.json: {message}"):
            load_bert(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "7"}')
    with pytest.raises(ValueError, match="max_seq_length: expected an integer, got str"):
        load_bert(tmp_path)


PARTS = {"embedding": 1, "embedding_norm": None, "encoder": 3, "type_table": 1, "normalize": 1}


@pytest.mark.parametrize("name", PARTS)
def test_the_part_that_does_not_fit_is_named(tmp_path, name):
    saved(tmp_path, "bert")
    with pytest.raises(TypeError, match=f"^{name}: expected .*, got"):
        dataclasses.replace(load_bert(tmp_path), **{name: PARTS[name]})


def test_bad_input(tmp_path):
    saved(tmp_path, "bert")
    model = load_bert(tmp_path)
    with pytest.raises(ValueError, match="texts: expected token ids, this model has no tokenizer"):
        model.encode(["text"])
    with pytest.raises(ValueError, match="ids: expected numbers from 0 to 59, got 60"):
        model(np.array([[60]]))
    with pytest.raises(ValueError, match="positions: expected numbers from 0 to 19, got 20"):
        model(np.zeros((1, 21), int))
    with pytest.raises(ValueError, match="type_ids: expected numbers from 0 to 1, got 2"):
        model(np.zeros((1, 3), int), type_ids=np.full((1, 3), 2))
    for shape in (1,), (1, 1), (2, 3), (1, 1, 3):
        message = r"type_ids: expected a shape \(..., 3\) that broadcasts to \(1, 3\), got \("
        with pytest.raises(ValueError, match=message):
            model(np.zeros((1, 3), int), type_ids=np.zeros(shape, int))
    with pytest.raises(ValueError, match=r"ids: expected shape \(..., tokens\), got \(\)"):
        model(np.array(3))
    with pytest.raises(ValueError, match="cu_seqlens: expected 3 at last, the number of tokens"):
        model(np.zeros(3, int), cu_seqlens=[0, 2])
    with pytest.raises(ValueError, match="cu_seqlens: expected at least one token in each text"):
        model.pool(np.zeros((3, 24), np.float32), np.array([0, 0, 3]))
    for wrong in [0, 2], [0, 4], [1, 3]:
        with pytest.raises(ValueError, match=r"cu_seqlens: expected (3 at l|0 at f)"):
            model.pool(np.zeros((3, 24), np.float32), np.array(wrong))
    with pytest.raises(ValueError, match=r"hidden: expected shape \(tokens, D_model\), got"):
        model.pool(np.zeros((1, 3, 24), np.float32), np.array([0, 1]))
    with pytest.raises(TypeError, match="texts: expected a sequence of str, got a str"):
        load_with_words(tmp_path).tokenize("text")
    with pytest.raises(ValueError, match="batch_tokens: expected an integer not below 1, got 0"):
        load_with_words(tmp_path).encode(["text"], batch_tokens=0)
    with pytest.raises(ValueError, match="num_threads: expected an integer not below 1, got 0"):
        load_with_words(tmp_path).encode(["text"], num_threads=0)
    saved(tmp_path, "distilbert")
    with pytest.raises(ValueError, match="type_ids: expected None, this model has no token types"):
        load_bert(tmp_path)(np.zeros((1, 3), int), type_ids=np.zeros(3, int))
