# SPDX-License-Identifier: MIT
"""Peer: jax.nn.dot_product_attention, compiled by XLA for the CPU."""

import os

import numpy as np

from fastattn.measure.masking import bool_mask
from fastattn.measure.peers import Peer, Prepared


def cpus():
    """Return the CPUs that this process may use: so many threads XLA takes."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class Jax(Peer):
    """JAX in its own layout, (batch, sequence, heads, depth), compiled for each shape."""

    name = package = "jax"
    dtypes = ("float32", "bfloat16")  # XLA has no float16 products for CPUs
    features = frozenset({"grouped heads", "window", "two masks"})

    def supports(self, problem):
        """All CPUs only: XLA's thread pool has a size of its own."""
        if self.threads != cpus():
            return "all CPUs only"
        return super().supports(problem)

    def prepare(self, problem, inputs):
        """Rearrange the inputs and compile."""
        import jax

        q, k, v = (
            jax.numpy.asarray(np.ascontiguousarray(each.swapaxes(1, 2)))
            for each in (inputs.q, inputs.k, inputs.v)
        )
        options = {}
        mask = bool_mask(problem, inputs)
        if problem.causal and problem.Sq == problem.Sk:
            options["is_causal"] = True
            if problem.window >= 0:
                options["local_window_size"] = (problem.window, 0)
        else:  # its flags are aligned at the top left
            mask = bool_mask(problem, inputs, causal=True)
        named = {}
        if mask is not None:
            named["mask"] = jax.numpy.asarray(mask)
        if inputs.mask is not None and inputs.mask.dtype != bool:
            named["bias"] = jax.numpy.asarray(inputs.mask[None, None])

        @jax.jit
        def attend(q, k, v, named):
            return jax.nn.dot_product_attention(q, k, v, **named, **options)

        compiled = attend.lower(q, k, v, named).compile()

        def call():
            return compiled(q, k, v, named).block_until_ready()

        return Prepared(call, lambda out: np.asarray(out).swapaxes(1, 2))
