# SPDX-License-Identifier: MIT
"""torch.nn.functional.scaled_dot_product_attention: the same call, and in its place."""

import os
from contextlib import suppress
from math import inf
from threading import RLock

import numpy as np
import torch
import torch.nn.functional as F
from torch.compiler import is_compiling
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import _is_torch_function_mode_enabled, handle_torch_function

from fastattn._check_options import described, flag, no_dropout, rename
from fastattn._check_tensors import MOST_AXES, sdpa_heads
from fastattn.torch._attention import attention
from fastattn.torch._tensors import is_plain, is_traced, is_transformed

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_NUMBERS = (int, float, np.integer, np.floating, torch.SymFloat)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """`torch.nn.functional.scaled_dot_product_attention`, computed by fastattn.

    Parameters
    ----------
    query, key, value : Tensor, (..., H, S, D)
        On the CPU, of one dtype: float32, float16, bfloat16 or float64.
    attn_mask : Tensor, optional
        bool (True = attend) or float. Not together with `is_causal`.
    dropout_p : float
        Must be 0: this is inference.
    is_causal : bool
        Key j <= query i: aligned to the top left.
    scale : float, optional
        Default ``1 / sqrt(D)``.
    enable_gqa : bool
        Allow fewer key and value heads than query heads.

    Returns
    -------
    Tensor, (..., H, S, Dv)

    Raises
    ------
    TypeError, ValueError
        As `attention`.
    NotImplementedError
        Dropout; or later a backward pass through the result.
    """
    no_dropout(dropout_p)
    is_causal, enable_gqa = flag("is_causal", is_causal), flag("enable_gqa", enable_gqa)
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask: expected None with is_causal=True, got both")
    for name, each in ("query", query), ("key", key), ("value", value):
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {described(each)}")
    traced = is_traced()
    if not traced and query.shape == key.shape == value.shape:  # nothing to match: quick
        return _attention(query, key, value, attn_mask=attn_mask, causal=is_causal, scale=scale)
    query, key, value = _matching_heads(query, key, value, enable_gqa)
    # Only causality asks where query 0 is, and not even that for a square: but a graph would be
    # bound to the answer, or give it for lengths of which it is not true. A slice, because there
    # may be a single axis, which `attention` refuses.
    top_left = 0 if is_causal and (traced or query.shape[-2:-1] != key.shape[-2:-1]) else None
    return _attention(
        query, key, value, attn_mask=attn_mask, causal=is_causal, q_offset=top_left, scale=scale
    )


def _attention(query, key, value, **keywords):
    """`attention`, whose errors call the three as torch does."""
    try:
        return attention(query, key, value, **keywords)
    except (TypeError, ValueError) as error:
        if not is_compiling():  # Dynamo cannot trace it, and would tell of that instead
            rename(error, {"q": "query", "k": "key", "v": "value"})
        raise


def _matching_heads(query, key, value, enable_gqa):
    """Return the three with numbers of heads, and of axes, that `attention` takes as torch does."""
    if query.ndim == 2 and max(key.ndim, value.ndim) > 2:
        query = query[None]  # torch broadcasts: the result has every axis that an input has
    counts = sdpa_heads(query.shape, key.shape, value.shape, enable_gqa)
    return [_repeated(each, n) for each, n in zip((query, key, value), counts, strict=True)]


def _repeated(tensor, heads):
    """Give every head of a tensor a number of neighbours like it; one head alone is not copied."""
    own = tensor.shape[-3] if tensor.ndim > 2 else heads
    if own == heads:
        return tensor
    if own == 1:
        return tensor.expand(*tensor.shape[:-3], heads, *tensor.shape[-2:])
    return tensor.repeat_interleave(heads // own, dim=-3)


# ---- in its place --------------------------------------------------------------------------------

_lock = RLock()  # a signal handler may patch as well, in the thread that holds it
_patches = 0  # how many are in force
_fast_path = True  # what torch.backends.mha said before the first of them


def patch_sdpa():
    """Let fastattn compute what `torch.nn.functional.scaled_dot_product_attention` is called for.

    Calls on the CPU in float32, float16, bfloat16 and float64, also those that
    `torch.nn.MultiheadAttention` and the transformer layers make: their fast path, which calls
    another kernel, is off meanwhile. Left to torch: other devices, dropout, calls that a gradient
    flows through or torch.func transforms, torch.jit.script, nested and sparse tensors, other
    subclasses, empty tensors, inputs of different dtypes, masks together with `is_causal`, of fewer
    than 2 axes or more than the inputs, or of a dtype other than bool, float32 and the inputs', a
    `scale` that is no finite number, more than 9 axes, lazily negated tensors, and memory that is
    not aligned or not there. What imported the function by name before
    (``from torch.nn.functional import scaled_dot_product_attention``) keeps torch's.

    Returns
    -------
    Patch
        In force at once, until `Patch.undo` or the end of its ``with`` block.

    Examples
    --------
    >>> import torch, fastattn.torch
    >>> q = torch.zeros(1, 2, 3, 4)
    >>> with fastattn.torch.patch_sdpa():
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    """
    return Patch()


class Patch:
    """What `patch_sdpa` did, to be undone; a context manager."""

    def __init__(self):
        global _patches
        self._in_force = True
        with _lock:
            _patches += 1  # first, for a signal handler that patches meanwhile
            try:
                if _patches == 1:
                    _put_in_place()
            except BaseException:  # an interrupt, say: the next patch must find nothing of this one
                self.undo()
                raise

    def undo(self):
        """Give torch its function back, if no other patch is in force."""
        global _patches
        with _lock:
            if not self._in_force:
                return
            try:
                if _patches == 1:
                    _put_back()
            finally:
                self._in_force = False
                _patches -= 1  # last, for the same reason

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.undo()

    def __reduce_ex__(self, protocol):
        raise TypeError("a Patch cannot be copied or pickled: it is one patch, of this process")


def _put_in_place():
    global _original, _stand_in, _fast_path
    _original, _stand_in = _route(F.scaled_dot_product_attention)
    _fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    F.scaled_dot_product_attention = _stand_in


def _put_back():
    global _original, _stand_in
    if F.scaled_dot_product_attention is _stand_in:  # nobody else patched it since
        F.scaled_dot_product_attention = _original
    torch.backends.mha.set_fastpath_enabled(_fast_path)
    _original, _stand_in = _routed.route


def _route(function):
    """Return what calls are left to, and what stands in its place; `function` is one of these.

    Each has its own to leave calls to: a function that somebody wrapped, and whose wrapper was
    patched later, would otherwise leave them to that wrapper, which calls it. They know each other,
    and nobody else keeps them; but torch's own cannot know anything.
    """
    for each in (function, _routed):
        route = each.__dict__.get("route", ()) if hasattr(each, "__dict__") else ()
        if any(function is end for end in route):  # or it is that of what it wraps
            return route
    routed = _router(function)
    with suppress(AttributeError, TypeError):
        function.route = routed.route
    return routed.route


def _router(original):
    """Return the function that computes with fastattn what it can, and leaves to `original`."""

    def _routed(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
        enable_gqa=False,
    ):  # fmt: skip
        """torch's function, in whose place `fastattn.torch.patch_sdpa` put this one.

        What fastattn can compute it computes; torch does the rest.
        """
        options = {"dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
        if _is_torch_function_mode_enabled():  # it sees the call, and mostly comes back without it
            tensors, options = (query, key, value, attn_mask), options | {"is_causal": is_causal}
            return handle_torch_function(_routed, tensors, *tensors, **options)
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (_autocast(each) for each in (query, key, value))
        if isinstance(attn_mask, CausalBias):
            return _by_causal_bias(query, key, value, attn_mask, is_causal, options)
        if torch.is_autocast_enabled("cpu"):
            attn_mask = _autocast(attn_mask)
        ours = _patches > 0
        ours = ours and _is_ours(query, key, value, attn_mask, dropout_p, is_causal, scale)
        call = scaled_dot_product_attention if ours else original
        return call(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **options)

    _routed.route = original, _routed
    _routed.__name__ = "scaled_dot_product_attention"
    _routed.__qualname__ = "_routed"  # where pickle looks for it
    return _routed


_routed = _router(F.scaled_dot_product_attention)  # of torch's own
_original, _stand_in = _routed.route

with suppress(ImportError):  # it is on its way out of torch
    from torch.jit._builtins import _register_builtin

    # torch.jit.script can compile none of this: it takes torch's own.
    _register_builtin(_routed, "aten::scaled_dot_product_attention")

if hasattr(os, "register_at_fork"):  # a child would wait for ever for a thread that it lacks
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def _is_ours(query, key, value, mask, dropout_p, is_causal, scale):
    """Whether fastattn computes this call, as torch would."""
    if not (_is_finite(dropout_p) and dropout_p == 0.0):
        return False
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    if torch.overrides.has_torch_function(tensors) or (is_causal and mask is not None):
        return False
    if is_transformed() or not (scale is None or _is_finite(scale)):
        return False
    grad, in_memory = torch.is_grad_enabled(), not is_compiling()
    for each in tensors:
        if not isinstance(each, torch.Tensor):
            return False
        if each.device.type != "cpu" or each.is_nested or each.layout != torch.strided:
            return False
        if each.numel() == 0 or (grad and each.requires_grad):
            return False
        if in_memory and not is_plain(each):
            return False
    axes = max(query.ndim, key.ndim, value.ndim)
    dtype = query.dtype
    masks = (torch.bool, torch.float32, dtype)
    return (
        dtype in _DTYPES
        and key.dtype == dtype
        and value.dtype == dtype
        and axes <= MOST_AXES
        and (mask is None or (2 <= mask.ndim <= axes and mask.dtype in masks))
    )


def _is_finite(value):
    """Whether it is a number as `attention` takes it; torch takes tensors, bool and NaN, too."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and -inf < value < inf


def _by_causal_bias(query, key, value, bias, is_causal, options):
    """A mask of `torch.nn.attention.bias`: no numbers, but a word on how to align.

    torch itself expands what is aligned to the lower right into a table.
    """
    ours = (
        bias.variant == CausalVariant.LOWER_RIGHT
        and not is_causal
        and _is_ours(query, key, value, None, options["dropout_p"], is_causal, options["scale"])
        and (bias.seq_len_q, bias.seq_len_kv) == query.shape[-2:-1] + key.shape[-2:-1]
    )
    if not ours:  # called here because the subclass does not know the patched function as torch's
        return CausalBias._dispatch(query, key, value, bias, is_causal=is_causal, **options)
    query, key, value = _matching_heads(query, key, value, options["enable_gqa"])
    return _attention(query, key, value, causal=True, scale=options["scale"])


def _autocast(tensor):
    """What autocast makes of an argument of torch's function before it is called."""
    if not isinstance(tensor, torch.Tensor):  # no mask, or what torch refuses
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype("cpu")) if tensor.device.type == "cpu" else tensor
