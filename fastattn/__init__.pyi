# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, overload

import numpy as np
import numpy.typing as npt

from fastattn import caches as caches
from fastattn import cli as cli
from fastattn import flash_attn as flash_attn
from fastattn import jax as jax
from fastattn import layers as layers
from fastattn import measure as measure
from fastattn import models as models
from fastattn import onnx as onnx
from fastattn import plot as plot
from fastattn import reference as reference
from fastattn import torch as torch
from fastattn import transformers as transformers
from fastattn.caches import KVCache as KVCache
from fastattn.caches import PagedKVCache as PagedKVCache

__all__ = [
    "KVCache",
    "PagedKVCache",
    "__version__",
    "attention",
    "attention_varlen",
    "attention_weights",
    "config",
    "get_cmake_dir",
    "get_include",
    "get_library",
    "get_num_threads",
    "get_pkgconfig_dir",
    "isa",
    "isas",
    "merge_states",
    "num_threads",
    "quantize_kv",
    "scaled_dot_product_attention",
    "set_num_threads",
    "show_config",
    "use_isa",
]

class _DLPack(Protocol):  # arrays of other libraries, and NumPy's as well
    def __dlpack__(self) -> Any: ...

_Array = npt.NDArray[Any]
_Bool = bool | np.bool_
_Int = int | np.integer[Any]
_Real = float | np.integer[Any] | np.floating[Any]
_Mask = _DLPack | np.bool_ | np.floating[Any]
_Cuts = Sequence[_Int] | _DLPack
_Indices = _Int | _Cuts
_Numbers = Sequence[_Real] | _DLPack
_PerHead = Sequence[Sequence[_Real]] | _Numbers
_Table = Sequence[Sequence[_Int]] | _DLPack
_Window = tuple[_Int | None, _Int | None] | Sequence[_Int | None]
_Layout = Literal["bhsd", "bshd"]
_Precision = Literal["highest", "high", "medium"]

__version__: str

@overload
def attention(
    q: _DLPack,
    k: _DLPack,
    v: _DLPack,
    *,
    attn_mask: _Mask | None = None,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[False] = False,
    num_threads: _Int | None = None,
) -> _Array: ...
@overload
def attention(
    q: _DLPack,
    k: _DLPack,
    v: _DLPack,
    *,
    attn_mask: _Mask | None = None,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[True],
    num_threads: _Int | None = None,
) -> tuple[_Array, _Array]: ...
@overload
def attention(
    q: _DLPack,
    k: _DLPack,
    v: _DLPack,
    *,
    attn_mask: _Mask | None = None,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: _Bool,
    num_threads: _Int | None = None,
) -> _Array | tuple[_Array, _Array]: ...
@overload
def attention_varlen(
    q: _DLPack,
    k: _DLPack,
    v: _DLPack,
    cu_seqlens_q: _Cuts,
    cu_seqlens_k: _Cuts | None = None,
    *,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[False] = False,
    num_threads: _Int | None = None,
) -> _Array: ...
@overload
def attention_varlen(
    q: _DLPack,
    k: _DLPack,
    v: _DLPack,
    cu_seqlens_q: _Cuts,
    cu_seqlens_k: _Cuts | None = None,
    *,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[True],
    num_threads: _Int | None = None,
) -> tuple[_Array, _Array]: ...
@overload
def attention_varlen(
    q: _DLPack,
    k: _DLPack,
    v: _DLPack,
    cu_seqlens_q: _Cuts,
    cu_seqlens_k: _Cuts | None = None,
    *,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    v_scale: _PerHead | _Real | None = None,
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: _Bool,
    num_threads: _Int | None = None,
) -> _Array | tuple[_Array, _Array]: ...
def attention_weights(
    q: _DLPack,
    k: _DLPack,
    *,
    attn_mask: _Mask | None = None,
    causal: _Bool = False,
    window_size: _Window | None = None,
    scale: _Real | None = None,
    softcap: _Real = 0.0,
    alibi_slopes: _PerHead | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _PerHead | _Real | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    num_threads: _Int | None = None,
) -> _Array: ...
def scaled_dot_product_attention(
    query: _DLPack,
    key: _DLPack,
    value: _DLPack,
    attn_mask: _Mask | None = None,
    dropout_p: _Real = 0.0,
    is_causal: _Bool = False,
    scale: _Real | None = None,
    enable_gqa: _Bool = False,
) -> _Array: ...
def merge_states(
    outs: Sequence[_DLPack] | _DLPack,
    lses: Sequence[_DLPack] | _DLPack,
    *,
    out: _Array | None = None,
) -> tuple[_Array, _Array]: ...
def quantize_kv(
    k: _DLPack,
    v: _DLPack,
    dtype: npt.DTypeLike = ...,
    per: Literal["token", "head"] = "token",
    *,
    layout: _Layout = "bhsd",
) -> tuple[_Array, _Array, npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def use_isa(name: str) -> AbstractContextManager[None]: ...
def set_num_threads(n: _Int | None) -> None: ...
def get_num_threads() -> int: ...
def num_threads(n: _Int) -> AbstractContextManager[None]: ...
def config() -> dict[str, Any]: ...
def show_config() -> None: ...
def get_include() -> str: ...
def get_library() -> str: ...
def get_cmake_dir() -> str: ...
def get_pkgconfig_dir() -> str: ...
