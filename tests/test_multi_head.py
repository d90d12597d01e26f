# SPDX-License-Identifier: MIT
"""MultiHeadAttention against torch's, against the formula, and against itself in other forms."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from cases import normal

import fastattn
from fastattn import layers, reference

TOLERANCE = 1e-5


def random_attention(rng, width=24, heads=6, kv_heads=None, depth=4, value_depth=None, **options):
    """Weights of size 1 / sqrt(inputs), so that every projection has numbers of size 1."""
    kv_heads, value_depth = kv_heads or heads, value_depth or depth
    context = options.pop("context", width)
    shapes = {
        "w_q": (width, heads * depth), "w_k": (context, kv_heads * depth),
        "w_v": (context, kv_heads * value_depth), "w_o": (heads * value_depth, width),
    }  # fmt: skip
    weights = {name: normal(rng, *shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    biases = {f"b_{name[2]}": normal(rng, shape[1]) for name, shape in shapes.items()}
    return layers.MultiHeadAttention(**weights, **biases, heads=heads, kv_heads=kv_heads, **options)


def by_formula(layer, x, context=None, allowed=True, turn=lambda heads, places: heads):
    """The formulas of the module's first lines, head by head, in float64."""
    context = x if context is None else context
    q, k, v = (
        part.astype(np.float64) @ weight + bias
        for part, weight, bias in (
            (x, layer.w_q, layer.b_q), (context, layer.w_k, layer.b_k),
            (context, layer.w_v, layer.b_v),
        )
    )  # fmt: skip
    allowed = np.broadcast_to(allowed, (len(x), len(context)))
    heads, patterns = [], []
    for h in range(layer.heads):
        g = h // (layer.heads // layer.kv_heads)
        q_h = turn(np.split(q, layer.heads, axis=-1)[h], np.arange(len(x)))
        k_g = turn(np.split(k, layer.kv_heads, axis=-1)[g], np.arange(len(context)))
        scale = q_h.shape[-1] ** -0.5 if layer.scale is None else layer.scale
        scores = np.where(allowed, scale * q_h @ k_g.T, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        patterns.append(weights / weights.sum(-1, keepdims=True))
        heads.append(patterns[-1] @ np.split(v, layer.kv_heads, axis=-1)[g])
    return np.concatenate(heads, -1) @ layer.w_o + layer.b_o, np.stack(patterns)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("value_depth", [4, 7])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_by_the_formula(rng, kv_heads, value_depth, causal):
    layer = random_attention(rng, kv_heads=kv_heads, value_depth=value_depth, causal=causal)
    x = normal(rng, 2, 9, 24)
    y, weights = layer(x, need_weights=True)
    assert y.shape == (2, 9, 24) and weights.shape == (2, 6, 9, 9)
    for b in range(2):
        expected, pattern = by_formula(layer, x[b], allowed=np.tri(9, dtype=bool) | (not causal))
        np.testing.assert_allclose(y[b], expected, atol=TOLERANCE)
        np.testing.assert_allclose(weights[b], pattern, atol=TOLERANCE)
    np.testing.assert_array_equal(layer(x), y)
    np.testing.assert_allclose(layer(x[0]), y[0], atol=TOLERANCE)  # without a batch axis


def test_cross_attention_by_the_formula(rng):
    layer = random_attention(rng, kv_heads=3, value_depth=5, context=11)
    x, context = normal(rng, 2, 4, 24), normal(rng, 2, 9, 11)
    y, weights = layer(x, context, lengths=[9, 5], need_weights=True)
    for b, length in enumerate((9, 5)):
        expected, pattern = by_formula(layer, x[b], context[b, :length])
        np.testing.assert_allclose(y[b], expected, atol=TOLERANCE)
        np.testing.assert_allclose(weights[b, :, :, :length], pattern, atol=TOLERANCE)
        assert not weights[b, :, :, length:].any()
    once = layer.keys_values(context)
    np.testing.assert_array_equal(layer(x, keys_values=once, lengths=[9, 5]), y)


def test_a_single_head_without_output_projection(rng):
    x = normal(rng, 5, 8)
    w_q, w_k, w_v = normal(rng, 8, 3), normal(rng, 8, 3), normal(rng, 8, 2)
    layer = layers.MultiHeadAttention(w_q, w_k, w_v)
    expected = reference.attention(x @ w_q, x @ w_k, x @ w_v)
    np.testing.assert_allclose(layer(x), expected, atol=TOLERANCE)


def test_numbers_of_heads_of_a_small_type(rng):
    """What is computed with them does not overflow it."""
    w = normal(rng, 3, 256)
    layer = layers.MultiHeadAttention(w, w, w, heads=np.uint8(8), kv_heads=np.int8(8))
    assert layer(normal(rng, 5, 3)).shape == (5, 256)
    assert (type(layer.heads), type(layer.kv_heads)) == (int, int)


def test_rows_of_weights_sum_to_less_with_sinks_and_without_keys(rng):
    x, allowed = normal(rng, 5, 24), np.arange(5)[:, None] > 0
    _, weights = random_attention(rng)(x, attn_mask=allowed, need_weights=True)
    np.testing.assert_allclose(weights.sum(-1), np.tile([0, 1, 1, 1, 1], (6, 1)), atol=1e-6)
    _, weights = random_attention(rng, sinks=np.zeros(6))(x, need_weights=True)
    assert (weights.sum(-1) < 0.99).all()


def test_float64_stays_float64(rng):
    layer = random_attention(rng)
    x = normal(rng, 5, 24).astype(np.float64)
    y = layer(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, by_formula(layer, x)[0], atol=1e-12)


def test_options_of_the_kernel_reach_it(rng):
    """Each option of the layer is that of `attention` on the same projections."""
    x = normal(rng, 2, 9, 24)
    cases = {
        "window_size": (2, 0), "scale": 0.7, "softcap": 2.0,
        "alibi_slopes": layers.alibi_slopes(6), "sinks": np.linspace(-1, 1, 6, dtype=np.float32),
    }  # fmt: skip
    for name, value in cases.items():
        layer = random_attention(rng, causal=True, **{name: value})
        q, (k, v) = layer.queries(x), layer.keys_values(x)
        heads = reference.attention(q, k, v, causal=True, **{name: value})
        expected = heads.swapaxes(1, 2).reshape(2, 9, 24) @ layer.w_o + layer.b_o
        np.testing.assert_allclose(layer(x), expected, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_turns_queries_and_keys(rng, interleaved):
    rotary = layers.Rotary(base=100.0, interleaved=interleaved)
    layer = random_attention(rng, kv_heads=2, causal=True, rotary=rotary)
    x = normal(rng, 9, 24)

    def turn(heads, places):
        return layers.rotary_embedding(heads, places, base=100.0, interleaved=interleaved)

    expected, _ = by_formula(layer, x, allowed=np.tri(9, dtype=bool), turn=turn)
    np.testing.assert_allclose(layer(x), expected, atol=TOLERANCE)
    # Moved as a whole nothing changes; a Rotation is the same as its positions.
    moved = layer(x, positions=np.arange(9) + 50)
    np.testing.assert_allclose(moved, expected, atol=TOLERANCE)
    np.testing.assert_array_equal(layer(x, positions=rotary.at(np.arange(9) + 50, 4)), moved)


def test_norms_of_queries_and_keys(rng):
    norm = layers.RMSNorm(normal(rng, 4))
    layer = random_attention(rng, q_norm=norm, k_norm=norm)
    x = normal(rng, 7, 24)
    split = (x @ layer.w_q + layer.b_q).reshape(7, 6, 4)
    expected = split / np.sqrt((split**2).mean(-1, keepdims=True) + 1e-6) * norm.weight
    np.testing.assert_allclose(layer.queries(x), expected.swapaxes(0, 1), atol=TOLERANCE)
    k, v = layer.keys_values(x)
    plain_k, plain_v = random_attention(rng).keys_values(x)
    assert k.shape == plain_k.shape and v.shape == plain_v.shape


# --- in other forms ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(9,), (1,) * 9, (4, 1, 3, 1)], ids=str)
def test_step_by_step_equals_the_whole(rng, steps):
    options = {"rotary": layers.Rotary(), "window_size": (5, 0)}
    layer = random_attention(rng, kv_heads=2, value_depth=5, causal=True, **options)
    x = normal(rng, 2, 9, 24)
    whole, pattern = layer(x, need_weights=True)
    cache = fastattn.KVCache(2, 2, 4, 5, capacity=12)
    begin = 0
    for tokens in steps:
        end = begin + tokens
        y, weights = layer(x[:, begin:end], cache=cache, need_weights=True)
        np.testing.assert_allclose(y, whole[:, begin:end], atol=TOLERANCE)
        np.testing.assert_allclose(weights, pattern[:, :, begin:end, :end], atol=TOLERANCE)
        begin = end


def test_a_mask_over_a_cache(rng):
    """Its keys are those that the cache has room for."""
    layer = random_attention(rng, causal=True)
    x = normal(rng, 2, 9, 24)
    allowed = (rng.random((2, 1, 9, 12)) < 0.5) | np.eye(9, 12, dtype=bool)
    whole, pattern = layer(x, attn_mask=allowed[..., :9], need_weights=True)
    cache = fastattn.KVCache(2, 6, 4, capacity=12)
    for begin, end in ((0, 6), (6, 9)):
        mask = allowed[:, :, begin:end]
        y, weights = layer(x[:, begin:end], cache=cache, attn_mask=mask, need_weights=True)
        np.testing.assert_allclose(y, whole[:, begin:end], atol=TOLERANCE)
        np.testing.assert_allclose(weights, pattern[:, :, begin:end, :end], atol=TOLERANCE)


def test_ragged_sequences_in_a_cache(rng):
    """Prompts of 5 and 2 tokens, padded, then 3 steps: each as if it were alone."""
    layer = random_attention(rng, causal=True, rotary=layers.Rotary())
    x = normal(rng, 2, 8, 24)
    cache = fastattn.KVCache(2, 6, 4, capacity=8)
    prompts = np.where(np.arange(5)[:, None] < [[[5]], [[2]]], x[:, :5], np.float32(np.nan))
    outputs = [layer(prompts, cache=cache, lengths=[5, 2])]
    for step in range(3):
        new = np.stack([x[0, 5 + step], x[1, 2 + step]])[:, None]
        outputs.append(layer(new, cache=cache))
    for b, length in enumerate((5, 2)):
        whole = layer(x[b, : length + 3])
        found = np.concatenate([outputs[0][b, :length], *(out[b] for out in outputs[1:])])
        np.testing.assert_allclose(found, whole, atol=TOLERANCE)


# Turns go by the length of a sequence, that is neither by padding nor by what it is packed with.
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 2}


@pytest.mark.parametrize("scaling", [None, DYNAMIC])
def test_padded_and_packed_equal_one_by_one(rng, scaling):
    rotary = layers.Rotary(scaling=scaling)
    layer = random_attention(rng, causal=True, rotary=rotary, kv_heads=2)
    sizes = [3, 1, 7, 4]
    alone = [normal(rng, size, 24) for size in sizes]
    padded = np.full((4, 7, 24), np.nan, np.float32)
    for row, x in zip(padded, alone, strict=True):
        row[: len(x)] = x
    from_padded = layer(padded, lengths=sizes)
    borders = np.cumsum([0, *sizes])
    from_packed = layer(np.concatenate(alone), cu_seqlens=borders)
    by_oracle = layer(np.concatenate(alone), cu_seqlens=borders, attention=reference.attention)
    for b, x in enumerate(alone):
        expected = layer(x)
        part = slice(borders[b], borders[b + 1])
        np.testing.assert_allclose(from_padded[b, : len(x)], expected, atol=TOLERANCE)
        np.testing.assert_allclose(from_packed[part], expected, atol=TOLERANCE)
        np.testing.assert_allclose(by_oracle[part], expected, atol=TOLERANCE)


@pytest.mark.parametrize("shape", [(2, 0, 24), (0, 3, 24), (0, 24)])
def test_no_tokens(rng, shape):
    y, weights = random_attention(rng, rotary=layers.Rotary())(
        normal(rng, *shape), need_weights=True
    )
    assert y.shape == shape and weights.size == 0


def test_packed_sequences_may_be_empty(rng):
    layer = random_attention(rng)
    x = normal(rng, 5, 24)
    y = layer(x, cu_seqlens=[0, 0, 3, 3, 5])
    np.testing.assert_allclose(y[:3], layer(x[:3]), atol=TOLERANCE)
    np.testing.assert_allclose(y[3:], layer(x[3:]), atol=TOLERANCE)


FAILING = {
    "attn_mask": ({}, {"attn_mask": np.ones((5, 5), bool)}),
    "num_threads": ({}, {"num_threads": 0}),
    "alibi_slopes": ({"alibi_slopes": np.ones(5)}, {}),
    "softcap": ({"softcap": -1.0}, {}),
    "w_o": ({"w_o": np.ones((24, 24))}, {}),  # float64 for a float32 x: seen when it is used
}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("name", FAILING)
def test_no_token_stays_in_a_cache_on_error(rng, name, need_weights):
    wrong, options = FAILING[name]
    layer = random_attention(rng, causal=True)
    cache = fastattn.KVCache(2, 6, 4, capacity=12)
    layer(normal(rng, 2, 4, 24), cache=cache, lengths=[4, 2])
    x = normal(rng, 2, 3, 24)
    with pytest.raises((TypeError, ValueError), match=f"{name}: expected"):
        dataclasses.replace(layer, **wrong)(x, cache=cache, need_weights=need_weights, **options)
    assert cache.lengths.tolist() == [4, 2]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8])
def test_a_narrow_cache(rng, dtype):
    """What the cache holds, rounded, is what is attended to."""
    layer = random_attention(rng, causal=True)
    x = normal(rng, 2, 9, 24)
    cache = fastattn.KVCache(2, 6, 4, capacity=9, dtype=dtype)
    y, weights = layer(x, cache=cache, need_weights=True)
    k, v = cache.k.astype(np.float64), cache.v.astype(np.float64)
    if dtype == np.int8:
        k, v = k * cache.k_scale[..., None], v * cache.v_scale[..., None]
    heads, pattern = reference.attention(
        layer.queries(x), k, v, causal=True, return_scores="weights"
    )
    expected = heads.swapaxes(1, 2).reshape(2, 9, 24) @ layer.w_o + layer.b_o
    np.testing.assert_allclose(y, expected, atol=TOLERANCE)
    np.testing.assert_allclose(weights, pattern, atol=TOLERANCE)
    assert np.abs(y - layer(x)).max() > 1e-4  # it is rounded


# --- torch ---------------------------------------------------------------------------------------


def torch_attention(torch, layer):
    """torch's layer with our weights, which it keeps transposed."""
    width, context = layer.w_q.shape[0], layer.w_k.shape[0]
    theirs = torch.nn.MultiheadAttention(
        width, layer.heads, kdim=context, vdim=context, batch_first=True
    )
    projections = {"q": layer.w_q, "k": layer.w_k, "v": layer.w_v}
    if context == width:
        state = {"in_proj_weight": np.concatenate([each.T for each in projections.values()])}
    else:
        state = {f"{name}_proj_weight": each.T.copy() for name, each in projections.items()}
    state["in_proj_bias"] = np.concatenate([layer.b_q, layer.b_k, layer.b_v])
    state |= {"out_proj.weight": layer.w_o.T.copy(), "out_proj.bias": layer.b_o}
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return theirs.eval()


MASKS = ("none", "bool", "bool by head", "float", "padding")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("context_width", [24, 10])
def test_torch_multihead_attention(rng, mask, context_width):
    torch = pytest.importorskip("torch")
    layer = random_attention(rng, context=context_width)
    theirs = torch_attention(torch, layer)
    x, context = normal(rng, 2, 5, 24), normal(rng, 2, 8, context_width)
    ours, other = {}, {}
    if mask == "bool":
        allowed = (rng.random((5, 8)) < 0.6) | (np.arange(8) == 0)
        ours, other = {"attn_mask": allowed}, {"attn_mask": torch.from_numpy(~allowed)}
    elif mask == "bool by head":
        allowed = (rng.random((2, 6, 5, 8)) < 0.6) | (np.arange(8) == 0)
        forbidden = torch.from_numpy(~allowed.reshape(12, 5, 8))
        ours, other = {"attn_mask": allowed}, {"attn_mask": forbidden}
    elif mask == "float":
        added = normal(rng, 5, 8)
        ours, other = {"attn_mask": added}, {"attn_mask": torch.from_numpy(added)}
    elif mask == "padding":
        padding = np.arange(8) >= np.array([[8], [3]])
        ours, other = {"lengths": [8, 3]}, {"key_padding_mask": torch.from_numpy(padding)}
    y, weights = layer(x, context, need_weights=True, **ours)
    with torch.inference_mode():
        expected, pattern = theirs(
            torch.from_numpy(x), torch.from_numpy(context), torch.from_numpy(context),
            average_attn_weights=False, **other,
        )  # fmt: skip
    np.testing.assert_allclose(y, expected.numpy(), atol=TOLERANCE)
    np.testing.assert_allclose(weights, pattern.numpy(), atol=TOLERANCE)


def test_torch_causal_self_attention(rng):
    torch = pytest.importorskip("torch")
    layer = random_attention(rng, causal=True)
    x = normal(rng, 2, 9, 24)
    as_torch = torch.from_numpy(x)
    forbidden = torch.from_numpy(~np.tri(9, dtype=bool))
    with torch.inference_mode():
        expected, _ = torch_attention(torch, layer)(
            as_torch, as_torch, as_torch, attn_mask=forbidden
        )
    np.testing.assert_allclose(layer(x), expected.numpy(), atol=TOLERANCE)


def test_t5_cross_attention(rng):
    """No scale, no biases, heads whose depth times number is not the width."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        d_model=24, d_kv=5, num_heads=3, is_decoder=True, dropout_rate=0.0
    )
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=False, layer_idx=0).eval()
    weights = {}
    for name in "qkvo":
        shape = (24, 15) if name != "o" else (15, 24)
        weights[name] = normal(rng, *shape) / shape[0] ** 0.5
        getattr(theirs, name).weight.data = torch.from_numpy(weights[name].T.copy())
    layer = layers.MultiHeadAttention(*weights.values(), heads=3, scale=1.0)
    x, memory = normal(rng, 2, 4, 24), normal(rng, 2, 9, 24)
    padding = np.where(np.arange(9) < np.array([[9], [6]]), 0, -np.inf).astype(np.float32)
    with torch.inference_mode():
        expected = theirs(
            torch.from_numpy(x), key_value_states=torch.from_numpy(memory),
            mask=torch.from_numpy(padding[:, None, None]),
        )[0]  # fmt: skip
    np.testing.assert_allclose(layer(x, memory, lengths=[9, 6]), expected.numpy(), atol=TOLERANCE)
