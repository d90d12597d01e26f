# SPDX-License-Identifier: MIT
"""Bad parts of layers and stacks: parameters, callables, and what they return."""

import dataclasses

import numpy as np
import pytest

from fastattn import layers

pytestmark = pytest.mark.forces_isa

W = np.eye(8, dtype=np.float32)
X = np.ones((2, 5, 8), np.float32)


def attention(**options):
    return layers.MultiHeadAttention(W, W, W, W, 2, **options)


LAYERS = {
    "encoder": lambda feed, **options: layers.EncoderLayer(attention(), feed, **options),
    "decoder": lambda feed, **options: layers.DecoderLayer(attention(causal=True), feed, **options),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_what_feed_forward_returns_is_left_as_it_is(kind, norm_first):
    constant = np.full_like(X, 3)
    constant.flags.writeable = False
    layer = LAYERS[kind](lambda x: constant, norm_first=norm_first)
    np.testing.assert_allclose(layer(X), 5)
    constant.flags.writeable = True
    for _ in range(2):
        np.testing.assert_allclose(layer(X), 5)
    np.testing.assert_array_equal(constant, 3)
    np.testing.assert_allclose(LAYERS[kind](lambda x: x)(X), 4)  # attention, identity: twice twice
    np.testing.assert_array_equal(X, 1)


@pytest.mark.parametrize("kind", LAYERS)
def test_threads_are_those_of_the_attention(kind):
    with pytest.raises(ValueError, match="num_threads: expected an integer not below 1, got 0"):
        LAYERS[kind](lambda x: x)(X, num_threads=0)


RESULTS = {
    "rank": (
        lambda x: np.stack([x] * 3), ValueError, r"shape \(2, 5, 8\) like x, got \(3, 2, 5, 8\)",
    ),
    "width": (lambda x: x[..., :1], ValueError, r"shape \(2, 5, 8\) like x, got \(2, 5, 1\)"),
    "integers": (lambda x: x.astype(int), TypeError, "dtype float32 like x, got int64"),
    "wide": (lambda x: x.astype(np.float64), TypeError, "dtype float32 like x, got float64"),
    "no array": (lambda x: 5, TypeError, "a numpy.ndarray, got int"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("result", RESULTS)
def test_result_of_feed_forward(kind, norm_first, result):
    function, error, message = RESULTS[result]
    layer = LAYERS[kind](function, norm_first=norm_first)
    with pytest.raises(error, match=rf"^feed_forward\(x\): expected {message}"):
        layer(X)


def test_result_of_attention():
    narrow = layers.MultiHeadAttention(W, W, W, W[:, :1], 2)
    with pytest.raises(ValueError, match=r"^attention\(x\): expected shape \(2, 5, 8\) like x"):
        layers.EncoderLayer(narrow, lambda x: x)(X)


def feed_forward(w_in, w_out, **options):
    return layers.feed_forward(X, w_in, w_out, **options)


@pytest.mark.parametrize("make", [feed_forward, layers.FeedForward])
@pytest.mark.parametrize(("hidden", "gate", "out"), [(1, 8, 8), (8, 1, 8), (7, 8, 7), (8, 7, 8)])
def test_the_gate_is_as_wide_as_what_it_gates(make, hidden, gate, out):
    with pytest.raises(
        ValueError, match=rf"^w_gate: expected shape \(8, {hidden}\), got \(8, {gate}"
    ):
        make(W[:, :hidden], W[:out], w_gate=W[:, :gate])


@pytest.mark.parametrize("name", ["w_in", "w_out", "w_gate", "b_in", "b_out", "b_gate"])
def test_the_wide_parameter_of_feed_forward_is_named(name):
    options = {"w_in": W, "w_out": W, "w_gate": W, "b_in": W[0], "b_out": W[0], "b_gate": W[0]}
    options[name] = options[name].astype(np.float64)
    with pytest.raises(TypeError, match=f"^{name}: expected dtype float32 like x, or narrower"):
        layers.FeedForward(**options)(X)


def test_features_of_feed_forward():
    with pytest.raises(ValueError, match=r"^x: expected 8 features, got shape \(2, 5, 7\)"):
        layers.FeedForward(W, W)(X[..., :7])


NAN, INF = np.nan, np.inf
LOGITS = {
    "NaN": ([[1, 2], [NAN, 1]], ValueError, "finite numbers, or -inf beside.*got NaN in row 1"),
    "NaN and inf": ([[INF, NAN]], ValueError, "finite numbers.*got NaN in row 0"),
    "inf": ([[-INF, INF]], ValueError, r"finite numbers.*got \+inf in row 0"),
    "nothing allowed": ([[0, 0], [-INF, -INF]], ValueError, "finite.*got -inf alone in row 1"),
    "rank 1": ([1.0, 2.0], ValueError, r"shape \(batch, vocabulary\), got \(2,\)"),
    "rank 3": ([[[1.0]]], ValueError, r"shape \(batch, vocabulary\), got \(1, 1, 1\)"),
    "no vocabulary": (np.ones((2, 0)), ValueError, r"shape \(batch, vocabulary\), got \(2, 0\)"),
    "complex": ([[1j]], TypeError, "real numbers, got dtype complex128"),
    "no array": (5, TypeError, "an array of numbers, got int"),
}


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("case", LOGITS)
def test_logits_without_a_distribution(case, listed):
    logits, error, message = LOGITS[case]
    with pytest.raises(error, match=f"^logits: expected {message}"):
        layers.Sampler(seed=0)(logits if listed or case == "no array" else np.array(logits))
    if case in ("rank 1", "rank 3", "no vocabulary", "complex", "no array"):
        with pytest.raises(error, match=f"^logits: expected {message}"):
            layers.greedy(logits)


@pytest.mark.parametrize(
    "seed, error, found",
    [("x", TypeError, ", got str"), (1.5, TypeError, ", got float"),
     (True, TypeError, ", got bool"), ([1], TypeError, ", got list"),
     (-1, ValueError, " not below 0, got -1")],
)  # fmt: skip
def test_seed_of_a_sampler(seed, error, found):
    with pytest.raises(error, match=f"^seed: expected an integer{found}$"):
        layers.Sampler(seed=seed)


def test_seeds_of_every_kind():
    for seed in 0, np.int64(3), 2**200, None, np.random.default_rng(1):
        assert layers.Sampler(seed=seed)(np.ones((2, 3))).shape == (2,)


def test_logits_of_a_list_and_of_no_sequence():
    assert layers.Sampler(seed=0)([[-INF, 1], [2, -INF]]).tolist() == [1, 0]
    assert layers.Sampler(seed=0)(np.ones((0, 3))).shape == (0,)


def test_logits_of_what_has_ended_may_be_anything():
    """Sequence 0 ends at once; what the model makes of it then is NaN."""
    logits = iter([[[9.0, 0.0], [0.0, 9.0]], [[NAN, NAN], [9.0, 0.0]]])
    steps = layers.decode(
        lambda ids, lengths: np.array(next(logits)), [[1], [1]], layers.Sampler(1e-3, seed=0),
        max_new_tokens=3, stop_ids=[0],
    )  # fmt: skip
    assert [chosen.tolist() for chosen in steps] == [[0, 1], [-1, 0]]


NORMS = {
    "weight type": ((5,), TypeError, "weight: expected a numpy.ndarray, got int"),
    "weight rank": ((W,), ValueError, r"weight: expected shape \(any,\), got \(8, 8\)"),
    "weight dtype": (
        (np.ones(8, int),), TypeError, "weight: expected one of the dtypes .* got int64",
    ),
    "bias": ((W[0], W[0, :7]), ValueError, r"bias: expected shape \(8,\), got \(7,\)"),
    "bias alone": ((None, W), ValueError, r"bias: expected shape \(any,\), got \(8, 8\)"),
    "eps": ((W[0], W[0], -1), ValueError, "eps: expected a number not below 0, got -1"),
    "eps type": ((None, None, "x"), TypeError, "eps: expected a number, got str"),
}  # fmt: skip


@pytest.mark.parametrize("case", NORMS)
def test_a_norm_is_checked_when_it_is_made(case):
    """Not at the first token, when the rest of the model is there."""
    (weight, *rest), error, message = NORMS[case]
    with pytest.raises(error, match=f"^{message}"):
        layers.LayerNorm(weight, *rest)
    if not case.startswith("bias"):
        with pytest.raises(error, match=f"^{message}"):
            layers.RMSNorm(weight, *rest[1:])


FEED = layers.FeedForward(W, W)
WIDE = X.astype(np.float64)


def crossing():
    return layers.DecoderLayer(attention(causal=True), FEED, cross_attention=attention())


PARTS = {
    "context width": (
        lambda: attention()(X, X[..., :7]), ValueError,
        r"context: expected 8 features, got shape \(2, 5, 7\)",
    ),
    "context type": (lambda: attention()(X, 5), TypeError, "context: expected a numpy.ndarr"),
    "context integers": (
        lambda: attention()(X, X.astype(int)), TypeError,
        "context: expected dtype float32 or float64, got int64",
    ),
    "context wide": (
        lambda: attention()(X, WIDE), TypeError,
        "context: expected dtype float32 like x, got float64",
    ),
    "context rank": (
        lambda: attention()(X, X[0, 0]), ValueError,
        r"context: expected shape \(..., tokens, features\), got \(8,\)",
    ),
    "context of the method": (
        lambda: attention().keys_values(X[..., :7]), ValueError, "context: expected 8 features",
    ),
    "x of the method": (
        lambda: attention().queries(X[..., :7]), ValueError, "x: expected 8 features",
    ),
    "memory wide": (
        lambda: crossing()(X, WIDE), TypeError, "memory: expected dtype float32 like x, got",
    ),
    "memory of one": (
        lambda: crossing()(X, (X,)), ValueError, r"memory: expected 2 arrays, \(k, v\), got 1",
    ),
    "memory of more layers": (
        lambda: layers.Decoder([crossing()])(X, [(X, X)] * 2), ValueError,
        "memory: expected 1, one for each layer, got 2",
    ),
    "memory of the method": (
        lambda: layers.Decoder([crossing()]).keys_values(X[..., :7]), ValueError,
        "memory: expected 8 features, got shape",
    ),
    "keys_values of one": (
        lambda: attention()(X, keys_values=(X,)), ValueError,
        r"keys_values: expected 2 arrays, \(k, v\), got 1",
    ),
    "keys_values type": (
        lambda: attention()(X, keys_values=X), TypeError,
        r"keys_values: expected a tuple \(k, v\), got numpy.ndarray",
    ),
    "rotary": (
        lambda: attention(rotary=5), TypeError, "rotary: expected a Rotary, got int",
    ),
    "causal": (
        lambda: attention(causal=[]), TypeError, "causal: expected True or False, got list",
    ),
    "window_size": (lambda: attention(window_size=4), TypeError, "window_size: expected a pair"),
    "scale": (lambda: attention(scale="x"), TypeError, "scale: expected a number, got str"),
    "softcap": (lambda: attention(softcap=-1), ValueError, "softcap: expected a number not below"),
    "slopes": (
        lambda: attention(alibi_slopes=np.ones((3, 8))), ValueError,
        r"alibi_slopes: expected shape \(2,\) or \(3, 2\), got shape \(3, 8\)",
    ),
    "sinks": (lambda: attention(sinks=[0.5]), ValueError, r"sinks: expected shape \(2,\), got sh"),
    "another attention": (
        lambda: attention()(X, attention="x"), TypeError, "attention: expected a callable, got str",
    ),
    "turn": (
        lambda: attention().queries(X, np.arange(5)), TypeError,
        "turn: expected a Rotation, got numpy.ndarray",
    ),
    "q_norm": (lambda: attention(q_norm=5), TypeError, "q_norm: expected a callable, got int"),
    "k_norm": (lambda: attention(k_norm=5), TypeError, "k_norm: expected a callable, got int"),
    "encoder attention": (
        lambda: layers.EncoderLayer(None, FEED), TypeError, "attention: expected a callable, got N",
    ),
    "encoder norm": (
        lambda: layers.EncoderLayer(attention(), FEED, X), TypeError,
        "attention_norm: expected a callable, got numpy.ndarray",
    ),
    "decoder attention": (
        lambda: layers.DecoderLayer(None, FEED), TypeError, "self_attention: expected a callable",
    ),
    "decoder attention without causal": (
        lambda: layers.DecoderLayer(len, FEED), ValueError, "self_attention: expected causal",
    ),
    "cross attention": (
        lambda: layers.DecoderLayer(attention(causal=True), FEED, 5), TypeError,
        "cross_attention: expected a callable, got int",
    ),
    "layers": (
        lambda: layers.Encoder(layers.EncoderLayer(attention(), FEED)), TypeError,
        "layers: expected a sequence of layers, got fastattn.layers.encoder.EncoderLayer",
    ),
    "layers that end": (
        lambda: layers.Decoder(iter([])), TypeError, "layers: expected a sequence of layers, got l",
    ),
    "no layer": (lambda: layers.Decoder([]), ValueError, "layers: expected at least one layer"),
    "layer": (lambda: layers.Decoder([5]), TypeError, r"layers\[0\]: expected a callable, got int"),
    "norm": (lambda: layers.Encoder([], 5), TypeError, "norm: expected a callable, got int"),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_the_part_that_does_not_fit_is_named(case):
    call, error, message = PARTS[case]
    with pytest.raises(error, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    "value, error, found",
    [(5, TypeError, "int"), (None, TypeError, "NoneType"), ({1, 2}, TypeError, "set"),
     (np.array(3), ValueError, r"shape \(\)")],
)  # fmt: skip
def test_what_is_no_sequence_is_named(value, error, found):
    for call in layers.pad, layers.pack:
        with pytest.raises(error, match=f"^rows: expected a sequence, got {found}$"):
            call(value)
    with pytest.raises(error, match=f"^prompts: expected a sequence, got {found}$"):
        next(layers.decode(len, value, len, max_new_tokens=1))


@pytest.mark.parametrize("name", ["step", "choose"])
def test_functions_of_decode(name):
    given = {"step": len, "choose": len, name: np.ones(3)}
    with pytest.raises(TypeError, match=f"^{name}: expected a callable, got numpy.ndarray$"):
        next(layers.decode(prompts=[[1]], max_new_tokens=1, **given))


@pytest.mark.parametrize("kind", LAYERS)
def test_feed_forward_is_a_callable(kind):
    with pytest.raises(TypeError, match=r"^feed_forward: expected a callable, got NoneType"):
        LAYERS[kind](None)


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"])
def test_the_wide_parameter_of_attention_is_named(name):
    layer = layers.MultiHeadAttention(W, W, W, W, 2, b_q=W[0], b_k=W[0], b_v=W[0], b_o=W[0])
    layer = dataclasses.replace(layer, **{name: getattr(layer, name).astype(np.float64)})
    with pytest.raises(TypeError, match=f"^{name}: expected dtype float32 like x, or narrower"):
        layer(X)


@pytest.mark.parametrize(
    "index, value, message",
    [(0, 1, "encoder: expected a callable, got int"),
     (1, crossing(), "decoder: expected a Decoder, got fastattn.layers.decoder.DecoderLayer"),
     (2, W, "source_embedding: expected a callable, got numpy.ndarray"),
     (3, None, "target_embedding: expected an Embedding, got NoneType")],
)  # fmt: skip
def test_parts_of_an_encoder_decoder(index, value, message):
    tables = layers.Embedding(W), layers.Embedding(W)
    parts = [layers.Encoder([]), layers.Decoder([crossing()]), *tables]
    parts[index] = value
    with pytest.raises(TypeError, match=f"^{message}$"):
        layers.EncoderDecoder(*parts)


def test_decoder_layers_that_are_functions_have_no_cross_attention():
    tables = layers.Embedding(W), layers.Embedding(W)
    with pytest.raises(ValueError, match=r"^decoder: expected cross-attention in every layer"):
        layers.EncoderDecoder(layers.Encoder([]), layers.Decoder([len]), *tables)


@pytest.mark.parametrize(
    "changes, error, message",
    [({"source_ids": [[1, 8]]}, ValueError, "source_ids: expected numbers from 0 to 7, got 8"),
     ({"target_ids": [1.5]}, TypeError, "target_ids: expected integers, got dtype float64"),
     ({"source_lengths": [3]}, ValueError, "source_lengths: expected values from 0 to 2, got 3"),
     ({"source_ids": [[1], [2]]}, ValueError,
      r"source_ids: expected a batch \(1,\) like that of target_ids, got \(2,\)")],
)  # fmt: skip
def test_ids_of_an_encoder_decoder(changes, error, message):
    encoder = layers.Encoder([layers.EncoderLayer(attention(), FEED)])
    tables = layers.Embedding(W), layers.Embedding(W)
    model = layers.EncoderDecoder(encoder, layers.Decoder([crossing()]), *tables)
    given = {"source_ids": [[1, 2]], "target_ids": [[1, 2, 3]], **changes}
    with pytest.raises(error, match=f"^{message}$"):
        model(**given)
    for wrong in "x", 1.5, True, [[1, 2], [3]], None, (1, 2):
        with pytest.raises((TypeError, ValueError), match=r"^begin_id: expected "):
            model.greedy([1], begin_id=wrong, max_new_tokens=1)


def test_the_wide_head_is_named():
    stacks = layers.Encoder([]), layers.Decoder([crossing()])
    tables = layers.Embedding(W), layers.Embedding(W)
    model = layers.EncoderDecoder(*stacks, *tables, w_head=W.astype(np.float64))
    with pytest.raises(TypeError, match=r"^w_head: expected dtype float32 like x, or narrower"):
        model(np.ones((1, 2), int), np.ones((1, 2), int))
