# SPDX-License-Identifier: MIT
"""Bad input to the layers: the message names the argument, what was expected and what came."""

import numpy as np
import pytest

import fastattn
from fastattn import layers

pytestmark = pytest.mark.forces_isa

X = np.zeros((2, 5, 8), np.float32)
W = np.zeros((8, 8), np.float32)
IDS = np.zeros((2, 5), int)
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}


def attention(**options):
    return layers.MultiHeadAttention(W, W, W, W, 2, **options)


def cache():
    return fastattn.KVCache(2, 2, 4, capacity=8)


def decoder_layer(**options):
    return layers.DecoderLayer(attention(causal=True), layers.FeedForward(W, W), **options)


def crossing():
    return decoder_layer(cross_attention=attention())


def narrow(array):
    return array.astype(np.float16)


CASES = {
    # positions
    "length": (lambda: layers.sinusoidal_positions(-1, 4), ValueError, "length: expected an int"),
    "dim": (lambda: layers.sinusoidal_positions(4, 0), ValueError, "dim: expected an integer not"),
    "base": (
        lambda: layers.sinusoidal_positions(4, 4, base=-1.0), ValueError,
        "base: expected a positive number, got -1",
    ),
    "dtype": (
        lambda: layers.sinusoidal_positions(4, 4, dtype=np.int32), TypeError,
        "dtype: expected float32 or float64, got int32",
    ),
    "heads of alibi": (lambda: layers.alibi_slopes(0), ValueError, "heads: expected an integer no"),
    # rotary
    "rotary x": (
        lambda: layers.rotary_embedding(X[0, 0], np.arange(8)), ValueError,
        r"x: expected shape \(..., tokens, features\), got \(8,\)",
    ),
    "rotary positions": (
        lambda: layers.rotary_embedding(X, np.arange(4)), ValueError,
        r"positions: expected shape \(5,\) or \(batch, 5\) for x of shape \(2, 5, 8\), got \(4,\)",
    ),
    "rotary batch": (
        lambda: layers.rotary_embedding(X, np.zeros((3, 5), int)), ValueError,
        r"positions: expected shape .* got \(3, 5\)",
    ),
    "rotary floats": (
        lambda: layers.rotary_embedding(X, np.arange(5.0)), TypeError,
        "positions: expected integers, got dtype float64",
    ),
    "rotary scalar": (
        lambda: layers.rotary_embedding(X, np.array(3)), ValueError, "positions: expected shape",
    ),
    "rotary odd": (
        lambda: layers.rotary_embedding(X[..., :7], np.arange(5)), ValueError,
        r"x.shape\[-1\]: expected an even number, got 7",
    ),
    "rotary_dim": (
        lambda: layers.rotary_embedding(X, np.arange(5), rotary_dim=10), ValueError,
        "rotary_dim: expected at most 8, the features, got 10",
    ),
    "rotary base": (lambda: layers.Rotary(base=1.0), ValueError, "base: expected a number above 1"),
    "interleaved": (lambda: layers.Rotary(interleaved=1), TypeError, "interleaved: expected True"),
    "scaling": (lambda: layers.Rotary(scaling=2.0), TypeError, "scaling: expected a mapping"),
    "rope_type": (
        lambda: layers.Rotary(scaling={"rope_type": "su"}), ValueError,
        r"scaling\['rope_type'\]: expected one of 'default', 'linear'.*got 'su'",
    ),
    "rope_type missing": (
        lambda: layers.Rotary(scaling={"factor": 2.0}), TypeError, r"scaling\['rope_type'\]: expec",
    ),
    "scaling key missing": (
        lambda: layers.Rotary(scaling={"rope_type": "linear"}), ValueError,
        "scaling: expected the key 'factor' with rope_type 'linear'",
    ),
    "scaling key unknown": (
        lambda: layers.Rotary(scaling={**YARN, "beta": 1.0}), ValueError,
        r"scaling\['beta'\]: expected one of the keys of 'yarn' \(factor, original_max",
    ),
    "scaling value": (
        lambda: layers.Rotary(scaling={**YARN, "factor": -2.0}), ValueError,
        r"scaling\['factor'\]: expected a positive number, got -2",
    ),
    "truncate": (
        lambda: layers.Rotary(scaling={**YARN, "truncate": 1.0}), TypeError,
        r"scaling\['truncate'\]: expected True or False",
    ),
    "llama3": (
        lambda: layers.Rotary(scaling={
            "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
            "original_max_position_embeddings": 16,
        }), ValueError, r"scaling\['high_freq_factor'\]: expected more than low_freq_factor",
    ),
    # one token at a time
    "linear x": (lambda: layers.linear([[1.0]], W), TypeError, "x: expected a numpy.ndarray, got"),
    "linear x dtype": (
        lambda: layers.linear(narrow(X), W), TypeError,
        "x: expected dtype float32 or float64, got float16",
    ),
    "linear x scalar": (
        lambda: layers.linear(np.float32(1)[...], W), ValueError, "x: expected at least 1 axis",
    ),
    "linear weight": (
        lambda: layers.linear(X, W[:7]), ValueError,
        r"weight: expected shape \(8, any\), got \(7, 8\)",
    ),
    "linear weight dtype": (
        lambda: layers.linear(X, W.astype(int)), TypeError,
        "weight: expected one of the dtypes float16, bfloat16, float32, float64, got int64",
    ),
    "linear wide weight": (
        lambda: layers.linear(X, W.astype(np.float64)), TypeError,
        "weight: expected dtype float32 like x, or narrower, got float64",
    ),
    "linear bias": (
        lambda: layers.linear(X, W, W[0, :7]), ValueError,
        r"bias: expected shape \(8,\), got \(7,\)",
    ),
    "linear wide bias": (
        lambda: layers.linear(X, W, W[0].astype(np.float64)), TypeError, "bias: expected dtype flo",
    ),
    "norm weight": (
        lambda: layers.layer_norm(X, W[0, :7]), ValueError,
        r"weight: expected shape \(8,\), got \(7,\)",
    ),
    "norm eps": (lambda: layers.rms_norm(X, eps=-1.0), ValueError, "eps: expected a number not"),
    "approximate": (
        lambda: layers.gelu(X, approximate="erf"), ValueError,
        "approximate: expected one of 'none', 'tanh', got 'erf'",
    ),
    "out": (lambda: layers.silu(X, out=[1]), TypeError, "out: expected a numpy.ndarray, got list"),
    "out shape": (
        lambda: layers.silu(X, out=X[0].copy()), ValueError,
        r"out: expected shape \(2, 5, 8\), got \(5, 8\)",
    ),
    "out dtype": (
        lambda: layers.relu(X, out=X.astype(float)), TypeError,
        "out: expected dtype float32 like the input, got float64",
    ),
    "out strides": (
        lambda: layers.gelu(X, out=np.zeros((2, 5, 16), np.float32)[..., ::2]), ValueError,
        "out: expected a C-contiguous array",
    ),
    "activation": (
        lambda: layers.FeedForward(W, W, activation="mish"), ValueError,
        "activation: expected one of 'relu', 'gelu', 'gelu_tanh', 'silu', got 'mish'",
    ),
    "w_out": (
        lambda: layers.FeedForward(W, W[:7]), ValueError,
        r"w_out: expected shape \(8, any\), got \(7, 8\)",
    ),
    "w_gate": (
        lambda: layers.FeedForward(W, W, w_gate=W[:, :7]), ValueError,
        r"w_gate: expected shape \(8, 8\), got \(8, 7\)",
    ),
    "b_gate": (
        lambda: layers.FeedForward(W, W, b_gate=W[0]), ValueError, "b_gate: expected None without",
    ),
    "b_gate of the function": (
        lambda: layers.feed_forward(X, W, W, b_gate=W[0]), ValueError,
        "b_gate: expected None without w_gate, got an array",
    ),
    "embedding ids": (
        lambda: layers.Embedding(W)(IDS + 8), ValueError, "ids: expected numbers from 0 to 7",
    ),
    "embedding negative": (
        lambda: layers.Embedding(W)(IDS - 1), ValueError, "ids: expected numbers .* got -1",
    ),
    "embedding positions": (
        lambda: layers.Embedding(W, W[:4])(IDS), ValueError,
        "positions: expected numbers from 0 to 3, got 4",
    ),
    # attention
    "heads": (
        lambda: layers.MultiHeadAttention(W, W, W, heads=3), ValueError,
        r"w_q: expected a multiple of 3 columns, one group for each head, got shape \(8, 8\)",
    ),
    "kv_heads": (
        lambda: attention(kv_heads=3), ValueError, "kv_heads: expected a divisor of 2, got 3",
    ),
    "w_k": (
        lambda: layers.MultiHeadAttention(W, W[:, :4], W, heads=2), ValueError,
        r"w_k: expected shape \(any, 8\), got \(8, 4\)",
    ),
    "w_v": (
        lambda: layers.MultiHeadAttention(W, W, W[:7], heads=2), ValueError,
        r"w_v: expected shape \(8, any\), got \(7, 8\)",
    ),
    "w_o": (
        lambda: layers.MultiHeadAttention(W, W, W, W[:7]), ValueError,
        r"w_o: expected shape \(8, any\), got \(7, 8\)",
    ),
    "b_k": (
        lambda: attention(b_k=W[0, :7]), ValueError, r"b_k: expected shape \(8,\), got \(7,\)",
    ),
    "b_o": (
        lambda: layers.MultiHeadAttention(W, W, W, b_o=W[0]), ValueError, "b_o: expected None with",
    ),
    "x width": (lambda: attention()(X[..., :7]), ValueError, "x: expected 8 features, got shape"),
    "x without tokens": (
        lambda: attention()(X[0, 0]), ValueError, r"x: expected shape \(..., tokens, features\)",
    ),
    "context of causal": (
        lambda: attention(causal=True)(X, X), ValueError,
        "context: expected None with causal attention, got an argument",
    ),
    "context and cache": (
        lambda: attention()(X, X, cache=cache()), ValueError, "cache: expected None together",
    ),
    "cache without batch": (
        lambda: attention()(X[0], cache=cache()), ValueError,
        r"x: expected \(batch, tokens, features\) with cache, got \(5, 8\)",
    ),
    "cache and another attention": (
        lambda: attention()(X, cache=cache(), attention=fastattn.attention), ValueError,
        "attention: expected None with cache, which attends by itself, got both",
    ),
    "lengths": (
        lambda: attention()(X, lengths=[1, 9]), ValueError, "^lengths: expected values from 0 to 5",
    ),
    "memory of one layer": (
        lambda: layers.Decoder([decoder_layer()])(X, (X,)), TypeError,
        r"memory: expected an array or a list of \(k, v\), got tuple",
    ),
    "paged cache": (
        lambda: attention()(X, cache=fastattn.PagedKVCache(2, 4, 2, 4)), TypeError,
        "cache: expected one like fastattn.KVCache, got fastattn.caches.paged.PagedKVCache",
    ),
    "caches": (
        lambda: layers.Decoder([decoder_layer()])(X, caches=[3]), TypeError,
        r"^caches\[0\]: expected one like fastattn.KVCache, got int",
    ),
    "cache of another layout": (
        lambda: attention()(X, cache=fastattn.KVCache(2, 2, 4, capacity=8, layout="bshd")),
        ValueError, "cache: expected layout 'bhsd', got 'bshd'",
    ),
    "packed with batch": (
        lambda: attention()(X, cu_seqlens=[0, 5]), ValueError,
        r"x: expected \(tokens, features\) with cu_seqlens, got \(2, 5, 8\)",
    ),
    "packed with weights": (
        lambda: attention()(X[0], cu_seqlens=[0, 5], need_weights=True), ValueError,
        "need_weights: expected False with cu_seqlens, got True",
    ),
    "packed with mask": (
        lambda: attention()(X[0], cu_seqlens=[0, 5], attn_mask=np.ones((5, 5), bool)), ValueError,
        "attn_mask: expected None with cu_seqlens, got both",
    ),
    "cu_seqlens": (
        lambda: attention()(X[0], cu_seqlens=[0, 4]), ValueError,
        "cu_seqlens: expected 5 at last, the number of tokens, got 4",
    ),
    "cu_seqlens falling": (
        lambda: attention()(X[0], cu_seqlens=[0, 4, 3, 5]), ValueError, "cu_seqlens: .*not fall",
    ),
    "cu_seqlens rank": (
        lambda: attention()(X[0], cu_seqlens=[[0, 5]]), ValueError,
        r"cu_seqlens: expected shape \(B \+ 1,\), got shape \(1, 2\)",
    ),
    "positions without rotary": (
        lambda: attention()(X, positions=np.arange(5)), ValueError,
        "positions: expected None without rotary",
    ),
    "Rotation of another rotary": (
        lambda: attention(rotary=layers.Rotary())(
            X, positions=layers.Rotary(500.0).at(np.arange(5), 4)
        ), ValueError, "positions: expected a Rotation made by this layer's rotary",
    ),
    "need_weights": (
        lambda: attention()(X, need_weights=1), TypeError, "need_weights: expected True or False",
    ),
    "cache is full": (
        lambda: attention()(np.zeros((2, 9, 8), np.float32), cache=cache()), ValueError,
        "k: expected at most 8 tokens",
    ),
    # sequences of many lengths
    "pad floats": (
        lambda: layers.pad([[1], np.array([1.9])]), TypeError,
        r"rows\[1\]: expected integers, got dtype float64",
    ),
    "pad bools": (lambda: layers.pad([np.array([True])]), TypeError, r"rows\[0\]: expected integ"),
    "pad past int64": (
        lambda: layers.pad([np.array([2**64 - 1], np.uint64)]), ValueError,
        r"rows\[0\]: expected numbers up to 9223372036854775807, got 18446744073709551615",
    ),
    "pad rank": (
        lambda: layers.pad([IDS]), ValueError, r"rows\[0\]: expected shape \(tokens,\), got \(2, 5",
    ),
    "pad_id": (lambda: layers.pad([[1]], 1.5), TypeError, "pad_id: expected an integer"),
    "pad_id bool": (lambda: layers.pad([[1]], True), TypeError, "pad_id: expected an integer"),
    "pad_id past int64": (
        lambda: layers.pad([[1]], 2**63), ValueError, "pad_id: expected values from -9223",
    ),
    "pack floats": (
        lambda: layers.pack([np.array([1.9])]), TypeError, r"rows\[0\]: expected integers, got dty",
    ),
    "pack past int64": (
        lambda: layers.pack([[1], np.array([2**64 - 1], np.uint64)]), ValueError,
        r"rows\[1\]: expected numbers up to 9223372036854775807",
    ),
    "prompts": (
        lambda: next(layers.decode(len, [np.array([1.9])], len, max_new_tokens=1)), TypeError,
        "prompts: expected integers, got dtype float64",
    ),
    # stacks and decoding
    "decoder not causal": (
        lambda: layers.DecoderLayer(attention(), layers.FeedForward(W, W)), ValueError,
        "self_attention: expected causal attention in a decoder layer",
    ),
    "cross causal": (
        lambda: decoder_layer(cross_attention=attention(causal=True)), ValueError,
        "cross_attention: expected attention that is not causal",
    ),
    "memory": (lambda: decoder_layer()(X, X), ValueError, "memory: expected None without"),
    "no memory": (
        lambda: crossing()(X), ValueError, "memory: expected an array with cross-attention",
    ),
    "lengths of memory": (
        lambda: crossing()(X, X, memory_lengths=[1, 9]), ValueError, "^memory_lengths: .* to 5",
    ),
    "mask of memory": (
        lambda: crossing()(X, X, memory_mask=np.ones((7, 9), bool)), ValueError, "^memory_mask: ",
    ),
    "one cache": (
        lambda: layers.Decoder([decoder_layer()])(X, caches=cache()), TypeError, "^caches: ",
    ),
    "memory of layers": (
        lambda: layers.Decoder([crossing()])(X, []), ValueError, "memory: expected 1, one for each",
    ),
    "encoder with cache": (
        lambda: layers.EncoderLayer(attention(), layers.FeedForward(W, W))(X, cache=cache()),
        TypeError, "unexpected keyword argument 'cache'",
    ),
    "rotary_dim odd": (
        lambda: layers.Rotary(rotary_dim=3), ValueError, "rotary_dim: expected an even number, got",
    ),
    "norm_first": (
        lambda: decoder_layer(norm_first=1), TypeError, "norm_first: expected True or False",
    ),
    "encoder-decoder": (
        lambda: layers.EncoderDecoder(
            layers.Encoder([]), layers.Decoder([crossing(), decoder_layer()]),
            layers.Embedding(W), layers.Embedding(W),
        ), ValueError, "decoder: expected cross-attention in every layer",
    ),
    "temperature": (
        lambda: layers.Sampler(0.0), ValueError, "temperature: expected a positive number, got 0",
    ),
    "top_k": (lambda: layers.Sampler(top_k=0), ValueError, "top_k: expected an integer not"),
    "top_p": (lambda: layers.Sampler(top_p=1.5), ValueError, "top_p: expected a number above 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_error(name):
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message):
        call()


def read_only(out):
    out.flags.writeable = False
    return out


OUTS = {
    "strided": (lambda x: np.zeros((3, 8), np.float32)[:, ::2], "a C-contiguous array, got strid"),
    "transposed": (lambda x: np.zeros((4, 3), np.float32).T, "a C-contiguous array, got strid"),
    "read-only": (lambda x: read_only(np.zeros((3, 4), np.float32)), "a writable array, got a rea"),
    "x, read-only": (read_only, "a writable array, got a read-only one"),
}


@pytest.mark.parametrize("function", [layers.relu, layers.gelu, layers.silu])
@pytest.mark.parametrize("which", OUTS)
def test_nothing_is_written_to_a_wrong_out(function, which):
    x = np.full((3, 4), -2, np.float32)
    make, message = OUTS[which]
    out = make(x)
    before = out.copy()
    with pytest.raises(ValueError, match=f"out: expected {message}"):
        function(x, out=out)
    np.testing.assert_array_equal(out, before)
