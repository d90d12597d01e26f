# SPDX-License-Identifier: MIT
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]

# A subclass of onnx.reference.op_run.OpRun; Any, because onnx need not be installed.
Attention: Any

class Outputs(NamedTuple):
    Y: _Array
    present_key: _Array
    present_value: _Array
    qk_matmul_output: _Array | None

def attention(
    Q: _Array,
    K: _Array,
    V: _Array,
    attn_mask: _Array | None = None,
    past_key: _Array | None = None,
    past_value: _Array | None = None,
    nonpad_kv_seqlen: npt.NDArray[np.integer[Any]] | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: Literal[0, 1, 2, 3] | None = None,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: Literal[1, 10, 11, 16] | None = None,
) -> Outputs: ...
