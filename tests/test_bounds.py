# SPDX-License-Identifier: MIT
"""Nothing outside the arrays is read or written: canaries around outputs, guard pages at inputs."""

import ctypes
import mmap
import sys

import cases
import numpy as np
import pytest
from test_storage import PAIRS, narrow

import fastattn

PAGE = mmap.PAGESIZE


def test_canaries(isa, dtype, rng):
    for queries, dv in [(1, 1), (17, 5), (49, 24), (65, 33)]:
        q, k, v = cases.tensors(rng, dtype, batch=2, queries=queries, keys=70, dv=dv)
        canvas = np.full((4, 4, queries + 4, dv + 6), 7, dtype)
        out = canvas[1:3, 1:3, 2:-2, 3:-3]
        with fastattn.use_isa(isa):
            fastattn.attention(q, k, v, out=out, causal=True)
        cases.check(
            (out, fastattn.attention(q, k, v, causal=True, return_lse=True)[1]),
            q, k, v, causal=True,
        )  # fmt: skip
        out[...] = 7
        assert (canvas == 7).all()


class Guarded:
    """Memory that ends (or begins) at a page that may not be touched."""

    def __init__(self, nbytes):
        self.pages = -(-nbytes // PAGE)
        self.map = mmap.mmap(-1, (self.pages + 2) * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for page in (0, self.pages + 1):
            assert libc.mprotect(self.base + page * PAGE, PAGE, 0) == 0

    def array(self, values, at_end):
        start = PAGE + (self.pages * PAGE - values.nbytes if at_end else 0)
        bits = values.view(f"u{values.itemsize}")  # not every dtype has a buffer
        array = np.frombuffer(self.map, bits.dtype, bits.size, start).reshape(bits.shape)
        array[...] = bits
        return array.view(values.dtype)


def check_guarded(isa, at_end, q, k, v, **options):
    """Compare one call, all of whose arrays end (or begin) at such a page, with the oracle."""

    def guarded(x):
        return Guarded(x.nbytes).array(x, at_end)

    out = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    arrays = {name: guarded(x) for name, x in options.items()}
    result = cases.run(
        isa, guarded(q), guarded(k), guarded(v), out=guarded(out), causal=True, **arrays
    )
    cases.check(result, q, k, v, causal=True, **options)


def of_guard_pages(test):
    """Mark a test of at_end."""
    test = pytest.mark.parametrize("at_end", [True, False], ids=["end", "begin"])(test)
    test = pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")(test)
    return pytest.mark.no_sanitizer(test)


@of_guard_pages
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1),
        (1, 35, 16, 16),
        (2, 35, 5, 3),
        (17, 33, 5, 3),
        (49, 130, 64, 64),
        (24, 64, 33, 12),
    ],
)
def test_guard_pages(isa, dtype, shape, at_end, rng):
    queries, keys, depth, dv = shape
    q, k, v = cases.tensors(rng, dtype, queries=queries, keys=keys, depth=depth, dv=dv)
    check_guarded(isa, at_end, q, k, v)
    check_guarded(isa, at_end, q, k, v, attn_mask=rng.random((queries, keys)) < 0.6)
    mask = rng.standard_normal((queries, keys)).astype(dtype)
    check_guarded(isa, at_end, q, k, v, attn_mask=mask)


@of_guard_pages
@pytest.mark.parametrize(
    "pair",
    [*PAIRS, ("bfloat16", "float8_e4m3fn"), ("bfloat16", "float8_e5m2")],
    ids="-".join,
)
@pytest.mark.parametrize("shape", [(1, 33, 15, 31), (4, 97, 79, 95), (40, 130, 63, 47)])
def test_guard_pages_of_narrow_keys(isa, pair, shape, at_end, rng):
    """A feature fewer than whole vectors have; scales guarded as well."""
    queries, keys, depth, dv = shape
    q, k, v = cases.tensors(rng, "float32", queries=queries, keys=keys, depth=depth, dv=dv)
    of_q, of_k = map(cases.dtype_of, pair)
    q, k, v = q.astype(of_q), narrow(k, of_k), narrow(v, of_k)
    scales = {}
    if of_k.itemsize == 1:
        scale = np.full(k.shape[:-1], 1 / 40 if of_k == np.int8 else 1, np.float32)
        scales = {"k_scale": scale, "v_scale": scale}
    check_guarded(isa, at_end, q, k, v, **scales)
