# SPDX-License-Identifier: MIT
"""K and V as they are stored: scaled integers and fp8, pages that a table puts in order."""

import numpy as np


def true_values(stored, scale, lead):
    """Return ``stored * scale`` of a logical tensor (..., Hkv, Sk, D).

    Parameters
    ----------
    stored : ndarray
        Keys or values, or pages of them: (pages, Hkv, page, D).
    scale : float or ndarray
        One number, (Hkv,), lead + (Hkv,) or lead + (Hkv, Sk), where `lead` may also be flattened to
        (B,) or be that of the tensor itself.
    lead : tuple of int
        Leading axes of the problem.
    """
    scale = np.asarray(scale).astype(np.float64)
    if scale.ndim < 2:
        return stored * (scale[:, None, None] if scale.ndim else scale)
    own, keys = stored.shape[:-3], stored.shape[-2]
    for given, whole in (lead, lead), ((int(np.prod(lead)),), lead), (own, own):
        rest = scale.shape[len(given) :]
        if scale.shape[: len(given)] == given and (len(rest) == 1 or rest[1:] == (keys,)):
            return stored * scale.reshape(*whole, *rest, *[1] * (3 - len(rest)))
    raise ValueError(f"scale of shape {scale.shape} for a tensor of shape {stored.shape}")


def gathered(pages, block_table, kv_begin, kv_end, lead):
    """Return the keys that a table names, in order: (lead..., Hkv, blocks * page, D).

    Pages that hold no key of the range are not looked at, nor are their entries in the table; zeros
    stand for them.

    Parameters
    ----------
    pages : ndarray, (pages, Hkv, page, D)
    block_table : array of int
        (B, blocks) or lead + (blocks,).
    kv_begin, kv_end : int or array of int
    lead : tuple of int
    """
    count, heads, page, depth = pages.shape
    batch, blocks = int(np.prod(lead)), np.shape(block_table)[-1]
    table = np.reshape(block_table, (batch, blocks))
    begin, end = (np.broadcast_to(np.ravel(bound), batch) for bound in (kv_begin, kv_end))
    result = np.zeros((batch, heads, blocks, page, depth))
    for b, block in np.ndindex(batch, blocks):
        if max(begin[b], block * page) < min(end[b], (block + 1) * page):
            if not 0 <= table[b, block] < count:
                raise ValueError(f"block_table[{b}, {block}]: no page {table[b, block]}")
            result[b, :, block] = pages[table[b, block]]
    return result.reshape(*lead, heads, blocks * page, depth)
