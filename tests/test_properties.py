# SPDX-License-Identifier: MIT
"""Random shapes, strides and options against the oracle (hypothesis)."""

import cases
import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis.extra import numpy as hnp

import fastattn

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@st.composite
def tensors(draw, dtype):
    """q, k, v of random shape, memory order and step; values from a drawn seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lead = draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=3))
    heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    queries, keys = draw(st.integers(1, 100)), draw(st.integers(1, 150))
    depth, value_depth = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    shapes = [(heads * group, queries, depth), (heads, keys, depth), (heads, keys, value_depth)]
    arrays = []
    for shape in shapes:
        axes = draw(st.permutations(range(len(lead) + 3)))
        steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -2])) for _ in axes]
        full = [n * abs(step) for n, step in zip((*lead, *shape), steps, strict=True)]
        memory = rng.standard_normal([full[axis] for axis in axes]).astype(dtype)
        view = memory.transpose(np.argsort(axes))
        arrays.append(view[tuple(slice(None, None, step) for step in steps)])
    return arrays, rng


@st.composite
def options(draw, arrays, rng):
    q, k, _ = arrays
    *lead, heads, queries, _ = q.shape
    keys, batch, dtype = k.shape[-2], int(np.prod(lead)), q.dtype
    per_batch = {
        "q_offset": lambda: rng.integers(-50, 150, batch),
        "kv_lengths": lambda: rng.integers(0, keys + 1, batch),
        "kv_starts": lambda: rng.integers(0, keys + 1, batch),
        "alibi_slopes": lambda: rng.random((batch, heads)),
        "sinks": lambda: rng.standard_normal(heads),
        "softcap": lambda: float(rng.choice([0.5, 5.0, 50.0])),
        "scale": lambda: float(rng.normal(0, 0.5)),
        "window_size": lambda: tuple(int(n) for n in rng.integers(-1, 60, 2)),
        "causal": lambda: True,
    }
    chosen = {name: make() for name, make in per_batch.items() if draw(st.integers(0, 2)) == 0}
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        full = [*lead, heads, queries, keys]
        shape = [n if draw(st.booleans()) else 1 for n in full][draw(st.integers(0, len(full))) :]
        allowed = rng.random(shape) < 0.6
        values = np.where(allowed, rng.standard_normal(shape), -np.inf).astype(dtype)
        chosen["attn_mask"] = np.asarray(allowed if kind == "bool" else values)
    return chosen


@SETTINGS
@given(data=st.data())
def test_against_oracle(isa, dtype, data):
    arrays, rng = data.draw(tensors(dtype))
    chosen = data.draw(options(arrays, rng))
    with fastattn.use_isa(isa):
        result = fastattn.attention(*arrays, return_lse=True, **chosen)
    cases.check(result, *arrays, **chosen)


@SETTINGS
@given(data=st.data())
def test_causal_is_a_mask(isa, dtype, data):
    (q, k, v), _ = data.draw(tensors(dtype))
    queries, keys = q.shape[-2], k.shape[-2]
    mask = np.tri(queries, keys, keys - queries, dtype=bool)
    with fastattn.use_isa(isa):
        out = fastattn.attention(q, k, v, causal=True)
        masked = fastattn.attention(q, k, v, attn_mask=mask)
    # Tiles differ under an explicit mask, and with them the order of a few sums.
    scores = np.asarray([10.0])
    np.testing.assert_allclose(out, masked, rtol=0, atol=2 * cases.tolerance(dtype, v, scores))
