# SPDX-License-Identifier: MIT
"""Arrays of other libraries (torch, JAX, ...) as NumPy arrays on the same memory, by DLPack."""

import functools
import sys

import numpy as np

from fastattn import _dlpack

# Codes of DLPack's types (dlpack.h, DLDataTypeCode) and the types of NumPy and ml_dtypes.
_NUMPY = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64",
    (6, 8): "bool",
}  # fmt: skip
# Most of these nothing here takes, but a message can name them.
_ML_DTYPES = {
    (4, 16): "bfloat16", (7, 8): "float8_e3m4", (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz", (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2", (13, 8): "float8_e5m2fnuz", (14, 8): "float8_e8m0fnu",
}  # fmt: skip


@functools.cache
def dtypes():
    """NumPy's number of each type that DLPack can bring, by ``256 * code + bits``."""
    numbers = {key: np.dtype(name).num for key, name in _NUMPY.items()}
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        there = {key: name for key, name in _ML_DTYPES.items() if hasattr(ml_dtypes, name)}
        numbers |= {key: np.dtype(getattr(ml_dtypes, n)).num for key, n in there.items()}
    return {256 * code + bits: number for (code, bits), number in numbers.items()}


def from_dlpack(name, value):
    """View an array of another library as a numpy.ndarray; None if it does not speak DLPack.

    Raises
    ------
    TypeError
        It cannot be viewed: the message says what to do about it.
    """
    if not hasattr(type(value), "__dlpack__"):
        return None
    requires_grad = getattr(value, "requires_grad", False)
    if requires_grad and not _is_inference(value):
        raise TypeError(
            f"{name}: expected a tensor that needs no gradient, got one with requires_grad (pass "
            f"{name}.detach(), or call it under torch.no_grad(); fastattn has no backward here)"
        )
    if _has_tangent(value):
        raise TypeError(
            f"{name}: expected a tensor without a tangent, got one of forward-mode differentiation "
            f"(torch.autograd.forward_ad.unpack_dual({name}).primal has none)"
        )
    return viewed(name, value.detach() if requires_grad else value)  # torch exports no other


def _is_inference(value):
    """Whether it is a tensor of torch that nobody would take a gradient by, as under no_grad."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and not torch.is_grad_enabled()


def _has_tangent(value):
    """Whether it is a dual tensor of torch, of which it exports the primal without a word."""
    forward_ad = sys.modules.get("torch.autograd.forward_ad")
    if forward_ad is None or forward_ad._current_level < 0:
        return False
    is_tensor = isinstance(value, sys.modules["torch"].Tensor)
    return is_tensor and forward_ad.unpack_dual(value).tangent is not None


def viewed(name, value):
    """`from_dlpack` of an array that is known to have it; a gradient is the caller's business."""
    try:
        if hasattr(value, "is_neg") and value.is_neg():
            raise BufferError("its elements are negated lazily; resolve_neg() negates them")
        if hasattr(value, "is_deleted") and value.is_deleted():  # JAX does not say so
            raise BufferError("it has been deleted, or donated to a call")
        return _dlpack.view(value, dtypes())
    except Exception as error:  # of whatever kind that library raises
        why = str(error).partition("\n")[0]
        raise TypeError(
            f"{name}: expected a strided array of real numbers in the memory of the CPU, got "
            f"{_described(value)}: {why}{_advice(value)}"
        ) from error


def _described(value):
    kind = type(value)
    dtype, device = _attribute(value, "dtype"), _attribute(value, "device")
    words = [f"{kind.__module__}.{kind.__qualname__}"]
    words += [f"of {dtype}"] if dtype is not None else []
    words += [f"on {device}"] if device is not None else []
    return " ".join(words)


def _attribute(value, name, default=None):
    """One that is only to be told of: it may be lacking, or out of reach as of a deleted array."""
    try:
        return getattr(value, name, default)
    except Exception:
        return default


def _advice(value):
    """What to do about a value that `_dlpack.view` refused."""
    dtype = str(_attribute(value, "dtype")).rpartition(".")[2]  # torch.bfloat16, JAX's bfloat16
    if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2") and 256 * 4 + 16 not in dtypes():
        return " (install ml_dtypes)"
    if "cpu" not in str(_attribute(value, "device", "cpu")).lower():
        return " (copy it to the CPU: tensor.cpu() in torch, jax.device_get(array) in JAX)"
    return ""
