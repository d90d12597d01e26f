# SPDX-License-Identifier: MIT
"""Wrong calls and what is said about them: the tables behind test_errors.py.

Each case is named and gives the wrong arguments, the exception, and how its message begins: the
argument, what was expected, what came.
"""

import numpy as np

F32 = np.float32


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def unaligned(*shape, dtype=F32):
    record = np.dtype([("pad", np.uint8), ("x", dtype)])
    return np.zeros(shape, record)["x"]


def misaligned(array):
    """Return a copy whose elements lie between those of its type."""
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    copy = memory.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def repeated(*shape, dtype=F32):
    """One number, as an array of any size."""
    return np.broadcast_to(zeros(dtype=dtype), shape)


def swapped_bytes(tensor):
    return tensor.astype(tensor.dtype.newbyteorder())


Q, K, V = zeros(2, 8, 16, 64), zeros(2, 2, 32, 64), zeros(2, 2, 32, 48)
OUT_SHAPE = (2, 8, 16, 48)
READ_ONLY = zeros(*OUT_SHAPE)
READ_ONLY.flags.writeable = False

# Arguments of `attention` that differ from a valid call.
ATTENTION_CASES = {
    # not an array, or of the wrong dtype
    "q list": ({"q": [[1.0]]}, TypeError, "q: expected a numpy.ndarray, got list"),
    "k scalar": ({"k": 1.0}, TypeError, "k: expected a numpy.ndarray, got float"),
    "v none": ({"v": None}, TypeError, "v: expected a numpy.ndarray, got NoneType"),
    "q masked": ({"q": np.ma.masked_array(Q)}, TypeError,
                 "q: expected a numpy.ndarray, got numpy.ma.MaskedArray"),
    "q int": ({"q": Q.astype(np.int32)}, TypeError,
              "q: expected dtype float32, float64, float16 or bfloat16, got int32"),
    "q complex": ({"q": Q.astype(np.complex64)}, TypeError,
                  "q: expected dtype float32, float64, float16 or bfloat16, got complex64"),
    "q narrow": ({"q": Q.astype(np.int8)}, TypeError,
                 "q: expected dtype float32, float64, float16 or bfloat16, got int8"),
    "q bytes": ({"q": swapped_bytes(Q.astype(np.float16))}, TypeError,
                "q: expected dtype float32, float64, float16 or bfloat16, got byte-swapped "),
    "v bytes": ({"v": swapped_bytes(V)}, TypeError,
                "v: expected dtype float32 like k, got byte-swapped float32"),
    "k wider": ({"k": K.astype(np.float64)}, TypeError,
                "k: expected dtype float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2 "
                "with float32 q, got float64"),
    "k wider than 16 bits": ({"q": Q.astype(np.float16)}, TypeError,
                             "k: expected dtype float16, int8, float8_e4m3fn or float8_e5m2 with "
                             "float16 q, got float32"),
    "k narrower than 64 bits": ({"q": Q.astype(np.float64)}, TypeError,
                                "k: expected dtype float64 with float64 q, got float32"),
    "k int": ({"k": K.astype(np.int16)}, TypeError, "k: expected dtype float32, float16, bfl"),
    "v wider": ({"v": V.astype(np.float64)}, TypeError,
                "v: expected dtype float32 like k, got float64"),
    "v narrower": ({"v": V.astype(np.float16)}, TypeError,
                   "v: expected dtype float32 like k, got float16"),
    # shapes of the tensors
    "q rank 0": ({"q": np.array(F32(1))}, ValueError, "q: expected 2 to 9 axes, got shape ()"),
    "q rank 1": ({"q": zeros(64)}, ValueError, "q: expected 2 to 9 axes, got shape (64,)"),
    "k rank 10": ({"k": zeros(*[1] * 10)}, ValueError, "k: expected 2 to 9 axes, got shape (1, 1,"),
    "q unaligned": ({"q": unaligned(2, 8, 16, 64)}, ValueError,
                    "q: expected data and strides aligned to 4 bytes, got strides"),
    "q no depth": ({"q": zeros(2, 8, 16, 0)}, ValueError,
                   "q: expected at least 1 head and depth 1, got shape (2, 8, 16, 0)"),
    "q no head": ({"q": zeros(2, 0, 16, 64)}, ValueError,
                  "q: expected at least 1 head and depth 1, got shape (2, 0, 16, 64)"),
    "k depth": ({"k": zeros(2, 8, 128, 32)}, ValueError,
                "k: expected depth 64 like q, got shape (2, 8, 128, 32)"),
    "k heads": ({"k": zeros(2, 3, 32, 64)}, ValueError,
                "k: expected a number of heads that divides q's 8, got shape (2, 3, 32, 64)"),
    "k more heads": ({"k": zeros(2, 16, 32, 64)}, ValueError,
                     "k: expected a number of heads that divides q's 8, got shape (2, 16, 32, 64)"),
    "k no head": ({"k": zeros(2, 0, 32, 64)}, ValueError,
                  "k: expected a number of heads that divides q's 8, got shape (2, 0, 32, 64)"),
    "v keys": ({"v": zeros(2, 2, 31, 48)}, ValueError,
               "v: expected 32 keys like k, got shape (2, 2, 31, 48)"),
    "v no depth": ({"v": zeros(2, 2, 32, 0)}, ValueError,
                   "v: expected depth of at least 1, got shape (2, 2, 32, 0)"),
    "v heads": ({"v": zeros(2, 4, 32, 48)}, ValueError,
                "v: expected 2 heads like k, or 1, got shape (2, 4, 32, 48)"),
    "k batch": ({"k": zeros(3, 2, 32, 64)}, ValueError,
                "k: expected leading axes that broadcast with (2,), got shape (3, 2, 32, 64)"),
    "v batch": ({"v": zeros(3, 2, 32, 48)}, ValueError,
                "v: expected leading axes that broadcast with (2,), got shape (3, 2, 32, 48)"),
    # more than there can be memory for
    "heads": ({"q": repeated(2**50, 16, 1, 1), "k": zeros(1, 1, 1, 1), "v": zeros(1, 1, 1, 1)},
              ValueError, "q, k, v: expected at most 2^53 heads of all sequences together, got "
              "leading axes (1125899906842624,) and 16 heads"),
    "heads of none": ({"q": zeros(2**58, 1, 0, 1), "k": zeros(2**58, 1, 0, 1),
                       "v": zeros(2**58, 1, 0, 1), "kv_lengths": 0}, ValueError,
                      "q, k, v: expected at most 2^53 heads of all sequences together, got "),
    "broadcast": ({"q": repeated(2**40, 1, 1, 1), "k": repeated(1, 1, 2**30, 1),
                   "v": repeated(1, 1, 2**30, 1)}, ValueError,
                  "q, k, v: expected tensors that arrays can hold with leading axes "
                  "(1099511627776,), got (heads, sequence, depth) (1, 1, 1), (1, 1073741824, 1) "),
    "scales": ({"q": zeros(1, 1, 1, 1), "k": repeated(1, 1, 2**60, 1, dtype=np.int8),
                "v": repeated(1, 1, 2**60, 1, dtype=np.int8), "v_scale": [1.0]}, ValueError,
               "v_scale: expected fewer than 2^60 keys of all heads together with scales, got "),
    "slopes": ({"alibi_slopes": repeated(2**54)}, ValueError,
               "alibi_slopes: expected an array of numbers, at most 2^53 of them, got shape ("),
    # words, flags and numbers
    "layout": ({"layout": "sbhd"}, ValueError,
               "layout: expected one of 'bhsd', 'bshd', got 'sbhd'"),
    "layout type": ({"layout": 4}, TypeError, "layout: expected one of 'bhsd', 'bshd', got int"),
    "precision": ({"precision": "low"}, ValueError,
                  "precision: expected one of 'highest', 'high', 'medium', got 'low'"),
    "precision type": ({"precision": None}, TypeError, "precision: expected one of 'highest', "),
    "causal": ({"causal": 1}, TypeError, "causal: expected True or False, got int"),
    "return_lse": ({"return_lse": "yes"}, TypeError, "return_lse: expected True or False, got str"),
    "scale type": ({"scale": "1"}, TypeError, "scale: expected a number, got str"),
    "scale bool": ({"scale": True}, TypeError, "scale: expected a number, got bool"),
    "scale nan": ({"scale": np.nan}, ValueError, "scale: expected a finite number, got nan"),
    "scale inf": ({"scale": np.float32(np.inf)}, ValueError,
                  "scale: expected a finite number, got inf"),
    "scale huge": ({"scale": 10**400}, ValueError, "scale: expected a finite number, got inf"),
    "softcap none": ({"softcap": None}, TypeError, "softcap: expected a number, got NoneType"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap: expected a number not below 0, got -1"),
    "softcap nan": ({"softcap": np.nan}, ValueError, "softcap: expected a finite number, got nan"),
    "num_threads": ({"num_threads": 0}, ValueError,
                    "num_threads: expected an integer not below 1, got 0"),
    "num_threads huge": ({"num_threads": 2**31}, ValueError,
                         "num_threads: expected an integer not above 2147483647, got 2147483648"),
    "num_threads type": ({"num_threads": 2.0}, TypeError,
                         "num_threads: expected an integer, got float"),
    "num_threads bool": ({"num_threads": True}, TypeError,
                         "num_threads: expected an integer, got bool"),
    "window type": ({"window_size": 128}, TypeError,
                    "window_size: expected a pair (left, right), got int"),
    "window count": ({"window_size": (1, 2, 3)}, ValueError,
                     "window_size: expected a pair (left, right), got 3 values"),
    "window below": ({"window_size": (-2, 0)}, ValueError,
                     "window_size: expected an integer not below -1, got -2"),
    "window float": ({"window_size": (1.0, 0)}, TypeError,
                     "window_size: expected an integer, got float"),
    # one value for each batch entry
    "lengths above": ({"kv_lengths": np.array([33, 5])}, ValueError,
                      "kv_lengths: expected values from 0 to 32, got 33"),
    "lengths below": ({"kv_lengths": -1}, ValueError,
                      "kv_lengths: expected values from 0 to 32, got -1"),
    "lengths unsigned": ({"kv_lengths": np.full(2, 2**64 - 1, np.uint64)}, ValueError,
                         "kv_lengths: expected values from 0 to 32, got 18446744073709551615"),
    "lengths shape": ({"kv_lengths": np.array([1, 2, 3])}, ValueError,
                      "kv_lengths: expected an integer or shape (2,), got shape (3,)"),
    "lengths float": ({"kv_lengths": np.array([1.0, 2.0])}, TypeError,
                      "kv_lengths: expected integers, got dtype float64"),
    "lengths bool": ({"kv_lengths": [True, False]}, TypeError,
                     "kv_lengths: expected integers, got dtype bool"),
    "lengths with bool": ({"kv_lengths": [True, 2]}, TypeError,
                          "kv_lengths: expected integers, got dtype bool"),
    "lengths huge": ({"kv_lengths": [2**70, 1]}, ValueError,
                     "kv_lengths: expected integers of at most 64 bits, got larger ones"),
    "length float": ({"kv_lengths": 3.0}, TypeError,
                     "kv_lengths: expected an integer or an array of integers, got float"),
    "length bool": ({"kv_lengths": True}, TypeError,
                    "kv_lengths: expected an integer or an array of integers, got bool"),
    "lengths ragged": ({"kv_lengths": [[1, 2], [3]]}, ValueError,
                       "kv_lengths: expected an integer or an array of integers, got a list of "),
    "starts above": ({"kv_starts": 33}, ValueError,
                     "kv_starts: expected values from 0 to 32, got 33"),
    "starts shape": ({"kv_starts": np.zeros((2, 1), int)}, ValueError,
                     "kv_starts: expected an integer or shape (2,), got shape (2, 1)"),
    "offset above": ({"q_offset": 2**53 + 1}, ValueError,
                     "q_offset: expected values from -9007199254740992 to 9007199254740992, got "),
    "offset float": ({"q_offset": 0.0}, TypeError,
                     "q_offset: expected an integer or an array of integers, got float"),
    # one value for each head
    "alibi shape": ({"alibi_slopes": zeros(4)}, ValueError,
                    "alibi_slopes: expected shape (8,) or (2, 8), got shape (4,)"),
    "alibi nan": ({"alibi_slopes": np.full(8, np.nan)}, ValueError,
                  "alibi_slopes: expected finite numbers, got NaN or infinity"),
    "alibi bool": ({"alibi_slopes": zeros(8, dtype=bool)}, TypeError,
                   "alibi_slopes: expected real numbers, got dtype bool"),
    "alibi bools": ({"alibi_slopes": [True, *[0.5] * 7]}, TypeError,
                    "alibi_slopes: expected real numbers, got dtype bool"),
    "alibi huge": ({"alibi_slopes": [10**400, *[0.5] * 7]}, ValueError,
                   "alibi_slopes: expected numbers that fit into float64"),
    "alibi objects": ({"alibi_slopes": np.full(8, 1, object)}, TypeError,
                      "alibi_slopes: expected real numbers, got dtype object"),
    "alibi scalar": ({"alibi_slopes": 0.5}, TypeError,
                     "alibi_slopes: expected an array of numbers, got float"),
    "sinks shape": ({"sinks": zeros(2, 8)}, ValueError,
                    "sinks: expected shape (8,), got shape (2, 8)"),
    "sinks inf": ({"sinks": np.full(8, np.inf)}, ValueError,
                  "sinks: expected finite numbers or -inf, got NaN or +inf"),
    "sinks nan": ({"sinks": np.full(8, np.nan)}, ValueError,
                  "sinks: expected finite numbers or -inf, got NaN or +inf"),
    "sinks bools": ({"sinks": (np.array(True), *[0.5] * 7)}, TypeError,
                    "sinks: expected real numbers, got dtype bool"),
    "sinks complex": ({"sinks": zeros(8, dtype=complex)}, TypeError,
                      "sinks: expected real numbers, got dtype complex128"),
    # mask
    "mask list": ({"attn_mask": [True]}, TypeError,
                  "attn_mask: expected a numpy.ndarray, got list"),
    "mask int": ({"attn_mask": zeros(16, 32, dtype=np.int8)}, TypeError,
                 "attn_mask: expected dtype bool or float32 with float32 q, got int8"),
    "mask float64": ({"attn_mask": zeros(16, 32, dtype=np.float64)}, TypeError,
                     "attn_mask: expected dtype bool or float32 with float32 q, got float64"),
    "mask float16": ({"attn_mask": zeros(16, 32, dtype=np.float16)}, TypeError,
                     "attn_mask: expected dtype bool or float32 with float32 q, got float16"),
    "mask with 16 bits": ({"q": Q.astype(np.float16), "k": K.astype(np.int8),
                           "v": V.astype(np.int8), "attn_mask": zeros(32, dtype=np.float64)},
                          TypeError, "attn_mask: expected dtype bool, float32 or float16 with "
                          "float16 q, got float64"),
    "mask rank": ({"attn_mask": zeros(1, 2, 8, 16, 32)}, ValueError,
                  "attn_mask: expected at most 4 axes, got shape (1, 2, 8, 16, 32)"),
    "mask shape": ({"attn_mask": zeros(16, 31)}, ValueError,
                   "attn_mask: expected a shape that broadcasts to (2, 8, 16, 32), got (16, 31)"),
    "mask unaligned": ({"attn_mask": unaligned(16, 32)}, ValueError,
                       "attn_mask: expected data and strides aligned to 4 bytes, got strides"),
    # out
    "out list": ({"out": []}, TypeError, "out: expected a numpy.ndarray, got list"),
    "out dtype": ({"out": zeros(*OUT_SHAPE, dtype=np.float64)}, TypeError,
                  "out: expected dtype float32 like the input, got float64"),
    "out bytes": ({"out": swapped_bytes(zeros(*OUT_SHAPE))}, TypeError,
                  "out: expected dtype float32 like the input, got byte-swapped float32"),
    "out shape": ({"out": zeros(2, 8, 16, 64)}, ValueError,
                  "out: expected shape (2, 8, 16, 48), got (2, 8, 16, 64)"),
    "out read-only": ({"out": READ_ONLY}, ValueError,
                      "out: expected a writable array, got a read-only one"),
    "out itself": ({"out": np.lib.stride_tricks.as_strided(zeros(16, 48), OUT_SHAPE, (0, 0, 192, 4),
                    writeable=True)}, ValueError,
                   "out: expected elements that do not share memory, got strides (0, 0, 192, 4)"),
    "out unaligned": ({"out": unaligned(*OUT_SHAPE)}, ValueError,
                      "out: expected data and strides aligned to 4 bytes, got strides"),
}  # fmt: skip

# Positional arguments of `merge_states`.
MERGE_CASES = {
    "outs type": ((1.0, [zeros(5)]), TypeError, "outs: expected a sequence of arrays, got float"),
    "outs element": (([1.0], [zeros(5)]), TypeError,
                     "outs[0]: expected a numpy.ndarray, got float"),
    "outs none": (([], []), ValueError, "outs: expected at least one array, got none"),
    "outs rank 0": ((np.array(1.0), []), ValueError,
                    "outs: expected arrays stacked on axis 0, got shape ()"),
    "outs of objects": ((np.array([1, None]), [zeros(), zeros()]), ValueError,
                        "outs: expected shape (..., Sq, D), got shape ()"),
    "lses of objects": (([zeros(5, 3)] * 2, np.array([1, None])), TypeError,
                        "lses: expected dtype float32 with float32 outs[0], got object"),
    "outs rank 1": (([zeros(5)], [zeros()]), ValueError,
                    "outs: expected shape (..., Sq, D), got shape (5,)"),
    "count": (([zeros(5, 3)], [zeros(5)] * 2), ValueError,
              "lses: expected 1 arrays like outs, got 2"),
    "outs dtype": (([zeros(5, 3, dtype=int)], [zeros(5)]), TypeError,
                   "outs: expected dtype float32, float64, float16 or bfloat16, got int64"),
    "outs dtypes": (([zeros(5, 3), zeros(5, 3, dtype=np.float16)], [zeros(5)] * 2), TypeError,
                    "outs: expected dtype float32 with float32 outs[0], got float16"),
    "lses dtype": (([zeros(5, 3)], [zeros(5, dtype=np.float64)]), TypeError,
                   "lses: expected dtype float32 with float32 outs[0], got float64"),
    "lses 16 bits": (([zeros(5, 3, dtype=np.float16)], [zeros(5, dtype=np.float16)]), TypeError,
                     "lses: expected dtype float32 with float16 outs[0], got float16"),
    "outs shape": (([zeros(5, 3), zeros(4, 3)], [zeros(5)] * 2), ValueError,
                   "outs: expected shape (5, 3) each, got (4, 3)"),
    "lses shape": (([zeros(5, 3)], [zeros(3)]), ValueError,
                   "lses: expected shape (5,) each, got (3,)"),
    "unaligned": (([unaligned(5, 3)], [zeros(5)]), ValueError,
                  "outs: expected data and strides aligned to 4 bytes"),
    "out shape": (([zeros(5, 3)], [zeros(5)], zeros(5)), ValueError,
                  "out: expected shape (5, 3), got (5,)"),
}  # fmt: skip

# Arguments of `scaled_dot_product_attention` that differ from a valid call.
SDPA_CASES = {
    "query": ({"query": None}, TypeError, "query: expected a numpy.ndarray, got NoneType"),
    "dropout": ({"dropout_p": 0.1}, NotImplementedError, "dropout_p: expected 0.0, got 0.1"),
    "both": ({"is_causal": True, "attn_mask": np.array(True)}, ValueError,
             "attn_mask: expected None with is_causal=True, got both"),
    "is_causal": ({"is_causal": 1}, TypeError, "is_causal: expected True or False, got int"),
    "enable_gqa": ({"enable_gqa": 1}, TypeError, "enable_gqa: expected True or False, got int"),
    "heads": ({}, ValueError,
              "key: expected 8 heads or 1 without enable_gqa, got shape (2, 2, 32, 64)"),
}  # fmt: skip

# The cases that `attention_weights` shares, having neither v nor out.
WEIGHTS_CASES = {
    name: case
    for name, case in ATTENTION_CASES.items()
    if not {"v", "out", "return_lse", "v_scale"} & {*case[0]}
} | {
    "larger than any array": (
        {"q": repeated(2**40, 1), "k": repeated(2**40, 1)}, ValueError,
        f"q, k: expected a result that an array can hold, got one of shape (1, {2**40}, {2**40})",
    ),
}  # fmt: skip
