# SPDX-License-Identifier: MIT
"""generate() with attn_implementation="fastattn": token for token what "eager" generates."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers_models import (  # noqa: E402
    DECODERS,
    GEMMA_4,
    T5,
    WHISPER,
    NoTables,
    audio,
    models,
    padding,
    pair,
    tokens,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")
VARIED = {"no_repeat_ngram_size": 2}  # for models that else say one word all the time


def compare(eager, ours, count=64, **options):
    settings = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False} | options
    with torch.no_grad():
        expected, actual = (model.generate(**settings) for model in (eager, ours))
    assert expected.shape[1] >= count and torch.equal(actual, expected)
    assert len(expected.unique()) > 9  # a model that repeats itself would prove nothing


@pytest.mark.parametrize("kind", ["none", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoder(name, cache, kind):
    """Windows of 6, so that the caches of sliding layers are full after a few tokens."""
    ids, mask = tokens(3, 17), padding("left" if kind == "left" else "right", 3, 17)
    if kind == "none":
        mask = torch.ones(3, 17, dtype=torch.long)
    compare(*models(DECODERS[name]), inputs=ids, attention_mask=mask, cache_implementation=cache)


def test_no_table_is_made(monkeypatch):
    """Neither for the prompt nor for any step."""
    NoTables(monkeypatch)
    for case in DECODERS["Llama"], DECODERS["Mistral"], DECODERS["GPT-OSS"], GEMMA_4:
        ids, mask = tokens(3, 17), padding("left", 3, 17)
        _, ours = models(case)
        ours.generate(ids, attention_mask=mask, max_new_tokens=9, min_new_tokens=9)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_layers_that_share_keys(cache):
    mask = torch.ones(2, 17, dtype=torch.long)
    compare(*models(GEMMA_4), 16, inputs=tokens(2, 17), attention_mask=mask,
            cache_implementation=cache, **VARIED)  # fmt: skip


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_whisper(cache):
    eager, ours = pair("WhisperForConditionalGeneration", "WhisperConfig", WHISPER)
    compare(eager, ours, input_features=audio(), cache_implementation=cache, **VARIED)


def test_t5():
    eager, ours = pair("T5ForConditionalGeneration", "T5Config", T5)
    mask = padding("right", 2, 13)
    compare(eager, ours, inputs=tokens(2, 13), attention_mask=mask, **VARIED)


@pytest.mark.parametrize("name", ["Llama", "GPT-OSS"])
def test_beams(name):
    mask = padding("left", 2, 9)
    options = {"inputs": tokens(2, 9), "attention_mask": mask, "num_beams": 3}
    compare(*models(DECODERS[name]), 32, **options)


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_prefill_in_chunks(name, cache):
    """Several queries behind a cache: causality is aligned to the end of the keys."""
    options = {"prefill_chunk_size": 5, "cache_implementation": cache}
    mask = torch.ones(2, 17, dtype=torch.long)
    compare(*models(DECODERS[name]), 16, inputs=tokens(2, 17), attention_mask=mask, **options)


def test_prompt_lookup():
    """Candidates are checked several at a time, and the cache is cropped."""
    ids = torch.cat([tokens(1, 9)] * 3, 1)
    mask = torch.ones_like(ids)
    compare(*models(DECODERS["Llama"]), 32, inputs=ids, attention_mask=mask,
            prompt_lookup_num_tokens=4)  # fmt: skip


def test_static_cache_without_a_mask():
    """Nothing but the cache says how many of its keys are there."""
    eager, ours = models(DECODERS["Llama"])
    logits = []
    for model in eager, ours:
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        with torch.no_grad():
            parts = [
                model(input_ids=part, past_key_values=cache).logits
                for part in tokens(2, 20).split([11, 8, 1], 1)
            ]
        logits.append(torch.cat(parts, 1))
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-5 * logits[0].abs().max())
