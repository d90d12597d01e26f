# SPDX-License-Identifier: MIT
"""Encoder, decoder and both together, against torch.nn, and step by step against all at once."""

import copy
import dataclasses

import numpy as np
import pytest
from cases import normal
from programs import run
from torch_layers import layer_state, load

import fastattn
from fastattn import layers
from fastattn.layers import decoding

TOLERANCE = 1e-5
WIDTH, HEADS, HIDDEN, VOCABULARY = 24, 4, 40, 50


def random_norm(rng):
    return layers.LayerNorm(1 + 0.1 * normal(rng, WIDTH), 0.1 * normal(rng, WIDTH))


def random_attention(rng, **options):
    weights = [normal(rng, WIDTH, WIDTH) / WIDTH**0.5 for _ in range(4)]
    biases = {f"b_{name}": 0.1 * normal(rng, WIDTH) for name in "qkvo"}
    return layers.MultiHeadAttention(*weights, heads=HEADS, **biases, **options)


def random_feed_forward(rng, activation):
    return layers.FeedForward(
        normal(rng, WIDTH, HIDDEN) / WIDTH**0.5, normal(rng, HIDDEN, WIDTH) / HIDDEN**0.5,
        0.1 * normal(rng, HIDDEN), 0.1 * normal(rng, WIDTH),
        activation=activation,
    )  # fmt: skip


def encoder_layer(rng, norm_first=False, activation="relu"):
    return layers.EncoderLayer(
        random_attention(rng), random_feed_forward(rng, activation), random_norm(rng),
        random_norm(rng), norm_first,
    )  # fmt: skip


def decoder_layer(rng, norm_first=False, activation="relu", cross=True):
    return layers.DecoderLayer(
        random_attention(rng, causal=True), random_feed_forward(rng, activation),
        random_attention(rng) if cross else None, random_norm(rng),
        random_norm(rng) if cross else None, random_norm(rng), norm_first,
    )  # fmt: skip


# --- torch ---------------------------------------------------------------------------------------


def torch_layer(torch, kind, layer):
    module = kind(
        WIDTH, HEADS, HIDDEN, dropout=0.0, activation=layer.feed_forward.activation,
        batch_first=True, norm_first=layer.norm_first,
    )  # fmt: skip
    return load(torch, module, layer_state(layer))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_torch_encoder_layer(rng, norm_first, activation):
    torch = pytest.importorskip("torch")
    layer = encoder_layer(rng, norm_first, activation)
    theirs = torch_layer(torch, torch.nn.TransformerEncoderLayer, layer)
    x, lengths = normal(rng, 2, 7, WIDTH), np.array([7, 4])
    padding = torch.from_numpy(np.arange(7) >= lengths[:, None])
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(x), src_key_padding_mask=padding).numpy()
    found = layer(x, lengths=lengths)
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(found[b, :length], expected[b, :length], atol=TOLERANCE)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_torch_decoder_layer(rng, norm_first, activation):
    torch = pytest.importorskip("torch")
    layer = decoder_layer(rng, norm_first, activation)
    theirs = torch_layer(torch, torch.nn.TransformerDecoderLayer, layer)
    x, memory, lengths = normal(rng, 2, 5, WIDTH), normal(rng, 2, 8, WIDTH), np.array([8, 3])
    padding = torch.from_numpy(np.arange(8) >= lengths[:, None])
    with torch.inference_mode():
        expected = theirs(
            torch.from_numpy(x), torch.from_numpy(memory), memory_key_padding_mask=padding,
            tgt_mask=torch.from_numpy(~np.tri(5, dtype=bool)),
        )  # fmt: skip
    found = layer(x, memory, memory_lengths=lengths)
    np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)
    as_mask = layer(x, memory, memory_mask=~padding.numpy()[:, None, None])
    np.testing.assert_allclose(as_mask, expected.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_transformer(rng, norm_first):
    torch = pytest.importorskip("torch")
    encoder = layers.Encoder([encoder_layer(rng, norm_first) for _ in range(2)], random_norm(rng))
    decoder = layers.Decoder([decoder_layer(rng, norm_first) for _ in range(3)], random_norm(rng))
    theirs = torch.nn.Transformer(
        WIDTH, HEADS, 2, 3, HIDDEN, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    state = {}
    for name, ours in ("encoder", encoder), ("decoder", decoder):
        for index, layer in enumerate(ours.layers):
            for part, value in layer_state(layer).items():
                state[f"{name}.layers.{index}.{part}"] = value
        state |= {f"{name}.norm.weight": ours.norm.weight, f"{name}.norm.bias": ours.norm.bias}
    load(torch, theirs, state)
    source, target = normal(rng, 2, 8, WIDTH), normal(rng, 2, 5, WIDTH)
    with torch.inference_mode():
        expected = theirs(
            torch.from_numpy(source), torch.from_numpy(target),
            tgt_mask=torch.from_numpy(~np.tri(5, dtype=bool)), tgt_is_causal=True,
        )  # fmt: skip
    found = decoder(target, encoder(source))
    np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)


# --- stacks --------------------------------------------------------------------------------------


def test_the_input_is_left_as_it_is(rng):
    x, memory = normal(rng, 2, 5, WIDTH), normal(rng, 2, 6, WIDTH)
    before = x.copy(), memory.copy()
    for norm_first in (False, True):
        encoder_layer(rng, norm_first)(x)
        decoder_layer(rng, norm_first)(x, memory)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(memory, before[1])


def test_patterns_of_every_layer(rng):
    encoder = layers.Encoder([encoder_layer(rng) for _ in range(2)])
    decoder = layers.Decoder([decoder_layer(rng) for _ in range(3)])
    source, target = normal(rng, 2, 8, WIDTH), normal(rng, 2, 5, WIDTH)
    memory, patterns = encoder(source, need_weights=True)
    assert [each.shape for each in patterns] == [(2, HEADS, 8, 8)] * 2
    np.testing.assert_array_equal(memory, encoder(source))
    y, pairs = decoder(target, memory, need_weights=True)
    assert [own.shape for own, _ in pairs] == [(2, HEADS, 5, 5)] * 3
    assert [cross.shape for _, cross in pairs] == [(2, HEADS, 5, 8)] * 3
    for own, cross in pairs:
        np.testing.assert_allclose(own.sum(-1), 1, atol=1e-6)
        np.testing.assert_allclose(cross.sum(-1), 1, atol=1e-6)
        assert not np.triu(own, 1).any()
    np.testing.assert_array_equal(y, decoder(target, memory))
    alone = decoder_layer(rng, cross=False)
    assert alone(target, need_weights=True)[1][1] is None


def failing(x):
    raise ArithmeticError


def test_no_token_stays_in_the_cache_of_a_layer_on_error(rng):
    """Whatever fails behind the attention that has appended."""
    layer = decoder_layer(rng, cross=False)
    cache = fastattn.KVCache(2, HEADS, WIDTH // HEADS, capacity=8)
    x = normal(rng, 2, 3, WIDTH)
    layer(x, cache=cache)
    with pytest.raises(ArithmeticError):
        dataclasses.replace(layer, feed_forward=failing)(x, cache=cache)
    assert cache.lengths.tolist() == [3, 3]


@pytest.mark.parametrize(
    "where, message",
    [
        ("memory", r"memory\[1\]\[0\]: expected a number of heads that divides q's 4"),
        ("second layer", r"cache\.k: expected at most 1 tokens more for sequence 0"),
        ("norm", "$"),
    ],
)
def test_no_token_stays_in_the_caches_of_a_decoder_on_error(rng, where, message):
    """The caches of the layers before the one that fails are those of the call before, too."""
    decoder = layers.Decoder([decoder_layer(rng) for _ in range(2)])
    memory = decoder.keys_values(normal(rng, 2, 7, WIDTH))
    caches = decoder.new_caches(2, 8)
    decoder(normal(rng, 2, 4, WIDTH), memory, caches=caches)
    if where == "memory":
        memory[1] = memory[1][0][:, :3], memory[1][1]
    elif where == "second layer":
        caches[1] = fastattn.KVCache(2, HEADS, WIDTH // HEADS, capacity=5)
        caches[1].append(*normal(rng, 2, 2, HEADS, 4, WIDTH // HEADS))
    else:
        decoder = dataclasses.replace(decoder, norm=failing)
    before = [cache.lengths.tolist() for cache in caches]
    with pytest.raises(ArithmeticError if where == "norm" else ValueError, match=f"^{message}"):
        decoder(normal(rng, 2, 3, WIDTH), memory, caches=caches)
    assert [cache.lengths.tolist() for cache in caches] == before


def test_new_caches_of_a_type_by_name():
    """Even where nobody has imported ml_dtypes, which registers it with NumPy."""
    done = run("""
        import sys, numpy as np
        from fastattn import layers
        w = np.zeros((8, 8), np.float32)
        layer = layers.DecoderLayer(
            layers.MultiHeadAttention(w, w, w, w, 2, causal=True), layers.FeedForward(w, w)
        )
        assert "ml_dtypes" not in sys.modules
        print(layers.Decoder([layer]).new_caches(1, 4, dtype="bfloat16")[0].k.dtype)
    """)
    assert done.stdout == "bfloat16\n", done.stderr


def test_packed_encoder_equals_padded(rng):
    encoder = layers.Encoder([encoder_layer(rng) for _ in range(2)], random_norm(rng))
    sizes = np.array([6, 2, 9])
    x = normal(rng, 3, 9, WIDTH)
    real = np.arange(9) < sizes[:, None]
    packed = encoder(x[real], cu_seqlens=np.cumsum([0, *sizes]))
    np.testing.assert_allclose(packed, encoder(x, lengths=sizes)[real], atol=TOLERANCE)


# --- decoding ------------------------------------------------------------------------------------


@pytest.fixture
def model(rng):
    """A model whose tokens depend on the source, on the target and on the place."""
    encoder = layers.Encoder([encoder_layer(rng, True) for _ in range(2)])
    decoder = layers.Decoder([decoder_layer(rng, True) for _ in range(2)], random_norm(rng))
    places = layers.sinusoidal_positions(32, WIDTH)
    source, target = (
        layers.Embedding(normal(rng, VOCABULARY, WIDTH), places, scale=3.0) for _ in range(2)
    )
    w_head, b_head = normal(rng, WIDTH, VOCABULARY), 0.1 * normal(rng, VOCABULARY)
    return layers.EncoderDecoder(encoder, decoder, source, target, w_head, b_head)


def by_full_forward(model, source, tokens, stop_ids=()):
    """Greedy decoding the slow way: the whole target through the decoder for each token."""
    target = [1]
    for _ in range(tokens):
        logits = model(source[None], np.array([target]))
        target.append(int(logits[0, -1].argmax()))
        if target[-1] in stop_ids:
            break
    return target[1:]


def test_greedy_decoding_equals_the_full_forward(model, rng):
    sources = [rng.integers(0, VOCABULARY, size) for size in (7, 3, 9)]
    expected = [by_full_forward(model, source, 12) for source in sources]
    assert (
        len({tuple(each) for each in expected}) > 1
        and len({i for each in expected for i in each}) > 3
    )
    found = model.greedy(sources, begin_id=1, max_new_tokens=12)
    assert [list(each) for each in found] == expected
    alone = model.greedy(sources[1], begin_id=1, max_new_tokens=12)
    assert alone.tolist() == expected[1]
    stop = expected[0][4]
    stopped = model.greedy(sources, begin_id=1, max_new_tokens=12, stop_ids=[stop])
    for source, each in zip(sources, stopped, strict=True):
        assert list(each) == by_full_forward(model, source, 12, [stop])


def test_number_of_new_tokens(model):
    assert model.greedy([1, 2], begin_id=1, max_new_tokens=0).shape == (0,)
    with pytest.raises(TypeError, match="max_new_tokens: expected an integer, got NoneType"):
        model.greedy([1, 2], begin_id=1, max_new_tokens=None)


def test_each_step_has_the_logits_of_the_full_forward(model, rng):
    source, target = rng.integers(0, VOCABULARY, (2, 6)), rng.integers(0, VOCABULARY, (2, 9))
    lengths = np.array([6, 4])
    whole = model(source, target, source_lengths=lengths)
    step = model._steps(source, lengths, 9)
    for i in range(9):
        np.testing.assert_allclose(step(target[:, i : i + 1], None), whole[:, i], atol=2e-5)


def test_sampling(model, rng):
    source = rng.integers(0, VOCABULARY, 6)
    options = {"begin_id": 1, "max_new_tokens": 10}
    greedy = model.greedy(source, **options)
    cold = model.sample(source, temperature=1e-6, seed=0, **options)
    assert cold.tolist() == greedy.tolist()
    assert model.sample(source, top_k=1, seed=3, **options).tolist() == greedy.tolist()
    hot = [model.sample(source, temperature=5.0, seed=seed, **options) for seed in (0, 0, 1)]
    assert hot[0].tolist() == hot[1].tolist() != hot[2].tolist()
    warm = [model.sample(source, seed=0, **options, **each) for each in ({}, {"temperature": 1})]
    assert warm[0].tolist() == warm[1].tolist()


def test_decode_ends_each_sequence_by_itself():
    """A model whose next token is one more than the last; 7 ends a sequence."""
    asked = []

    def step(ids, lengths):
        asked.append((ids.copy(), lengths))
        last = ids[:, -1] if lengths is None else ids[np.arange(len(ids)), lengths - 1]
        return np.eye(20)[last + 1]

    prompts = [np.array([5]), np.array([0, 1, 2]), np.array([3, 4])]
    steps = list(layers.decode(step, prompts, layers.greedy, max_new_tokens=6, stop_ids=[7]))
    assert np.array(steps).T.tolist() == [[6, 7, -1, -1, -1], [3, 4, 5, 6, 7], [5, 6, 7, -1, -1]]
    assert asked[0][0].tolist() == [[5, 0, 0], [0, 1, 2], [3, 4, 0]]
    assert asked[0][1].tolist() == [1, 3, 2]
    assert all(ids.shape == (3, 1) for ids, _ in asked[1:])
    # Nothing of a sequence that has ended is real, so that no cache takes it.
    real = [lengths if lengths is None else lengths.tolist() for _, lengths in asked[1:]]
    assert real == [None, [0, 1, 1], [0, 1, 0], [0, 1, 0]]
    columns = decoding.collected(iter(steps), 3)
    assert [each.tolist() for each in columns] == [[6, 7], [3, 4, 5, 6, 7], [5, 6, 7]]
    assert list(layers.decode(step, prompts, layers.greedy, max_new_tokens=0)) == []


@pytest.mark.parametrize(
    "stop_ids", [[7], {7}, {7: "end"}.keys(), range(7, 9), np.array([7], np.uint8)], ids=str
)
def test_any_collection_of_stop_ids(stop_ids):
    def step(ids, lengths):
        return np.eye(20)[ids[:, -1] + 1]

    steps = layers.decode(step, [[4]], layers.greedy, max_new_tokens=6, stop_ids=stop_ids)
    assert [int(each[0]) for each in steps] == [5, 6, 7]


@pytest.mark.parametrize(
    "stop_ids, found",
    [
        (7, "a collection of integers, got int"),
        (None, "a collection of integers, got NoneType"),
        ([None], "integers, got dtype object"),
        ({"7"}, "integers, got dtype str32"),
        ([True], "integers, got dtype bool"),
    ],
    ids=str,
)
def test_stop_ids_are_checked_before_the_first_step(model, monkeypatch, stop_ids, found):
    message = f"stop_ids: expected {found}"
    steps = layers.decode(pytest.fail, [[4]], pytest.fail, max_new_tokens=6, stop_ids=stop_ids)
    with pytest.raises(TypeError, match=message):
        next(steps)
    monkeypatch.setattr(layers.EncoderDecoder, "encode", pytest.fail)
    with pytest.raises(TypeError, match=message):
        model.greedy([1, 2], begin_id=1, max_new_tokens=6, stop_ids=stop_ids)


def parts(layer):
    """A layer and all that it is made of."""
    yield layer
    for field in dataclasses.fields(layer):
        value = getattr(layer, field.name)
        for each in value if isinstance(value, tuple | list) else [value]:
            if dataclasses.is_dataclass(each):
                yield from parts(each)


def test_layers_are_equal_to_themselves_alone_and_stay_as_they_are(model):
    """Arrays that are compared by element have no one answer, and no hash."""
    found = list(parts(model))
    assert {"EncoderDecoder", "Encoder", "DecoderLayer", "MultiHeadAttention", "LayerNorm"} <= {
        type(each).__name__ for each in found
    }
    for each in [*found, layers.RMSNorm(), layers.Rotary().at([0], 2)]:
        assert each == each and each != copy.copy(each) and len({each, copy.copy(each)}) == 2
        assert len(repr(each)) < 1000 and "array(" not in repr(each)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(each, dataclasses.fields(each)[0].name, None)


def test_repr_tells_shapes_and_settings(model):
    attention = layers.MultiHeadAttention(*4 * [np.ones((8, 8), np.float16)], 2, causal=True)
    weights = ", ".join(f"w_{name}=<float16 (8, 8)>" for name in "qkvo")
    expected = f"MultiHeadAttention({weights}, heads=2, kv_heads=2, causal=True)"
    assert repr(attention) == expected
    inner = layers.FeedForward(attention.w_q, attention.w_q, activation="silu")
    layer = layers.EncoderLayer(attention, inner, layers.LayerNorm(eps=np.float64(0.5)), len)
    assert repr(layer).startswith(f"EncoderLayer(attention={expected}, feed_forward=FeedForward(")
    assert "activation='silu'), attention_norm=LayerNorm(eps=" in repr(layer)
    assert "feed_forward_norm=<builtin_function_or_method>)" in repr(layer)
    assert "encoder=Encoder(layers=<2 EncoderLayer>)" in repr(model)
    assert len(repr(model)) < 1000
