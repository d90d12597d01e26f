# SPDX-License-Identifier: MIT
"""Nothing outside the arrays is read or written: canaries around outputs, guard pages at inputs."""

import ctypes
import mmap
import sys

import cases
import numpy as np
import pytest

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
        array = np.frombuffer(self.map, values.dtype, values.size, start).reshape(values.shape)
        array[...] = values
        return array


@pytest.mark.no_sanitizer
@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "begin"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (17, 33, 5, 3), (49, 130, 64, 64), (24, 64, 33, 12)]
)
def test_guard_pages(isa, dtype, shape, at_end, rng):
    queries, keys, depth, dv = shape
    q, k, v = cases.tensors(rng, dtype, queries=queries, keys=keys, depth=depth, dv=dv)
    masks = [None, rng.random((queries, keys)) < 0.6, rng.standard_normal((queries, keys))]
    for mask in masks:
        if mask is not None and mask.dtype != bool:
            mask = mask.astype(dtype)
        options = {} if mask is None else {"attn_mask": mask}
        guards = [Guarded(x.nbytes) for x in (q, k, v, q[..., :1] * v[..., :1, :])]
        inputs = [g.array(x, at_end) for g, x in zip(guards, (q, k, v), strict=False)]
        out = guards[3].array(np.zeros((1, 2, queries, dv), dtype), at_end)
        if mask is not None:
            guard = Guarded(mask.nbytes)
            options["attn_mask"] = guard.array(mask, at_end)
        with fastattn.use_isa(isa):
            result = fastattn.attention(*inputs, out=out, return_lse=True, causal=True, **options)
        cases.check(result, q, k, v, causal=True, **options)
