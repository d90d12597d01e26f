# SPDX-License-Identifier: MIT
"""Validation of how K and V are stored: pages and their table, scales."""

import math

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options

# Half a unit above the greatest float32: from here on, rounding gives infinity.
ROUNDS_TO_INFINITY = 2.0**128 - 2.0**103
MOST_PAGES = 2**31  # that int32 can number


def table(value, lead):
    """Return `block_table`, shape (B, blocks) or lead + (blocks,), as a new array (B, blocks).

    It is a copy, so that another thread writing to the caller's array cannot undo the check.
    """
    value = options.integers("block_table", value, "an array of integers")
    batch = math.prod(lead)
    if value.ndim < 1 or value.shape[:-1] not in (lead, (batch,)):
        raise ValueError(f"block_table: expected shape ({batch}, blocks), got shape {value.shape}")
    return value.reshape(batch, value.shape[-1]).copy()


def used_pages(entries, pages, page, kv_begin, kv_end):
    """Return a block table as int32, once the entries of blocks that hold keys are known to exist.

    Entries that name no page and are not used become 0.

    Parameters
    ----------
    entries : ndarray of int, (B, blocks)
    pages, page : int
        How many pages there are, and how many keys each holds.
    kv_begin, kv_end : ndarray of int, (B,)
    """
    pages = min(pages, MOST_PAGES)
    if entries.size and (entries.min() < 0 or entries.max() >= pages):
        first = np.arange(entries.shape[1]) * page
        used = np.maximum(first, kv_begin[:, None]) < np.minimum(first + page, kv_end[:, None])
        wrong = (entries < 0) | (entries >= pages)
        if (used & wrong).any():
            row, entry = np.argwhere(used & wrong)[0]
            raise ValueError(
                f"block_table: expected pages from 0 to {pages - 1}, got {entries[row, entry]} in "
                f"row {row}, entry {entry}"
            )
        entries = np.where(wrong, 0, entries)
    return np.ascontiguousarray(entries, np.int32)


def set_scales(p, k_scale, v_scale, own, lead, paged):
    """Set the scales of `p`; `own` are the shapes of k and v before they were broadcast."""
    p.k_scale = p.v_scale = None
    if k_scale is not None:
        p.k_scale = _scale("k_scale", k_scale, p.k, own[0], lead, paged)
    if v_scale is not None:
        p.v_scale = _scale("v_scale", v_scale, p.v, own[1], lead, paged)


def _scale(name, value, tensor, own_shape, lead, paged):
    """Return `k_scale` or `v_scale` as a float32 view, one value for each stored key.

    Parameters
    ----------
    name : str
    value : number or array
        One number, (Hkv,), (B, Hkv) or (B, Hkv, Sk); with `paged` one number, (Hkv,) or
        (pages, Hkv, page). B may stand for `lead`, or for the leading axes of `own_shape`.
    tensor : ndarray
        Logical k or v, (lead..., Hkv, Sk, D) or (pages, Hkv, page, D).
    own_shape : tuple of int
        Its shape before it was broadcast.
    lead : tuple of int
        Leading shape of the problem.
    paged : bool

    Returns
    -------
    ndarray, float32, of the shape of `tensor` without D
        Of zero stride where one value serves many keys.
    """
    shape = tensor.shape[:-1]
    if math.prod(shape) > options.MOST_NUMBERS:  # one scale each, if only by zero strides
        raise ValueError(
            f"{name}: expected fewer than 2^60 keys of all heads together with scales, got shape "
            f"{own_shape}"
        )
    if type(value) is np.ndarray and value.shape == shape and value.dtype == dtypes.FLOAT32:
        options.aligned(name, value)
        return value  # as `quantize_kv` and the caches have them: at once, for every token
    if not isinstance(value, list | tuple) and not hasattr(type(value), "__dlpack__"):
        return _repeated(name, options.number(name, value), shape)
    value = options.real_numbers(name, value)
    if value.ndim == 0:
        return _repeated(name, float(value), shape)
    *_, heads, keys = shape
    for own in dict.fromkeys((heads, own_shape[-3])):  # one head of k may serve all of v's
        if value.shape == (own,):
            return np.broadcast_to(_float32(name, value)[:, None], shape)
        if paged:
            if value.shape == (*shape[:-2], own, keys):
                return np.broadcast_to(_one_for_each_key(name, value), shape)
            continue
        for given, whole in (lead, lead), ((math.prod(lead),), lead), (own_shape[:-3],) * 2:
            if value.shape == (*given, own):
                view = _float32(name, value).reshape(*whole, own, 1)
                return np.broadcast_to(view, shape)
            if value.shape == (*given, own, keys):
                view = _one_for_each_key(name, value).reshape(*whole, own, keys)
                return np.broadcast_to(view, shape)
    forms = [f"({heads},)"]
    if not paged:
        forms.append(str((*lead, heads)) if lead else f"(1, {heads})")
    forms.append(str(shape))
    raise ValueError(
        f"{name}: expected a number or shape {dtypes.listed(forms)}, got shape {value.shape}"
    )


def _repeated(name, number, shape):
    """Return one number as float32 of any shape (`np.broadcast_to` takes as long as a call)."""
    if not abs(number) < ROUNDS_TO_INFINITY:
        raise _not_finite(name)
    return np.ndarray(shape, np.float32, np.float32(number), strides=(0,) * len(shape))


def _float32(name, value):
    """Return one number for each head as float32, if they are finite in it."""
    with np.errstate(over="ignore"):
        value = value.astype(np.float32)
    if not np.isfinite(value).all():
        raise _not_finite(name)
    return value


def _not_finite(name):
    return ValueError(f"{name}: expected finite numbers of float32, got NaN, infinity or more")


def _one_for_each_key(name, value):
    """Refuse what would have to be converted: that is as long as the keys."""
    if value.dtype != dtypes.FLOAT32:
        raise TypeError(
            f"{name}: expected dtype float32 for one value for each key, got "
            f"{dtypes.dtype_name(value.dtype)}"
        )
    options.aligned(name, value)
    return value
