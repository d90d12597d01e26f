# SPDX-License-Identifier: MIT
"""Small random Hugging Face models, each twice: with eager attention, and with fastattn."""

import copy

import torch
import transformers

import fastattn.transformers
from fastattn.transformers import _masks

fastattn.transformers.register()
transformers.logging.set_verbosity_error()

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "vocab_size": 99, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None,
}  # fmt: skip
DECODER = SMALL | {"num_key_value_heads": 2}
WHISPER = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 99,
    "num_mel_bins": 8, "max_source_positions": 30, "max_target_positions": 128, "pad_token_id": 0,
    "decoder_start_token_id": 1, "eos_token_id": None, "begin_suppress_tokens": None,
    "suppress_tokens": None,
}  # fmt: skip
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 99,
      "decoder_start_token_id": 0, "eos_token_id": None}  # fmt: skip

# Class of the model and its configuration; windows are shorter than the sequences of the tests.
DECODERS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "Mistral": ("MistralForCausalLM", "MistralConfig", DECODER | {"sliding_window": 6}),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 256,
        "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}),
    "Gemma-2": ("Gemma2ForCausalLM", "Gemma2Config", DECODER | {
        "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0}),
    "GPT-OSS": ("GptOssForCausalLM", "GptOssConfig", DECODER | {
        "head_dim": 16, "sliding_window": 6, "num_local_experts": 4, "layer_types": None}),
}  # fmt: skip
GEMMA_4 = ("Gemma4ForCausalLM", "Gemma4TextConfig", DECODER | {
    "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 16, "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 8})  # fmt: skip
ENCODERS = {
    "BERT": ("BertModel", "BertConfig", SMALL),
    "ModernBERT": ("ModernBertModel", "ModernBertConfig", SMALL | {
        "local_attention": 8, "global_attn_every_n_layers": 2}),
}  # fmt: skip


_made = {}


def pair(model, config, settings):
    """The same random model with eager attention and with fastattn."""
    key = repr((model, config, settings))
    if key not in _made:
        torch.manual_seed(0)
        config = getattr(transformers, config)(**settings, attn_implementation="eager")
        eager = getattr(transformers, model)._from_config(config).eval()
        with torch.no_grad():
            for name, parameter in eager.named_parameters():
                if name.endswith("sinks"):  # which are initialised to almost nothing
                    parameter.normal_()
                elif parameter.ndim > 1:  # so that attention is anything but uniform
                    parameter.mul_(3)
        ours = copy.deepcopy(eager)
        ours.set_attn_implementation("fastattn")
        _made[key] = eager, ours
    return _made[key]


def models(case):
    return pair(*case)


def generator():
    return torch.Generator().manual_seed(0)


def tokens(batch, length):
    return torch.randint(3, 99, (batch, length), generator=generator())


def audio(batch=2):
    """Input features of Whisper."""
    return torch.randn(batch, 8, 60, generator=generator())


def padding(kind, batch, length):
    """The 2-D attention mask of a padded batch, None for "none"."""
    if kind == "none":
        return None
    mask = torch.ones(batch, length, dtype=torch.long)
    for row, count in enumerate(range(0, 5 * batch, 5)):
        mask[row, :count] = 0
    if kind == "right":
        mask = mask.flip(1)
    if kind == "holes":
        mask[0, 3:5] = 0
    return mask


class NoTables:
    """From here on making a table (B, 1, L, S) fails; `masks` has what layers got instead."""

    def __init__(self, monkeypatch):
        self.masks = []

        def forbidden(**_):
            raise AssertionError("a table was made")

        def decode(mask, *lengths):
            self.masks.append(mask)
            return original(mask, *lengths)

        original = _masks.decode
        monkeypatch.setattr(_masks, "sdpa_mask", forbidden)
        monkeypatch.setattr(_masks, "decode", decode)
