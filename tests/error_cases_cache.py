# SPDX-License-Identifier: MIT
"""Wrong calls with pages, scales and packed sequences: tables like those of error_cases.py."""

import numpy as np
from error_cases import Q, unaligned, zeros

PAGES, PAGES_V = zeros(6, 2, 8, 64), zeros(6, 2, 8, 48)
TABLE = np.array([[0, 1, 2], [3, 4, 5]])


def entry(row, column, value):
    table = TABLE.copy()
    table[row, column] = value
    return table


def countless(pages):
    """More pages than int32 can number, all of them the first one."""
    return np.broadcast_to(pages[:1], (2**32 + 9, *pages.shape[1:]))


# Arguments of `attention` that differ from a valid call with block_table: 2 sequences of 24 keys.
PAGED = {"q": Q, "k": PAGES, "v": PAGES_V, "block_table": TABLE}
PAGED_CASES = {
    "table type": ({"block_table": 3}, TypeError,
                   "block_table: expected an array of integers, got int"),
    "table dtype": ({"block_table": zeros(2, 3)}, TypeError,
                    "block_table: expected integers, got dtype float32"),
    "table rank": ({"block_table": np.array(1)}, ValueError,
                   "block_table: expected shape (2, blocks), got shape ()"),
    "table batch": ({"block_table": TABLE.T}, ValueError,
                    "block_table: expected shape (2, blocks), got shape (3, 2)"),
    "table of one sequence": ({"block_table": TABLE[0]}, ValueError,
                              "block_table: expected shape (2, blocks), got shape (3,)"),
    "table with bool": ({"block_table": [[0, True], [2, 3]]}, TypeError,
                        "block_table: expected integers, got dtype bool"),
    "page above": ({"block_table": entry(1, 2, 6)}, ValueError,
                   "block_table: expected pages from 0 to 5, got 6 in row 1, entry 2"),
    "page below": ({"block_table": entry(0, 1, -1)}, ValueError,
                   "block_table: expected pages from 0 to 5, got -1 in row 0, entry 1"),
    "page far above": ({"block_table": entry(0, 0, 2**40)}, ValueError,
                       "block_table: expected pages from 0 to 5, got 1099511627776 in row 0"),
    "page unsigned": ({"block_table": entry(0, 0, 0).astype(np.uint64) - np.uint64(1)}, ValueError,
                      "block_table: expected pages from 0 to 5, got 18446744073709551615 in row 0"),
    "page listed": ({"block_table": [[2**63, 0, 1], [2, 3, 4]]}, ValueError,
                    "block_table: expected pages from 0 to 5, got 9223372036854775808 in row 0"),
    "pages listed": ({"block_table": [[2**63, -1, 1], [2, 3, 4]]}, ValueError,
                     "block_table: expected integers of at most 64 bits, got larger ones"),
    "page beyond int32": ({"k": countless(PAGES), "v": countless(PAGES_V),
                           "block_table": entry(0, 1, 2**31)}, ValueError,
                          "block_table: expected pages from 0 to 2147483647, got 2147483648 in "
                          "row 0, entry 1"),
    "page of the last key": ({"block_table": entry(1, 1, 6), "kv_lengths": [1, 9]}, ValueError,
                             "block_table: expected pages from 0 to 5, got 6 in row 1, entry 1"),
    "page of the first key": ({"block_table": entry(1, 0, 6), "kv_starts": [0, 7]}, ValueError,
                              "block_table: expected pages from 0 to 5, got 6 in row 1, entry 0"),
    "no pages": ({"k": PAGES[:0], "v": PAGES_V[:0]}, ValueError,
                 "block_table: expected pages from 0 to -1, got 0 in row 0, entry 0"),
    "pages of no keys": ({"k": PAGES[:, :, :0], "v": PAGES_V[:, :, :0]}, ValueError,
                         "k: expected pages of at least 1 key, got shape (6, 2, 0, 64)"),
    "lengths": ({"kv_lengths": [24, 25]}, ValueError,
                "kv_lengths: expected values from 0 to 24, got 25"),
    "lengths below": ({"kv_lengths": -1}, ValueError,
                      "kv_lengths: expected values from 0 to 24, got -1"),
    "starts": ({"kv_starts": 25}, ValueError, "kv_starts: expected values from 0 to 24, got 25"),
    "k rank": ({"k": PAGES[0]}, ValueError,
               "k: expected 4 axes with block_table, got shape (2, 8, 64)"),
    "v rank": ({"v": PAGES_V[None]}, ValueError,
               "v: expected 4 axes with block_table, got shape (1, 6, 2, 8, 48)"),
    "v pages": ({"v": PAGES_V[1:]}, ValueError, "v: expected 6 pages like k, got shape (5, 2, 8,"),
    "v page size": ({"v": PAGES_V[:, :, 1:]}, ValueError,
                    "v: expected 8 keys like k, got shape (6, 2, 7, 48)"),
    "k heads": ({"k": zeros(6, 3, 8, 64)}, ValueError,
                "k: expected a number of heads that divides q's 8, got shape (6, 3, 8, 64)"),
    "mask shape": ({"attn_mask": zeros(16, 48)}, ValueError,
                   "attn_mask: expected a shape that broadcasts to (2, 8, 16, 24), got (16, 48)"),
}  # fmt: skip

# A q of leading axes (2, 3), which pages need counted as one.
FIVE = zeros(2, 3, 8, 16, 64)
FIVE_AXES_CASES = {
    "q": ({"q": zeros(3, 2, 8, 16, 64).swapaxes(0, 1)}, ValueError,
          "q: expected leading axes that can be counted as one with block_table, got strides"),
    "attn_mask": ({"attn_mask": zeros(2, 1, 1, 1, 24)}, ValueError,
                  "attn_mask: expected leading axes that can be counted as one with block_table"),
    "out": ({"out": zeros(3, 2, 8, 16, 48).swapaxes(0, 1)}, ValueError,
            "out: expected leading axes that can be counted as one with block_table, got strides"),
    "table": ({"block_table": zeros(3, 2, 3, dtype=int)}, ValueError,
              "block_table: expected shape (6, blocks), got shape (3, 2, 3)"),
}  # fmt: skip

# Scales of q (2, 8, 16, 64) and k (2, 2, 32, 64), and of the pages above.
SCALE_CASES = {
    "type": ("1", TypeError, "k_scale: expected a number, got str"),
    "bool": (True, TypeError, "k_scale: expected a number, got bool"),
    "nan": (np.nan, ValueError, "k_scale: expected a finite number, got nan"),
    "too large": (1e300, ValueError,
                  "k_scale: expected finite numbers of float32, got NaN, infinity or more"),
    "just too large": (2.0**128 - 2.0**103, ValueError,
                       "k_scale: expected finite numbers of float32, got NaN, infinity or more"),
    "head nan": ([0.5, np.nan], ValueError,
                 "k_scale: expected finite numbers of float32, got NaN, infinity or more"),
    "complex": (zeros(2, dtype=complex), TypeError,
                "k_scale: expected real numbers, got dtype complex128"),
    "bools": ([np.True_, 0.5], TypeError, "k_scale: expected real numbers, got dtype bool"),
    "shape": (zeros(3), ValueError,
              "k_scale: expected a number or shape (2,), (2, 2) or (2, 2, 32), got shape (3,)"),
    "keys": (zeros(2, 2, 31), ValueError,
             "k_scale: expected a number or shape (2,), (2, 2) or (2, 2, 32), got shape (2, 2,"),
    "dtype": (zeros(2, 2, 32, dtype=np.float64), TypeError,
              "k_scale: expected dtype float32 for one value for each key, got float64"),
    "unaligned": (unaligned(2, 2, 32), ValueError,
                  "k_scale: expected data and strides aligned to 4 bytes, got strides"),
}  # fmt: skip
PAGED_SCALE_CASES = {
    "batch and head": (zeros(2, 2), ValueError,
                       "k_scale: expected a number or shape (2,) or (6, 2, 8), got shape (2, 2)"),
    "keys": (zeros(2, 2, 24), ValueError,
             "k_scale: expected a number or shape (2,) or (6, 2, 8), got shape (2, 2, 24)"),
    "dtype": (zeros(6, 2, 8, dtype=np.float16), TypeError,
              "k_scale: expected dtype float32 for one value for each key, got float16"),
}  # fmt: skip

# Arguments of `attention_varlen` that differ from a valid call: 3 sequences.
TQ, TK, TV = zeros(10, 8, 64), zeros(12, 2, 64), zeros(12, 2, 48)
CUTS_Q, CUTS_K = [0, 4, 4, 10], [0, 2, 5, 12]
VARLEN = {"q": TQ, "k": TK, "v": TV, "cu_seqlens_q": CUTS_Q, "cu_seqlens_k": CUTS_K}
VARLEN_PAGED = {
    "q": TQ, "k": zeros(6, 8, 2, 64), "v": zeros(6, 8, 2, 48), "cu_seqlens_q": CUTS_Q,
    "block_table": np.array([[0, 1], [2, 3], [4, 5]]), "kv_lengths": [16, 0, 9],
}  # fmt: skip
VARLEN_CASES = {
    "q list": ({"q": [1.0]}, TypeError, "q: expected a numpy.ndarray, got list"),
    "q rank": ({"q": TQ[None]}, ValueError,
               "q: expected 3 axes (tokens, heads, depth), got shape (1, 10, 8, 64)"),
    "k rank": ({"k": TK[:, 0]}, ValueError,
               "k: expected 3 axes (tokens, heads, depth), got shape (12, 64)"),
    "v rank": ({"v": TV[None]}, ValueError,
               "v: expected 3 axes (tokens, heads, depth), got shape (1, 12, 2, 48)"),
    "k dtype": ({"k": TK.astype(np.float64)}, TypeError, "k: expected dtype float32, float16, "),
    "v tokens": ({"v": TV[1:]}, ValueError, "v: expected 12 keys like k, got shape (11, 2, 48)"),
    "cuts none": ({"cu_seqlens_q": None}, TypeError,
                  "cu_seqlens_q: expected an array of integers, got NoneType"),
    "cuts dtype": ({"cu_seqlens_q": np.array([0.0, 10.0])}, TypeError,
                   "cu_seqlens_q: expected integers, got dtype float64"),
    "cuts bool": ({"cu_seqlens_q": [0, True, 4, 10]}, TypeError,
                  "cu_seqlens_q: expected integers, got dtype bool"),
    "cuts huge": ({"cu_seqlens_q": np.broadcast_to(np.int32(0), 2**60)}, ValueError,
                  "cu_seqlens_q: expected an array of integers, at most 2^53 of them, got shape ("),
    "cuts rank": ({"cu_seqlens_q": np.array(10)}, ValueError,
                  "cu_seqlens_q: expected shape (B + 1,), got shape ()"),
    "cuts empty": ({"cu_seqlens_q": []}, ValueError,
                   "cu_seqlens_q: expected shape (B + 1,), got shape (0,)"),
    "cuts begin": ({"cu_seqlens_q": [1, 4, 4, 10]}, ValueError,
                   "cu_seqlens_q: expected 0 at first, got 1"),
    "cuts fall": ({"cu_seqlens_k": [0, 6, 5, 12]}, ValueError,
                  "cu_seqlens_k: expected values that do not fall, got 5 after 6"),
    "cuts unsigned": ({"cu_seqlens_k": np.array([0, 2, 5, 2**64 - 1], np.uint64)}, ValueError,
                      "cu_seqlens_k: expected numbers up to 9223372036854775807, got 1844674407"),
    "cuts below": ({"cu_seqlens_k": [0, -1, 5, 12]}, ValueError,
                   "cu_seqlens_k: expected values that do not fall, got -1 after 0"),
    "cuts end": ({"cu_seqlens_q": [0, 4, 4, 9]}, ValueError,
                 "cu_seqlens_q: expected 10 at last, the rows of q, got 9"),
    "cuts past the end": ({"cu_seqlens_k": [0, 2, 5, 13]}, ValueError,
                          "cu_seqlens_k: expected 12 at last, the rows of k, got 13"),
    "cuts of both": ({"cu_seqlens_k": None}, ValueError,
                     "cu_seqlens_q: expected 12 at last, the rows of k, got 10"),
    "cuts count": ({"cu_seqlens_k": [0, 12]}, ValueError,
                   "cu_seqlens_k: expected shape (4,) like cu_seqlens_q, got shape (2,)"),
    "lengths": ({"kv_lengths": [2, 4, 7]}, ValueError,
                "kv_lengths: expected at most 3 for sequence 1, the number of its keys, got 4"),
    "length": ({"kv_lengths": 3}, ValueError,
               "kv_lengths: expected at most 2 for sequence 0, the number of its keys, got 3"),
    "lengths below": ({"kv_lengths": [2, -1, 7]}, ValueError,
                      "kv_lengths: expected values from 0 to 9007199254740992, got -1"),
    "lengths shape": ({"kv_lengths": [2, 3]}, ValueError,
                      "kv_lengths: expected an integer or shape (3,), got shape (2,)"),
    "starts": ({"kv_starts": [0, 0, 8]}, ValueError,
               "kv_starts: expected at most 7 for sequence 2, the number of its keys, got 8"),
    "offset": ({"q_offset": 2**53 + 1}, ValueError, "q_offset: expected values from -90071992547"),
    "alibi": ({"alibi_slopes": zeros(2, 8)}, ValueError,
              "alibi_slopes: expected shape (8,) or (3, 8), got shape (2, 8)"),
    "sinks": ({"sinks": zeros(2)}, ValueError, "sinks: expected shape (8,), got shape (2,)"),
    "k_scale": ({"k_scale": zeros(3, 2)}, ValueError,
                "k_scale: expected a number or shape (2,), (1, 2) or (2, 12), got shape (3, 2)"),
    "causal": ({"causal": 1}, TypeError, "causal: expected True or False, got int"),
    "precision": ({"precision": "low"}, ValueError, "precision: expected one of 'highest', "),
    "num_threads": ({"num_threads": 0}, ValueError, "num_threads: expected an integer not below 1"),
    "return_lse": ({"return_lse": 1}, TypeError, "return_lse: expected True or False, got int"),
    "out": ({"out": zeros(8, 10, 48)}, ValueError,
            "out: expected shape (10, 8, 48), got (8, 10, 48)"),
}  # fmt: skip
VARLEN_PAGED_CASES = {
    "lengths": ({"kv_lengths": [17, 0, 9]}, ValueError,
                "kv_lengths: expected at most 16 for sequence 0, the number of its keys, got 17"),
    "neither": ({"kv_lengths": None}, ValueError,
                "kv_lengths: expected it or cu_seqlens_k with block_table, got neither"),
    "cuts": ({"kv_lengths": None, "cu_seqlens_k": [0, 4, 21, 23]}, ValueError,
             "cu_seqlens_k: expected at most 16 for sequence 1, the room in its blocks, got 17"),
    "both": ({"kv_lengths": [4, 4, 2], "cu_seqlens_k": [0, 4, 7, 9]}, ValueError,
             "kv_lengths: expected at most 3 for sequence 1, the number of its keys, got 4"),
    "k rank": ({"k": TK}, ValueError,
               "k: expected 4 axes with block_table, got shape (12, 2, 64)"),
    "table": ({"block_table": np.array([[0, 1]])}, ValueError,
              "block_table: expected shape (3, blocks), got shape (1, 2)"),
    "page": ({"block_table": np.array([[0, 1], [2, 3], [4, 6]])}, ValueError,
             "block_table: expected pages from 0 to 5, got 6 in row 2, entry 1"),
    "page beyond int32": ({"k": countless(zeros(1, 8, 2, 64)), "v": countless(zeros(1, 8, 2, 48)),
                           "block_table": np.array([[0, 1], [2, 3], [2**32 + 3, 5]])}, ValueError,
                          "block_table: expected pages from 0 to 2147483647, got 4294967299 in "
                          "row 2, entry 0"),
    "k_scale": ({"k_scale": zeros(2, 12)}, ValueError,
                "k_scale: expected a number or shape (2,) or (6, 2, 8), got shape (2, 12)"),
}  # fmt: skip
