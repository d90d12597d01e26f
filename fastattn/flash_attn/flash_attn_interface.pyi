# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from typing import Any, TypeVar

from fastattn import _Bool, _Int, _Real, _Window

# A torch.Tensor or a numpy.ndarray: what comes back is what q is.
_Array = TypeVar("_Array")
_Cuts = Sequence[_Int] | _Array

def flash_attn_func(
    q: _Array,
    k: _Array,
    v: _Array,
    dropout_p: _Real = 0.0,
    softmax_scale: _Real | None = None,
    causal: _Bool = False,
    window_size: _Window = (-1, -1),
    softcap: _Real = 0.0,
    alibi_slopes: _Array | None = None,
    deterministic: bool = False,
    return_attn_probs: _Bool = False,
) -> Any: ...
def flash_attn_qkvpacked_func(
    qkv: _Array,
    dropout_p: _Real = 0.0,
    softmax_scale: _Real | None = None,
    causal: _Bool = False,
    window_size: _Window = (-1, -1),
    softcap: _Real = 0.0,
    alibi_slopes: _Array | None = None,
    deterministic: bool = False,
    return_attn_probs: _Bool = False,
) -> Any: ...
def flash_attn_kvpacked_func(
    q: _Array,
    kv: _Array,
    dropout_p: _Real = 0.0,
    softmax_scale: _Real | None = None,
    causal: _Bool = False,
    window_size: _Window = (-1, -1),
    softcap: _Real = 0.0,
    alibi_slopes: _Array | None = None,
    deterministic: bool = False,
    return_attn_probs: _Bool = False,
) -> Any: ...
def flash_attn_varlen_func(
    q: _Array,
    k: _Array,
    v: _Array,
    cu_seqlens_q: _Cuts[_Array],
    cu_seqlens_k: _Cuts[_Array],
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: _Real = 0.0,
    softmax_scale: _Real | None = None,
    causal: _Bool = False,
    window_size: _Window = (-1, -1),
    softcap: _Real = 0.0,
    alibi_slopes: _Array | None = None,
    deterministic: bool = False,
    return_attn_probs: _Bool = False,
    block_table: _Array | None = None,
) -> Any: ...
def flash_attn_varlen_qkvpacked_func(
    qkv: _Array,
    cu_seqlens: _Cuts[_Array],
    max_seqlen: int | None = None,
    dropout_p: _Real = 0.0,
    softmax_scale: _Real | None = None,
    causal: _Bool = False,
    window_size: _Window = (-1, -1),
    softcap: _Real = 0.0,
    alibi_slopes: _Array | None = None,
    deterministic: bool = False,
    return_attn_probs: _Bool = False,
) -> Any: ...
def flash_attn_varlen_kvpacked_func(
    q: _Array,
    kv: _Array,
    cu_seqlens_q: _Cuts[_Array],
    cu_seqlens_k: _Cuts[_Array],
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: _Real = 0.0,
    softmax_scale: _Real | None = None,
    causal: _Bool = False,
    window_size: _Window = (-1, -1),
    softcap: _Real = 0.0,
    alibi_slopes: _Array | None = None,
    deterministic: bool = False,
    return_attn_probs: _Bool = False,
) -> Any: ...
def flash_attn_with_kvcache(
    q: _Array,
    k_cache: _Array,
    v_cache: _Array,
    k: _Array | None = None,
    v: _Array | None = None,
    rotary_cos: _Array | None = None,
    rotary_sin: _Array | None = None,
    cache_seqlens: _Int | _Array | None = None,
    cache_batch_idx: _Array | None = None,
    cache_leftpad: _Array | None = None,
    block_table: _Array | None = None,
    softmax_scale: _Real | None = None,
    causal: _Bool = False,
    window_size: _Window = (-1, -1),
    softcap: _Real = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: _Array | None = None,
    num_splits: int = 0,
    return_softmax_lse: _Bool = False,
) -> Any: ...
