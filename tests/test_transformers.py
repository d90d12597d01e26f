# SPDX-License-Identifier: MIT
"""Hugging Face models with attn_implementation="fastattn" against the same with "eager".

The bound on logits of size 1 is 1e-5: a few layers, each of which divides by small deviations.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers_models import (  # noqa: E402
    DECODER,
    DECODERS,
    ENCODERS,
    GEMMA_4,
    SMALL,
    T5,
    WHISPER,
    NoTables,
    audio,
    generator,
    models,
    padding,
    pair,
    tokens,
)

import fastattn.transformers  # noqa: E402
from fastattn.transformers import _masks  # noqa: E402

TOLERANCE = 1e-5
pytestmark = pytest.mark.usefixtures("one_torch_thread")


def result(model, **inputs):
    with torch.no_grad():
        output = model(**inputs)
    return output.logits if "logits" in output else output.last_hidden_state


def close(actual, expected):
    size = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE * size)


def compare(eager, ours, mask=None, **inputs):
    """Compare at attended positions: eager gives a padded query the mean of all values."""
    expected, actual = (result(model, **inputs) for model in (eager, ours))
    if mask is not None:
        expected, actual = (each[mask.bool()] for each in (expected, actual))
    close(actual, expected)


# ---- every model, padded every way ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "left", "right"])
@pytest.mark.parametrize("case", [*DECODERS.values(), *ENCODERS.values()],
                         ids=[*DECODERS, *ENCODERS])  # fmt: skip
def test_logits(monkeypatch, case, kind):
    no_tables = NoTables(monkeypatch)
    mask = padding(kind, 3, 17)
    compare(*models(case), mask, input_ids=tokens(3, 17), attention_mask=mask)
    assert no_tables.masks


@pytest.mark.parametrize("case", [DECODERS["Mistral"], ENCODERS["BERT"]], ids=["Mistral", "BERT"])
def test_padding_with_holes(monkeypatch, case):
    """No range of keys says that; for a causal model a table does, for an encoder a row."""
    if case is ENCODERS["BERT"]:
        NoTables(monkeypatch)
    mask = padding("holes", 3, 17)
    compare(*models(case), mask, input_ids=tokens(3, 17), attention_mask=mask)


def test_row_of_padding():
    eager, ours = models(ENCODERS["BERT"])
    mask = padding("right", 3, 17)
    mask[1] = 0
    compare(eager, ours, mask, input_ids=tokens(3, 17), attention_mask=mask)
    assert result(ours, input_ids=tokens(3, 17), attention_mask=mask).isfinite().all()


@pytest.mark.parametrize("padded", [False, True])
def test_whisper(padded):
    """Encoder, causal decoder and cross attention."""
    eager, ours = pair("WhisperForConditionalGeneration", "WhisperConfig", WHISPER)
    mask = padding("right" if padded else "none", 2, 11)
    compare(
        eager, ours, mask, input_features=audio(), decoder_input_ids=tokens(2, 11),
        decoder_attention_mask=mask,
    )  # fmt: skip


def test_vit():
    settings = SMALL | {"image_size": 24, "patch_size": 8}
    eager, ours = pair("ViTModel", "ViTConfig", settings)
    compare(eager, ours, pixel_values=torch.randn(2, 3, 24, 24, generator=generator()))


@pytest.mark.parametrize("kind", ["none", "right"])
def test_t5_position_bias(kind):
    eager, ours = pair("T5ForConditionalGeneration", "T5Config", T5)
    mask = padding(kind, 2, 13)
    compare(eager, ours, None, input_ids=tokens(2, 13), attention_mask=mask,
            decoder_input_ids=tokens(2, 9))  # fmt: skip


@pytest.mark.parametrize("case", [DECODERS["GPT-OSS"], ENCODERS["BERT"]], ids=["GPT-OSS", "BERT"])
def test_output_attentions(case):
    mask = padding("left", 2, 17)
    inputs = {"input_ids": tokens(2, 17), "attention_mask": mask, "output_attentions": True}
    with torch.no_grad():
        expected, actual = (model(**inputs).attentions for model in models(case))
    assert len(expected) == len(actual) == 2
    for theirs, ours in zip(expected, actual, strict=True):
        theirs, ours = (each.movedim(2, 1)[mask.bool()] for each in (theirs, ours))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def test_bidirectional_decoder():
    """A Llama made bidirectional by its configuration, as embedding models are."""
    eager, ours = pair("LlamaModel", "LlamaConfig", DECODER | {"is_causal": False})
    for kind in "none", "left":
        mask = padding(kind, 3, 17)
        compare(eager, ours, mask, input_ids=tokens(3, 17), attention_mask=mask)
    change = tokens(1, 17)
    before = result(ours, input_ids=change)[0, 0]
    change[0, 16] = 98
    assert not torch.equal(result(ours, input_ids=change)[0, 0], before)


def test_chunked_attention():
    """Llama 4: within one chunk causal, else a table."""
    settings = DECODER | {
        "attention_chunk_size": 8, "num_local_experts": 2, "head_dim": 16,
        "intermediate_size_mlp": 96, "no_rope_layers": [1, 1],
        "layer_types": ["chunked_attention", "full_attention"],
    }  # fmt: skip
    eager, ours = pair("Llama4ForCausalLM", "Llama4TextConfig", settings)
    mask = padding("left", 2, 17)
    compare(eager, ours, mask, input_ids=tokens(2, 17), attention_mask=mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_mask_of_four_axes(dtype):
    """A table of the caller's own."""
    table = torch.rand(3, 1, 17, 17, generator=generator()).tril() > 0.3
    table |= torch.eye(17, dtype=torch.bool)
    additive = torch.zeros(table.shape).masked_fill(~table, torch.finfo(torch.float32).min)
    eager, ours = models(DECODERS["Llama"])
    expected = result(eager, input_ids=tokens(3, 17), attention_mask=additive)
    mask = table if dtype == torch.bool else additive
    actual = result(ours, input_ids=tokens(3, 17), attention_mask=mask)
    close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit(dtype):
    """No further from the float32 model than twice what eager is."""
    eager, ours = models(DECODERS["Llama"])
    truth = result(eager, input_ids=tokens(3, 17))
    errors = []
    for model in eager, ours:
        model.to(dtype)
        errors.append((result(model, input_ids=tokens(3, 17)).float() - truth).abs().max())
        model.float()
    assert errors[1] <= 2 * errors[0]


# ---- packed sequences ----------------------------------------------------------------------------


def packed_positions(*lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma-2"])  # GPT-OSS looks for none
@pytest.mark.parametrize("batch", [1, 2])
def test_packed_sequences(monkeypatch, name, batch):
    """Found by their positions, but only where there is no cache."""
    no_tables = NoTables(monkeypatch)
    positions = torch.cat([packed_positions(4, 9, 7), packed_positions(12, 1, 7)])[:batch]
    inputs = {"input_ids": tokens(batch, 20), "position_ids": positions}
    compare(*models(DECODERS[name]), **inputs, use_cache=False)
    assert no_tables.masks and all("cu_seqlens_q" in mask.options for mask in no_tables.masks)


def test_packed_sequences_of_a_model_that_changes_its_mask():
    case = "DogeForCausalLM", "DogeConfig", DECODER
    positions = packed_positions(4, 9, 7)
    compare(*pair(*case), input_ids=tokens(1, 20), position_ids=positions, use_cache=False)


def test_cu_seq_lens():
    """What a collator for flash attention passes says the same as position_ids do."""
    _, ours = models(DECODERS["Llama"])
    ids, cu = tokens(1, 20), torch.tensor([0, 4, 13, 20], dtype=torch.int32)
    positions = packed_positions(4, 9, 7)
    lengths = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 9, "max_length_k": 9}
    expected = result(ours, input_ids=ids, position_ids=positions, use_cache=False)
    actual = result(ours, input_ids=ids, position_ids=positions, use_cache=False, **lengths)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


# ---- models that do something with their masks ---------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "left"])
@pytest.mark.parametrize("count", [1, 3])
def test_layers_for_the_last_queries(monkeypatch, kind, count):
    """Layers that share keys see no more queries than there are logits to keep."""
    NoTables(monkeypatch)
    inputs = {"input_ids": tokens(2, 17), "attention_mask": padding(kind, 2, 17)}
    compare(*models(GEMMA_4), **inputs, logits_to_keep=count)


@pytest.mark.parametrize("heads", [4, 6])
def test_bias_and_mask(heads):
    settings = SMALL | {
        "hidden_size": 16 * heads, "num_attention_heads": heads, "image_size": 32, "patch_size": 8,
        "use_shared_relative_position_bias": True,
    }  # fmt: skip
    compare(*pair("BeitModel", "BeitConfig", settings), pixel_values=torch.ones(1, 3, 32, 32))


# ---- compiled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "left"])
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_compiled(name, kind):
    _, ours = models(DECODERS[name])
    inputs = {
        "input_ids": tokens(2, 17),
        "attention_mask": padding(kind, 2, 17),
        "use_cache": False,
    }
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    with torch.no_grad():
        actual, expected = compiled(**inputs).logits, ours(**inputs).logits
    seen = slice(None) if kind == "none" else inputs["attention_mask"].bool()
    torch.testing.assert_close(actual[seen], expected[seen], rtol=0, atol=TOLERANCE)


# ---- all-MiniLM-L6-v2 ----------------------------------------------------------------------------

SENTENCES = [
    "Rain.",
    "The cat sleeps on the warm windowsill.",
    "Attention weighs every value by how well its key matches the query, and the softmax makes "
    "the weights of each query sum to one.",
]


@pytest.fixture(scope="module")
def minilm():
    from fastattn.cli import minilm

    try:
        return minilm.find_directory()
    except Exception:
        pytest.skip(f"{minilm.DISTRIBUTION} is not installed")


def test_sentence_transformers(minilm):
    library = pytest.importorskip("sentence_transformers")
    embeddings = {
        name: library.SentenceTransformer(
            str(minilm), device="cpu", model_kwargs={"attn_implementation": name}
        ).encode(SENTENCES)
        for name in ("eager", "fastattn")
    }
    np.testing.assert_allclose(embeddings["fastattn"], embeddings["eager"], rtol=0, atol=TOLERANCE)


# ---- refusals ------------------------------------------------------------------------------------


def test_training_with_dropout():
    _, ours = pair("LlamaForCausalLM", "LlamaConfig", DECODER | {"attention_dropout": 0.1})
    ours.train()
    with pytest.raises(NotImplementedError, match=r"dropout: expected 0, got 0.1"):
        ours(input_ids=tokens(1, 5))


def test_continuous_batching():
    query = torch.zeros(1, 4, 5, 8)
    with pytest.raises(NotImplementedError, match=r"^cache: expected None, got dict"):
        fastattn.transformers.attend(None, query, query, query, None, cache={})


@pytest.mark.parametrize("name", ["indices", "block_indices", "sinks"])
def test_keys_and_sinks_of_each_query(name):
    """Sparse models leave to the attention function to see nothing but the keys they chose."""
    query = torch.zeros(1, 4, 5, 8)
    options = {name: torch.zeros(1, 5, 2, dtype=torch.int64)}
    with pytest.raises(NotImplementedError, match=rf"^{name}: expected None, got a value"):
        fastattn.transformers.attend(None, query, query, query, None, **options)
    fastattn.transformers.attend(None, query, query, query, None, **{name: None})


def test_backward_raises():
    _, ours = models(DECODERS["Llama"])
    loss = ours(input_ids=tokens(1, 5)).logits.sum()
    with pytest.raises(NotImplementedError, match=r"there is no backward yet"):
        loss.backward()


def test_model_with_attention_of_its_own():
    """transformers lets such a model have our masks, which it would add to its scores."""
    config = transformers.BloomConfig(
        hidden_size=64, n_layer=1, n_head=4, vocab_size=99, attn_implementation="fastattn"
    )
    model = transformers.BloomModel._from_config(config)
    message = r"attn_implementation: expected 'eager' for BloomConfig"
    with pytest.raises(ValueError, match=message):
        model(input_ids=tokens(1, 5))


def test_model_of_models():
    """Llava's own code attends to nothing: its parts ask for an attention function."""
    model = transformers.LlavaForConditionalGeneration
    _masks.refuse_models_that_add_masks(model.config_class)


def test_mask_of_two_axes():
    query = torch.zeros(2, 4, 5, 8)
    with pytest.raises(
        ValueError, match=r"attention_mask: expected shape \(B, H, L, S\), got \(2,"
    ):
        fastattn.transformers.attend(None, query, query, query, torch.ones(2, 5, dtype=torch.bool))


def test_mask_that_a_model_changed():
    query = torch.zeros(2, 4, 5, 8)
    mask = fastattn.transformers.attention_mask(2, 5, 5, config=transformers.LlamaConfig())
    with pytest.raises(ValueError, match=r"^attention_mask: expected shape"):
        fastattn.transformers.attend(None, query, query, query, mask[:, 0])
    for changed in mask + torch.ones(5, dtype=torch.int64), mask.long(), torch.ones(2, 5).long():
        with pytest.raises(TypeError, match=r"^attention_mask: expected a table .* torch.int64 of"):
            fastattn.transformers.attend(None, query, query, query, changed)


@pytest.mark.parametrize("name", ["output_attentions", "position_bias"])
def test_cu_seq_lens_go_with_neither_weights_nor_bias(name):
    query = torch.zeros(1, 4, 5, 8)
    options = {name: True if name == "output_attentions" else torch.zeros(1, 4, 5, 5)}
    cuts = torch.tensor([0, 2, 5])
    with pytest.raises(NotImplementedError, match=rf"^{name}: expected nothing with cu_seq"):
        fastattn.transformers.attend(
            None, query, query, query, None, cu_seq_lens_q=cuts, cu_seq_lens_k=cuts, **options
        )


def test_name():
    fastattn.transformers.register("mine")
    found = [transformers.AttentionInterface(), transformers.AttentionMaskInterface()]
    assert found[0]["mine"] is fastattn.transformers.attend
    assert found[1]["mine"] is fastattn.transformers.attention_mask
    with pytest.raises(TypeError, match=r"name: expected a string, got int"):
        fastattn.transformers.register(3)


@pytest.mark.parametrize("window", [0, -1])
@pytest.mark.parametrize("causal", [False, True])
def test_no_window_of_nothing(causal, window):
    """It would be an unbounded one."""
    query, allowed = torch.ones(1, 2, 6, 8), torch.ones(1, 1, 6, 6, dtype=torch.bool)
    options = {"sliding_window": window, "is_causal": causal}
    with pytest.raises(ValueError, match=rf"^sliding_window: expected at least 1 .* got {window}"):
        fastattn.transformers.attend(None, query, query, query, None, **options)
    out = fastattn.transformers.attend(None, query, query, query, allowed, **options)[
        0
    ]  # the mask says everything
    torch.testing.assert_close(out, torch.ones(1, 6, 2, 8))
