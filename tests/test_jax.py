# SPDX-License-Identifier: MIT
"""fastattn.jax against jax.nn's own result, under its transformations, and its handler alone."""

import doctest
import functools
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from programs import run

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import fastattn.jax  # noqa: E402
from fastattn import reference  # noqa: E402

mine = fastattn.jax.dot_product_attention
theirs = jax.nn.dot_product_attention
SOURCES = Path(__file__).parent.parent / "src_c"
COMPILER = shutil.which("gcc") or shutil.which("cc")


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
    "window": lambda rng: {"local_window_size": 20},
    "window of two": lambda rng: {"local_window_size": (16, 2), "is_causal": True},
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
def test_sizes(sizes, rng):
    arguments = tensors(rng, **sizes)
    expected = jax.jit(functools.partial(theirs, is_causal=True))(*arguments)
    check(mine(*arguments, is_causal=True), expected)


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
        got = jax.jit(mine)(q, k, v)
        expected = reference.attention(*map(np.asarray, (q, k, v)), layout="bshd")
        check(got, expected, 1e-14)


def test_same_bits_as_fastattn_on_each_isa(rng, isa):
    """The instruction set and the number of threads are those in force while tracing."""
    arguments = tensors(rng, queries=70, keys=130)
    with fastattn.use_isa(isa), fastattn.num_threads(2):
        got = mine(*arguments, is_causal=True)
        expected = fastattn.attention(
            *map(np.asarray, arguments), causal=True, q_offset=0, layout="bshd"
        )
    np.testing.assert_array_equal(got, expected)


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
    "query dtype": ({"query": jnp.zeros((2, 17, 6, 16), int)}, TypeError,
                    "query: expected dtype float32 or float64"),
    "key dtype": ({"key": jnp.zeros((2, 33, 2, 16), "float16")}, TypeError, "key: expected dtype "),
    "key depth": ({"key": jnp.zeros((2, 33, 2, 8))}, ValueError,
                  "key: expected batch 2 and depth 16 like query, got shape (2, 33, 2, 8)"),
    "key batch": ({"key": jnp.zeros((33, 2, 16))}, ValueError, "key: expected batch 2 and depth"),
    "key heads": ({"key": jnp.zeros((2, 33, 4, 16))}, ValueError,
                  "key: expected a number of heads that divides query's 6, got shape (2, 33, 4"),
    "value": ({"value": jnp.zeros((2, 32, 2, 16))}, ValueError,
              "value: expected shape (2, 33, 2) like key, got shape (2, 32, 2, 16)"),
    "value depth": ({"value": jnp.zeros((2, 33, 2, 0))}, ValueError,
                    "query, value: expected depth of at least 1, got (2, 17, 6, 16), (2, 33, 2,"),
    "mask dtype": ({"mask": jnp.zeros((17, 33))}, TypeError,
                   "mask: expected dtype bool, got float32"),
    "mask shape": ({"mask": jnp.zeros((17, 32), bool)}, ValueError,
                   "mask: expected a shape that broadcasts to (2, 6, 17, 33), got (17, 32)"),
    "mask rank": ({"mask": jnp.zeros((1, 1, 1, 1, 33), bool)}, ValueError,
                  "mask: expected a shape that broadcasts to (2, 6, 17, 33), got (1, 1, 1, 1, 33)"),
    "bias dtype": ({"bias": jnp.zeros((17, 33), bool)}, TypeError,
                   "bias: expected a floating-point dtype, got bool"),
    "lengths dtype": ({"query_seq_lengths": jnp.zeros(2)}, TypeError,
                      "query_seq_lengths: expected integers, got dtype float32"),
    "lengths shape": ({"key_value_seq_lengths": jnp.array([3])}, ValueError,
                      "key_value_seq_lengths: expected shape (2,), got shape (1,)"),
    "window": ({"local_window_size": -1}, ValueError,
               "local_window_size: expected an integer not below 0, got -1"),
    "window count": ({"local_window_size": (1, 2, 3)}, ValueError,
                     "local_window_size: expected an int or (left, right), got 3 values"),
    "scale": ({"scale": jnp.array(1.0)}, TypeError, "scale: expected a number, got "),
    "causal": ({"is_causal": 1}, TypeError, "is_causal: expected True or False, got int"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, rng):
    changes, exception, message = ERRORS[name]
    arguments = dict(zip(("query", "key", "value"), tensors(rng), strict=True)) | changes
    with pytest.raises(exception) as caught:
        mine(**arguments)
    assert caught.type is exception and str(caught.value).startswith(message)


def test_another_device(monkeypatch, rng):
    monkeypatch.setattr(fastattn.jax, "_platforms", lambda value: {"gpu"})
    with pytest.raises(TypeError, match="query: expected an array on a CPU, got one on gpu"):
        mine(*tensors(rng))


# --- the handler alone ---------------------------------------------------------------------------

SHAPE = (2, 5, 4, 8)
ATTRIBUTES = {"causal": np.int64(0), "isa": fastattn.isa(), "left": np.int64(-1),
              "optional": np.int64(0), "right": np.int64(-1), "scale": np.float64(1),
              "threads": np.int64(1)}  # fmt: skip
FRAMES = {
    "argument missing": {"arguments": [SHAPE, SHAPE]},
    "argument left over": {"arguments": [SHAPE] * 4},
    "query shape": {"arguments": [(2, 6, 4, 8), SHAPE, SHAPE]},
    "key heads": {"arguments": [SHAPE, (2, 5, 3, 8), (2, 5, 3, 8)]},
    "value rank": {"arguments": [SHAPE, SHAPE, SHAPE[1:]]},
    "dtype": {"dtype": jnp.int32},
    "result rank": {"results": [(4, 8)]},
    "results": {"results": [SHAPE, (2, 4, 5), (1,)]},
    "lse shape": {"results": [SHAPE, (2, 4, 6)]},
    "attribute dtype": {"scale": np.float32(0.3)},
    "attribute missing": {"threads": None},
    "isa too long": {"isa": "x" * 40},
    "window": {"left": np.int64(-2)},
    "lengths dtype": {"arguments": [SHAPE] * 3 + [(2,)], "optional": np.int64(4)},
    "mask shape": {"arguments": [SHAPE] * 3 + [(2, 4, 5, 6)], "optional": np.int64(1)},
}


def call_handler(arguments=(SHAPE,) * 3, results=(SHAPE,), dtype=jnp.float32, **attributes):
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape in results]
    attributes = {name: v for name, v in (ATTRIBUTES | attributes).items() if v is not None}
    call = jax.ffi.ffi_call("fastattn_attention", results)
    return jax.block_until_ready(call(*(jnp.ones(s, dtype) for s in arguments), **attributes))


def test_handler():
    [out] = call_handler()
    np.testing.assert_array_equal(out, np.ones(SHAPE))


@pytest.mark.parametrize("name", FRAMES)
def test_handler_refuses(name):
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*fastattn: "):
        call_handler(**FRAMES[name])


def test_handler_refuses_unknown_isa():
    with pytest.raises(jax.errors.JaxRuntimeError, match="cannot run the instruction set"):
        call_handler(isa="avx1024")


# Ours: theirs, fields of ours: theirs.
STRUCTS = {
    "xla_extension": ("Extension_Base", "size:struct_size kind:type next"),
    "xla_version": ("Api_Version", "size:struct_size extensions:extension_start "
                    "major:major_version minor:minor_version"),
    "xla_metadata": ("Metadata", "size:struct_size version:api_version traits"),
    "xla_metadata_extension": ("Metadata_Extension", "base:extension_base metadata"),
    "xla_error_args": ("Error_Create_Args", "size:struct_size extensions:extension_start message "
                       "code:errc"),
    "xla_api": ("Api", "size:struct_size extensions:extension_start version:api_version "
                "internal:internal_api error_create:XLA_FFI_Error_Create"),
    "xla_buffer": ("Buffer", "size:struct_size extensions:extension_start dtype data rank "
                   "shape:dims"),
    "xla_span": ("ByteSpan", "text:ptr length:len"),
    "xla_scalar": ("Scalar", "dtype value"),
    "xla_values": ("Args", "size:struct_size extensions:extension_start count:size kinds:types "
                   "values:args"),  # and XLA_FFI_Rets, which the offsets in the frame show
    "xla_attributes": ("Attrs", "size:struct_size extensions:extension_start count:size "
                       "kinds:types names values:attrs"),
    "xla_call_frame": ("CallFrame", "size:struct_size extensions:extension_start api context:ctx "
                       "stage arguments:args results:rets attributes:attrs"),
}  # fmt: skip
CONSTANTS = {
    "XLA_MAJOR": "API_MAJOR", "XLA_EXTENSION_METADATA": "Extension_Metadata",
    "XLA_STAGE_EXECUTE": "ExecutionStage_EXECUTE", "XLA_BUFFER": "ArgType_BUFFER",
    "XLA_SCALAR": "AttrType_SCALAR", "XLA_STRING": "AttrType_STRING",
    "XLA_INVALID_ARGUMENT": "Error_Code_INVALID_ARGUMENT",
    "XLA_RESOURCE_EXHAUSTED": "Error_Code_RESOURCE_EXHAUSTED",
    "XLA_FAILED_PRECONDITION": "Error_Code_FAILED_PRECONDITION",
    **{f"XLA_{name}": f"DataType_{name}" for name in ("PRED", "S32", "S64", "F32", "F64")},
}  # fmt: skip


@pytest.mark.skipif(not COMPILER or not SOURCES.exists(), reason="needs the source and a compiler")
def test_declarations_are_those_of_jaxlib(tmp_path):
    lines = ['#include "xla_ffi.h"', '#include "xla/ffi/api/c_api.h"']
    for ours, (struct, fields) in STRUCTS.items():
        for field in fields.split():
            own, _, other = field.partition(":")
            there = f"XLA_FFI_{struct}, {other or own}"
            lines += [
                f'_Static_assert(offsetof({ours}, {own}) == offsetof({there}), "{ours}.{own}");',
                f'_Static_assert(SIZE({ours}, {own}) == SIZE({there}), "{ours}.{own}");',
            ]
    lines += [
        f'_Static_assert({ours} == (int)XLA_FFI_{name}, "{ours}");'
        for ours, name in CONSTANTS.items()
    ]
    program = tmp_path / "abi.c"
    program.write_text("\n".join(lines))
    command = [COMPILER, "-std=c11", "-fsyntax-only", "-DSIZE(s, f)=sizeof(((s *)0)->f)"]
    includes = [f"-I{SOURCES}", f"-I{jax.ffi.include_dir()}"]
    subprocess.run([*command, *includes, program], check=True)
    assert len(lines) > 90


def test_docstring():
    result = doctest.testmod(fastattn.jax)
    assert result.attempted > 0 and result.failed == 0


def test_jax_is_imported_late():
    result = run("import sys, fastattn; assert 'jax' not in sys.modules; fastattn.jax")
    assert result.returncode == 0, result.stderr
