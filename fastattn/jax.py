# SPDX-License-Identifier: MIT
"""`jax.nn.dot_product_attention` on CPUs, as a call that XLA makes straight into the C core.

The handler is plain C (src_c/xla_attention.c) behind XLA's foreign function interface; nothing is
compiled against jaxlib, and Python is not involved when a compiled function runs.
"""

import ctypes
import functools

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn import _core
from fastattn._extras import needed
from fastattn.isa import isa
from fastattn.threads import get_num_threads

with needed("fastattn.jax", "jax"):
    import jax
    import jax.numpy as jnp

_TARGET = "fastattn_attention"
_HAS_MASK, _HAS_QUERY_LENGTHS, _HAS_KEY_LENGTHS = 1, 2, 4  # as in xla_attention.c

# The extension module is loaded already: this is the same library, with the same threads.
_library = ctypes.CDLL(_core.__file__)
jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(_library.fa_xla_attention), platform="cpu")


def dot_product_attention(
    query, key, value, bias=None, mask=None, *, scale=None, is_causal=False,
    query_seq_lengths=None, key_value_seq_lengths=None, local_window_size=None,
    implementation=None, return_residual=False,
):  # fmt: skip
    """Attention with the signature and the meaning of ``jax.nn.dot_product_attention``, on CPUs.

    Works under ``jax.jit`` and ``jax.vmap``, of which at most five may be nested. Memory does not
    grow with T * S, but a `bias` and a `mask` given together are first made one array of their
    common shape.

    Parameters
    ----------
    query : array, (B, T, N, H) or (T, N, H)
        float32, float16, bfloat16, or float64 under ``jax_enable_x64``.
    key : array, (B, S, K, H) or (S, K, H)
        Of query's dtype. N must be a multiple of K.
    value : array, (B, S, K, Hv) or (S, K, Hv)
        Of query's dtype.
    bias : array, optional
        Added to the scores; 4 axes (fewer get leading ones), each of B, N, T, S or 1. Of any dtype
        that query may have.
    mask : array of bool, optional
        True = attend; shaped like `bias`.
    scale : float, optional
        A Python number; default ``1 / sqrt(H)``.
    is_causal : bool
        Only keys j <= i: aligned to the top left, like jax.
    query_seq_lengths : array of int, (B,), optional
        Later queries are padding: their result is 0.
    key_value_seq_lengths : array of int, (B,), optional
        Later keys are never read. Lengths beyond the sequence mean all of it.
    local_window_size : int or (int, int), optional
        (left, right): only keys ``i - left <= j <= i + right``.
    implementation : None
        There is one.
    return_residual : bool
        Also return the log-sum-exp of the scores.

    Returns
    -------
    out : array, (B, T, N, Hv) or (T, N, Hv)
        Of query's dtype.
    residual : array, (B, T, N) or (T, N)
        With `return_residual`.

    Raises
    ------
    TypeError, ValueError
        A dtype, shape or combination is wrong, or an array is not on a CPU.
    RuntimeError
        An array has been deleted, as donating it to another call does.
    NotImplementedError
        The result is differentiated.

    Notes
    -----
    A query without any key gives 0 and residual -inf, where jax gives the mean of the values.
    The number of threads and the instruction set are those in force when the function is traced.

    Examples
    --------
    >>> import numpy as np, jax.numpy as jnp, fastattn.jax
    >>> x = jnp.eye(2).reshape(1, 2, 1, 2)
    >>> out = fastattn.jax.dot_product_attention(x, x, x, scale=1.0, is_causal=True)
    >>> np.asarray(out)[0, :, 0].round(3)
    array([[1.   , 0.   ],
           [0.269, 0.731]], dtype=float32)
    """
    if implementation is not None:
        raise ValueError(
            f"implementation: expected None, got {implementation!r} (call jax.nn for that one)"
        )
    q, k, v = _tensors(query, key, value)
    batch, queries, heads, depth = q.shape
    arrays, optional = [q, k, v], 0
    scores_mask = _mask(bias, mask, (batch, heads, queries, k.shape[1]), q.dtype)
    if scores_mask is not None:
        arrays.append(scores_mask)
        optional |= _HAS_MASK
    for name, lengths, bit in (
        ("query_seq_lengths", query_seq_lengths, _HAS_QUERY_LENGTHS),
        ("key_value_seq_lengths", key_value_seq_lengths, _HAS_KEY_LENGTHS),
    ):
        if lengths is not None:
            arrays.append(_lengths(name, lengths, batch))
            optional |= bit
    left, right = _window(local_window_size)
    attributes = {
        "causal": np.int64(options.flag("is_causal", is_causal)),
        "isa": isa(),
        "left": np.int64(left),
        "optional": np.int64(optional),
        "right": np.int64(right),
        "scale": np.float64(options.number("scale", depth**-0.5 if scale is None else scale)),
        "threads": np.int64(get_num_threads()),
    }
    with_lse = options.flag("return_residual", return_residual)
    out, *lse = _call(tuple(attributes.items()), with_lse, *arrays)
    shape = jnp.shape(query)[:-1]
    out = out.reshape(*shape, v.shape[3])
    return (out, lse[0].swapaxes(1, 2).reshape(shape).astype(q.dtype)) if with_lse else out


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _call(attributes, with_lse, q, k, v, *optional):
    batch, queries, heads, _ = q.shape
    results = [jax.ShapeDtypeStruct((batch, queries, heads, v.shape[3]), q.dtype)]
    if with_lse:
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        results.append(jax.ShapeDtypeStruct((batch, heads, queries), dtype))
    call = jax.ffi.ffi_call(_TARGET, results, vmap_method="expand_dims")
    return call(q, k, v, *optional, **dict(attributes))


@_call.defjvp
def _no_gradient(attributes, with_lse, primals, tangents):
    raise NotImplementedError(
        "fastattn.jax.dot_product_attention has no gradient yet: use jax.nn.dot_product_attention "
        "to train, or jax.lax.stop_gradient on its arguments"
    )


def _array(name, value):
    """`value` as an array of jax, unless it is known to lie on another device than a CPU."""
    try:
        value = jnp.asarray(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected an array, got {options.described(value)}: {error}"
        ) from error
    if not isinstance(value, jax.core.Tracer):
        if value.is_deleted():  # under jit jax says so, without the name
            raise RuntimeError(f"{name}: expected an array, got one that has been deleted")
        platforms = _platforms(value)
        if platforms != {"cpu"}:
            raise TypeError(
                f"{name}: expected an array on a CPU, got one on {', '.join(sorted(platforms))} "
                "(jax.device_put moves it; jax.nn.dot_product_attention computes it there)"
            )
    return value


def _platforms(value):
    return {device.platform for device in value.devices()}


def _tensors(query, key, value):
    """The three tensors with 4 axes each, after checking that they fit each other."""
    tensors = []
    for name, tensor in ("query", query), ("key", key), ("value", value):
        tensor = _array(name, tensor)
        if tensor.ndim not in (3, 4):
            raise ValueError(f"{name}: expected 3 or 4 axes, got shape {tensor.shape}")
        dtypes.of_queries(name, tensor.dtype)
        if tensors and tensor.dtype != tensors[0].dtype:
            raise TypeError(
                f"{name}: expected dtype {tensors[0].dtype} like query, got {tensor.dtype}"
            )
        tensors.append(tensor if tensor.ndim == 4 else tensor[None])
    q, k, v = tensors
    batch, _, heads, depth = q.shape
    if k.shape[0] != batch or k.shape[3] != depth:
        raise ValueError(
            f"key: expected batch {batch} and depth {depth} like query, got shape {k.shape}"
        )
    if k.shape[2] < 1 or heads % k.shape[2]:
        raise ValueError(
            f"key: expected a number of heads that divides query's {heads}, got shape {k.shape}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"value: expected shape {k.shape[:3]} like key, got shape {v.shape}")
    if depth < 1 or v.shape[3] < 1:
        raise ValueError(f"query, value: expected depth of at least 1, got {q.shape}, {v.shape}")
    return q, k, v


def _mask(bias, mask, shape, dtype):
    """One array for the core, of bool or of what it adds to scores; None without both."""
    if mask is not None:
        mask = _array("mask", mask)
        if mask.dtype != bool:
            raise TypeError(f"mask: expected dtype bool, got {mask.dtype} (bias is added)")
        mask = _four_dimensions("mask", mask, shape)
    if bias is None:
        return mask
    bias = _array("bias", bias)
    dtypes.of_queries("bias", bias.dtype)  # those that the core adds are the same
    bias = _four_dimensions("bias", bias, shape)
    if dtype == jnp.float64:  # beside which the core reads none of 16 bits
        bias = bias.astype(dtype)
    return bias if mask is None else jnp.where(mask, bias, -jnp.inf)


def _four_dimensions(name, value, shape):
    view = value.reshape((1,) * (4 - value.ndim) + value.shape)
    fits = view.ndim == 4 and all(n in (1, full) for n, full in zip(view.shape, shape, strict=True))
    if not fits:
        raise ValueError(f"{name}: expected a shape that broadcasts to {shape}, got {value.shape}")
    return view


def _lengths(name, value, batch):
    value = value if isinstance(value, np.ndarray) else _array(name, value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name}: expected integers, got dtype {value.dtype}")
    if value.shape != (batch,):
        raise ValueError(f"{name}: expected shape ({batch},), got shape {value.shape}")
    if not np.can_cast(value.dtype, np.int32):  # before jnp.asarray, which cuts 64 bits
        value = value.clip(0, np.iinfo(np.int32).max)
    return _array(name, value.astype(np.int32))


def _window(size):
    """(left, right) of `local_window_size`, -1 where it is unbounded."""
    if size is None:
        return -1, -1
    if not isinstance(size, tuple | list):
        size = (size, size)
    if len(size) != 2:
        raise ValueError(
            f"local_window_size: expected an int or (left, right), got {len(size)} values"
        )
    return tuple(options.window_side("local_window_size", side, 0) for side in size)
