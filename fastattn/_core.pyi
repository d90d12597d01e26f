# SPDX-License-Identifier: MIT
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fastattn._check import Problem, VarlenProblem

_Function = TypeVar("_Function", bound=Callable[..., Any])
VERSION: str

def in_default_environment(function: _Function) -> _Function: ...
def attend_plain(
    q: object,
    k: object,
    v: object,
    mask: object,
    causal: object,
    window_size: object,
    scale: object,
    softcap: object,
    alibi_slopes: object,
    sinks: object,
    q_offset: object,
    kv_lengths: object,
    kv_starts: object,
    block_table: object,
    k_scale: object,
    v_scale: object,
    layout: object,
    precision: object,
    out: object,
    return_lse: object,
    threads: object,
    isa: bytes,
) -> (
    npt.NDArray[np.floating] | tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]] | None
): ...
def attend_varlen_plain(
    q: object,
    k: object,
    v: object,
    cu_seqlens_q: object,
    cu_seqlens_k: object,
    causal: object,
    window_size: object,
    scale: object,
    softcap: object,
    alibi_slopes: object,
    sinks: object,
    q_offset: object,
    kv_lengths: object,
    kv_starts: object,
    block_table: object,
    k_scale: object,
    v_scale: object,
    precision: object,
    out: object,
    return_lse: object,
    threads: object,
    isa: bytes,
) -> (
    npt.NDArray[np.floating] | tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]] | None
): ...
def attend(problem: Problem, threads: int, isa: bytes, weights: bool = False) -> None: ...
def attend_varlen(problem: VarlenProblem, threads: int, isa: bytes) -> None: ...
def max_threads() -> int: ...
def has_threads() -> bool: ...
def isa_table() -> dict[str, str | None]: ...
def default_isa() -> str | None: ...
def kernels_at(isa: str, dtype: str) -> tuple[int, int]: ...
