# SPDX-License-Identifier: MIT
"""fastattn.jax against jax.nn's own result, and under the transformations of jax."""

import doctest
import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from programs import run

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import fastattn.jax  # noqa: E402
from fastattn import reference  # noqa: E402

mine = fastattn.jax.dot_product_attention
theirs = jax.nn.dot_product_attention


@pytest.fixture(scope="module", autouse=True)
def quick_compiler():
    """Compiling jax.nn's programs is what takes the time here."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def tensors(rng, batch=2, queries=17, keys=33, heads=6, kv_heads=2, depth=16, dtype=np.float32):
    shapes = [(queries, heads, depth), (keys, kv_heads, depth), (keys, kv_heads, depth)]
    lead = () if batch is None else (batch,)
    return [jnp.asarray(rng.standard_normal((*lead, *shape)).astype(dtype)) for shape in shapes]


def check(got, expected, tolerance=2e-6):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def mask_of(rng, *shape):
    """A random mask that leaves no row without a key."""
    mask = rng.random(shape) < 0.5
    mask[..., 0] = True
    return jnp.asarray(mask)


OPTIONS = {
    "plain": lambda rng: {},
    "causal": lambda rng: {"is_causal": True},
    "scale": lambda rng: {"scale": -0.3},
    "scale of 0": lambda rng: {"scale": 0.0},
    "window": lambda rng: {"local_window_size": 20},
    "window of two": lambda rng: {"local_window_size": [16, 2], "is_causal": True},
    "key lengths": lambda rng: {"key_value_seq_lengths": jnp.array([7, 33])},
    "lengths beyond": lambda rng: {"key_value_seq_lengths": jnp.array([1, 99])},
    "query lengths": lambda rng: {"query_seq_lengths": jnp.array([17, 5])},
    "both lengths": lambda rng: {"query_seq_lengths": jnp.array([0, 9]), "is_causal": True,
                                 "key_value_seq_lengths": jnp.array([12, 5])},
    "mask": lambda rng: {"mask": mask_of(rng, 2, 6, 17, 33)},
    "mask of keys": lambda rng: {"mask": mask_of(rng, 2, 1, 1, 33)},
    "mask of heads": lambda rng: {"mask": mask_of(rng, 6, 17, 33), "is_causal": True},
    "bias": lambda rng: {"bias": jnp.asarray(rng.standard_normal((1, 6, 17, 33)))},
    "bias of 16 bits": lambda rng: {"bias": jnp.asarray(rng.standard_normal((17, 33)), "bfloat16")},
    "mask and bias": lambda rng: {"mask": mask_of(rng, 2, 1, 1, 33), "is_causal": True,
                                  "bias": jnp.asarray(rng.standard_normal((1, 6, 17, 1)))},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_against_jax(name, rng):
    """Called as it is and under jit."""
    arguments, options = tensors(rng), OPTIONS[name](rng)
    with_residual = "query" not in name and "both" not in name  # of padding: -inf, a number there
    options["return_residual"] = with_residual
    expected = jax.jit(functools.partial(theirs, **options))(*arguments)
    check(mine(*arguments, **options), expected)
    check(jax.jit(functools.partial(mine, **options))(*arguments), expected)


def test_window_wider_than_any_offset(rng):
    arguments = tensors(rng, batch=1)
    wide = mine(*arguments, local_window_size=(2**70, 1))
    check(wide, mine(*arguments, local_window_size=(40, 1)), 0)


@pytest.mark.parametrize("name", ["query_seq_lengths", "key_value_seq_lengths"])
@pytest.mark.parametrize("library", [np, jnp], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    "dtype, lengths",
    [
        ("uint32", (2**32 - 1, 2**31)),
        ("int64", (2**32 + 1, 2**31)),
        ("int64", (-(2**32) + 5, 33)),
        ("uint64", (2**64 - 1, 5)),
        ("int8", (127, -128)),
    ],
)
def test_lengths_beyond_32_bits(dtype, lengths, library, name, rng):
    arguments = tensors(rng)
    least = np.array([min(max(n, 0), 99) for n in lengths], np.int32)
    expected = mine(*arguments, **{name: jnp.asarray(least)})
    with jax.enable_x64(library is jnp):  # without it jax has no 64 bits, but NumPy has
        given = library.array(lengths, dtype)
        check(mine(*arguments, **{name: given}), expected, 0)
        if library is jnp:
            check(jax.jit(lambda n: mine(*arguments, **{name: n}))(given), expected, 0)


@pytest.mark.parametrize(
    "sizes",
    [
        {"batch": None},
        {"heads": 4, "kv_heads": 4},
        {"heads": 4, "kv_heads": 1},
        {"queries": 1, "keys": 1, "depth": 1},
        {"queries": 300, "keys": 200, "depth": 64, "batch": 1},
        {"queries": 0},
        {"batch": 0},
    ],
    ids=str,
)
def test_sizes_match_jax(sizes, rng):
    arguments = tensors(rng, **sizes)
    options = {"is_causal": True, "return_residual": True}
    check(mine(*arguments, **options), jax.jit(functools.partial(theirs, **options))(*arguments))


def test_jit_of_a_model(rng):
    """Arrays that XLA computes itself, in its own memory, before and after."""
    x = jnp.asarray(rng.standard_normal((2, 17, 32), np.float32))
    weights = jnp.asarray(rng.standard_normal((3, 32, 4, 8), np.float32)) / 32**0.5

    def layer(function):
        def body(x):
            q, k, v = jnp.einsum("bsf,nfhd->nbshd", x, weights)
            return jnp.tanh(function(q, k, v, is_causal=True)).swapaxes(0, 1)

        return jax.jit(body)

    check(layer(mine)(x), layer(theirs)(x))


VMAPS = {
    "all": (0, 0, 0, 0, 0),
    "queries": (0, None, None, None, None),
    "keys": (None, 1, 2, None, None),
    "mask": (None, None, None, 0, None),
    "lengths": (None, None, None, None, 0),
    "queries and lengths": (3, None, None, None, 0),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap(name, rng):
    arguments = [*tensors(rng), mask_of(rng, 2, 1, 17, 33), jnp.array([20, 33])]
    axes = VMAPS[name]
    stacked = [
        argument if axis is None else jnp.stack([argument, jnp.flip(argument, 0), argument], axis)
        for argument, axis in zip(arguments, axes, strict=True)
    ]

    def mapped(function):
        def body(q, k, v, mask, lengths):
            return function(q, k, v, mask=mask, key_value_seq_lengths=lengths, return_residual=True)

        return jax.vmap(body, in_axes=axes)

    expected = jax.jit(mapped(theirs))(*stacked)
    check(mapped(mine)(*stacked), expected)
    check(jax.jit(mapped(mine))(*stacked), expected)


def test_vmap_of_vmap(rng):
    q, k, v = tensors(rng)
    lengths = jnp.array([[3, 33], [5, 6], [7, 8]])
    queries = jnp.stack([q, 2 * q])

    def call(function):
        def body(q, lengths):
            return function(q, k, v, key_value_seq_lengths=lengths, is_causal=True)

        return jax.jit(jax.vmap(jax.vmap(body, (None, 0)), (0, None)))(queries, lengths)

    check(call(mine), call(theirs))


@pytest.mark.parametrize("depth", [5, 6])
def test_vmap_in_vmap_has_an_end(depth, rng):
    q, k, v = tensors(rng)
    mapped = mine
    for _ in range(depth):
        q, mapped = q[None], jax.vmap(mapped, (0, None, None))
    if depth == 5:
        check(mapped(q, k, v)[(0,) * depth], theirs(q[(0,) * depth], k, v))
        return
    with pytest.raises(Exception, match="query: expected at most 9 axes with those of vmap"):
        mapped(q, k, v)


def test_queries_without_keys_give_0(rng):
    arguments = tensors(rng)
    lengths = jnp.array([0, 33])
    out, residual = mine(*arguments, key_value_seq_lengths=lengths, return_residual=True)
    assert not out[0].any() and np.isneginf(residual[0]).all()
    assert np.isfinite(residual[1]).all()
    out, residual = mine(*arguments, query_seq_lengths=jnp.array([17, 4]), return_residual=True)
    assert not out[1, 4:].any() and np.isneginf(residual[1, 4:]).all()
    assert np.isfinite(residual[1, :4]).all()


def test_values_of_another_depth(rng):
    q, k, _ = tensors(rng)
    v = jnp.asarray(rng.standard_normal((2, 33, 2, 5), np.float32))
    whole = jnp.concatenate([v, jnp.zeros((2, 33, 2, 11))], axis=3)
    check(mine(q, k, v), theirs(q, k, whole)[..., :5])


def test_float64(rng):
    with jax.enable_x64(True):
        q, k, v = tensors(rng, dtype=np.float64)
        bias = rng.standard_normal((17, 33)).astype(np.float16)
        got = jax.jit(functools.partial(mine, return_residual=True))(q, k, v, bias)
        out, lse = reference.attention(
            *map(np.asarray, (q, k, v)), attn_mask=bias, layout="bshd", return_lse=True
        )
        check(got, (out, lse.swapaxes(1, 2)), 1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(dtype, rng):
    """At most twice the error of jax, both against the oracle; under jit and vmap as well."""
    q, k, v = (tensor.astype(dtype) for tensor in tensors(rng, queries=65, keys=130))
    bias = jnp.asarray(rng.standard_normal((1, 6, 65, 130)), dtype)
    wide = [np.asarray(tensor, np.float64) for tensor in (q, k, v)]
    exact = reference.attention(
        *wide, attn_mask=np.asarray(bias, np.float64), causal=True, q_offset=0, layout="bshd"
    )

    def error(got):
        assert got.dtype == dtype
        return np.abs(np.asarray(got, np.float64) - exact).max()

    options = {"bias": bias, "is_causal": True}
    allowed = 2 * error(theirs(q, k, v, **options))
    got, residual = mine(q, k, v, **options, return_residual=True)
    assert error(got) <= allowed and residual.dtype == dtype
    compiled = jax.jit(jax.vmap(lambda q: mine(q, k, v, **options)))
    assert error(compiled(q[None])[0]) <= allowed


@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_bias_beyond_the_dtype_of_the_query(wide, rng):
    """It is not rounded to it, where it would be infinite."""
    q, k, v = (tensor.astype("float16") for tensor in tensors(rng))
    with jax.enable_x64(True):
        check(mine(q, k, v, jnp.full((17, 33), 1e5, wide)), mine(q, k, v), 1e-2)


def test_same_bits_as_fastattn_on_each_isa(rng, isa):
    """The instruction set and the number of threads are those in force while tracing."""
    arguments = tensors(rng, queries=70, keys=130)
    with fastattn.use_isa(isa), fastattn.num_threads(2):
        got = mine(*arguments, is_causal=True)
        expected = fastattn.attention(
            *map(np.asarray, arguments), causal=True, q_offset=0, layout="bshd"
        )
    np.testing.assert_array_equal(got, expected)


def test_number_of_threads(rng):
    with fastattn.num_threads(3):
        traced = jax.make_jaxpr(mine)(*tensors(rng))
    assert "('threads', np.int64(3))" in str(traced)


def test_several_threads_at_once(rng):
    arguments = tensors(rng, queries=130, keys=130)
    compiled = jax.jit(mine)
    expected = compiled(*arguments)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: compiled(*arguments), range(40)):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("derive", [jax.grad, jax.value_and_grad, jax.jacfwd, jax.jacrev])
def test_no_gradient(derive, rng):
    q, k, v = tensors(rng, batch=1, queries=2, keys=2)
    with pytest.raises(NotImplementedError, match="has no gradient yet: use jax"):
        jax.jit(derive(lambda q: mine(q, k, v).sum()))(q)


def test_gradient_of_something_else(rng):
    q, k, v = tensors(rng)

    def loss(weight, q):
        return (weight * mine(*map(jax.lax.stop_gradient, (weight * q, k, v)))).sum()

    np.testing.assert_allclose(jax.grad(loss)(1.0, q), mine(q, k, v).sum(), rtol=1e-5)


ERRORS = {
    "implementation": ({"implementation": "xla"}, ValueError,
                       "implementation: expected None, got 'xla'"),
    "query rank": ({"query": jnp.zeros((3, 4))}, ValueError,
                   "query: expected 3 or 4 axes, got shape (3, 4)"),
    "query None": ({"query": None}, TypeError, "query: expected an array, got NoneType"),
    "mask str": ({"mask": "x"}, TypeError, "mask: expected an array, got str"),
    "ragged mask": ({"mask": [[True], [True, False]]}, TypeError,
                    "mask: expected an array, got list"),
    "long length": ({"key_value_seq_lengths": [3, 2**40]}, TypeError,
                    "key_value_seq_lengths: expected an array, got list"),
    "query dtype": ({"query": jnp.zeros((2, 17, 6, 16), int)}, TypeError,
                    "query: expected dtype float32, float64, float16 or bfloat16, got int32"),
    "key dtype": ({"key": jnp.zeros((2, 33, 2, 16), "float16")}, TypeError,
                  "key: expected dtype float32 like query, got float16"),
    "key depth": ({"key": jnp.zeros((2, 33, 2, 8))}, ValueError,
                  "key: expected batch 2 and depth 16 like query, got shape (2, 33, 2, 8)"),
    "key batch": ({"key": jnp.zeros((33, 2, 16))}, ValueError, "key: expected batch 2 and depth"),
    "key heads": ({"key": jnp.zeros((2, 33, 4, 16))}, ValueError,
                  "key: expected a number of heads that divides query's 6, got shape (2, 33, 4"),
    "no key heads": ({"key": jnp.zeros((2, 33, 0, 16))}, ValueError, "key: expected a number of"),
    "value": ({"value": jnp.zeros((2, 32, 2, 16))}, ValueError,
              "value: expected shape (2, 33, 2) like key, got shape (2, 32, 2, 16)"),
    "depth": ({"query": jnp.zeros((2, 17, 6, 0)), "key": jnp.zeros((2, 33, 2, 0))}, ValueError,
              "query, value: expected depth of at least 1, got (2, 17, 6, 0), (2, 33, 2, 16)"),
    "value depth": ({"value": jnp.zeros((2, 33, 2, 0))}, ValueError,
                    "query, value: expected depth of at least 1, got (2, 17, 6, 16), (2, 33, 2,"),
    "mask dtype": ({"mask": jnp.zeros((17, 33))}, TypeError,
                   "mask: expected dtype bool, got float32"),
    "mask shape": ({"mask": jnp.zeros((17, 32), bool)}, ValueError,
                   "mask: expected a shape that broadcasts to (2, 6, 17, 33), got (17, 32)"),
    "mask empty": ({"mask": jnp.zeros((0, 33), bool)}, ValueError,
                   "mask: expected a shape that broadcasts to (2, 6, 17, 33), got (0, 33)"),
    "mask rank": ({"mask": jnp.zeros((1, 1, 1, 1, 33), bool)}, ValueError,
                  "mask: expected a shape that broadcasts to (2, 6, 17, 33), got (1, 1, 1, 1, 33)"),
    "bias dtype": ({"bias": jnp.zeros((17, 33), bool)}, TypeError,
                   "bias: expected dtype float32, float64, float16 or bfloat16, got bool"),
    "bias of 8 bits": ({"bias": jnp.zeros((17, 33), "float8_e4m3fn")}, TypeError,
                       "bias: expected dtype float32, float64, float16 or bfloat16, got float8_e4"),
    "bias of 8 bits and mask": ({"bias": jnp.zeros((17, 33), "float8_e5m2"),
                                 "mask": jnp.ones((17, 33), bool)}, TypeError,
                                "bias: expected dtype float32, float64, float16 or bfloat16, got"),
    "lengths dtype": ({"query_seq_lengths": jnp.zeros(2)}, TypeError,
                      "query_seq_lengths: expected integers, got dtype float32"),
    "lengths shape": ({"key_value_seq_lengths": jnp.array([[3, 3]])}, ValueError,
                      "key_value_seq_lengths: expected shape (2,), got shape (1, 2)"),
    "window": ({"local_window_size": -1}, ValueError,
               "local_window_size: expected an integer not below 0, got -1"),
    "window count": ({"local_window_size": (1, 2, 3)}, ValueError,
                     "local_window_size: expected an int or (left, right), got 3 values"),
    "scale": ({"scale": jnp.array(1.0)}, TypeError, "scale: expected a number, got "),
    "causal": ({"is_causal": 1}, TypeError, "is_causal: expected True or False, got int"),
    "residual": ({"return_residual": 1}, TypeError, "return_residual: expected True or False, got"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_wrong_arguments_are_named(name, rng):
    changes, exception, message = ERRORS[name]
    arguments = dict(zip(("query", "key", "value"), tensors(rng), strict=True)) | changes
    with pytest.raises(exception) as caught:
        mine(**arguments)
    assert caught.type is exception and str(caught.value).startswith(message)


def test_bias_of_8_bits_is_refused_while_traced(rng):
    bias = jnp.zeros((17, 33), "float8_e5m2")
    with pytest.raises(TypeError, match=r"^bias: expected dtype .*, got float8_e5m2"):
        jax.jit(functools.partial(mine, *tensors(rng))).trace(bias)


@pytest.mark.parametrize("name", ["value", "bias", "key_value_seq_lengths"])
def test_an_array_that_has_been_deleted(name, rng):
    given = dict(zip(("query", "key", "value"), tensors(rng), strict=True))
    given |= {"bias": jnp.zeros((17, 33)), "key_value_seq_lengths": jnp.array([20, 33])}
    given[name].delete()
    with pytest.raises(RuntimeError, match=f"^{name}: expected an array, got one that has been"):
        mine(**given)


@pytest.mark.parametrize("platforms", ["gpu", "cpu, gpu"])
def test_another_device(platforms, monkeypatch, rng):
    monkeypatch.setattr(fastattn.jax, "_platforms", lambda value: set(platforms.split(", ")))
    with pytest.raises(TypeError, match=f"query: expected an array on a CPU, got .* {platforms} "):
        mine(*tensors(rng))


def test_docstring():
    result = doctest.testmod(fastattn.jax)
    assert result.attempted > 0 and result.failed == 0


def test_jax_is_imported_late():
    result = run("import sys, fastattn; assert 'jax' not in sys.modules; fastattn.jax")
    assert result.returncode == 0, result.stderr
