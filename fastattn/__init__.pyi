# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from fastattn import reference as reference

Array = npt.NDArray[Any]
Indices = int | np.integer[Any] | Sequence[int] | npt.NDArray[np.integer[Any]]
Numbers = Sequence[float] | Array
Window = tuple[int | None, int | None] | Sequence[int | None]
Layout = Literal["bhsd", "bshd"]
Precision = Literal["highest", "high", "medium"]

__version__: str

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    attn_mask: Array | None = None,
    causal: bool = False,
    window_size: Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    q_offset: Indices | None = None,
    kv_lengths: Indices | None = None,
    kv_starts: Indices | None = None,
    block_table: Array | None = None,
    k_scale: Numbers | float | None = None,
    v_scale: Numbers | float | None = None,
    layout: Layout = "bhsd",
    precision: Precision = "highest",
    out: Array | None = None,
    return_lse: Literal[False] = False,
    num_threads: int | None = None,
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    attn_mask: Array | None = None,
    causal: bool = False,
    window_size: Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    q_offset: Indices | None = None,
    kv_lengths: Indices | None = None,
    kv_starts: Indices | None = None,
    block_table: Array | None = None,
    k_scale: Numbers | float | None = None,
    v_scale: Numbers | float | None = None,
    layout: Layout = "bhsd",
    precision: Precision = "highest",
    out: Array | None = None,
    return_lse: Literal[True],
    num_threads: int | None = None,
) -> tuple[Array, Array]: ...
def attention_weights(
    q: Array,
    k: Array,
    *,
    attn_mask: Array | None = None,
    causal: bool = False,
    window_size: Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    q_offset: Indices | None = None,
    kv_lengths: Indices | None = None,
    kv_starts: Indices | None = None,
    block_table: Array | None = None,
    k_scale: Numbers | float | None = None,
    layout: Layout = "bhsd",
    precision: Precision = "highest",
    num_threads: int | None = None,
) -> Array: ...
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array: ...
def merge_states(
    outs: Sequence[Array] | Array, lses: Sequence[Array] | Array, *, out: Array | None = None
) -> tuple[Array, Array]: ...
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
