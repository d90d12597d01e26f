# SPDX-License-Identifier: MIT
"""The operators torch.ops.fastattn.attention and .attention_varlen, for what traces or transforms.

Their arguments are those of the functions in `fastattn`: first all that may be an array, as
tensors, then the rest, the window as two numbers. The log-sum-exp is always there, empty unless it
was asked for. Results are C-contiguous, so that a fake kernel needs to know nothing of strides.
"""

import torch
from torch._library.autograd import Info, make_autograd_impl

import fastattn
from fastattn.torch._tensors import (
    NO_GRADIENT,
    array,
    lse_dtype,
    refuse_gradients,
    refuse_tangents,
)

DENSE = ("q", "k", "v", "attn_mask", "alibi_slopes", "sinks", "q_offset", "kv_lengths", "kv_starts",
         "block_table", "k_scale", "v_scale")  # fmt: skip
VARLEN = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sinks", "q_offset",
          "kv_lengths", "kv_starts", "block_table", "k_scale", "v_scale")  # fmt: skip
_REQUIRED = {"q", "k", "v", "cu_seqlens_q"}


def _schema(tensors, rest=""):
    listed = (f"Tensor{'' if name in _REQUIRED else '?'} {name}" for name in tensors)
    return (
        f"({', '.join(listed)}, *, bool causal, SymInt left, SymInt right, float? scale, float "
        f"softcap, {rest}str precision, bool return_lse, int? num_threads) -> (Tensor, Tensor)"
    )


def _operator(name, schema):
    return torch.library.custom_op(
        f"fastattn::{name}", mutates_args=(), device_types="cpu", schema=schema
    )


@_operator("attention", _schema(DENSE, "str layout, "))
def attention(*tensors, **options):
    named = dict(zip(DENSE, tensors, strict=True))
    out = _result(_dense_shapes, named, options["layout"])
    return _run(fastattn.attention, named, out, **options)


@_operator("attention_varlen", _schema(VARLEN))
def attention_varlen(*tensors, **options):
    named = dict(zip(VARLEN, tensors, strict=True))
    out = _result(_varlen_shapes, named)
    return _run(fastattn.attention_varlen, named, out, **options)


def _result(shapes, named, *options):
    """Memory for the result; None if no result has these shapes, and the function will say why."""
    try:
        shape, _ = shapes(named, *options)
    except (IndexError, RuntimeError, ValueError):
        return None
    return named["q"].new_empty(shape)


def _run(function, named, out, *, left, right, return_lse, **options):
    """Call a function of `fastattn` on the memory of the tensors."""
    arrays = {name: array(name, value) for name, value in named.items()}
    result = function(
        **arrays, window_size=(left, right), out=array("out", out), return_lse=return_lse, **options
    )
    return out, torch.from_numpy(result[1]) if return_lse else _lse(named["q"], 0)


def _lse(q, shape):
    return q.new_empty(shape, dtype=lse_dtype(q.dtype))


@attention.register_fake
def _(*tensors, layout, return_lse, **_):
    named = dict(zip(DENSE, tensors, strict=True))
    _refuse_mixed(named)
    shape, lse_shape = _dense_shapes(named, layout)
    return named["q"].new_empty(shape), _lse(named["q"], lse_shape if return_lse else 0)


@attention_varlen.register_fake
def _(*tensors, return_lse, **_):
    named = dict(zip(VARLEN, tensors, strict=True))
    _refuse_mixed(named)
    shape, lse_shape = _varlen_shapes(named)
    return named["q"].new_empty(shape), _lse(named["q"], lse_shape if return_lse else 0)


def _refuse_mixed(named):
    """Raise if q is not on `meta` but another tensor is.

    The dispatcher then calls the fake kernel for good, whose result nobody would ever fill.
    """
    if named["q"].device.type == "meta":
        return
    for name, value in named.items():
        if value is not None and value.device.type == "meta":
            raise TypeError(f"{name}: expected a tensor on the CPU like q, got one on meta")


def _dense_shapes(named, layout):
    """Shapes of the result of `attention` and of its log-sum-exp; the rules are `_check`'s."""
    q, k, v = named["q"], named["k"], named["v"]
    lead = q.shape[:-3]
    if named["block_table"] is None:
        lead = torch.broadcast_shapes(lead, k.shape[:-3], v.shape[:-3])
    if q.ndim == 2:
        return (*lead, q.shape[0], v.shape[-1]), (*lead, q.shape[0])
    heads, queries = (q.shape[-2], q.shape[-3]) if layout == "bshd" else q.shape[-3:-1]
    return (*lead, *q.shape[-3:-1], v.shape[-1]), (*lead, heads, queries)


def _varlen_shapes(named):
    q, v = named["q"], named["v"]
    return (*q.shape[:-1], v.shape[-1]), (q.shape[1], q.shape[0])


def _backward(context, *gradients):
    raise NotImplementedError(NO_GRADIENT)


def _refusing(operator):
    """The kernel of an operator for autograd: torch's, which on its own passes over derivatives.

    It looks at `requires_grad` alone. A tangent would be dropped without a word, in a compiled
    graph and by torch.func.linearize, too, and torch.func.grad be told what is wrong with us.
    """
    below = make_autograd_impl(operator, Info(_backward, None))

    def kernel(keyset, *tensors, **options):
        refuse_tangents(tensors)
        refuse_gradients(tensors)
        return below(keyset, *tensors, **options)

    return kernel


attention.register_autograd(_backward)
attention_varlen.register_autograd(_backward)
_library = torch.library.Library("fastattn", "FRAGMENT")  # what it registers ends with it
for _name in "attention", "attention_varlen":
    _kernel = _refusing(getattr(torch.ops.fastattn, _name).default)
    _library.impl(_name, _kernel, "AutogradCPU", with_keyset=True)
