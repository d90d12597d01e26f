# SPDX-License-Identifier: MIT
"""KVCache: what is appended is what is attended to, and nothing is written on an error."""

import re

import cases
import numpy as np
import pytest
from cache_cases import DEPTH, HEADS, LAYOUTS, OPTIONS, VALUE_DEPTH, logical, tokens

import fastattn
from fastattn import reference

BATCH = 3


def make(**changes):
    sizes = {"batch": BATCH, "kv_heads": HEADS, "depth": DEPTH, "value_depth": VALUE_DEPTH}
    return fastattn.KVCache(**{**sizes, "capacity": 20, **changes})


def content(cache, b):
    """Keys and values of one sequence, (heads, length, depth)."""
    return [logical(each, cache.layout)[b, :, : cache.lengths[b]] for each in (cache.k, cache.v)]


# ---- tokens --------------------------------------------------------------------------------------

STEPS = {
    "at once": [(7, None)],
    "one by one": [(1, None)] * 5,
    "prompt, then one by one": [(6, None), (1, None), (1, None)],
    "ragged prompt": [(6, [6, 0, 3]), (1, None), (1, [1, 0, 1]), (3, None), (2, [0, 2, 1])],
    "nothing": [(0, None), (4, 0), (2, 2)],
    "padding that has no room": [(18, None), (4, 2)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_append_puts_tokens_behind_those_before(steps, layout, rng):
    cache = make(layout=layout)
    expected = [[np.zeros((HEADS, 0, d)) for d in (DEPTH, VALUE_DEPTH)] for _ in range(BATCH)]
    for count, lengths in steps:
        given = tokens(rng, BATCH, count, layout)
        cache.append(*given, lengths=lengths)
        counts = np.broadcast_to(count if lengths is None else lengths, BATCH)
        for b in range(BATCH):
            for which in range(2):
                new = logical(given[which], layout)[b, :, : counts[b]]
                expected[b][which] = np.concatenate([expected[b][which], new], axis=1)
        for b in range(BATCH):
            for got, want in zip(content(cache, b), expected[b], strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "of_cache, given",
    [
        ("float64", "float64"), ("float16", "float16"), ("float16", "float32"),
        ("bfloat16", "bfloat16"), ("bfloat16", "float32"),
    ],
)  # fmt: skip
def test_tokens_are_stored_in_the_type_of_the_cache(of_cache, given, rng):
    of_cache, given = cases.dtype_of(of_cache), cases.dtype_of(given)
    cache = make(dtype=of_cache)
    k, v = tokens(rng, BATCH, 4, dtype=given)
    cache.append(k, v)
    assert cache.dtype == cache.k.dtype == cache.v.dtype == of_cache and cache.k_scale is None
    np.testing.assert_array_equal(cache.k[:, :, :4], k.astype(of_cache))
    np.testing.assert_array_equal(cache.v[:, :, :4], v.astype(of_cache))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("given", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types(dtype, given, layout, rng):
    """Each token is quantized as quantize_kv does, whenever it comes."""
    dtype, given = cases.dtype_of(dtype), cases.dtype_of(given)
    cache = make(dtype=dtype, layout=layout)
    parts = [tokens(rng, BATCH, count, layout, given) for count in (3, 1, 2)]
    for part in parts:
        cache.append(*part)
    axis = 1 if layout == "bshd" else 2
    k, v = (np.concatenate(each, axis=axis) for each in zip(*parts, strict=True))
    k8, v8, k_scale, v_scale = fastattn.quantize_kv(k, v, dtype, layout=layout)
    for got, want in (cache.k, k8), (cache.v, v8):
        np.testing.assert_array_equal(logical(got, layout)[:, :, :6], logical(want, layout))
    for got, want in (cache.k_scale, k_scale), (cache.v_scale, v_scale):
        assert got.shape == (BATCH, HEADS, 20) and got.dtype == np.float32
        np.testing.assert_array_equal(got[:, :, :6], want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.filterwarnings("error")
def test_padding_may_be_anything(paged, dtype, layout, rng):
    """NaN, infinity and what overflows behind the tokens that count, without a warning."""
    options = {"dtype": cases.dtype_of(dtype), "layout": layout}
    cache, expected = (make(**options) for _ in range(2))
    first = ()
    if paged:
        cache, expected = (fastattn.PagedKVCache(9, 4, HEADS, DEPTH, VALUE_DEPTH, **options)
                           for _ in range(2))  # fmt: skip
        first = ([(cache.new(), expected.new())[0] for _ in range(BATCH)],)
    k, v = tokens(rng, BATCH, 3, layout)
    expected.append(*first, k, v, lengths=[3, 2, 0])
    logical(k, layout)[1, :, 2] = np.nan
    logical(k, layout)[2] = 1e30
    logical(v, layout)[1, :, 2] = 1e30
    logical(v, layout)[2] = np.inf
    cache.append(*first, k, v, lengths=[3, 2, 0])
    for name, array in expected.state().items():
        np.testing.assert_array_equal(cache.state()[name], array)


def test_names_of_types():
    assert make(dtype="float16").dtype == np.float16
    assert make(dtype="bfloat16").dtype == cases.dtype_of("bfloat16")
    assert make(dtype="float8_e5m2").dtype == cases.dtype_of("float8_e5m2")


def test_new_cache_has_its_sizes_and_no_tokens():
    cache = make()
    assert cache.k.shape == (3, 2, 20, 8) and cache.v.shape == (3, 2, 20, 5)
    assert make(layout="bshd").v.shape == (3, 20, 2, 5)
    assert make(value_depth=None).v.shape == cache.k.shape
    assert cache.capacity == 20 and cache.nbytes == 3 * 2 * 20 * 13 * 4
    assert make(dtype=np.int8).nbytes == 3 * 2 * 20 * (13 + 2 * 4)
    assert cache.lengths.dtype == np.int64 and cache.lengths.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_arrays_begin_at_a_line(dtype):
    """NumPy's own do not, and rows that lie across lines are read more slowly."""
    sizes = {"kv_heads": 3, "depth": 5, "dtype": dtype}
    for n in range(1, 5):
        caches = fastattn.KVCache(n, capacity=7, **sizes), fastattn.PagedKVCache(n, 3, **sizes)
        for cache in caches:
            assert cache.k.ctypes.data % 64 == cache.v.ctypes.data % 64 == 0
            assert not cache.k.any() and not cache.v.any()


def test_repr(rng):
    cache = make(layout="bshd")
    cache.append(*tokens(rng, BATCH, 6, "bshd"), lengths=[6, 2, 4])
    assert repr(cache) == (
        "<KVCache batch=3, kv_heads=2, capacity=20, depth=8, value_depth=5, dtype=float32, "
        "layout=bshd, lengths=[6, 2, 4]>"
    )
    cache = fastattn.PagedKVCache(8, 4, 2, 8, dtype=np.float16)
    for _ in range(50):
        cache.new()
    cache.append(1, *np.ones((2, 1, 2, 5, 8), np.float16))
    assert repr(cache) == (
        "<PagedKVCache pages=8, kv_heads=2, page_size=4, depth=8, value_depth=8, dtype=float16, "
        "layout=bhsd, lengths={0: 0, 1: 5, 2: 0, 3: 0, ...}>"
    )


def test_lengths_are_a_copy(rng):
    cache = make()
    cache.lengths[:] = 5
    assert cache.lengths.tolist() == [0, 0, 0]


def test_truncate_and_reset(rng):
    cache = make()
    cache.append(*tokens(rng, BATCH, 6), lengths=[6, 2, 4])
    cache.truncate([3, 2, 0])
    assert cache.lengths.tolist() == [3, 2, 0]
    k, v = tokens(rng, BATCH, 2)
    cache.append(k, v)
    np.testing.assert_array_equal(cache.k[2, :, :2], k[2])
    np.testing.assert_array_equal(cache.v[0, :, 3:5], v[0])
    cache.truncate(1)
    assert cache.lengths.tolist() == [1, 1, 1]
    cache.reset()
    assert cache.lengths.tolist() == [0, 0, 0]
    cache.append(*tokens(rng, BATCH, 20))


# ---- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [*OPTIONS.values(), "mask"], ids=[*OPTIONS, "mask"])
def test_attend(options, layout, rng):
    if options == "mask":  # over all the capacity
        options = {"attn_mask": rng.random((3, 1, 2, 20)) < 0.7}
    cache = make(layout=layout)
    cache.append(*tokens(rng, BATCH, 9, layout), lengths=[9, 2, 5])
    q = rng.standard_normal((BATCH, 4, 2, DEPTH)).astype(np.float32)
    found, lse = cache.attend(logical(q, layout), return_lse=True, **options)
    expected = {"kv_lengths": cache.lengths, **options}
    cases.check(
        (logical(found, layout), lse), q, logical(cache.k, layout), logical(cache.v, layout),
        **expected,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float8_e4m3fn"])
def test_decoding_is_the_last_row_of_the_whole(dtype, rng):
    """A prompt, then token by token: what causal attention gives for all at once."""
    cache = make(dtype=cases.dtype_of(dtype))
    k, v = tokens(rng, BATCH, 12)
    q = rng.standard_normal((BATCH, 4, 12, DEPTH)).astype(np.float32)
    rows = []
    for begin, end in [(0, 7), *((i, i + 1) for i in range(7, 12))]:
        cache.append(k[:, :, begin:end], v[:, :, begin:end])
        rows.append(cache.attend(q[:, :, begin:end], causal=True))
    held = {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    expected = reference.attention(q, cache.k, cache.v, kv_lengths=12, causal=True, **held)
    found = np.concatenate(rows, axis=2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(v).max())


# ---- errors --------------------------------------------------------------------------------------


class Tensor:
    """Has what NumPy asks for, but of another library."""

    dtype = "torch.float32"

    def __repr__(self):
        return "Tensor of torch"


NEW_ERRORS = {
    "batch": ({"batch": 0}, ValueError, "batch: expected an integer not below 1, got 0"),
    "heads": ({"kv_heads": 1.5}, TypeError, "kv_heads: expected an integer, got float"),
    "batch huge": ({"batch": 10**30}, ValueError, "batch: expected an integer not above 9007199"),
    "value huge": ({"value_depth": 10**30}, ValueError,
                   "value_depth: expected an integer not above 9007199254740992, got 1000000000"),
    "depth": ({"depth": -1}, ValueError, "depth: expected an integer not below 1, got -1"),
    "value_depth": ({"value_depth": 0}, ValueError,
                    "value_depth: expected an integer not below 1, got 0"),
    "capacity": ({"capacity": 0}, ValueError, "capacity: expected an integer not below 1, got 0"),
    "sizes": ({"capacity": 2**53, "value_depth": 2**53}, ValueError,
              "batch, kv_heads, capacity, depth, value_depth: expected arrays of less than 2^60"),
    "dtype": ({"dtype": np.int32}, TypeError, "dtype: expected float32, float64, float16, bfloat16,"
              " int8, float8_e4m3fn or float8_e5m2, got int32"),
    "no dtype": ({"dtype": None}, TypeError, "dtype: expected float32, float64, float16, bfloat16,"
                 " int8, float8_e4m3fn or float8_e5m2, got None"),
    "tensor": ({"dtype": Tensor()}, TypeError, "dtype: expected float32, float64, float16, bfloat1"
               "6, int8, float8_e4m3fn or float8_e5m2, got Tensor of torch"),
    "no syntax": ({"dtype": "("}, TypeError, "dtype: expected float32, float64, float16, bfloat16,"
                  " int8, float8_e4m3fn or float8_e5m2, got '('"),
    "bytes": ({"dtype": ">f4"}, TypeError, "dtype: expected float32, float64, float16, bfloat16,"),
    "layout": ({"layout": "hbsd"}, ValueError, "layout: expected one of 'bhsd', 'bshd', got 'hb"),
}  # fmt: skip


@pytest.mark.parametrize("changes, exception, message", NEW_ERRORS.values(), ids=NEW_ERRORS)
def test_new_errors(changes, exception, message):
    with pytest.raises(exception) as caught:
        make(**changes)
    assert str(caught.value).startswith(message)


K, V = np.ones((3, 2, 4, 8), np.float32), np.ones((3, 2, 4, 5), np.float32)
APPEND_ERRORS = {
    "list": ({"k": [1.0]}, TypeError, "k: expected a numpy.ndarray, got list"),
    "dtype": ({"v": V.astype(np.float64)}, TypeError,
              "v: expected dtype float32 for a cache of float32, got float64"),
    "narrower": ({"k": K.astype(np.float16)}, TypeError,
                 "k: expected dtype float32 for a cache of float32, got float16"),
    "rank": ({"k": K[0]}, ValueError,
             "k: expected shape (sequences, 2, tokens, 8), got shape (2, 4, 8)"),
    "heads": ({"k": K[:, :1]}, ValueError,
              "k: expected shape (sequences, 2, tokens, 8), got shape (3, 1, 4, 8)"),
    "depth": ({"v": K}, ValueError,
              "v: expected shape (sequences, 2, tokens, 5), got shape (3, 2, 4, 8)"),
    "batch": ({"k": K[:2], "v": V[:2]}, ValueError, "k: expected 3 sequences, got shape (2, 2, 4"),
    "tokens": ({"v": V[:, :, 1:]}, ValueError,
               "v: expected tokens like k of shape (3, 2, 4, 8), got shape (3, 2, 3, 5)"),
    "lengths": ({"lengths": [5, 0, 0]}, ValueError, "lengths: expected values from 0 to 4, got 5"),
    "lengths shape": ({"lengths": [1, 2]}, ValueError,
                      "lengths: expected an integer or shape (3,), got shape (2,)"),
    "full": ({}, ValueError, "k: expected at most 2 tokens more for sequence 1, which has 18 of 20,"
             " got 4"),
    "full for one": ({"lengths": [0, 2, 4]}, ValueError,
                     "k: expected at most 3 tokens more for sequence 2, which has 17 of 20, got 4"),
}  # fmt: skip


@pytest.mark.parametrize("changes, exception, message", APPEND_ERRORS.values(), ids=APPEND_ERRORS)
def test_append_errors(changes, exception, message, rng):
    cache = make()
    cache.append(*tokens(rng, BATCH, 18), lengths=[5, 18, 17])
    before = cache.k.copy(), cache.v.copy(), cache.lengths
    with pytest.raises(exception) as caught:
        cache.append(**{"k": K, "v": V, **changes})
    assert str(caught.value).startswith(message)
    for got, want in zip((cache.k, cache.v, cache.lengths), before, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(), (8,), (2, 8)], ids=len)
def test_too_few_axes(shape):
    k = np.ones(shape, np.float32)
    message = re.escape(f"k: expected shape (sequences, tokens, 2, 8), got shape {shape}")
    with pytest.raises(ValueError, match=message):
        make(layout="bshd").append(k, k)


def test_errors_of_narrow_caches():
    cache = make(dtype=np.int8)
    with pytest.raises(
        TypeError, match="k: expected dtype float32, float16 or bfloat16 for a cach"
    ):
        cache.append(K.astype(np.int8), V.astype(np.int8))
    with pytest.raises(ValueError, match="v: expected finite values, got NaN or infinity"):
        cache.append(K, V * np.nan)
    k = K.copy()
    k[1, 0, 2, 0] = np.nan
    with pytest.raises(ValueError, match="k: expected finite values, got NaN or infinity"):
        cache.append(k, V, lengths=[2, 3, 2])
    assert not cache.k.any() and not cache.k_scale.any() and not cache.lengths.any()


@pytest.mark.parametrize("name", ["block_table", "layout", "k_scale", "v_scale"])
def test_options_that_the_cache_gives(name):
    with pytest.raises(
        ValueError, match=f"{name}: expected none, as the cache gives its own, got an"
    ):
        make().attend(np.ones((3, 4, 1, 8), np.float32), **{name: "bhsd"})


def test_lengths_that_are_not_there(rng):
    cache = make()
    cache.append(*tokens(rng, BATCH, 5), lengths=[5, 2, 5])
    message = "kv_lengths: expected at most the 2 tokens of sequence 1, got 3"
    with pytest.raises(ValueError, match=message):
        cache.attend(np.ones((3, 4, 1, 8), np.float32), kv_lengths=3)
    with pytest.raises(ValueError, match=message[3:]):
        cache.truncate([4, 3, 0])
    with pytest.raises(ValueError, match="lengths: expected values from 0 to 20, got -1"):
        cache.truncate(-1)
    assert cache.lengths.tolist() == [5, 2, 5]


@pytest.mark.parametrize(
    "layout, shape",
    [
        ("bhsd", (1, 4, 5, 7)), ("bhsd", (1, 3, 4, 8)), ("bhsd", (3, 4, 8)), ("bhsd", (4, 8)),
        ("bshd", (1, 5, 4, 7)), ("bshd", (1, 4, 3, 8)), ("bshd", (4, 3, 8)), ("bshd", (4, 8)),
    ],
)  # fmt: skip
def test_attend_of_another_depth_or_heads(layout, shape):
    """What the cache gives `attention` is not the caller's to mend."""
    cache = fastattn.KVCache(1, 2, 8, capacity=4, layout=layout)
    with pytest.raises(ValueError) as caught:
        cache.attend(np.ones(shape, np.float32))
    expected = "q: expected depth 8 and a multiple of 2 heads for this cache"
    assert str(caught.value) == f"{expected}, got shape {shape}"


@pytest.mark.parametrize("of_cache, batch", [(3, 2), (1, 2), (3, 4)])
def test_attend_of_another_batch(of_cache, batch):
    cache = fastattn.KVCache(of_cache, 2, 8, capacity=4)
    shape = (batch, 4, 1, 8)
    with pytest.raises(ValueError) as caught:
        cache.attend(np.ones(shape, np.float32))
    assert str(caught.value) == f"q: expected {of_cache} sequences, got shape {shape}"


@pytest.mark.parametrize("shape", [(1, 4, 1, 8), (4, 1, 8)], ids=len)
def test_queries_may_be_those_of_every_sequence(shape):
    cache = fastattn.KVCache(3, 2, 8, capacity=4)
    assert cache.attend(np.ones(shape, np.float32)).shape == (3, 4, 1, 8)
