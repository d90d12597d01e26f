# cython: language_level=3
# SPDX-License-Identifier: MIT
"""A Cython module of somebody who installed the wheel."""

from fastattn.capi cimport FA_FLOAT32, FA_OK, fa_args, fa_attention, fa_status, fa_tensor
from libc.string cimport memset


cdef fa_tensor tensor(float[:, :, ::1] array):
    cdef fa_tensor result
    memset(&result, 0, sizeof(result))
    result.data = &array[0, 0, 0]
    result.head, result.row, result.column = array.strides[0], array.strides[1], array.strides[2]
    return result


def attention(float[:, :, ::1] q, float[:, :, ::1] k, float[:, :, ::1] v, float[:, :, ::1] out):
    """Causal attention of (heads, rows, depth) at scale 0.5, into out."""
    cdef fa_args args
    cdef fa_status status
    memset(&args, 0, sizeof(args))
    args.size = sizeof(args)
    args.dtype = FA_FLOAT32
    args.q_heads, args.queries, args.depth = q.shape[0], q.shape[1], q.shape[2]
    args.kv_heads, args.keys, args.value_depth = k.shape[0], k.shape[1], v.shape[2]
    args.q, args.k, args.v, args.out = tensor(q), tensor(k), tensor(v), tensor(out)
    args.scale, args.causal = 0.5, 1
    args.left = args.right = -1
    with nogil:
        status = fa_attention(&args)
    if status != FA_OK:
        raise RuntimeError(f"fa_attention: status {<int>status}")
