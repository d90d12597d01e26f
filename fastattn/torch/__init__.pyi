# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from typing import Literal, overload

from torch import Tensor

from fastattn import _Bool, _Int, _Layout, _Precision, _Real, _Window

__all__ = [
    "Patch",
    "attention",
    "attention_varlen",
    "patch_sdpa",
    "scaled_dot_product_attention",
]

_Integers = _Int | Sequence[_Int] | Tensor
_Numbers = Sequence[_Real] | Tensor
_PerHead = Sequence[Sequence[_Real]] | _Numbers
_Table = Sequence[Sequence[_Int]] | Tensor

@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    return_lse: Literal[False] = False,
    num_threads: _Int | None = None,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    return_lse: Literal[True],
    num_threads: _Int | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    return_lse: _Bool,
    num_threads: _Int | None = None,
) -> Tensor | tuple[Tensor, Tensor]: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Sequence[_Int] | Tensor,
    cu_seqlens_k: Sequence[_Int] | Tensor | None = None,
    *,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    precision: _Precision = "highest",
    return_lse: Literal[False] = False,
    num_threads: _Int | None = None,
) -> Tensor: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Sequence[_Int] | Tensor,
    cu_seqlens_k: Sequence[_Int] | Tensor | None = None,
    *,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    precision: _Precision = "highest",
    return_lse: Literal[True],
    num_threads: _Int | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Sequence[_Int] | Tensor,
    cu_seqlens_k: Sequence[_Int] | Tensor | None = None,
    *,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    precision: _Precision = "highest",
    return_lse: _Bool,
    num_threads: _Int | None = None,
) -> Tensor | tuple[Tensor, Tensor]: ...
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: _Real = 0.0,
    is_causal: _Bool = False,
    scale: _Real | None = None,
    enable_gqa: _Bool = False,
) -> Tensor: ...
def patch_sdpa() -> Patch: ...

class Patch:
    def __init__(self) -> None: ...
    def undo(self) -> None: ...
    def __enter__(self) -> Patch: ...
    def __exit__(self, *error: object) -> None: ...
