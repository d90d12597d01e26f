# SPDX-License-Identifier: MIT
"""The handler behind fastattn.jax alone: frames that do not fit, and the layout of the structs."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import fastattn.jax  # noqa: E402

SOURCES = Path(__file__).parent.parent / "src_c"
COMPILER = shutil.which("gcc") or shutil.which("cc")
SHAPE = (2, 5, 4, 8)
ATTRIBUTES = {"causal": np.int64(0), "isa": fastattn.isa(), "left": np.int64(-1),
              "optional": np.int64(0), "right": np.int64(-1), "scale": np.float64(1),
              "threads": np.int64(1)}  # fmt: skip
HALF = jax.ShapeDtypeStruct(SHAPE, jnp.float16)  # the others are float32


def with_lengths(*shape, dtype=jnp.int32):
    """Return the arguments and attributes of a frame with lengths of the keys."""
    lengths = jax.ShapeDtypeStruct(shape, dtype)
    return {"arguments": [*[SHAPE] * 3, lengths], "optional": np.int64(4)}


def with_mask(*shape, dtype=jnp.float32):
    return with_lengths(*shape, dtype=dtype) | {"optional": np.int64(1)}


FRAMES = {
    "argument missing": {"arguments": [SHAPE, SHAPE]},
    "argument left over": {"arguments": [SHAPE] * 4},
    "query shape": {"arguments": [(2, 6, 4, 8), SHAPE, SHAPE]},
    "key heads": {"arguments": [SHAPE, (2, 5, 3, 8), (2, 5, 3, 8)]},
    "query rank": {"arguments": [SHAPE[1:], SHAPE, SHAPE]},
    "key rank": {"arguments": [SHAPE, SHAPE[1:], SHAPE]},
    "value rank": {"arguments": [SHAPE, SHAPE, SHAPE[1:]]},
    "dtype": {"dtype": jnp.int32},
    "query dtype": {"arguments": [HALF, SHAPE, SHAPE]},
    "key dtype": {"arguments": [SHAPE, HALF, SHAPE]},
    "value dtype": {"arguments": [SHAPE, SHAPE, HALF]},
    "result dtype": {"results": [HALF]},
    "result rank": {"results": [(4, 8)]},
    "no results": {"results": []},
    "results": {"results": [SHAPE, (2, 4, 5), (1,)]},
    "lse shape": {"results": [SHAPE, (2, 4, 6)]},
    "lse heads": {"results": [SHAPE, (2, 3, 5)]},
    "lse leading axes": {"results": [SHAPE, (1, 4, 5)]},
    "lse rank": {"results": [SHAPE, (2, 4, 5, 1)]},
    "lse dtype": {"results": [SHAPE, jax.ShapeDtypeStruct((2, 4, 5), jnp.float16)]},
    "attribute dtype": {"scale": np.float32(0.3)},
    "attribute missing": {"threads": None},
    "isa too long": {"isa": "x" * 32},
    "window": {"left": np.int64(-2)},
    "threads": {"threads": np.int64(-1)},
    "lengths dtype": with_lengths(2, dtype=jnp.float32),
    "lengths shape": with_lengths(3),
    "lengths rank": with_lengths(2, 1),
    "mask shape": with_mask(2, 4, 5, 6),
    "mask rank": with_mask(2, 4, 5, 5, 1),
    "mask dtype": with_mask(2, 4, 5, 5, dtype=jnp.int8),
}


def call_handler(arguments=(SHAPE,) * 3, results=(SHAPE,), dtype=jnp.float32, **attributes):
    def typed(shapes):
        return [jax.ShapeDtypeStruct(s, dtype) if isinstance(s, tuple) else s for s in shapes]

    attributes = {name: v for name, v in (ATTRIBUTES | attributes).items() if v is not None}
    call = jax.ffi.ffi_call("fastattn_attention", typed(results), has_side_effect=True)
    ones = (jnp.ones(each.shape, each.dtype) for each in typed(arguments))
    return jax.block_until_ready(call(*ones, **attributes))


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
DATA_TYPES = ["PRED", "S32", "S64", "F16", "F32", "F64", "BF16"]
CONSTANTS = {
    "XLA_MAJOR": "API_MAJOR", "XLA_EXTENSION_METADATA": "Extension_Metadata",
    "XLA_STAGE_EXECUTE": "ExecutionStage_EXECUTE", "XLA_BUFFER": "ArgType_BUFFER",
    "XLA_SCALAR": "AttrType_SCALAR", "XLA_STRING": "AttrType_STRING",
    "XLA_INVALID_ARGUMENT": "Error_Code_INVALID_ARGUMENT",
    "XLA_RESOURCE_EXHAUSTED": "Error_Code_RESOURCE_EXHAUSTED",
    "XLA_FAILED_PRECONDITION": "Error_Code_FAILED_PRECONDITION",
    **{f"XLA_{name}": f"DataType_{name}" for name in DATA_TYPES},
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
