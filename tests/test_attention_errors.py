# SPDX-License-Identifier: MIT
"""What callers make themselves for attention layers, turns, functions and caches, is checked."""

import dataclasses

import cases
import numpy as np
import pytest

import fastattn
from fastattn import layers, reference

X, W = np.ones((2, 5, 8), np.float32), np.ones((8, 8), np.float32)
TURN = layers.Rotary().at(np.arange(5), 4)


def attention(**options):
    return layers.MultiHeadAttention(W, W, W, W, 2, **options)


def returning(change):
    return lambda *args, **options: change(reference.attention(*args, **options))


def changed_turn(**changes):
    return lambda: dataclasses.replace(TURN, **changes)


def through_two_layers(caches):
    layer = layers.DecoderLayer(attention(causal=True), np.zeros_like)
    return layers.Decoder([layer, layer])(X, caches=caches)


def cache(tokens=0):
    made = fastattn.KVCache(2, 2, 4, capacity=8)
    made.append(*np.ones((2, 2, 2, tokens, 4), np.float32))
    return made


CASES = {
    "shape": (
        lambda: attention()(X, attention=returning(lambda out: out[:, :1])), ValueError,
        r"attention\(q, k, v\): expected shape \(2, 2, 5, 4\), got \(2, 1, 5, 4\)",
    ),
    "shape of packed": (
        lambda: attention()(X[0], cu_seqlens=[0, 5], attention=returning(lambda out: out[:, :1])),
        ValueError, r"attention\(q, k, v\): expected shape \(2, 5, 4\), got \(2, 1, 4\)",
    ),
    "dtype": (
        lambda: attention()(X, attention=returning(lambda out: out.astype(complex))), TypeError,
        r"attention\(q, k, v\): expected dtype float.*, got complex128",
    ),
    "pair": (
        lambda: attention()(X, attention=returning(lambda out: (out, out))), TypeError,
        r"attention\(q, k, v\): expected a numpy.ndarray, got tuple",
    ),
    "keys": (
        lambda: attention()(X, keys_values=(1, 2)), TypeError,
        r"keys_values\[0\]: expected a numpy.ndarray, got int",
    ),
    "values of other keys": (
        lambda: attention()(X, keys_values=(np.ones((2, 2, 5, 4), np.float32),
                                            np.ones((2, 2, 4, 4), np.float32))), ValueError,
        r"keys_values\[1\]: expected 5 keys like keys_values\[0\], got shape \(2, 2, 4, 4\)",
    ),
    "rotary": (changed_turn(rotary=None), TypeError, "rotary: expected a Rotary, got NoneType"),
    "depth": (changed_turn(depth=0), ValueError, "depth: expected an integer not below 1, got 0"),
    "depth below rotary_dim": (
        changed_turn(rotary=layers.Rotary(rotary_dim=6)), ValueError,
        "depth: expected at least the rotary_dim 6, got 4",
    ),
    "pairs": (changed_turn(depth=8), ValueError, r"cos: expected shape \(5, 4\), got \(5, 2\)"),
    "axes": (
        changed_turn(cos=np.ones(2)), ValueError, r"cos: expected shape \(any, 2\), got \(2,\)",
    ),
    "no array": (changed_turn(sin=[1.0]), TypeError, "sin: expected a numpy.ndarray, got list"),
    "sin": (
        changed_turn(sin=np.ones((1, 2))), ValueError,
        r"sin: expected shape \(5, 2\), got \(1, 2\)",
    ),
    "dtype of cos": (
        changed_turn(cos=TURN.cos.astype(np.float32)), TypeError,
        "cos: expected dtype float64, got float32",
    ),
    "turns of another depth": (
        lambda: attention(rotary=layers.Rotary())(X, positions=layers.Rotary().at(range(5), 8)),
        ValueError, "positions: expected a Rotation for heads of 4 features, got one of 8",
    ),
    "offset of self-attention": (
        lambda: attention()(X, q_offset=1), ValueError,
        "q_offset: expected None without context or keys_values, got an argument",
    ),
    "offset": (
        lambda: attention()(X, X, q_offset=[1, 2, 3]), ValueError,
        r"q_offset: expected an integer or shape \(2,\), got shape \(3,\)",
    ),
    "one cache for two layers": (
        lambda: through_two_layers([cache()] * 2), ValueError,
        r"caches\[1\]: expected a cache of its own, got caches\[0\] again",
    ),
    "a cache behind the others": (
        lambda: through_two_layers([cache(2), cache(1)]), ValueError,
        r"caches\[1\]: expected lengths \[2 2\] like caches\[0\], got \[1 1\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_error(case):
    call, error, message = CASES[case]
    with pytest.raises(error, match=f"^{message}"):
        call()


def test_the_same_without_errors():
    layer = attention(rotary=layers.Rotary())
    found = layer(X, positions=changed_turn()(), attention=returning(lambda out: out))
    np.testing.assert_allclose(found, layer(X), rtol=1e-5)
    assert through_two_layers([cache(1), cache(1)]).shape == X.shape


@pytest.mark.parametrize(
    "logits, chosen, error, message",
    [
        (
            np.ones((1, 4)),
            [1],
            ValueError,
            r"step\(ids, lengths\): expected shape \(2, vocabulary\)",
        ),
        (np.ones((2, 3, 4)), [1, 1], ValueError, r"step\(ids, lengths\): expected shape \(2, v"),
        (np.ones((2, 4)), [[1], [2]], ValueError, r"choose\(logits\): expected shape \(2,\), got"),
        (
            np.ones((2, 4)),
            [1.0, 2.0],
            TypeError,
            r"choose\(logits\): expected integers, got dtype f",
        ),
    ],
)
def test_what_functions_of_decode_return(logits, chosen, error, message):
    steps = layers.decode(lambda *_: logits, [[1], [2]], lambda _: chosen, max_new_tokens=1)
    with pytest.raises(error, match=f"^{message}"):
        next(steps)


def test_chosen_tokens_are_int64():
    """With -1 for a sequence that has ended, uint64 would be float64."""
    chosen = np.array([1, 3], np.uint64)
    steps = layers.decode(
        lambda *_: np.ones((2, 4)), [[1], [2]], lambda _: chosen, max_new_tokens=2, stop_ids=[3]
    )
    for found, expected in zip(steps, ([1, 3], [1, -1]), strict=True):
        assert found.dtype == np.int64 and found.tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_greedy_takes_no_nan_for_the_highest(dtype):
    logits = np.array([[1, 3, np.inf], [-np.inf, np.nan, np.inf]]).astype(cases.dtype_of(dtype))
    with pytest.raises(ValueError, match=r"^logits: expected numbers, got NaN in row 1"):
        layers.greedy(logits)
    assert layers.greedy(logits[:1]).tolist() == [2]
    assert layers.greedy(logits[:0]).tolist() == []
