# SPDX-License-Identifier: MIT
from collections.abc import Sequence
from typing import Literal, overload

from jax import Array
from jax.typing import ArrayLike

from fastattn import _Bool, _Int, _Real

@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: _Real | None = None,
    is_causal: _Bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: _Int | Sequence[_Int] | None = None,
    implementation: None = None,
    return_residual: Literal[False] = False,
) -> Array: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: _Real | None = None,
    is_causal: _Bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: _Int | Sequence[_Int] | None = None,
    implementation: None = None,
    return_residual: Literal[True],
) -> tuple[Array, Array]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: _Real | None = None,
    is_causal: _Bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: _Int | Sequence[_Int] | None = None,
    implementation: None = None,
    return_residual: _Bool,
) -> Array | tuple[Array, Array]: ...
