# SPDX-License-Identifier: MIT
"""The layers around attention, in plain NumPy: everything that a transformer's inference needs.

One token is one row: X is (..., tokens, D_model), and a weight maps from its rows to its columns,
``Y = X W``. Functions take arrays; layers are small dataclasses of arrays, called like functions.
There are no gradients and nothing is trained.

=========================== ======================================================================
position                    `sinusoidal_positions`, `rotary_embedding` (`Rotary`), `alibi_slopes`
one token at a time         `linear`, `layer_norm` (`LayerNorm`), `rms_norm` (`RMSNorm`), `relu`,
                            `gelu`, `silu`, `feed_forward` (`FeedForward`), `Embedding`
between tokens              `MultiHeadAttention`
stacks                      `EncoderLayer`, `Encoder`, `DecoderLayer`, `Decoder`, `EncoderDecoder`
decoding                    `decode` with `greedy` or `Sampler`
sequences of many lengths   `pad`, `pack`
=========================== ======================================================================
"""

from fastattn.layers.activations import gelu, relu, silu
from fastattn.layers.batching import pack, pad
from fastattn.layers.cache import Cache
from fastattn.layers.decoder import Decoder, DecoderLayer
from fastattn.layers.decoding import Sampler, decode, greedy
from fastattn.layers.embedding import Embedding
from fastattn.layers.encoder import Encoder, EncoderLayer
from fastattn.layers.encoder_decoder import EncoderDecoder
from fastattn.layers.feed_forward import FeedForward, feed_forward
from fastattn.layers.multi_head import MultiHeadAttention
from fastattn.layers.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from fastattn.layers.positions import alibi_slopes, sinusoidal_positions
from fastattn.layers.projections import linear
from fastattn.layers.rotary import Rotary, Rotation, rotary_embedding
from fastattn.layers.rotary_scaling import rotary_frequencies

__all__ = [
    "Cache",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "EncoderLayer",
    "FeedForward",
    "LayerNorm",
    "MultiHeadAttention",
    "RMSNorm",
    "Rotary",
    "Rotation",
    "Sampler",
    "alibi_slopes",
    "decode",
    "feed_forward",
    "gelu",
    "greedy",
    "layer_norm",
    "linear",
    "pack",
    "pad",
    "relu",
    "rms_norm",
    "rotary_embedding",
    "rotary_frequencies",
    "silu",
    "sinusoidal_positions",
]
