# SPDX-License-Identifier: MIT
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = [
    "attend",
    "attention_mask",
    "register",
]

def register(name: str = "fastattn") -> None: ...
def attend(
    module: nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    cache: object = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]: ...
def attention_mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int | None = None,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = ...,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    cache_position: Tensor | None = None,
    **options: Any,
) -> Tensor: ...
