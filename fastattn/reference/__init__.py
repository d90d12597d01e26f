# SPDX-License-Identifier: MIT
"""The oracle: what the functions of fastattn compute, in plain NumPy and float64.

This package is the specification in code. It is written to be read and to be right, not to be fast:
it holds the whole score table in memory, and it uses NumPy alone, nothing else of fastattn. Its
functions take the arguments of the public ones and return float64, so that the error of a kernel
can be measured against them. Inputs of any dtype, 16-bit and narrower too, are taken at the value
that they hold. Arguments that only steer how a kernel computes (`precision`, `num_threads`) are
accepted and ignored; bad arguments are reported as NumPy happens to report them.

Letters: q, k, v, o are the tensors, s the scores, p the weights, i counts queries and j keys.
Logical order of axes: q (lead..., Hq, Sq, D), k (lead..., Hkv, Sk, D), v (lead..., Hkv, Sk, Dv),
tables such as s and p (lead..., Hq, Sq, Sk).
"""

from fastattn.reference.dense import STAGES, attention, attention_weights
from fastattn.reference.merge import merge_states
from fastattn.reference.sdpa import scaled_dot_product_attention
from fastattn.reference.varlen import attention_varlen

__all__ = [
    "STAGES",
    "attention",
    "attention_varlen",
    "attention_weights",
    "merge_states",
    "scaled_dot_product_attention",
]
