# SPDX-License-Identifier: MIT
"""Tensors as arrays, arrays as tensors, on the same memory; and when that is all there is to do."""

import numpy as np
import torch
from torch import Tensor, from_numpy, is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter

from fastattn import _arrays
from fastattn import _check_options as options
from fastattn._dlpack import view

NO_GRADIENT = (
    "fastattn.torch: there is no backward yet. For inference use torch.no_grad() or "
    "torch.inference_mode(); for training torch.nn.functional.scaled_dot_product_attention."
)
_TENSORS = {"q", "k", "v"}
_ONLY_ARRAYS = _TENSORS | {"attn_mask"}
_INTEGERS = {
    "cu_seqlens_q", "cu_seqlens_k", "q_offset", "kv_lengths", "kv_starts", "block_table",
}  # fmt: skip
_DTYPES = _arrays.dtypes()
_FLOAT32 = np.dtype(np.float32)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_jit_trace = torch._C._get_tracing_state
_functorch = torch._C._functorch
_transforms = _functorch.peek_interpreter_stack


def array(name, value):
    """View a tensor as a numpy.ndarray, whether or not it requires grad. Others come back as is.

    Raises
    ------
    TypeError
        It is not in the memory of the CPU, or of a dtype that NumPy and ml_dtypes lack; or it is no
        array where there must be one.
    """
    if value is None and name not in _TENSORS:
        return None
    if type(value) is Tensor and not value.is_neg():
        try:
            return view(value, _DTYPES)
        except Exception:
            return _arrays.viewed(name, value)  # for its message
    if isinstance(value, Tensor):
        return _arrays.viewed(name, value.detach())
    return _other_array(name, value) if name in _ONLY_ARRAYS else value


def _other_array(name, value):
    """An array that is no tensor, as `fastattn` takes it."""
    if isinstance(value, np.generic):  # what indexing and arithmetic make of an array of rank 0
        return np.asarray(value)
    try:
        return options.array(name, value)
    except TypeError as error:
        options.rename(error, {"numpy.ndarray": "torch.Tensor"})
        raise


def tensor(array):
    """View a new array, of a type that `attention` returns, as a tensor."""
    if array.dtype is _FLOAT32 or array.dtype.kind == "f":
        return from_numpy(array)
    return from_numpy(array.view(np.int16)).view(torch.bfloat16)


def only_memory(*values):
    """Whether a call may read the memory of its tensors and be done.

    Then it needs no dispatcher, which would take as long as a small attention. Whatever traces or
    transforms (torch.compile, export, vmap, a dispatch mode, a subclass, a gradient) needs the
    operator.

    Parameters
    ----------
    *values : object
        Every argument that may be a tensor.
    """
    if is_traced() or is_transformed():
        return False
    grad = is_grad_enabled()
    for value in values:
        if value is None:
            continue
        if type(value) is Tensor or type(value) is Parameter:
            if grad and value.requires_grad:
                return False
        elif isinstance(value, Tensor):
            return False
    return True


def is_traced():
    """Whether torch.compile, export, a dispatch mode or torch.jit.trace may make a graph."""
    return is_compiling() or _dispatch_modes() > 0 or _jit_trace() is not None


def is_transformed():
    """Whether torch.func (vmap, grad, jvp, ...) or forward-mode differentiation is at work."""
    if is_compiling():
        return False
    return _transforms() is not None or forward_ad._current_level >= 0


def is_plain(tensor):
    """Whether a strided CPU tensor that is not empty has its elements in memory as they are.

    It has not if it is negated lazily, not aligned, or without memory as zeros of autograd are.
    """
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return True  # a FakeTensor, say, of which a mode takes care
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a wrapper that has outlived its transform
        return False
    return address != 0 and address % tensor.element_size() == 0 and not tensor.is_neg()


def refuse_tangents(values):
    """Raise where forward-mode differentiation goes through.

    Raises
    ------
    NotImplementedError
        One of `values` is a tensor with a tangent.
    """
    if forward_ad._current_level < 0:
        return
    if is_dynamo_compiling():  # it traces tensors without their tangents; this it leaves to Python
        raise NotImplementedError(NO_GRADIENT)
    for value in values:
        if isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise NotImplementedError(NO_GRADIENT)


def refuse_gradients(values):
    """Raise where torch.func (grad, vjp, ...) differentiates.

    Raises
    ------
    NotImplementedError
        One of `values` depends on what a gradient is taken by.
    """
    if not is_grad_enabled():
        return
    for value in values:
        while isinstance(value, Tensor) and _functorch.is_functorch_wrapped_tensor(value):
            if _functorch.is_gradtrackingtensor(value) and value.requires_grad:
                raise NotImplementedError(NO_GRADIENT)
            value = _functorch.get_unwrapped(value)


def outside_of_graphs(function, *arguments):
    """Call a function that torch.compile cannot trace: it breaks its graph instead of trying."""
    if is_compiling():  # the guard takes longer than some calls
        return _untraced(function, *arguments)
    return function(*arguments)


@torch.compiler.disable
def _untraced(function, *arguments):
    return function(*arguments)


def operand(name, value):
    """An argument that may be an array, in whatever form `fastattn` takes it, for an operator.

    It becomes a tensor on the CPU, whatever torch's default device is.

    Raises
    ------
    TypeError, ValueError
        It is no array, and nothing that may stand for one.
    """
    if isinstance(value, Tensor):
        if value.is_nested:  # torch would say that it has no such operator
            raise TypeError(
                f"{name}: expected a dense tensor, got a nested one (attention_varlen takes its "
                "values() and offsets())"
            )
        return value
    if value is None and name not in _TENSORS:
        return value
    if name in _ONLY_ARRAYS:
        return _on_cpu(name, _other_array(name, value))
    if not is_traced():  # Dynamo traces no dtype of NumPy, and symbols stay symbols
        return _on_cpu(name, _numbers(name, value))
    if name in _INTEGERS:
        options.refuse_bool(name, value)
    if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        return torch.full((), value, dtype=torch.int64, device="cpu")
    found = _on_cpu(name, value)
    if found.is_floating_point() and not isinstance(value, np.ndarray):
        # Numbers of Python have 53 bits, whatever torch's default dtype is.
        return torch.as_tensor(value, dtype=torch.float64, device="cpu")
    return found


def _numbers(name, value):
    """A number, a list or an array of numbers as an array, once it is what `fastattn` takes."""
    number = isinstance(value, int | float | np.number)
    if name in _INTEGERS:
        what = "an integer or an array of integers"
        found = options.integers(name, [value] if number else value, what)
        return found.reshape(()) if number else found
    return np.asarray(options.number(name, value)) if number else options.real_numbers(name, value)


def _on_cpu(name, value):
    """What torch makes a tensor of, on the CPU whatever its default device is."""
    array = isinstance(value, np.ndarray) and not is_dynamo_compiling()  # it traces no strides
    if array and min(value.strides, default=0) < 0:  # as no tensor has
        value = value.copy()
    try:
        return torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        options.small_array(name, value, "an array of numbers")  # for its message
        raise TypeError(f"{name}: expected an array that torch can read: {error}") from error


def lse_dtype(dtype):
    """The dtype of the log-sum-exp of queries of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32
