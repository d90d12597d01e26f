# SPDX-License-Identifier: MIT
"""Positions, projections and embeddings of fastattn.layers.

Tolerances: float32 rounding (6e-8) times the size of the numbers and a small factor for the terms
summed; where torch is the other side, its rounding counts as well.
"""

import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest
from cases import normal

from fastattn import layers
from fastattn.layers import projections
from fastattn.layers.positions import token_positions

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


# --- sinusoids -----------------------------------------------------------------------------------


def test_sinusoids_with_columns_counted_from_0():
    """2i: sin(p / 10000^(2i / D)), 2i + 1: its cosine, positions from 0."""
    table = layers.sinusoidal_positions(50, 16, dtype=np.float64)
    for p in (0, 1, 7, 49):
        for i in range(8):
            angle = p / 10000 ** (2 * i / 16)
            assert table[p, 2 * i] == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-14)


def test_sinusoids_with_columns_and_positions_counted_from_1():
    """2i - 1: sin(p / 10000^(2(i - 1) / D)), 2i: its cosine, for i and p from 1."""
    table = layers.sinusoidal_positions(50, 16, start=1, dtype=np.float64)
    for p in (1, 2, 50):
        for i in range(1, 9):
            angle = p / 10000 ** (2 * (i - 1) / 16)
            assert table[p - 1, 2 * i - 1 - 1] == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[p - 1, 2 * i - 1] == pytest.approx(math.cos(angle), abs=1e-14)


def test_sinusoids_base_odd_dim_and_dtype():
    table = layers.sinusoidal_positions(3, 5, base=100.0, dtype=np.float64)
    np.testing.assert_allclose(table[2], [
        math.sin(2), math.cos(2), math.sin(2 / 100**0.4), math.cos(2 / 100**0.4),
        math.sin(2 / 100**0.8),
    ])  # fmt: skip
    rounded = layers.sinusoidal_positions(3, 5, base=100.0)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, table.astype(np.float32))
    assert layers.sinusoidal_positions(0, 4).shape == (0, 4)
    from_below = layers.sinusoidal_positions(4, 5, base=100.0, start=-1)
    np.testing.assert_array_equal(from_below[1:], rounded)


@pytest.mark.parametrize("dtype, name", [(None, "None"), (">f4", "byte-swapped"), ("no", "'no'")])
def test_sinusoids_of_no_dtype(dtype, name):
    """None is no float64, though NumPy takes it for that."""
    with pytest.raises(TypeError, match=f"^dtype: expected float32 or float64, got {name}"):
        layers.sinusoidal_positions(2, 4, dtype=dtype)


def test_alibi_slopes():
    np.testing.assert_array_equal(layers.alibi_slopes(8), [2.0**-h for h in range(1, 9)])
    # 12 heads: the 8 slopes of 8 heads, then the 1st, 3rd, 5th and 7th of 16 heads.
    between = [2.0 ** -(h / 2) for h in (1, 3, 5, 7)]
    expected = np.array([*(2.0**-h for h in range(1, 9)), *between], np.float32)
    np.testing.assert_array_equal(layers.alibi_slopes(12), expected)
    np.testing.assert_array_equal(layers.alibi_slopes(1), [2.0**-8])


# --- rotary --------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 8])
def test_rotary_turns_pairs_as_complex_numbers(rng, interleaved, rotary_dim):
    x = normal(rng, 2, 3, 7, 12, dtype=np.float64)
    positions = np.array([0, 1, 2, 5, 100, 1000, 4095])
    out = layers.rotary_embedding(
        x, positions, base=500.0, interleaved=interleaved, rotary_dim=rotary_dim
    )
    dim = rotary_dim or 12
    turn = np.exp(1j * positions[:, None] * 500.0 ** (-np.arange(0, dim, 2) / dim))
    if interleaved:
        expected = (x[..., 0:dim:2] + 1j * x[..., 1:dim:2]) * turn
        found = out[..., 0:dim:2] + 1j * out[..., 1:dim:2]
    else:
        expected = (x[..., : dim // 2] + 1j * x[..., dim // 2 : dim]) * turn
        found = out[..., : dim // 2] + 1j * out[..., dim // 2 : dim]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_array_equal(out[..., dim:], x[..., dim:])


def test_rotary_products_depend_on_the_distance_alone(rng):
    q, k = normal(rng, 2, 1, 16, dtype=np.float64)
    products = [
        layers.rotary_embedding(q, np.array([i])) @ layers.rotary_embedding(k, np.array([j])).T
        for i, j in ((3, 1), (1003, 1001))
    ]
    np.testing.assert_allclose(products[0], products[1], atol=1e-11)


def test_rotary_positions_by_batch_and_strided_input(rng):
    x = normal(rng, 2, 5, 3, 8).swapaxes(1, 2)  # (batch, heads, tokens, depth), as projected
    positions = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    out = layers.rotary_embedding(x, positions)
    for b in range(2):
        np.testing.assert_array_equal(out[b], layers.rotary_embedding(x[b], positions[b]))
    assert out.strides == x.strides
    assert out.dtype == np.float32


HF_SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn_untruncated": {**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn_step": {**YARN, "beta_slow": 10.5},  # both bounds are pair 0
    "yarn_attention_factor": {**YARN, "attention_factor": 0.7},
    "yarn_mscale": {**YARN, "mscale": 0.9, "mscale_all_dim": 0.4},
}


def hf_rope_config(scaling, **more):
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=64,
        rope_parameters={"rope_theta": 500.0, **scaling}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", HF_SCALINGS)
def test_rotary_scaling_matches_transformers(name):
    config = hf_rope_config(HF_SCALINGS[name])
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = HF_SCALINGS[name]["rope_type"]
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](config)
    found, factor = layers.rotary_frequencies(32, 500.0, HF_SCALINGS[name])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    assert factor == pytest.approx(expected_factor)


def test_factor_of_yarn_is_that_of_cosines_and_of_sines():
    rotary = layers.Rotary(scaling=HF_SCALINGS["yarn_attention_factor"])
    turn = rotary.at(np.arange(9), 16)
    np.testing.assert_allclose(np.hypot(turn.cos, turn.sin), 0.7)


def test_frequencies_of_an_odd_number_of_features():
    with pytest.raises(ValueError, match=r"^dim: expected an even number, got 7"):
        layers.rotary_frequencies(7)


HUGE = 10**30
NTK = {"rope_type": "ntk", "factor": 1e308}
TOO_LARGE = {
    "length": (lambda: layers.sinusoidal_positions(HUGE, 4), "integer not above 9007199254740992"),
    "dim": (lambda: layers.sinusoidal_positions(1, HUGE), "integer not above 9007199254740992"),
    "start": (lambda: layers.sinusoidal_positions(1, 4, start=HUGE), "integer not above 9007199"),
    "heads": (lambda: layers.alibi_slopes(HUGE), "integer not above 9007199254740992"),
    "rotary_dim": (lambda: layers.Rotary(rotary_dim=HUGE), "integer not above 9007199254740992"),
    "depth": (lambda: layers.Rotary().at([0], HUGE), "integer not above 9007199254740992"),
    "positions": (lambda: layers.Rotary().at([2**63 - 1], 4), "numbers from -9007199254740992 to"),
    "scaling['factor']": (lambda: layers.Rotary(scaling=NTK).at([0], 4), "smaller number, got 1e"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_named(name):
    call, message = TOO_LARGE[name]
    with pytest.raises(ValueError, match=rf"^{re.escape(name)}: expected (an |a )?{message}"):
        call()


@pytest.mark.parametrize("length", ["x", None, True, 1.5])
def test_length_of_frequencies(length):
    with pytest.raises(TypeError, match=r"^length: expected an integer or an array of integers, "):
        layers.rotary_frequencies(4, length=length)


def test_padding_stands_at_0_behind_whatever_there_is():
    found = token_positions(3, past=[5, 0], lengths=np.array([2, 3]))
    assert found.tolist() == [[5, 6, 0], [0, 1, 2]]


def test_equal_settings_have_one_hash():
    rotary, same = layers.Rotary(500.0, YARN), layers.Rotary(500.0, dict(YARN))
    assert rotary == same and len({rotary, same, layers.Rotary(500.0)}) == 2


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_positions_of_any_integers(dtype):
    x, positions = np.ones((2, 3, 4)), np.array([120, 126, 127])
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}
    expected = layers.rotary_embedding(x, positions, scaling=scaling)
    found = layers.rotary_embedding(x, positions.astype(dtype), scaling=scaling)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_ragged_turns(name):
    given = {"cos": np.ones((2, 2)), "sin": np.ones((2, 2)), name: [[1.0], [2.0, 3.0]]}
    with pytest.raises(TypeError, match=f"^{name}: expected a numpy.ndarray, got list"):
        layers.Rotation(layers.Rotary(), 4, **given)


def test_huge_length_of_frequencies():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}
    with pytest.raises(ValueError, match=r"^length: expected an integer not above 900719925474"):
        layers.rotary_frequencies(4, scaling=scaling, length=10**400)


@pytest.mark.parametrize("length", [1, 64, 65, 200])
def test_dynamic_scaling_matches_transformers(length):
    config = hf_rope_config({"rope_type": "dynamic", "factor": 2.0})
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=length)
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
    found, _ = layers.rotary_frequencies(32, 500.0, scaling, length=length)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    # The length is that of the positions of each sequence.
    turn = layers.Rotary(500.0, scaling).at(np.array([[0, 299], [0, length - 1]]), 32)
    np.testing.assert_allclose(turn.cos[1, 1], np.cos((length - 1) * found), atol=1e-12)


def test_dynamic_scaling_of_packed_sequences():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 3}
    rotary, cuts = layers.Rotary(scaling=scaling), np.array([0, 0, 2, 2, 9, 10, 10])
    positions = np.array([0, 1, 3, 2, 1, 0, 4, 5, 11, 7])
    packed = rotary.at(positions, 6, cu_seqlens=cuts)
    for begin, end in itertools.pairwise(cuts):
        alone = rotary.at(positions[begin:end], 6)
        np.testing.assert_array_equal(packed.cos[begin:end], alone.cos)
        np.testing.assert_array_equal(packed.sin[begin:end], alone.sin)
    assert rotary.at(positions[:0], 6, cu_seqlens=[0, 0]).cos.shape == (0, 3)
    with pytest.raises(ValueError, match=r"positions: expected shape \(10,\), got \(9,\)"):
        rotary.at(positions[1:], 6, cu_seqlens=cuts)


def test_ntk_scaling_reaches_the_slowest_pair_alone():
    """The new base makes the slowest pair f times as slow, and leaves the fastest as it is."""
    plain, _ = layers.rotary_frequencies(32)
    found, _ = layers.rotary_frequencies(32, scaling={"rope_type": "ntk", "factor": 4.0})
    assert found[0] == plain[0]
    assert found[-1] == pytest.approx(plain[-1] / 4)


def test_rotary_matches_transformers(rng):
    torch = pytest.importorskip("torch")
    config = hf_rope_config(LLAMA3)
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k = normal(rng, 2, 1, 4, 60, 32)
    positions = np.arange(60)
    cos, sin = LlamaRotaryEmbedding(config)(torch.from_numpy(q), torch.arange(60)[None])
    expected = apply_rotary_pos_emb(torch.from_numpy(q), torch.from_numpy(k), cos, sin)
    for x, other in zip((q, k), expected, strict=True):
        found = layers.rotary_embedding(x, positions, base=500.0, scaling=LLAMA3)
        # Their angles are float32: off by 60 * 6e-8, times features of up to 4.
        np.testing.assert_allclose(found, other.numpy(), atol=1.5e-5)


# --- projections ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5), (2, 0, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linear(rng, shape, dtype):
    x, weight, bias = normal(rng, *shape), normal(rng, 5, 4), normal(rng, 4)
    found = layers.linear(*(part.astype(dtype) for part in (x, weight, bias)))
    expected = x.astype(np.float64) @ weight + bias
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=4e-6)
    np.testing.assert_allclose(layers.linear(x, weight), x.astype(np.float64) @ weight, atol=4e-6)


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_linear_with_narrow_weights(rng, stored, transposed, monkeypatch):
    """In blocks, the same numbers as with the weights widened at once."""
    monkeypatch.setattr(projections, "WIDE_BLOCK", 100)  # 4 of 11 columns at a time
    x = normal(rng, 3, 24)
    weight = normal(rng, 11, 24).astype(stored).T if transposed else normal(rng, 24, 11)
    weight = weight.astype(stored, copy=False)
    bias = normal(rng, 11).astype(stored)
    found = layers.linear(x, weight, bias)
    expected = x.astype(np.float64) @ weight.astype(np.float64) + bias.astype(np.float64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_linear_of_no_inputs(stored):
    bias = np.arange(5, dtype=stored)
    found = layers.linear(np.zeros((2, 3, 0), np.float32), np.zeros((0, 5), stored), bias)
    np.testing.assert_array_equal(found, np.tile(np.arange(5, dtype=np.float32), (2, 3, 1)))


def test_every_float16_is_widened_exactly():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    for stored in (every, every.T, every[:, ::2]):
        found = projections.widened(stored, np.dtype(np.float32))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, stored.astype(np.float32))


# --- embeddings and sequences ---------------------------------------------------------------------


def test_embedding(rng):
    table, positions = normal(rng, 10, 4), normal(rng, 6, 4)
    ids = np.array([[3, 9, 0], [1, 1, 2]])
    plain = layers.Embedding(table)(ids)
    np.testing.assert_array_equal(plain, table[ids])
    placed = layers.Embedding(table, positions, scale=2.0)
    np.testing.assert_allclose(placed(ids), 2 * table[ids] + positions[:3], atol=1e-6)
    places = np.array([[0, 1, 2], [3, 4, 5]])
    np.testing.assert_allclose(placed(ids, places), 2 * table[ids] + positions[places], atol=1e-6)
    for shared in places[1], places[1:]:
        expected = 2 * table[ids] + positions[3:]
        np.testing.assert_allclose(placed(ids, shared), expected, atol=1e-6)
    narrow = layers.Embedding(table.astype(ml_dtypes.bfloat16))(ids)
    assert narrow.dtype == np.float32
    np.testing.assert_array_equal(narrow, table[ids].astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    "shape, found",
    [((3,), (1,)), ((3,), (2,)), ((3,), ()), ((3,), (2, 3)), ((3,), (1, 3)), ((3,), (2, 1)),
     ((2, 3), (2, 1)), ((2, 3), (3, 3)), ((2, 3), (2,)), ((2, 1), (2, 3)), ((0, 3), (2, 3))],
)  # fmt: skip
def test_positions_are_one_for_each_token(shape, found):
    """NumPy would give many tokens one position, or make rows that ids do not have."""
    embed = layers.Embedding(np.ones((10, 4), np.float32), np.ones((6, 4), np.float32))
    message = f"positions: expected a shape (..., {shape[-1]}) that broadcasts to {shape}, got "
    with pytest.raises(ValueError, match=re.escape(f"{message}{found}")):
        embed(np.zeros(shape, int), np.zeros(found, int))


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int8, list])
def test_pad_and_pack(kind):
    rows = [[3, 1, 2], [], [5]]
    given = [row if kind is list else np.array(row, kind) for row in rows]
    ids, lengths = layers.pad(given, -1)
    np.testing.assert_array_equal(ids, [[3, 1, 2], [-1] * 3, [5, -1, -1]])
    np.testing.assert_array_equal(lengths, [3, 0, 1])
    packed, borders = layers.pack(given)
    np.testing.assert_array_equal(packed, [3, 1, 2, 5])
    np.testing.assert_array_equal(borders, [0, 3, 3, 4])
    assert {each.dtype for each in (ids, lengths, packed, borders)} == {np.dtype(np.int64)}
    assert layers.pad([])[0].shape == (0, 0) and layers.pack([])[0].shape == (0,)
