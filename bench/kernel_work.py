# SPDX-License-Identifier: MIT
"""Work for single entries of the kernel table."""

import numpy as np

from fastattn import _kernels


def run(kernel, isa, dtype, *, depth=64, keys=64, vectors=None, repeats=1):
    """Run one table entry `repeats` times on made-up data; floating-point operations or bytes."""
    sizes = _kernels.tile(isa, dtype)
    vectors = vectors or sizes["tile_vectors"]
    if kernel == "fma_loop":
        return _kernels.fma_loop(isa, dtype, repeats)
    rng = np.random.default_rng(1)
    if kernel in ("exp2", "tanh", "read_loop"):
        x = rng.standard_normal(keys * sizes["lanes"]).astype(dtype)
        for _ in range(repeats):
            _kernels.elementwise(kernel, isa, x) if kernel != "read_loop" else _kernels.read_loop(
                isa, x
            )
        return x.size * repeats
    if kernel in ("widen", "narrow"):
        x = rng.standard_normal(keys * sizes["lanes"]).astype(dtype)
        storage = "float16" if x.itemsize == 4 else "real"
        stored = x.astype("float16") if x.itemsize == 4 else x.copy()
        for _ in range(repeats):
            if kernel == "widen":
                _kernels.widen(isa, dtype, storage, stored[None])
            else:
                _kernels.narrow(isa, storage, x, stored)
        return x.size * repeats
    subject = _kernels.Tile(isa, dtype, vectors, depth, depth)
    other = _kernels.Tile(isa, dtype, vectors, depth, depth)
    q, k, v = (rng.standard_normal((n, depth)).astype(dtype) for n in (subject.width, keys, keys))
    bounds = _kernels.aligned((2, subject.width), dtype, 0)
    bounds[1] = keys
    subject.pack(q, 1 / depth)
    subject.run("update", k, v)
    other.pack(q, 1 / depth)
    other.run("update", k, v)
    if kernel in _kernels.STAGES:
        modifiers = {"begin": bounds[0], "end": bounds[1]} if kernel == "modify" else None
        subject.run(kernel, k, v, modifiers=modifiers, repeats=repeats)
    else:
        weights = np.empty((subject.width, keys), dtype)
        for _ in range(repeats):
            if kernel == "pack":
                subject.pack(q, 1 / depth)
            elif kernel == "begin":
                subject.begin()
            elif kernel == "merge":
                subject.merge(other)
            elif kernel == "finish":
                subject.finish(q)
            else:
                subject.run("weigh", k, v, weights=weights)
    products = {"update": 4, "scores": 2, "output": 2, "weigh": 2}.get(kernel, 0)
    per_turn = products * depth * keys * subject.width or keys * subject.width
    return per_turn * repeats
