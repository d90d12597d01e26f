# SPDX-License-Identifier: MIT
"""quantize_kv: the errors that its documentation promises, of elements and of attention."""

import itertools
import math

import numpy as np
import programs
import pytest
from cases import dtype_of

import fastattn
from fastattn import reference

# Relative error, and absolute error in units of the scale: half the distance of stored numbers.
# x / scale is rounded to float32 before; for int8 that shifts a tie by 127 times its precision.
ERRORS = {
    "int8": (0.0, 0.5 + 127 * 2.0**-23),
    "float8_e4m3fn": (2.0**-4, 2.0**-10),
    "float8_e5m2": (2.0**-3, 2.0**-17),
}
LARGEST = {"int8": 127, "float8_e4m3fn": 448, "float8_e5m2": 57344}
ROUNDING = 1 + 2.0**-22
PER = {"token": -1, "head": (-2, -1)}
COMBINATIONS = list(itertools.product(ERRORS, PER))


def dequantised(stored, scale):
    return stored.astype(np.float64) * scale.reshape(
        *scale.shape, *[1] * (stored.ndim - scale.ndim)
    )


def tensor(rng, *shape):
    """Values over many orders of magnitude, rows of zeros and single outliers."""
    values = rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 2, shape[:-1])[..., None]
    values[rng.random(shape) < 0.1] *= 1e-3
    values[..., 0, :] = 0
    values[..., 1, 0] = 300
    return values


@pytest.mark.parametrize("given", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name, per", COMBINATIONS)
def test_error_of_elements(name, per, given, rng):
    k, v = (tensor(rng, 2, 3, 40, depth).astype(dtype_of(given)) for depth in (24, 7))
    results = fastattn.quantize_kv(k, v, dtype_of(name), per)
    for x, stored, scale in zip((k, v), results[:2], results[2:], strict=True):
        assert stored.dtype == dtype_of(name) and stored.shape == x.shape
        assert scale.dtype == np.float32 and scale.shape == x.shape[: -1 if per == "token" else -2]
        exact = x.astype(np.float64)
        largest = np.abs(exact).max(PER[per], keepdims=True)
        relative, absolute = ERRORS[name]
        step = np.maximum(largest / LARGEST[name], np.finfo(np.float32).tiny)
        allowed = np.maximum(relative * np.abs(exact), absolute * step) * ROUNDING
        assert (np.abs(dequantised(stored, scale) - exact) <= allowed).all()
        top = np.abs(stored.astype(np.float64)).max(PER[per], keepdims=True)
        assert (top[largest > 1e-30] == LARGEST[name]).all()
        assert not stored[exact == 0].any()


@pytest.mark.parametrize("name, per", COMBINATIONS)
def test_error_of_attention(name, per, rng):
    """The documented bound, and that scales mean what quantize_kv means by them."""
    q = rng.standard_normal((2, 4, 9, 16)) / 16
    k, v = rng.standard_normal((2, 2, 2, 30, 16))
    k8, v8, k_scale, v_scale = fastattn.quantize_kv(k, v, dtype_of(name), per)
    k_near, v_near = dequantised(k8, k_scale), dequantised(v8, v_scale)
    found = reference.attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale, causal=True)
    same = reference.attention(q, k_near, v_near, causal=True)
    np.testing.assert_allclose(found, same, rtol=0, atol=1e-13)
    error = np.abs(found - reference.attention(q, k, v, causal=True)).max()
    of_k, of_v = np.abs(k_near - k).max(), np.abs(v_near - v).max()
    scores = np.abs(q).sum(-1).max() / math.sqrt(16) * of_k
    assert error <= of_v + np.expm1(2 * scores) * np.abs(v).max() < 1


@pytest.mark.parametrize("name, per", COMBINATIONS)
def test_attention_equals_the_oracle(name, per, isa, rng):
    q, k, v = rng.standard_normal((3, 2, 2, 30, 16)).astype(np.float32)
    k8, v8, k_scale, v_scale = fastattn.quantize_kv(k, v, dtype_of(name), per)
    options = {"k_scale": k_scale, "v_scale": v_scale, "causal": True}
    with fastattn.use_isa(isa):
        found = fastattn.attention(q, k8, v8, **options)
    expected = reference.attention(q, k8, v8, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(v).max())


def test_layouts_and_ranks(rng):
    k, v = rng.standard_normal((2, 2, 3, 10, 8)).astype(np.float32)
    for per in PER:
        expected = fastattn.quantize_kv(k, v, per=per)
        swapped = fastattn.quantize_kv(k.swapaxes(1, 2), v.swapaxes(1, 2), per=per, layout="bshd")
        for found, want in zip(swapped, expected, strict=True):
            np.testing.assert_array_equal(found.swapaxes(1, 2) if want.ndim == 4 else found, want)
        one = fastattn.quantize_kv(k[0, 0], v[0, 0], per=per)
        assert one[2].shape == ((1, 10) if per == "token" else (1,))
        if per == "token":
            np.testing.assert_array_equal(one[0], expected[0][0, 0])
        reference.attention(k[0, 0], *one[:2], k_scale=one[2], v_scale=one[3])
    packed = fastattn.quantize_kv(k[0].swapaxes(0, 1), v[0].swapaxes(0, 1), layout="bshd")
    assert packed[0].shape == (10, 3, 8) and packed[2].shape == (3, 10)
    empty = fastattn.quantize_kv(k[:, :, :0], v[:, :, :0])
    assert empty[0].shape == (2, 3, 0, 8) and empty[2].shape == (2, 3, 0)


def test_smallest_and_largest_values():
    tiny = np.full((1, 4), 1e-44, np.float32)
    stored, _, scale, _ = fastattn.quantize_kv(tiny, tiny)
    assert (scale == np.finfo(np.float32).tiny).all() and not stored.any()
    tiny = np.linspace(0, 7e-37, 32, dtype=np.float32)[None]
    stored, _, scale, _ = fastattn.quantize_kv(tiny, tiny)
    error = np.abs(stored * scale.astype(np.float64)[:, None] - tiny).max()
    assert 7e-37 / 254 < error <= 1.5e-36 / 254  # as the docstring says
    huge = np.array([[3e38, -3e38, 1e38, 0]], np.float32)
    stored, _, scale, _ = fastattn.quantize_kv(huge, huge)
    assert stored.tolist() == [[127, -127, 42, 0]] and np.isfinite(scale).all()


@pytest.mark.parametrize("dtype", ["int8", np.int8, np.dtype(np.int8)])
def test_names_of_int8(dtype):
    assert fastattn.quantize_kv(*np.ones((2, 3, 4)), dtype)[0].dtype == np.int8


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_names_of_fp8(name):
    dtype = dtype_of(name)
    for given in name, dtype, dtype.type:
        assert fastattn.quantize_kv(*np.ones((2, 3, 4)), given)[0].dtype == dtype


NARROW = "dtype: expected int8, float8_e4m3fn or float8_e5m2, got "
ONES = np.ones((3, 4), np.float32)
WRONG = {
    "dtype": ({"dtype": np.int16}, TypeError, NARROW + "int16"),
    "dtype none": ({"dtype": None}, TypeError, NARROW + "None"),
    "dtype word": ({"dtype": "narrow"}, TypeError, NARROW + "'narrow'"),
    "dtype number": ({"dtype": 8}, TypeError, NARROW + "8"),
    "per": ({"per": "page"}, ValueError, "per: expected one of 'token', 'head', got 'page'"),
    "layout": ({"layout": "hsd"}, ValueError, "layout: expected one of 'bhsd', 'bshd', got 'hsd'"),
    "k list": ({"k": [[1.0]]}, TypeError, "k: expected a numpy.ndarray, got list"),
    "v dtype": ({"v": ONES.astype(np.int8)}, TypeError,
                "v: expected dtype float32, float64, float16 or bfloat16, got int8"),
    "k rank": ({"k": ONES[0]}, ValueError, "k: expected at least 2 axes, got shape (4,)"),
    "k nan": ({"k": ONES * np.nan}, ValueError, "k: expected finite values, got NaN or infinity"),
    "v inf": ({"v": ONES * -np.inf}, ValueError, "v: expected finite values, got NaN or infinity"),
    "k large": ({"k": ONES * np.float64(1e300)}, ValueError,
                "k: expected values whose scale fits into float32, got larger ones"),
}  # fmt: skip


@pytest.mark.parametrize("changes, exception, message", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(changes, exception, message):
    with pytest.raises(exception) as caught:
        fastattn.quantize_kv(**{"k": ONES, "v": ONES, **changes})
    assert caught.type is exception and str(caught.value).startswith(message)


def test_fp8_that_nobody_has():
    pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError, match="got 'float8_e9m9'"):
        fastattn.quantize_kv(ONES, ONES, "float8_e9m9")


def test_nothing_is_imported_that_is_not_used():
    result = programs.run("""
        import sys, fastattn, numpy
        fastattn.quantize_kv(*numpy.ones((2, 3, 4)))
        assert not {"ml_dtypes", "fastattn.caches", "fastattn.reference"} & {*sys.modules}
    """)
    assert result.returncode == 0, result.stderr
