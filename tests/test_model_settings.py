# SPDX-License-Identifier: MIT
"""Values of config.json that are out of range: the message names the file and the key."""

import json

import numpy as np
import pytest

from fastattn.models import load_bert, load_llama

safetensors_numpy = pytest.importorskip("safetensors.numpy")

pytestmark = pytest.mark.forces_isa

WIDTH = 8
LLAMA = {
    "model_type": "qwen3", "hidden_size": WIDTH, "intermediate_size": WIDTH, "vocab_size": WIDTH,
    "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4, "tie_word_embeddings": True,
    "use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention"],
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}  # fmt: skip
LLAMA_LAYER = {
    **{f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
    **{f"mlp.{name}_proj": (WIDTH, WIDTH) for name in ("gate", "up", "down")},
    **{f"self_attn.{name}_norm": (4,) for name in "qk"},
    "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
}  # fmt: skip
BERT = {
    "model_type": "roberta", "hidden_size": WIDTH, "intermediate_size": WIDTH, "vocab_size": WIDTH,
    "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_act": "gelu", "type_vocab_size": 1,
    "max_position_embeddings": WIDTH, "pad_token_id": 1,
}  # fmt: skip
BERT_LAYER = {
    **{f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")},
    **{f"{name}.dense": (WIDTH, WIDTH) for name in ("attention.output", "intermediate", "output")},
    "attention.output.LayerNorm": (WIDTH,), "output.LayerNorm": (WIDTH,),
}  # fmt: skip


def llama_tensors():
    yield "model.embed_tokens.weight", (WIDTH, WIDTH)
    yield "model.norm.weight", (WIDTH,)
    for name, shape in LLAMA_LAYER.items():
        yield f"model.layers.0.{name}.weight", shape


def bert_tensors():
    for name, rows in ("word", WIDTH), ("position", WIDTH), ("token_type", 1):
        yield f"embeddings.{name}_embeddings.weight", (rows, WIDTH)
    layer = {f"encoder.layer.0.{name}": shape for name, shape in BERT_LAYER.items()}
    for name, shape in {"embeddings.LayerNorm": (WIDTH,), **layer}.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", (WIDTH,)


def loaded(directory, load, config, tensors):
    (directory / "config.json").write_text(json.dumps(config))
    arrays = {name: np.ones(shape, np.float32) for name, shape in tensors}
    safetensors_numpy.save_file(arrays, directory / "model.safetensors")
    return load(directory)


def load(directory, family, **changes):
    if family == "llama":
        return loaded(directory, load_llama, {**LLAMA, **changes}, llama_tensors())
    return loaded(directory, load_bert, {**BERT, **changes}, bert_tensors())


def test_configurations_without_changes(tmp_path):
    model = load(tmp_path, "llama")
    assert model.decoder.layers[0].self_attention.window_size == (2, 0)
    assert model(np.array([[1, 2]])).shape == (1, 2, WIDTH)
    assert load(tmp_path, "bert").first_position == 2


NOT_BELOW = {"eps": "a number not below 0", "size": "an integer not below 1"}
OUT_OF_RANGE = [
    *(("llama", name, -1, NOT_BELOW["size"]) for name in (
        "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "head_dim",
        "num_attention_heads", "num_key_value_heads", "sliding_window",
    )),
    ("llama", "sliding_window", 0, NOT_BELOW["size"]),
    ("llama", "num_hidden_layers", 0, NOT_BELOW["size"]),
    ("llama", "num_key_value_heads", 3, "a divisor of 2, got 3"),
    ("llama", "rms_norm_eps", -1e-6, NOT_BELOW["eps"]),
    ("llama", "rope_theta", 0.5, "a number above 1, got 0.5"),
    ("llama", "layer_types", ["chunked_attention"], "one of 'full_attention', 'sliding_attention'"),
    ("llama", "layer_types", [1], "one of 'full_attention', 'sliding_attention', got int"),
    *(("bert", name, -1, NOT_BELOW["size"]) for name in (
        "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers",
        "num_attention_heads", "type_vocab_size", "max_position_embeddings",
    )),
    ("bert", "layer_norm_eps", -1e-6, NOT_BELOW["eps"]),
    ("bert", "pad_token_id", -2, "an integer not below 0, got -2"),
    ("bert", "pad_token_id", 7, "a number below 7, the last position, got 7"),
]  # fmt: skip


@pytest.mark.parametrize("family, name, value, message", OUT_OF_RANGE)
def test_out_of_range(tmp_path, family, name, value, message):
    with pytest.raises(ValueError, match=f"^config.json: {name}: expected {message}"):
        load(tmp_path, family, **{name: value})


def test_layers_above_which_windows_begin(tmp_path):
    with pytest.raises(ValueError, match=r"^config.json: max_window_layers: expected an integer n"):
        load(tmp_path, "llama", layer_types=None, max_window_layers=-1)


@pytest.mark.parametrize("place", ["scaling", "file", None])
def test_the_trained_length_is_that_of_the_scaling_if_it_has_one(tmp_path, place):
    length = {"original_max_position_embeddings": 16}
    scaling = {"rope_type": "yarn", "factor": 2.0} | (length if place == "scaling" else {})
    more = length if place == "file" else {}
    model = load(tmp_path, "llama", rope_scaling=scaling, max_position_embeddings=32, **more)
    rotary = model.decoder.layers[0].self_attention.rotary
    assert rotary.scaling["original_max_position_embeddings"] == (16 if place else 32)


def test_rotary_scaling_is_named_as_in_the_file(tmp_path):
    for changes, message in (
        ({"factor": -1.0}, r"\['factor'\]: expected a positive number, got -1"),
        ({}, ": expected the key 'factor' with rope_type 'linear'"),
    ):
        for name in "rope_scaling", "rope_parameters":
            scaling = {"rope_scaling": None, name: {"rope_type": "linear", **changes}}
            with pytest.raises(ValueError, match=f"^config.json: {name}{message}"):
                load(tmp_path, "llama", **scaling)


def test_windows_that_are_not_used_are_not_looked_at(tmp_path):
    model = load(tmp_path, "llama", use_sliding_window=False, sliding_window=0)
    assert model.decoder.layers[0].self_attention.window_size is None


def test_longest_text(tmp_path):
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": -1}')
    with pytest.raises(ValueError, match=r"config.json: max_seq_length: expected an integer n"):
        load(tmp_path, "bert")
