# SPDX-License-Identifier: MIT
"""Problems, and the error that a correct implementation may have.

Tolerance. A float32 score is a sum of D products; its rounding error grows with the size of the
partial sums, and an error ds in the scores moves the output by at most ds * max|v|. The design
allows 2e-6 * max|v| for |s| <= 30 and the same in proportion for larger scores, where the scores
themselves are known less exactly. float64 has 2^29 times the precision; exp2 and the sums keep it.
16-bit types are computed in float32 and rounded once, by at most half a unit in the last place.
On a matrix unit the probabilities of bfloat16 are bfloat16 too, summed as they are rounded: each is
wrong by at most 2^-8 of itself (8 bits, to nearest), and so is the sum. That moves the logarithm of
the sum by at most 2^-8, and an average of values within +-max|v| by 2^-8 times their mean distance
from it, which max|v| is not less than. Where int8 is multiplied as it is, what it is multiplied by
are integers: scores are wrong by at most 2^-11 in units of log2, which moves such an average by
2^-10.5, and probabilities by 2^-16 of the greatest of up to 128 keys (on AMX 2^-24 of 256): by
2^-9, in all less than 2^-8 too.
"""

import numpy as np
import pytest

import fastattn
from fastattn import _kernels, reference
from fastattn.cli.random_problems import EXPONENT_UNIT, HALF_UNIT
from fastattn.reference.stored import true_values

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST = {"float16": 2.0**-25, "bfloat16": 0.0}  # half of the smallest denormal
ALLOWED = {"float32": 2e-6, "float64": 2e-6 * 2.0**-27}
# Of the logarithm of a weight on a matrix unit (tests/test_words.py): rounding, and its exponent.
WORD = HALF_UNIT["bfloat16"][0] + EXPONENT_UNIT["bfloat16"]
SIZES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 97, 127, 129]
# An array of rank 4 as another view, of the same numbers.
STRIDES = {
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "reversed_rows": lambda x: np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :],
    "reversed_columns": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "every_other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "padded_rows": lambda x: np.concatenate([x, x], axis=-1)[..., : x.shape[-1]],
    "heads_inside": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "offset": lambda x: np.concatenate([x.ravel()[:1], x.ravel()])[1:].reshape(x.shape),
}


def dtype_of(name):
    """Return a dtype of NumPy or of ml_dtypes, without which the test is skipped."""
    return np.dtype(getattr(np if hasattr(np, name) else pytest.importorskip("ml_dtypes"), name))


def tolerance(dtype, v, scores):
    """Largest error of the output: see above. scores: of the allowed keys, any shape."""
    finite = np.abs(scores[np.isfinite(scores)])
    size = finite.max(initial=0.0)
    values = np.abs(v[np.isfinite(v)]).max(initial=0.0)
    name = "float64" if np.dtype(dtype) == np.float64 else "float32"
    return ALLOWED[name] * max(1.0, size / 30) * max(values, 1e-30)


def normal(rng, *shape, dtype=np.float32):
    """Return standard normal numbers."""
    return rng.standard_normal(shape).astype(dtype)


def tensors(
    rng, dtype, *, batch=1, q_heads=2, kv_heads=None, queries=17, keys=33, depth=16, dv=None
):
    kv_heads = kv_heads or q_heads
    shapes = [
        (batch, q_heads, queries, depth),
        (batch, kv_heads, keys, depth),
        (batch, kv_heads, keys, dv or depth),
    ]
    return [normal(rng, *shape, dtype=dtype) for shape in shapes]


def options_of(name, rng, queries, keys):
    """Return what is asked for besides a plain product, of two sequences and two heads."""
    allowed = rng.random((queries, keys)) < 0.4
    allowed[2] = False
    return {
        "plain": {},
        "causal": {"causal": True},
        "causal_top": {"causal": True, "q_offset": 7},
        "window": {"window_size": (90, 13)},
        "softcap": {"softcap": 3.0},
        "alibi": {"alibi_slopes": np.array([0.1, 0.02])},
        "sinks": {"sinks": np.array([1.5, -1.0])},
        "lengths": {"kv_lengths": np.array([keys - 79, keys]), "kv_starts": np.array([5, 259])},
        "bool": {"attn_mask": allowed},
        "float": {"attn_mask": np.where(allowed, rng.standard_normal(allowed.shape), -np.inf)},
        "negative_scale": {"scale": -0.2},
        "zero_scale": {"scale": 0.0},
    }[name]


def starts_of(counts):
    """Return what `attention_varlen` calls cu_seqlens."""
    return np.append(0, np.cumsum(counts))


class Result(tuple):
    """(out, lse), and the instruction set that they are from."""

    isa: str


def run(isa, q, k, v, **options):
    """Return (out, lse) of one instruction set."""
    with fastattn.use_isa(isa):
        result = Result(fastattn.attention(q, k, v, return_lse=True, **options))
    result.isa = isa
    return result


def check(result, q, k, v, **options):
    """Compare (out, lse) with the oracle fed the same inputs."""
    out, lse = result
    expected, expected_lse, scores = reference.attention(
        q, k, v, return_lse=True, return_scores="masked", **options
    )
    state = np.float64 if q.dtype == np.float64 else np.float32
    assert out.dtype == q.dtype and lse.dtype == state
    values = true_values(v.astype(float), options.get("v_scale", 1.0), q.shape[:-3])
    allowed = tolerance(q.dtype, values, scores)
    if q.dtype.itemsize == 2:
        allowed = allowed + UNIT[q.dtype.name] * np.abs(expected) + LEAST[q.dtype.name]
    isa = getattr(result, "isa", None) or fastattn.isa()
    rounded = q.dtype.name == "bfloat16" and (
        _kernels.matrix_pieces(isa) or v.dtype.name in _kernels.thin_storages(isa)
    )
    if rounded:
        allowed = allowed + 2.0**-8 * np.abs(values[np.isfinite(values)]).max(initial=0.0)
    assert (np.abs(out.astype(float) - expected) <= allowed).all()
    empty = np.isneginf(expected_lse)
    np.testing.assert_array_equal(np.isneginf(lse), empty)
    size = max(1.0, np.abs(expected_lse[~empty & np.isfinite(expected_lse)]).max(initial=0.0))
    bound = ALLOWED[np.dtype(state).name] * max(
        size, np.abs(scores[np.isfinite(scores)]).max(initial=1.0)
    )
    bound += WORD if rounded else 0
    np.testing.assert_allclose(lse[~empty], expected_lse[~empty], rtol=0, atol=bound)
    assert not out[empty].any()
