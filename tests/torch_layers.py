# SPDX-License-Identifier: MIT
"""Our weights in torch's layers, which keep them transposed and q, k, v in one."""

import numpy as np

from fastattn import layers


def attention_state(prefix, layer):
    return {
        f"{prefix}.in_proj_weight": np.concatenate([layer.w_q.T, layer.w_k.T, layer.w_v.T]),
        f"{prefix}.in_proj_bias": np.concatenate([layer.b_q, layer.b_k, layer.b_v]),
        f"{prefix}.out_proj.weight": layer.w_o.T.copy(),
        f"{prefix}.out_proj.bias": layer.b_o,
    }


def layer_state(layer):
    """The state of torch's encoder or decoder layer with the weights of ours."""
    if isinstance(layer, layers.EncoderLayer):
        state = attention_state("self_attn", layer.attention)
        norms = {"norm1": layer.attention_norm, "norm2": layer.feed_forward_norm}
    else:
        state = attention_state("self_attn", layer.self_attention)
        state |= attention_state("multihead_attn", layer.cross_attention)
        norms = {
            "norm1": layer.self_norm, "norm2": layer.cross_norm, "norm3": layer.feed_forward_norm,
        }  # fmt: skip
    inner = layer.feed_forward
    state |= {
        "linear1.weight": inner.w_in.T.copy(), "linear1.bias": inner.b_in,
        "linear2.weight": inner.w_out.T.copy(), "linear2.bias": inner.b_out,
    }  # fmt: skip
    for name, norm in norms.items():
        state |= {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
    return state


def load(torch, module, state):
    module.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    return module.eval()
