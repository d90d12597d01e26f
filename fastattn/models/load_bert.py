# SPDX-License-Identifier: MIT
"""Read a BERT-family encoder from the files that Hugging Face and sentence-transformers write."""

from dataclasses import dataclass
from pathlib import Path

import numpy.typing as npt

from fastattn.layers.embedding import Embedding
from fastattn.layers.encoder import Encoder, EncoderLayer
from fastattn.layers.feed_forward import FeedForward
from fastattn.layers.multi_head import MultiHeadAttention
from fastattn.layers.norms import LayerNorm
from fastattn.models.bert import POOLINGS, Bert
from fastattn.models.checkpoint import Checkpoint, divisor, load_tokenizer
from fastattn.models.settings import of_kind, read_json, setting

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Names:
    """What a family calls its tensors; `layer` and `prefix` come before the rest."""

    prefix: str
    layer: str
    query: str
    key: str
    value: str
    attended: str
    attention_norm: str
    wide: str
    narrow: str
    feed_forward_norm: str


def _bert_names(prefix):
    return Names(
        prefix, "encoder.layer.{}.", "attention.self.query", "attention.self.key",
        "attention.self.value", "attention.output.dense", "attention.output.LayerNorm",
        "intermediate.dense", "output.dense", "output.LayerNorm",
    )  # fmt: skip


FAMILIES = {
    "bert": _bert_names("bert."),
    "roberta": _bert_names("roberta."),
    "xlm-roberta": _bert_names("roberta."),
    "camembert": _bert_names("roberta."),
    "distilbert": Names(
        "distilbert.", "transformer.layer.{}.", "attention.q_lin", "attention.k_lin",
        "attention.v_lin", "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2",
        "output_layer_norm",
    ),
}  # fmt: skip
# Parts behind the encoder, which its hidden states do not depend on.
IGNORED = ("pooler.dense.weight", "pooler.dense.bias")


def load_bert(directory: str | Path, *, dtype: npt.DTypeLike | None = None) -> Bert:
    """Read a BERT-family encoder: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT.

    Pooling and normalization are those of sentence-transformers' modules.json, or the mean and none
    where there is no such file.

    Parameters
    ----------
    directory : path
        With config.json, model.safetensors or its shards, and for texts tokenizer.json (which
        needs ``pip install tokenizers``).
    dtype : {float32, float64}, optional
        What the weights are converted to, once. Default: as stored, memory-mapped; 16-bit weights
        are then widened as they are used.

    Returns
    -------
    Bert

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
    >>> model = load_bert("all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> model.encode(["Rain.", "The cat sleeps."]).shape  # doctest: +SKIP
    (2, 384)
    """
    checkpoint = Checkpoint(directory, dtype)
    family = checkpoint.supported("model_type", tuple(FAMILIES))
    checkpoint.supported("position_embedding_type", ("absolute",), "absolute")
    if checkpoint.value("is_decoder", kind=bool, default=False):
        raise ValueError("config.json: is_decoder: expected an encoder, got true")
    names = FAMILIES[family]
    width = checkpoint.value("hidden_size", "dim", kind=int, least=1)
    wrapped = f"{names.prefix}embeddings.word_embeddings.weight" in checkpoint
    prefix = names.prefix if wrapped else ""
    layers = [
        _layer(checkpoint, names, f"{prefix}{names.layer.format(index)}", width)
        for index in range(checkpoint.value("num_hidden_layers", "n_layers", kind=int, least=1))
    ]
    positions = checkpoint.value("max_position_embeddings", kind=int, least=1)
    # RoBERTa counts positions from behind the padding id.
    first = 0
    if names.prefix == "roberta.":
        first = checkpoint.value("pad_token_id", kind=int, least=0, default=1) + 1
        if first >= positions:
            expected = f"a number below {positions - 1}, the last position"
            raise ValueError(f"config.json: pad_token_id: expected {expected}, got {first - 1}")
    table, types = f"{prefix}embeddings.", None
    if family != "distilbert":
        count = checkpoint.value("type_vocab_size", kind=int, least=1)
        types = checkpoint.tensor(table + "token_type_embeddings.weight", count, width)
    vocabulary = checkpoint.value("vocab_size", kind=int, least=1)
    embedding = Embedding(
        checkpoint.tensor(table + "word_embeddings.weight", vocabulary, width),
        checkpoint.tensor(table + "position_embeddings.weight", positions, width),
    )
    norm = _norm(checkpoint, table + "LayerNorm", width)
    checkpoint.expect_used(prefix, *IGNORED, "position_ids")
    return Bert(
        embedding, norm, Encoder(layers), types, first,
        tokenizer=load_tokenizer(checkpoint.directory),
        **_text_options(checkpoint.directory, positions - first),
    )  # fmt: skip


def _layer(checkpoint, names, prefix, width):
    def pair(name, outputs, inputs):
        return (
            checkpoint.weight(prefix + name, outputs, inputs),
            checkpoint.tensor(f"{prefix}{name}.bias", outputs),
        )

    hidden = checkpoint.value("intermediate_size", "hidden_dim", kind=int, least=1)
    activation = checkpoint.supported(
        "activation" if "activation" in checkpoint.config else "hidden_act", tuple(ACTIVATIONS)
    )
    heads = "n_heads" if "n_heads" in checkpoint.config else "num_attention_heads"
    (w_q, b_q), (w_k, b_k), (w_v, b_v), (w_o, b_o) = (
        pair(name, width, width) for name in (names.query, names.key, names.value, names.attended)
    )
    w_in, b_in = pair(names.wide, hidden, width)
    w_out, b_out = pair(names.narrow, width, hidden)
    return EncoderLayer(
        MultiHeadAttention(
            w_q, w_k, w_v, w_o, divisor(checkpoint, heads, width),
            b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o,
        ),
        FeedForward(w_in, w_out, b_in, b_out, activation=ACTIVATIONS[activation]),
        _norm(checkpoint, prefix + names.attention_norm, width),
        _norm(checkpoint, prefix + names.feed_forward_norm, width),
    )  # fmt: skip


def _norm(checkpoint, name, width):
    return LayerNorm(
        checkpoint.tensor(name + ".weight", width),
        checkpoint.tensor(name + ".bias", width),
        checkpoint.value("layer_norm_eps", kind=float, least=0, default=1e-12),
    )


def _text_options(directory, longest):
    """Return what sentence-transformers' files say about texts, as arguments of `Bert`."""
    found = {"max_tokens": longest, "pooling": "mean", "normalize": False}
    path = directory / "sentence_bert_config.json"
    if path.exists():
        limits = read_json(path)
        most = setting(path, limits, "max_seq_length", kind=int, least=0, default=longest)
        found["max_tokens"] = min(longest, most or longest)
        found["lowercase"] = setting(path, limits, "do_lower_case", kind=bool, default=False)
    path = directory / "modules.json"
    if path.exists():
        for module in read_json(path, list):
            module = of_kind(str(path), module, dict)
            name = setting(path, module, "type", kind=str)
            kind = name.rsplit(".", 1)[-1]
            if kind == "Pooling":
                folder = setting(path, module, "path", kind=str)
                found["pooling"] = _pooling(directory / folder / "config.json")
            elif kind == "Normalize":
                found["normalize"] = True
            elif kind != "Transformer":
                known = "Transformer, Pooling, Normalize"
                raise ValueError(f"{path}: expected modules {known}, got {name}")
    return found


def _pooling(path):
    config = read_json(path)
    modes = [config["pooling_mode"]] if "pooling_mode" in config else []
    for name in config:
        if name.startswith("pooling_mode_") and config[name]:
            modes.append(name.removeprefix("pooling_mode_").removesuffix("_tokens"))
    modes = ["cls" if mode == "cls_token" else mode for mode in modes]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(f"{path}: expected one pooling of {', '.join(POOLINGS)}, got {modes}")
    return modes[0]
