# SPDX-License-Identifier: MIT
"""Calls of fastattn.torch that several test modules make."""

import torch


def every_option(randn):
    """Arguments that use every option of the dense problem at once."""
    return (randn(2, 17, 4, 16), randn(2, 33, 2, 16), randn(2, 33, 2, 8)), {
        "attn_mask": randn(17, 33), "causal": True, "window_size": (20, None), "scale": 0.2,
        "softcap": 5.0, "alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4]),
        "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0]), "q_offset": torch.tensor([16, 9]),
        "kv_lengths": [33, 20], "kv_starts": 1, "layout": "bshd", "return_lse": True,
        "num_threads": 1,
    }  # fmt: skip


def as_arrays(value):
    return value.numpy() if isinstance(value, torch.Tensor) else value
