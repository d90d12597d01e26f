# SPDX-License-Identifier: MIT
"""Work for single entries of the kernel table."""

import functools

import numpy as np

from fastattn import _kernels

ELEMENTWISE = ("exp2", "tanh", "widen", "narrow", "greatest_square", "read_loop")
PRODUCTS = {"update": 4, "scores": 2, "output": 2, "weigh": 2}  # operations per query, key, feature


def prepare(kernel, isa, dtype, *, depth=64, keys=64, vectors=None, repeats=1):
    """Return a function that runs a table entry on made-up data, and how much it does.

    All `repeats` turns run in one call, with everything ready. The amount is in floating-point
    operations for `PRODUCTS` and the FMA loop, in bytes for read_loop, or else in numbers. The
    elementwise entries get `keys` vectors of numbers.
    """
    if kernel == "fma_loop":
        function = functools.partial(_kernels.fma_loop, isa, dtype, repeats)
        return function, _kernels.fma_loop(isa, dtype, 1) * repeats
    if kernel in ELEMENTWISE:
        return _elementwise(kernel, isa, dtype, keys, repeats)
    return _of_a_tile(kernel, isa, dtype, depth, keys, vectors, repeats)


def _elementwise(kernel, isa, dtype, vectors, repeats):
    lanes = _kernels.tile(isa, dtype)["lanes"]
    x = np.random.default_rng(1).standard_normal(vectors * lanes).astype(dtype)
    if kernel == "read_loop":
        x = np.ones(vectors * lanes, np.float32)
        return functools.partial(_kernels.read_loop, isa, [x], repeats), x.nbytes * repeats
    storage = "float16" if x.itemsize == 4 else "real"
    stored = x.astype(np.float16) if x.itemsize == 4 else x.copy()
    function = {
        "widen": lambda: _kernels.widen(isa, dtype, storage, stored[None], repeats=repeats),
        "greatest_square": lambda: _kernels.greatest_square(
            isa, dtype, storage, stored[None], repeats=repeats
        ),
        "narrow": lambda: _kernels.narrow(isa, storage, x, stored, repeats),
    }.get(kernel, lambda: _kernels.elementwise(kernel, isa, x, repeats))
    return function, x.size * repeats


def _of_a_tile(kernel, isa, dtype, depth, keys, vectors, repeats):
    vectors = vectors or _kernels.tile(isa, dtype)["tile_vectors"]
    rng = np.random.default_rng(1)
    subject, other = (_kernels.Tile(isa, dtype, vectors, depth, depth) for _ in range(2))
    q, k, v = (rng.standard_normal((n, depth)).astype(dtype) for n in (subject.width, keys, keys))
    for tile in (subject, other):
        tile.pack(q, 1 / depth)
        tile.run("update", k, v)
    bounds = _kernels.aligned((2, subject.width), dtype, 0)
    bounds[1] = keys
    modifiers = {"begin": bounds[0], "end": bounds[1]} if kernel == "modify" else None
    weights = np.empty((subject.width, keys), dtype) if kernel == "weigh" else None
    function = {
        "pack": lambda: subject.pack(q, 1 / depth, repeats=repeats),
        "begin": lambda: subject.begin(repeats=repeats),
        "merge": lambda: subject.merge(other, repeats),
        "finish": lambda: subject.finish(q, repeats),
    }.get(
        kernel,
        lambda: subject.run(kernel, k, v, modifiers=modifiers, weights=weights, repeats=repeats),
    )
    if kernel in PRODUCTS:
        each = PRODUCTS[kernel] * depth * keys
    else:
        each = {"begin": 1, "pack": depth, "merge": depth, "finish": depth}.get(kernel, keys)
    return function, each * subject.width * repeats
