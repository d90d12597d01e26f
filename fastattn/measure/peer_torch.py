# SPDX-License-Identifier: MIT
"""Peers: torch.nn.functional.scaled_dot_product_attention, eager, and compiled flex_attention."""

import functools
import warnings

import numpy as np

from fastattn.measure.masking import flag_and_mask
from fastattn.measure.peers import Peer, Prepared


def tensor(array):
    """Return a tensor on the memory of `array`; torch reads no bfloat16 from NumPy by itself."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def numbers(result):
    """Return a tensor as an array, bfloat16 as float32."""
    import torch

    return (result.float() if result.dtype == torch.bfloat16 else result).numpy()


class Torch(Peer):
    """PyTorch SDPA; it picks its own CPU kernel (the flash one for these problems)."""

    name = package = "torch"
    dtypes = ("float32", "float64", "float16", "bfloat16")
    features = frozenset(
        {"grouped heads", "values of another depth", "window", "packed sequences"}
    )  # fmt: skip

    @property
    def version(self):
        """Version with the build, such as 2.13.0+cpu."""
        import torch

        return torch.__version__

    def prepare(self, problem, inputs):
        """Share the memory of the inputs; bind the options."""
        import torch

        if problem.packed:
            return self.prepare_each(problem, inputs)
        torch.set_num_threads(self.threads)
        options = {}
        causal, mask = flag_and_mask(problem, inputs)
        if causal:
            options["is_causal"] = True
        if problem.Hq != problem.Hkv:
            options["enable_gqa"] = True
        # Inference tensors spare the bookkeeping for gradients in every call, tiny ones included.
        with torch.inference_mode():
            q, k, v = (tensor(each) for each in (inputs.q, inputs.k, inputs.v))
            if mask is not None:
                options["attn_mask"] = tensor(np.ascontiguousarray(mask))
        attend = torch.nn.functional.scaled_dot_product_attention

        def call():
            return attend(q, k, v, **options)

        return Prepared(call, numbers, keep=inputs)


@functools.cache
def _compiled():
    """Return flex_attention as torch.compile makes it; every new shape is compiled anew."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


class Flex(Torch):
    """torch's flex_attention, compiled for each shape, causality and window as a block mask."""

    name = "flex"
    features = frozenset({"grouped heads", "values of another depth", "window", "softcap"})
    on_request = True

    def supports(self, problem):
        """No arrays as masks: it takes functions of positions."""
        if problem.mask != "none" or problem.padded:
            return "no mask arrays"
        return super().supports(problem)

    def prepare(self, problem, inputs):
        """Compile; takes the better part of a minute."""
        import torch
        from torch.nn.attention.flex_attention import create_block_mask

        torch.set_num_threads(self.threads)
        offset, window, cap = problem.Sk - problem.Sq, problem.window, problem.softcap
        options = {}
        if problem.causal and (problem.Sq > 1 or window >= 0):

            def allowed(b, h, i, j):
                seen = j <= i + offset
                return seen & (j >= i + offset - window) if window >= 0 else seen

            sizes = problem.Sq, problem.Sk
            options["block_mask"] = create_block_mask(allowed, None, None, *sizes, device="cpu")
        if cap:
            options["score_mod"] = lambda s, b, h, i, j: torch.tanh(s / cap) * cap
        q, k, v = (tensor(each) for each in (inputs.q, inputs.k, inputs.v))
        options["enable_gqa"] = problem.Hq != problem.Hkv
        attend = _compiled()

        def call():
            with torch.inference_mode():
                return attend(q, k, v, **options)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about what it does not do
            call()
        return Prepared(call, numbers, keep=inputs)
