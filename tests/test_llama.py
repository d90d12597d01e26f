# SPDX-License-Identifier: MIT
"""load_llama against Hugging Face's decoders with random weights, and what it refuses."""

import dataclasses
import json

import numpy as np
import pytest

from fastattn.models import load_llama

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-5
SMALL = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 32,
    "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
THETA = {"rope_theta": 500.0}
MODELS = {
    "llama": ("Llama", {}),
    "multi-head": ("Llama", {"num_key_value_heads": 4}),
    "multi-query, head_dim": ("Llama", {"num_key_value_heads": 1, "head_dim": 10}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "eps": ("Llama", {"rms_norm_eps": 0.1}),
    "linear": ("Llama", {"rope_parameters": {**THETA, "rope_type": "linear", "factor": 3.0}}),
    "llama3": ("Llama", {"rope_parameters": {
        **THETA, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
    }}),
    "yarn": ("Llama", {"rope_parameters": {
        **THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
    }}),
    "dynamic": ("Llama", {"max_position_embeddings": 16, "rope_parameters": {
        **THETA, "rope_type": "dynamic", "factor": 2.0,
    }}),
    "mistral": ("Mistral", {"sliding_window": 6}),
    "mistral without window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with window": ("Qwen2", {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    }),
    "qwen3": ("Qwen3", {"head_dim": 8}),
}  # fmt: skip


def saved(directory, name="llama", **save_options):
    """Return Hugging Face's model with eager attention, its files written.

    Weights are large enough that tokens differ, and biases and norms are not their first values.
    """
    family, config = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **config})
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        scale = 0.2 if parameter.ndim == 2 else 0.1
        parameter.data += scale * torch.randn_like(parameter)
    model.save_pretrained(directory, **save_options)
    return model


def greedy_tokens(model, prompt, count):
    """What Hugging Face generates, without the prompt."""
    ids = torch.from_numpy(prompt)[None]
    with torch.inference_mode():
        tokens = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
    return tokens[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_logits_match_transformers(tmp_path, name, rng):
    theirs = saved(tmp_path, name)
    model = load_llama(tmp_path)
    ids = rng.integers(0, 60, (2, 30))
    with torch.inference_mode():
        # One sequence at a time, since "dynamic" scaling of theirs goes by the longest.
        short, expected = (theirs(torch.from_numpy(x)).logits.numpy() for x in (ids[1:, :17], ids))
    found = model(ids)
    # Angles are float32 in theirs: off by 30 * 6e-8 at the last position.
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    last = model(ids, lengths=np.array([30, 17]), last_only=True)
    np.testing.assert_allclose(last, [expected[0, 29], short[0, 16]], atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "llama3", "dynamic", "mistral", "qwen3"])
def test_generated_tokens_match_transformers(tmp_path, name, rng):
    theirs = saved(tmp_path, name)
    prompt = rng.integers(0, 60, 9)
    tokens = load_llama(tmp_path).generate(prompt, max_new_tokens=40)
    assert tokens.tolist() == greedy_tokens(theirs, prompt, 40)
    assert len(set(tokens.tolist())) > 3


@pytest.mark.parametrize("name", ["llama", "mistral", "yarn"])
def test_steps_with_a_cache_equal_the_whole(tmp_path, name, rng):
    saved(tmp_path, name)
    model = load_llama(tmp_path)
    ids = rng.integers(0, 60, (2, 20))
    whole = model(ids)
    caches = model.new_caches(2, 20)
    begin = 0
    for tokens in (7, 1, 1, 5, 1, 1, 1, 3):
        found = model(ids[:, begin : begin + tokens], caches=caches)
        np.testing.assert_allclose(found, whole[:, begin : begin + tokens], atol=TOLERANCE)
        begin += tokens
    assert begin == 20


@pytest.mark.parametrize("name", ["llama", "dynamic"])
def test_prompts_of_different_lengths(tmp_path, name, rng):
    saved(tmp_path, name)
    model = load_llama(tmp_path)
    prompts = [rng.integers(0, 60, size) for size in (3, 11, 1, 7)]
    together = model.generate(prompts, max_new_tokens=12)
    for prompt, tokens in zip(prompts, together, strict=True):
        assert tokens.tolist() == model.generate(prompt, max_new_tokens=12).tolist()
    rows = model.generate(np.stack([prompts[1], prompts[1][::-1]]), max_new_tokens=12)
    assert rows[0].tolist() == together[1].tolist()


def test_number_of_new_tokens_of_a_small_type(tmp_path):
    """Room for 99 more than the prompt's is more than an int8 counts."""
    saved(tmp_path)
    model = load_llama(tmp_path)
    options = {"max_new_tokens": np.int8(100), "stop_ids": range(60)}
    assert model.generate(np.ones(100, int), **options).shape == (1,)


def test_generation_goes_on_from_caches(tmp_path, rng):
    saved(tmp_path)
    model = load_llama(tmp_path)
    prompt = rng.integers(0, 60, 6)
    whole = model.generate(prompt, max_new_tokens=15)
    caches = model.new_caches(1, 30)
    none = model.generate(prompt, max_new_tokens=0, caches=caches)  # which takes nothing in
    first = model.generate(prompt, max_new_tokens=5, caches=caches)
    rest = model.generate(first[-1:], max_new_tokens=10, caches=caches)
    assert [*none, *first, *rest] == whole.tolist()
    assert none.dtype == first.dtype


def test_caches_take_nothing_of_a_sequence_that_has_ended(tmp_path, rng):
    """Nor do they need room for it: the longer prompt leaves some for a single token."""
    saved(tmp_path)
    model = load_llama(tmp_path)
    prompts = [rng.integers(0, 60, 9), rng.integers(0, 60, 1)]
    free = model.generate(prompts, max_new_tokens=8)
    assert free[0][0] not in free[1]
    caches = model.new_caches(2, 10)
    options = {"max_new_tokens": 8, "stop_ids": [free[0][0]]}
    found = model.generate(prompts, caches=caches, **options)
    assert [each.tolist() for each in found] == [free[0][:1].tolist(), free[1].tolist()]
    assert [cache.lengths.tolist() for cache in caches] == [[9, 8]] * 2
    last = np.array([each[-1:] for each in found])
    logits = model(last, caches=caches, last_only=True)
    for prompt, tokens, row in zip(prompts, found, logits, strict=True):
        whole = model(np.concatenate([prompt, tokens])[None], last_only=True)
        np.testing.assert_allclose(row, whole[0], atol=TOLERANCE)


def test_no_token_stays_in_caches_on_error(tmp_path, rng):
    saved(tmp_path)
    model = load_llama(tmp_path)
    caches = model.new_caches(1, 9)
    model(rng.integers(0, 60, (1, 3)), caches=caches)
    wide = dataclasses.replace(model, w_head=model.embedding.table.T.astype(np.float64))
    with pytest.raises(TypeError, match="w_head: expected dtype float32 like x, or narrower"):
        wide(np.zeros((1, 2), int), caches=caches)
    with pytest.raises(TypeError, match="max_new_tokens: expected an integer, got NoneType"):
        model.generate([1, 2], max_new_tokens=None)
    with pytest.raises(ValueError, match=r"^cache\.k: expected at most 0 tokens more for"):
        model.generate([1, 2], max_new_tokens=9, caches=caches)
    assert [cache.lengths.tolist() for cache in caches] == [[3]] * len(caches)


def test_stop_tokens_and_streaming(tmp_path, rng):
    saved(tmp_path)
    prompt = rng.integers(0, 60, 6)
    tokens = load_llama(tmp_path).generate(prompt, max_new_tokens=15).tolist()
    stop = tokens[7]
    expected = tokens[: tokens.index(stop) + 1]
    path = tmp_path / "generation_config.json"
    for value in (stop, [stop, 59]):
        path.write_text(json.dumps({"eos_token_id": value}))
        model = load_llama(tmp_path)
        assert model.generate(prompt, max_new_tokens=15).tolist() == expected
    assert model.generate(prompt, max_new_tokens=15, stop_ids=[]).tolist() == tokens
    assert model.generate(prompt, max_new_tokens=15, stop_ids={stop}).tolist() == expected
    with pytest.raises(TypeError, match="stop_ids: expected integers, got dtype object"):
        model.stream(prompt, stop_ids=[None])
    stream = model.stream(prompt, max_new_tokens=15)
    assert [int(each[0]) for each in stream] == expected
    path.unlink()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": stop}))
    assert load_llama(tmp_path).stop_ids == (stop,)
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [stop, "</s>"]}))
    with pytest.raises(ValueError, match=r"json: eos_token_id: expected an integer, got str"):
        load_llama(tmp_path)


def test_sampling_is_repeatable(tmp_path, rng):
    saved(tmp_path)
    model = load_llama(tmp_path)
    prompt = rng.integers(0, 60, 6)
    options = {"max_new_tokens": 12, "temperature": 2.0}
    tokens = [model.generate(prompt, seed=seed, **options).tolist() for seed in (0, 0, 1)]
    assert tokens[0] == tokens[1] != tokens[2]
    together = model.generate([prompt, prompt[:3]], seed=1, **options)
    assert together[0].tolist() == tokens[2]  # as without the other prompt
    greedy = model.generate(prompt, max_new_tokens=12).tolist()
    assert model.generate(prompt, top_k=1, **options).tolist() == greedy


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_narrow_weights_stay_as_they_are(tmp_path, stored, rng):
    theirs = saved(tmp_path)
    theirs.to(getattr(torch, stored)).save_pretrained(tmp_path)
    model = load_llama(tmp_path)
    stored_weights = (
        model.embedding.table, model.w_head, model.decoder.layers[1].self_attention.w_k,
        model.decoder.layers[0].feed_forward.w_gate, model.decoder.norm.weight,
    )  # fmt: skip
    assert {each.dtype.name for each in stored_weights} == {stored}
    assert not any(each.flags.writeable for each in stored_weights)  # memory-mapped
    ids = rng.integers(0, 60, (2, 20))
    found = model(ids)
    assert found.dtype == np.float32
    # The rounded weights, computed in float32; read again, because the model that was converted
    # has rounded its rotary frequencies as well.
    theirs = type(theirs).from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    wide = load_llama(tmp_path, dtype=np.float32)
    np.testing.assert_allclose(wide(ids), found, atol=TOLERANCE)
    tokens = model.generate(ids[0], max_new_tokens=20).tolist()
    assert tokens == wide.generate(ids[0], max_new_tokens=20).tolist()


def test_shards(tmp_path, rng):
    theirs = saved(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    ids = rng.integers(0, 60, (1, 10))
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(load_llama(tmp_path)(ids), expected, atol=TOLERANCE)


def test_rotary_of_older_files(tmp_path):
    """Before version 5, rope_theta stood by itself, beside rope_scaling."""
    saved(tmp_path, "yarn")
    rotary = load_llama(tmp_path).decoder.layers[0].self_attention.rotary
    config = json.loads((tmp_path / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    scaling["type"] = scaling.pop("rope_type")
    config["rope_scaling"] = scaling
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_llama(tmp_path).decoder.layers[0].self_attention.rotary == rotary
    config.pop("rope_scaling"), config.pop("rope_theta")
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = load_llama(tmp_path).decoder.layers[0].self_attention.rotary
    assert plain.base == 10000.0 and plain.scaling == {"rope_type": "default"}


def test_windows_of_older_files(tmp_path):
    """Before layer_types there was the first layer that has a window."""
    saved(tmp_path, "qwen2 with window")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "layer_types": None}))
    layers = load_llama(tmp_path).decoder.layers
    assert [layer.self_attention.window_size for layer in layers] == [None, (4, 0)]


def test_texts(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    saved(tmp_path)
    with pytest.raises(ValueError, match="text: expected token ids, this model has no tokenizer"):
        load_llama(tmp_path).complete("w1 w2")
    words = {f"w{n}": n for n in range(60)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = load_llama(tmp_path)
    tokens = model.generate([1, 2], max_new_tokens=5)
    assert model.complete("w1 w2", max_new_tokens=5) == " ".join(f"w{n}" for n in tokens)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "gpt2"}, "model_type: expected one of llama, mistral, qwen2, qwen3, got g"),
        ({"hidden_act": "gelu"}, "hidden_act: expected one of silu, swish, got gelu"),
        ({"num_hidden_layers": 3}, "model.layers.2.*: expected a tensor of shape .* there is none"),
        ({"num_hidden_layers": 1}, "model.layers.1.*: expected no such tensor"),
        ({"attention_bias": True}, "q_proj.bias: expected a tensor"),
        ({"vocab_size": 61}, r"embed_tokens.weight: expected shape \(61, 24\), got \(60, 24\)"),
        ({"num_key_value_heads": 1}, r"k_proj.weight: expected shape \(6, 24\), got \(12, 24\)"),
        ({"hidden_size": None}, "config.json: expected hidden_size, there is none"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, got 0.5"),
        ({"num_hidden_layers": "2"}, "json: num_hidden_layers: expected an integer, got str"),
        ({"num_hidden_layers": 2.0}, "json: num_hidden_layers: expected an integer, got float"),
        ({"rms_norm_eps": "1e-6"}, "json: rms_norm_eps: expected a number, got str"),
        (
            {"tie_word_embeddings": "false"},
            "json: tie_word_embeddings: expected True or False",
        ),
        ({"rope_parameters": []}, "json: rope_parameters: expected a JSON object, got list"),
        ({"rope_parameters": {"rope_theta": "1"}}, "json: rope_theta: expected a number, got str"),
        ({"rope_parameters": {"rope_type": ["a"]}}, "json: rope_type: expected a string, got list"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": "3"}},
            r"json: rope_parameters\['factor'\]: expected a number, got str",
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type: expected one of .* longrope"),
        ({"rope_parameters": {"rope_type": "linear"}}, "json: rope_parameters: expected the key"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_configurations(tmp_path, changes, message):
    saved(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=message):
        load_llama(tmp_path)


def test_layer_types_for_fewer_layers(tmp_path):
    saved(tmp_path, "qwen2 with window")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "layer_types": config["layer_types"][:1]}))
    with pytest.raises(ValueError, match="layer_types: expected 2, one for each layer"):
        load_llama(tmp_path)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("embedding", 1, "expected an Embedding, got int"),
        ("decoder", None, "expected a Decoder, got NoneType"),
        ("stop_ids", ["</s>"], "expected integers, got dtype str"),
    ],
)
def test_the_part_that_does_not_fit_is_named(tmp_path, name, value, message):
    saved(tmp_path)
    with pytest.raises(TypeError, match=f"^{name}: {message}"):
        dataclasses.replace(load_llama(tmp_path), **{name: value})


def test_bad_input(tmp_path):
    saved(tmp_path)
    model = load_llama(tmp_path)
    for prompt, message in (
        ([], "prompt_ids: expected at least one sequence"),
        ([[1, 2], []], r"prompt_ids\[1\]: expected at least one token"),
        ([60], "prompt_ids: expected numbers from 0 to 59, got 60"),
        (np.zeros((1, 1, 1), int), r"prompt_ids: expected shape \(tokens,\) or"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(prompt)
    with pytest.raises(TypeError, match="prompt_ids: expected integers, got dtype float64"):
        model.generate(np.array([1.0]))
    for name in "top_k", "top_p", "seed":
        with pytest.raises(ValueError, match=f"{name}: expected None with temperature 0, got 3"):
            model.generate([1], **{name: 3})
    with pytest.raises(ValueError, match="lengths: expected values from 0 to 3, got 4"):
        model(np.zeros((2, 3), int), lengths=[3, 4], last_only=True)
    with pytest.raises(ValueError, match=r"ids: expected shape \(batch, tokens\), got \(3,\)"):
        model(np.zeros(3, int))


def test_bad_caches(tmp_path):
    saved(tmp_path)
    model = load_llama(tmp_path)
    first, second = model.new_caches(1, 5)
    for caches, error, message in (
        (first, TypeError, "caches: expected a sequence, got fastattn.caches.dense.KVCache"),
        ([], ValueError, "caches: expected 2, one for each layer, got 0"),
        ([first], ValueError, "caches: expected 2, one for each layer, got 1"),
        ([None, second], TypeError, r"caches\[0\]: expected one like fastattn.KVCache, got None"),
        ([first, 3], TypeError, r"caches\[1\]: expected one like fastattn.KVCache, got int"),
    ):
        for call in (
            lambda caches: model(np.zeros((1, 3), int), caches=caches),
            lambda caches: model.generate([1], max_new_tokens=1, caches=caches),
            lambda caches: model.stream([1], max_new_tokens=1, caches=caches),
        ):
            with pytest.raises(error, match=f"^{message}"):
                call(caches)
