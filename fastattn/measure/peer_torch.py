# SPDX-License-Identifier: MIT
"""Peer: torch.nn.functional.scaled_dot_product_attention, eager, on CPU."""

import numpy as np

from fastattn.measure.peers import Peer, Prepared, bool_mask


class Torch(Peer):
    """PyTorch SDPA; it picks its own CPU kernel (the flash one for these problems)."""

    name = package = "torch"

    @property
    def version(self):
        """Version with the build, such as 2.13.0+cpu."""
        import torch

        return torch.__version__

    def prepare(self, problem, inputs):
        """Share the memory of the inputs; bind the options."""
        import torch

        torch.set_num_threads(self.threads)
        options = {}
        if problem.causal:
            options["is_causal"] = True
        if problem.Hq != problem.Hkv:
            options["enable_gqa"] = True
        # Inference tensors spare the bookkeeping for gradients in every call, tiny ones included.
        with torch.inference_mode():
            q, k, v = (torch.from_numpy(each) for each in (inputs.q, inputs.k, inputs.v))
            if inputs.mask is not None and inputs.mask.dtype != np.bool_:
                options["attn_mask"] = torch.from_numpy(inputs.mask)
            elif (mask := bool_mask(problem, inputs)) is not None:
                options["attn_mask"] = torch.from_numpy(np.ascontiguousarray(mask))
        attend = torch.nn.functional.scaled_dot_product_attention

        def call():
            return attend(q, k, v, **options)

        return Prepared(call, lambda tensor: tensor.numpy())

    def supports(self, problem):
        """Causal only if square; a causal flag excludes a mask."""
        if problem.causal and (problem.mask != "none" or problem.padded):
            return "is_causal excludes a mask"
        if problem.mask == "float" and problem.padded:
            return "one mask only"
        return super().supports(problem)
