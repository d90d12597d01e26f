# SPDX-License-Identifier: MIT
"""Read a Llama-family language model from the files that Hugging Face writes."""

from pathlib import Path

import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers.decoder import Decoder, DecoderLayer
from fastattn.layers.embedding import Embedding
from fastattn.layers.feed_forward import FeedForward
from fastattn.layers.multi_head import MultiHeadAttention
from fastattn.layers.norms import RMSNorm
from fastattn.layers.rotary import Rotary
from fastattn.layers.rotary_scaling import KEYS, ORIGINAL
from fastattn.models.checkpoint import Checkpoint, divisor, load_tokenizer
from fastattn.models.llama import Llama
from fastattn.models.settings import of_a_file, of_kind, read_json, setting

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Whether layers of these types have the sliding window.
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def load_llama(directory: str | Path, *, dtype: npt.DTypeLike | None = None) -> Llama:
    """Read a Llama-family decoder: Llama, Mistral, Qwen2, Qwen3.

    Grouped heads, biases, rotary scaling, sliding windows and tied embeddings are as config.json
    says.

    Parameters
    ----------
    directory : path
        With config.json, model.safetensors or its shards, and for texts tokenizer.json (which
        needs ``pip install tokenizers``).
    dtype : {float32, float64}, optional
        Default: weights stay as stored, memory-mapped, in 16 bits too (bfloat16 needs
        ``pip install ml_dtypes``), and are widened to float32 in the cache, block by block, as
        they are used; memory is the size of the file, shared by processes. float32 widens them
        once, in memory: twice the memory of 16 bits, for faster steps.

    Returns
    -------
    Llama

    Raises
    ------
    FileNotFoundError
        A file is missing: which.
    ImportError
        tokenizer.json without the package tokenizers, or bfloat16 weights without ml_dtypes.
    TypeError
        Another dtype.
    ValueError
        An architecture or option that is not supported, a file that is damaged, or a tensor that is
        missing or of a wrong shape: which.

    Examples
    --------
    >>> model = load_llama("TinyLlama-1.1B-Chat-v1.0")  # doctest: +SKIP
    >>> model.complete("The capital of France is", max_new_tokens=8)  # doctest: +SKIP
    """
    checkpoint = Checkpoint(directory, dtype)
    family = checkpoint.supported("model_type", FAMILIES)
    width, count, vocabulary = (
        checkpoint.value(name, kind=int, least=1)
        for name in ("hidden_size", "num_hidden_layers", "vocab_size")
    )
    rotary = _rotary(checkpoint)
    table = checkpoint.tensor("model.embed_tokens.weight", vocabulary, width)
    layers = [_layer(checkpoint, family, index, rotary) for index in range(count)]
    norm = _norm(checkpoint, "model.norm", width)
    head = None
    if not checkpoint.value("tie_word_embeddings", kind=bool, default=False):
        head = checkpoint.weight("lm_head", vocabulary, width)
    checkpoint.expect_used("model.", "rotary_emb.inv_freq")
    return Llama(
        Embedding(table), Decoder(layers, norm), head, _stop_ids(checkpoint),
        load_tokenizer(checkpoint.directory),
    )  # fmt: skip


def _layer(checkpoint, family, index, rotary):
    width, hidden = (
        checkpoint.value(name, kind=int, least=1) for name in ("hidden_size", "intermediate_size")
    )
    checkpoint.supported("hidden_act", ("silu", "swish"), "silu")
    prefix = f"model.layers.{index}."

    def pair(name, outputs, inputs, bias):
        weight = checkpoint.weight(prefix + name, outputs, inputs)
        return weight, checkpoint.tensor(f"{prefix}{name}.bias", outputs) if bias else None

    bias = checkpoint.value("mlp_bias", kind=bool, default=False)
    w_gate, b_gate = pair("mlp.gate_proj", hidden, width, bias)
    w_in, b_in = pair("mlp.up_proj", hidden, width, bias)
    w_out, b_out = pair("mlp.down_proj", width, hidden, bias)
    return DecoderLayer(
        _attention(checkpoint, family, index, rotary, pair),
        FeedForward(w_in, w_out, b_in, b_out, w_gate, b_gate, activation="silu"),
        self_norm=_norm(checkpoint, prefix + "input_layernorm", width),
        feed_forward_norm=_norm(checkpoint, prefix + "post_attention_layernorm", width),
        norm_first=True,
    )


def _attention(checkpoint, family, index, rotary, pair):
    width = checkpoint.value("hidden_size", kind=int)
    heads = checkpoint.value("num_attention_heads", kind=int, least=1)
    kv_heads = divisor(checkpoint, "num_key_value_heads", heads, default=heads)
    depth = checkpoint.value("head_dim", kind=int, least=1, default=width // heads)
    bias = checkpoint.value("attention_bias", kind=bool, default=False)
    in_bias, out_bias = (True, False) if family == "qwen2" else (bias, bias)
    w_q, b_q = pair("self_attn.q_proj", heads * depth, width, in_bias)
    w_k, b_k = pair("self_attn.k_proj", kv_heads * depth, width, in_bias)
    w_v, b_v = pair("self_attn.v_proj", kv_heads * depth, width, in_bias)
    w_o, b_o = pair("self_attn.o_proj", width, heads * depth, out_bias)
    q_norm = k_norm = None
    if family == "qwen3":
        prefix = f"model.layers.{index}.self_attn."
        q_norm, k_norm = (_norm(checkpoint, prefix + name, depth) for name in ("q_norm", "k_norm"))
    return MultiHeadAttention(
        w_q, w_k, w_v, w_o, heads, kv_heads, b_q, b_k, b_v, b_o, q_norm, k_norm, rotary,
        causal=True, window_size=_window(checkpoint, family, index),
    )  # fmt: skip


def _norm(checkpoint, name, width):
    return RMSNorm(
        checkpoint.tensor(name + ".weight", width),
        checkpoint.value("rms_norm_eps", kind=float, least=0, default=1e-6),
    )


def _window(checkpoint, family, index):
    """Return the sliding window of a layer: a token sees itself and the size - 1 before it."""
    used = family == "mistral" or checkpoint.value("use_sliding_window", kind=bool, default=False)
    if family == "llama" or not used:
        return None
    size = checkpoint.value("sliding_window", kind=int, least=1, default=None)
    if size is None:
        return None
    kinds = checkpoint.value("layer_types", kind=list, default=None)
    if kinds is not None:
        count = checkpoint.value("num_hidden_layers")
        if len(kinds) < count:
            expected = f"{count}, one for each layer"
            raise ValueError(f"config.json: layer_types: expected {expected}, got {len(kinds)}")
        with of_a_file():
            kind = options.choice("config.json: layer_types", kinds[index], tuple(LAYER_TYPES))
        slides = LAYER_TYPES[kind]
    else:
        first = 0
        if family != "mistral":
            first = checkpoint.value("max_window_layers", kind=int, least=0)
        slides = index >= first
    return (size - 1, 0) if slides else None


def _rotary(checkpoint):
    """Return the rotary settings, which older and newer files keep in different places."""
    names = ("rope_parameters", "rope_scaling")
    found = dict(checkpoint.value(*names, kind=dict, default={}))
    base = found.pop("rope_theta", None) or checkpoint.value("rope_theta", default=10000.0)
    share = found.pop("partial_rotary_factor", None)
    share = share or checkpoint.value("partial_rotary_factor", default=1.0)
    if share != 1.0:
        raise ValueError(f"config.json: partial_rotary_factor: expected 1, got {share}")
    kind = found.pop("type", None)
    kind = found.pop("rope_type", None) or kind or "default"
    if of_kind("config.json: rope_type", kind, str) not in KEYS:
        known = ", ".join(KEYS)
        raise ValueError(f"config.json: rope_type: expected one of {known}, got {kind}")
    if kind == "dynamic":
        found[ORIGINAL] = checkpoint.value("max_position_embeddings")
    elif ORIGINAL in KEYS[kind][0]:
        found.setdefault(ORIGINAL, checkpoint.value(ORIGINAL, "max_position_embeddings"))
    base = of_kind("config.json: rope_theta", base, float)
    scaling = next((name for name in names if checkpoint.config.get(name) is not None), names[0])
    in_file = {"base": "config.json: rope_theta", "scaling": f"config.json: {scaling}"}
    with of_a_file(), _check.renamed(**in_file):
        return Rotary(base, {"rope_type": kind, **found})


def _stop_ids(checkpoint):
    path, name = checkpoint.directory / "generation_config.json", "eos_token_id"
    found = setting(path, read_json(path), name, default=None) if path.exists() else None
    if found is None:
        path = checkpoint.directory / "config.json"
        found = checkpoint.value(name, default=())
    listed = found if isinstance(found, list | tuple) else [found]
    return tuple(of_kind(f"{path}: {name}", each, int) for each in listed)
