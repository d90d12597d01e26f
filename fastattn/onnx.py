# SPDX-License-Identifier: MIT
"""The ONNX operator Attention, opsets 23 to 25, on NumPy arrays and for ONNX's own evaluator.

`attention` needs NumPy alone. `Attention` is the same for ``onnx.reference.ReferenceEvaluator``;
onnx is imported when it is first asked for.
"""

from typing import NamedTuple

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn import reference
from fastattn._check_scores import mask_array
from fastattn._extras import needed
from fastattn.attention import attention as _attention
from fastattn.attention import attention_weights

# TensorProto.DataType: FLOAT, FLOAT16, DOUBLE, BFLOAT16.
_DOUBLE = 11
_SOFTMAX_PRECISIONS = (1, 10, _DOUBLE, 16)
_STAGES = ("scaled", "capped", "masked", "weights")  # of qk_matmul_output_mode 0 to 3


class Outputs(NamedTuple):
    """The outputs of the operator, in its order."""

    Y: np.ndarray
    present_key: np.ndarray
    present_value: np.ndarray
    qk_matmul_output: np.ndarray | None


def attention(
    Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *,
    is_causal=0, kv_num_heads=None, left_window_size=-1, q_num_heads=None,
    qk_matmul_output_mode=None, right_window_size=-1, scale=None, softcap=0.0,
    softmax_precision=None,
):  # fmt: skip
    """ONNX's operator Attention with its own names (opset 25, which contains 23 and 24).

    Parameters
    ----------
    Q : ndarray, (B, Hq, Sq, D) or (B, Sq, Hq * D)
        Any dtype of `fastattn.attention`.
    K : ndarray, (B, Hkv, Sk, D) or (B, Sk, Hkv * D)
        Of Q's rank and dtype. Hq must be a multiple of Hkv.
    V : ndarray, (B, Hkv, Sk, Dv) or (B, Sk, Hkv * Dv)
        Of Q's rank; if its dtype differs, the wider one is computed with.
    attn_mask : ndarray, optional
        bool (True = attend) or float, rank 0 to 4, broadcast against (B, Hq, Sq, total). A last
        axis shorter than total, also of length 1, leaves the keys behind it out, as the operator
        says (it pads with -inf).
    past_key, past_value : ndarray, (B, Hkv, P, D) and (B, Hkv, P, Dv), optional
        The cache so far, put before K and V: total = P + Sk. Query i is at position P + i.
    nonpad_kv_seqlen : ndarray of int, (B,), optional
        K and V are a whole cache, and only so many keys of each batch entry count. Query i is at
        position ``nonpad_kv_seqlen - Sq + i``. Not together with `past_key`.
    is_causal : {0, 1}
        Only keys up to the query's position.
    q_num_heads, kv_num_heads : int, optional
        Hq and Hkv; required for 3-D inputs.
    left_window_size, right_window_size : int
        Keys to each side of the query's position; -1 is unbounded.
    qk_matmul_output_mode : {None, 0, 1, 2, 3}
        Asks for `qk_matmul_output`: 0 scaled scores, 1 after softcap, 2 with masks (-inf where a
        key is not allowed), 3 after softmax. It takes memory for Sq * total numbers per head.
    scale : float, optional
        Default ``1 / sqrt(D)``.
    softcap : float
        0 is none.
    softmax_precision : {None, 1, 10, 11, 16}
        TensorProto type that the softmax needs at least: float32, float16, float64, bfloat16.
        float32 and narrower inputs are computed in float32 anyway, with 11 in float64.

    Returns
    -------
    Outputs
        ``(Y, present_key, present_value, qk_matmul_output)``. Y has Q's rank and dtype. Without a
        past, present_key and present_value are K and V as they are, seen with 4 axes. Without
        `qk_matmul_output_mode` the last one is None.

    Raises
    ------
    TypeError, ValueError
        As in `fastattn.attention`. An integer mask is a TypeError: the operator gives it no
        meaning.

    References
    ----------
    https://onnx.ai/onnx/operators/onnx__Attention.html

    Examples
    --------
    >>> import numpy as np, fastattn.onnx
    >>> Q = K = V = np.eye(2, dtype=np.float32).reshape(1, 1, 2, 2)
    >>> fastattn.onnx.attention(Q, K, V, is_causal=1, scale=1.0).Y.round(3)
    array([[[[1.   , 0.   ],
             [0.269, 0.731]]]], dtype=float32)
    """
    causal = _one_of("is_causal", is_causal, (0, 1)) == 1
    left = options.integer("left_window_size", left_window_size, -1)
    right = options.integer("right_window_size", right_window_size, -1)
    mode = qk_matmul_output_mode
    if mode is not None:
        _one_of("qk_matmul_output_mode", mode, (0, 1, 2, 3))
    Q, K, V = options.array("Q", Q), options.array("K", K), options.array("V", V)
    q, k, v = _four_axes(Q, K, V, q_num_heads, kv_num_heads)
    past, k, v = _with_past(k, v, past_key, past_value, nonpad_kv_seqlen)
    present = k, v
    dtype = _computed_dtype(q, v, softmax_precision)
    q, k, v = (tensor.astype(dtype, copy=False) for tensor in (q, k, v))
    mask, width = _mask(attn_mask, k.shape[2], dtype)
    scores = {"attn_mask": mask, "causal": causal, "window_size": (left, right), "scale": scale,
              "softcap": softcap, "q_offset": past}  # fmt: skip
    if nonpad_kv_seqlen is not None:
        batch, keys = k.shape[0], k.shape[2]
        lengths = options.per_batch("nonpad_kv_seqlen", nonpad_kv_seqlen, (batch,), 0, keys)
        scores["kv_lengths"] = np.minimum(lengths, width)
        scores["q_offset"] = lengths - q.shape[2]
    y = _rounded(_attention(q, k[:, :, :width], v[:, :, :width], **scores), Q.dtype)
    if Q.ndim == 3:
        y = y.swapaxes(1, 2).reshape(*Q.shape[:2], y.shape[1] * y.shape[3])
    table = None if mode is None else _rounded(_score_table(q, k, mode, width, scores), Q.dtype)
    return Outputs(y, *present, table)


def _four_axes(Q, K, V, q_heads, kv_heads):
    """View the inputs as (B, H, S, D), after checking that they fit each other."""
    if Q.ndim not in (3, 4):
        raise ValueError(f"Q: expected 3 or 4 axes, got shape {Q.shape}")
    views = []
    for name, tensor, attribute, heads in (
        ("Q", Q, "q_num_heads", q_heads),
        ("K", K, "kv_num_heads", kv_heads),
        ("V", V, "kv_num_heads", kv_heads),
    ):
        if tensor.ndim != Q.ndim:
            raise ValueError(f"{name}: expected {Q.ndim} axes like Q, got shape {tensor.shape}")
        if heads is not None:
            options.integer(attribute, heads, 1)
        views.append(_heads_apart(name, tensor, attribute, heads))
    q, k, v = views
    if K.dtype != Q.dtype:
        raise TypeError(f"K: expected dtype {Q.dtype} like Q, got {K.dtype}")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"K: expected batch {q.shape[0]} and head size {q.shape[3]} like Q, got shape {K.shape}"
        )
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"K: expected a number of heads that divides Q's {q.shape[1]}, got shape {K.shape}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"V: expected batch, heads and keys {k.shape[:3]} like K, got shape {V.shape}"
        )
    return q, k, v


def _heads_apart(name, tensor, attribute, heads):
    """View (B, S, H * D) as (B, H, S, D); with 4 axes only compare the number of heads."""
    if tensor.ndim == 4:
        if heads is not None and heads != tensor.shape[1]:
            raise ValueError(f"{attribute}: expected {tensor.shape[1]} as in {name}, got {heads}")
        return tensor
    if heads is None:
        raise ValueError(f"{attribute}: expected an integer with 3 axes, got None")
    batch, sequence, hidden = tensor.shape
    if hidden % heads:
        raise ValueError(
            f"{name}: expected a last axis divisible by {attribute} {heads}, got {tensor.shape}"
        )
    return tensor.reshape(batch, sequence, heads, hidden // heads).swapaxes(1, 2)


def _with_past(k, v, past_key, past_value, nonpad_kv_seqlen):
    """Return the length of the past, and keys and values behind it."""
    if (past_key is None) != (past_value is None):
        raise ValueError("past_value: expected to come together with past_key, got one of them")
    if past_key is None:
        return 0, k, v
    if nonpad_kv_seqlen is not None:
        raise ValueError("nonpad_kv_seqlen: expected None with past_key, got both")
    batch, heads, _, depth = k.shape
    past_key = options.array("past_key", past_key)
    past_value = options.array("past_value", past_value)
    past = past_key.shape[2] if past_key.ndim == 4 else 0
    for name, tensor, new, shape in (
        ("past_key", past_key, k, (batch, heads, past, depth)),
        ("past_value", past_value, v, (batch, heads, past, v.shape[3])),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tensor.shape}")
        if tensor.dtype != new.dtype:
            raise TypeError(f"{name}: expected dtype {new.dtype}, got {tensor.dtype}")
    return past, np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)


def _computed_dtype(q, v, softmax_precision):
    """The widest of the inputs' dtypes and of what the softmax asks for beyond float32."""
    if softmax_precision is not None:
        _one_of("softmax_precision", softmax_precision, _SOFTMAX_PRECISIONS)
    for name, tensor in ("Q", q), ("V", v):
        dtypes.of_queries(name, tensor.dtype)
    if softmax_precision == _DOUBLE or max(q.itemsize, v.itemsize) == 8:
        return np.dtype(np.float64)
    return q.dtype if q.dtype == v.dtype else np.dtype(np.float32)


def _mask(attn_mask, keys, dtype):
    """Return the mask as `fastattn.attention` takes it, and the number of keys it reaches."""
    if attn_mask is None:
        return None, keys
    mask = mask_array(attn_mask)
    if dtypes.supported(mask.dtype) in dtypes.HALVES and dtype.itemsize > mask.itemsize:
        mask = mask.astype(dtype)  # exact; the core takes it only with q of 16 bits
    return mask, mask.shape[-1] if mask.ndim else keys  # what is too long is refused later


def _score_table(q, k, mode, width, scores):
    """The scores of a stage; keys that the mask does not reach are forbidden in modes 2 and 3."""
    if mode == 3:
        table, fill = attention_weights(q, k[:, :, :width], **scores), 0
    else:
        if mode < 2:
            width = k.shape[2]
            scores = {"scale": scores["scale"], "softcap": scores["softcap"]}
        # The oracle knows the stages; its values are not looked at.
        nothing = np.zeros((1, width, 1))
        _, table = reference.attention(
            q, k[:, :, :width], nothing, return_scores=_STAGES[mode], **scores
        )
        fill = -np.inf
    behind = k.shape[2] - width
    return np.pad(table, [(0, 0)] * 3 + [(0, behind)], constant_values=fill) if behind else table


def _rounded(tensor, dtype):
    """Convert results; what is too large for `dtype` is infinite in it, and no news."""
    with np.errstate(over="ignore", under="ignore"):
        return tensor.astype(dtype, copy=False)


def _one_of(name, value, choices):
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not number and not (choices == (0, 1) and isinstance(value, options.BOOLS)):
        raise TypeError(f"{name}: expected one of {choices}, got {options.described(value)}")
    if value not in choices:
        raise ValueError(f"{name}: expected one of {choices}, got {value!r}")
    return value


def __getattr__(name):
    if name == "Attention":
        with needed("fastattn.onnx.Attention", "onnx"):
            from fastattn._onnx_operator import Attention

        return Attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
