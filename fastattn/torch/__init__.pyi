# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from typing import Literal, overload

from torch import Tensor

_Window = tuple[int | None, int | None] | Sequence[int | None]
_Integers = int | Sequence[int] | Tensor
_Numbers = Sequence[float] | Tensor
_Layout = Literal["bhsd", "bshd"]
_Precision = Literal["highest", "high", "medium"]

@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: Tensor | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    return_lse: Literal[False] = False,
    num_threads: int | None = None,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    kv_starts: _Integers | None = None,
    block_table: Tensor | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    return_lse: Literal[True],
    num_threads: int | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Sequence[int] | Tensor,
    cu_seqlens_k: Sequence[int] | Tensor | None = None,
    *,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    block_table: Tensor | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    precision: _Precision = "highest",
    return_lse: Literal[False] = False,
    num_threads: int | None = None,
) -> Tensor: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Sequence[int] | Tensor,
    cu_seqlens_k: Sequence[int] | Tensor | None = None,
    *,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Integers | None = None,
    kv_lengths: _Integers | None = None,
    block_table: Tensor | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    precision: _Precision = "highest",
    return_lse: Literal[True],
    num_threads: int | None = None,
) -> tuple[Tensor, Tensor]: ...
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor: ...
def patch_sdpa() -> Patch: ...

class Patch:
    def __init__(self) -> None: ...
    def undo(self) -> None: ...
    def __enter__(self) -> Patch: ...
    def __exit__(self, *error: object) -> None: ...
