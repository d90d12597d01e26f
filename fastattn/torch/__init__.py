# SPDX-License-Identifier: MIT
"""fastattn for torch: the functions on CPU tensors, and in the place of torch's own.

The functions are operators of torch (``torch.ops.fastattn``) with fake kernels, so torch.compile
and torch.export keep them as one node of the graph.
"""

from fastattn._extras import needed

with needed("fastattn.torch", "torch"):
    from fastattn.torch._attention import attention, attention_varlen
    from fastattn.torch._sdpa import Patch, patch_sdpa, scaled_dot_product_attention

__all__ = [
    "Patch",
    "attention",
    "attention_varlen",
    "patch_sdpa",
    "scaled_dot_product_attention",
]
