# SPDX-License-Identifier: MIT
"""What depends on the library that arguments are of: torch, which only it imports, or NumPy."""

import sys

import numpy as np

import fastattn


def is_tensor(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def of(q):
    """Where `attention` and `attention_varlen` take, and return, what q is."""
    if is_tensor(q):
        import fastattn.torch as adapter

        return adapter
    return fastattn


def wrapper(q):
    """What makes an array of what q is."""
    if is_tensor(q):
        from fastattn.torch._tensors import tensor

        return tensor
    return np.asarray


def refuse_tangents(*values):
    """Raise where forward-mode differentiation would end in a plain result."""
    if any(is_tensor(each) for each in values):
        from fastattn.torch._tensors import refuse_tangents

        refuse_tangents(values)


def no_pattern(q):
    return q.new_empty(0) if is_tensor(q) else np.empty(0, q.dtype)


def outside_of_graphs(q, function, *arguments):
    """Call a function; torch.compile breaks its graph there, and does not try to trace it."""
    if is_tensor(q):
        from fastattn.torch._tensors import outside_of_graphs as call

        return call(function, *arguments)
    return function(*arguments)
