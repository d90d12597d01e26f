# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from fastattn import caches as caches
from fastattn import layers as layers
from fastattn import models as models
from fastattn import onnx as onnx
from fastattn import plot as plot
from fastattn import reference as reference
from fastattn.caches import KVCache as KVCache
from fastattn.caches import PagedKVCache as PagedKVCache

_Array = npt.NDArray[Any]
_Indices = int | np.integer[Any] | Sequence[int] | npt.NDArray[np.integer[Any]]
_Numbers = Sequence[float] | _Array
_Table = Sequence[Sequence[int]] | npt.NDArray[np.integer[Any]]
_Window = tuple[int | None, int | None] | Sequence[int | None]
_Layout = Literal["bhsd", "bshd"]
_Precision = Literal["highest", "high", "medium"]

__version__: str

@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    attn_mask: _Array | None = None,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[False] = False,
    num_threads: int | None = None,
) -> _Array: ...
@overload
def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    *,
    attn_mask: _Array | None = None,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[True],
    num_threads: int | None = None,
) -> tuple[_Array, _Array]: ...
@overload
def attention_varlen(
    q: _Array,
    k: _Array,
    v: _Array,
    cu_seqlens_q: Sequence[int] | npt.NDArray[np.integer[Any]],
    cu_seqlens_k: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
    *,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[False] = False,
    num_threads: int | None = None,
) -> _Array: ...
@overload
def attention_varlen(
    q: _Array,
    k: _Array,
    v: _Array,
    cu_seqlens_q: Sequence[int] | npt.NDArray[np.integer[Any]],
    cu_seqlens_k: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
    *,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _Numbers | float | None = None,
    v_scale: _Numbers | float | None = None,
    precision: _Precision = "highest",
    out: _Array | None = None,
    return_lse: Literal[True],
    num_threads: int | None = None,
) -> tuple[_Array, _Array]: ...
def attention_weights(
    q: _Array,
    k: _Array,
    *,
    attn_mask: _Array | None = None,
    causal: bool = False,
    window_size: _Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: _Numbers | None = None,
    sinks: _Numbers | None = None,
    q_offset: _Indices | None = None,
    kv_lengths: _Indices | None = None,
    kv_starts: _Indices | None = None,
    block_table: _Table | None = None,
    k_scale: _Numbers | float | None = None,
    layout: _Layout = "bhsd",
    precision: _Precision = "highest",
    num_threads: int | None = None,
) -> _Array: ...
def scaled_dot_product_attention(
    query: _Array,
    key: _Array,
    value: _Array,
    attn_mask: _Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Array: ...
def merge_states(
    outs: Sequence[_Array] | _Array, lses: Sequence[_Array] | _Array, *, out: _Array | None = None
) -> tuple[_Array, _Array]: ...
def quantize_kv(
    k: _Array,
    v: _Array,
    dtype: npt.DTypeLike = ...,
    per: Literal["token", "head"] = "token",
    *,
    layout: _Layout = "bhsd",
) -> tuple[_Array, _Array, npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def use_isa(name: str) -> AbstractContextManager[None]: ...
def set_num_threads(n: int | None) -> None: ...
def get_num_threads() -> int: ...
def num_threads(n: int) -> AbstractContextManager[None]: ...
def config() -> dict[str, Any]: ...
def show_config() -> None: ...
def get_include() -> str: ...
def get_library() -> str: ...
def get_cmake_dir() -> str: ...
def get_pkgconfig_dir() -> str: ...
