# SPDX-License-Identifier: MIT
"""Arguments that fastattn.onnx refuses: the error names each of them, and is of a fitting type."""

import numpy as np
import pytest
from cases import dtype_of

pytest.importorskip("onnx")

from test_onnx import DV, HKV, HQ, SK, SQ, B, D, P, tensors

import fastattn.onnx


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


Q3, K3, V3 = zeros(B, SQ, HQ * D), zeros(B, SK, HKV * D), zeros(B, SK, HKV * DV)
PAST = {"past_key": zeros(B, HKV, P, D), "past_value": zeros(B, HKV, P, DV)}
HALF = {"Q": zeros(B, HQ, SQ, D, dtype=np.float16), "K": zeros(B, HKV, SK, D, dtype=np.float16),
        "V": zeros(B, HKV, SK, DV, dtype=np.float16)}  # fmt: skip
ERRORS = {
    "Q type": ({"Q": None}, TypeError, "Q: expected a numpy.ndarray, got NoneType"),
    "Q integers": ({"Q": zeros(B, HQ, SQ, D, dtype=int), "K": zeros(B, HKV, SK, D, dtype=int)},
                   TypeError, "Q: expected dtype float32, float64, float16 or bfloat16, got int64"),
    "Q rank": ({"Q": zeros(SQ, D)}, ValueError, "Q: expected 3 or 4 axes, got shape (5, 8)"),
    "K rank": ({"K": K3}, ValueError, "K: expected 4 axes like Q, got shape (2, 7, 16)"),
    "K dtype": ({"K": zeros(B, HKV, SK, D, dtype=np.float64)}, TypeError,
                "K: expected dtype float32 like Q, got float64"),
    "K integers": ({"K": zeros(B, HKV, SK, D, dtype=np.int32)}, TypeError,
                   "K: expected dtype float32 like Q, got int32"),
    "K batch": ({"K": zeros(1, HKV, SK, D)}, ValueError,
                "K: expected batch 2 and head size 8 like Q, got shape (1, 2, 7, 8)"),
    "K depth": ({"K": zeros(B, HKV, SK, 4)}, ValueError,
                "K: expected batch 2 and head size 8 like Q, got shape (2, 2, 7, 4)"),
    "K heads": ({"K": zeros(B, 4, SK, D)}, ValueError,
                "K: expected a number of heads that divides Q's 6, got shape (2, 4, 7, 8)"),
    "no K heads": ({"K": zeros(B, 0, SK, D), "V": zeros(B, 0, SK, DV)}, ValueError,
                   "K: expected a number of heads that divides Q's 6, got shape (2, 0, 7, 8)"),
    "V integers": ({"V": zeros(B, HKV, SK, DV, dtype=int)}, TypeError,
                   "V: expected dtype float32, float64, float16 or bfloat16, got int64"),
    "V batch": ({"V": zeros(1, HKV, SK, DV)}, ValueError,
                "V: expected batch, heads and keys (2, 2, 7) like K, got shape (1, 2, 7, 3)"),
    "V heads": ({"V": zeros(B, 1, SK, DV)}, ValueError,
                "V: expected batch, heads and keys (2, 2, 7) like K, got shape (2, 1, 7, 3)"),
    "V keys": ({"V": zeros(B, HKV, 6, DV)}, ValueError,
               "V: expected batch, heads and keys (2, 2, 7) like K, got shape (2, 2, 6, 3)"),
    "heads missing": ({"Q": Q3, "K": K3, "V": V3}, ValueError,
                      "q_num_heads: expected an integer with 3 axes, got None"),
    "heads type": ({"Q": Q3, "K": K3, "V": V3, "q_num_heads": 2.0}, TypeError,
                   "q_num_heads: expected an integer, got float"),
    "heads odd": ({"Q": Q3, "K": K3, "V": V3, "q_num_heads": 6, "kv_num_heads": 3}, ValueError,
                  "K: expected a last axis divisible by kv_num_heads 3, got (2, 7, 16)"),
    "Q heads odd": ({"Q": Q3, "K": K3, "V": V3, "q_num_heads": 5, "kv_num_heads": 2}, ValueError,
                    "Q: expected a last axis divisible by q_num_heads 5, got (2, 5, 48)"),
    "heads wrong": ({"kv_num_heads": 3}, ValueError, "kv_num_heads: expected 2 as in K, got 3"),
    "Q heads wrong": ({"q_num_heads": 3}, ValueError, "q_num_heads: expected 6 as in Q, got 3"),
    "no heads": ({"q_num_heads": 0}, ValueError,
                 "q_num_heads: expected an integer not below 1, got 0"),
    "past alone": ({"past_key": PAST["past_key"]}, ValueError,
                   "past_value: expected to come together with past_key, got one of them"),
    "past_value alone": ({"past_value": PAST["past_value"]}, ValueError,
                         "past_value: expected to come together with past_key, got one of them"),
    "past_key type": (PAST | {"past_key": [1.0]}, TypeError,
                      "past_key: expected a numpy.ndarray, got list"),
    "past_value type": (PAST | {"past_value": [1.0]}, TypeError,
                        "past_value: expected a numpy.ndarray, got list"),
    "past rank": (PAST | {"past_key": zeros(B, D)}, ValueError, "past_key: expected shape (2, 2, "),
    "past shape": (PAST | {"past_value": zeros(B, HKV, P + 1, DV)}, ValueError,
                   "past_value: expected shape (2, 2, 4, 3), got (2, 2, 5, 3)"),
    "past_key dtype": (PAST | {"past_key": zeros(B, HKV, P, D, dtype=np.float64)}, TypeError,
                       "past_key: expected dtype float32, got float64"),
    "past_value dtype": (PAST | {"past_value": zeros(B, HKV, P, DV, dtype=np.float64)}, TypeError,
                         "past_value: expected dtype float32, got float64"),
    "both caches": (PAST | {"nonpad_kv_seqlen": np.array([1, 2])}, ValueError,
                    "nonpad_kv_seqlen: expected None with past_key, got both"),
    "lengths": ({"nonpad_kv_seqlen": np.array([1, 8])}, ValueError,
                "nonpad_kv_seqlen: expected values from 0 to 7, got 8"),
    "causal": ({"is_causal": 2}, ValueError, "is_causal: expected one of (0, 1), got 2"),
    "causal type": ({"is_causal": zeros(0)}, TypeError,
                    "is_causal: expected one of (0, 1), got numpy.ndarray"),
    "mode type": ({"qk_matmul_output_mode": np.float32(1)}, TypeError,
                  "qk_matmul_output_mode: expected one of (0, 1, 2, 3), got numpy.float32"),
    "mode 0.0": ({"qk_matmul_output_mode": 0.0}, TypeError,
                 "qk_matmul_output_mode: expected one of (0, 1, 2, 3), got float"),
    "mode bool": ({"qk_matmul_output_mode": np.True_}, TypeError,
                  "qk_matmul_output_mode: expected one of (0, 1, 2, 3), got numpy.bool"),
    "precision bool": ({"softmax_precision": True}, TypeError,
                       "softmax_precision: expected one of (1, 10, 11, 16), got bool"),
    "mode": ({"qk_matmul_output_mode": 4}, ValueError,
             "qk_matmul_output_mode: expected one of (0, 1, 2, 3), got 4"),
    "precision": ({"softmax_precision": 7}, ValueError,
                  "softmax_precision: expected one of (1, 10, 11, 16), got 7"),
    "window": ({"left_window_size": -2}, ValueError,
               "left_window_size: expected an integer not below -1, got -2"),
    "right window": ({"right_window_size": -2}, ValueError,
                     "right_window_size: expected an integer not below -1, got -2"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap: expected a number not below 0, got -1"),
    "mask integers": ({"attn_mask": zeros(SQ, SK, dtype=np.int8)}, TypeError,
                      "attn_mask: expected dtype bool or float32 with float32 q, got int8"),
    "mask of other 16 bits": (HALF | {"attn_mask": zeros(SQ, SK, dtype=dtype_of("bfloat16"))},
                              TypeError, "attn_mask: expected dtype bool, float32 or float16 "),
    "mask long": ({"attn_mask": zeros(SQ, SK + 1)}, ValueError,
                  "attn_mask: expected a shape that broadcasts to (2, 6, 5, 7), got (5, 8)"),
    "mask rank": ({"attn_mask": zeros(1, B, HQ, SQ, SK)}, ValueError,
                  "attn_mask: expected at most 4 axes, got shape (1, 2, 6, 5, 7)"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_wrong_arguments_are_named(name, rng):
    changes, exception, message = ERRORS[name]
    with pytest.raises(exception) as caught:
        fastattn.onnx.attention(**(tensors(rng) | changes))
    assert caught.type is exception and str(caught.value).startswith(message)
