# SPDX-License-Identifier: MIT
import numpy as np
import numpy.typing as npt

from fastattn._check import Problem

def attend_plain(
    q: object,
    k: object,
    v: object,
    causal: bool,
    scale: float | None,
    threads: int,
    isa: bytes,
) -> npt.NDArray[np.float32] | None: ...
def attend(problem: Problem, threads: int, isa: bytes, weights: bool = False) -> None: ...
def max_threads() -> int: ...
def has_threads() -> bool: ...
def isa_table() -> dict[str, str | None]: ...
def default_isa() -> str | None: ...
