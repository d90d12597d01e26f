# SPDX-License-Identifier: MIT
"""Keys and values cut into pages, one key at a time: what a paged cache would hold."""

import numpy as np


def into_pages(rng, tensors, page, *, spare=2, poison=np.nan):
    """Scatter tensors (B, Hkv, Sk, ...) into pages in random order.

    Parameters
    ----------
    rng : numpy.random.Generator
    tensors : sequence of ndarray
        Keys, values and their scales; every one of them gets the same table.
    page : int
        Keys of a page.
    spare : int
        Pages that no sequence has.
    poison : float
        What stands in those, and behind the last key of each sequence.

    Returns
    -------
    pages : list of ndarray, (pages, Hkv, page, ...)
    block_table : ndarray, (B, blocks), int32
    """
    batch, _, keys = tensors[0].shape[:3]
    blocks = -(-keys // page)
    count = batch * blocks + spare
    table = rng.permutation(count)[: batch * blocks].reshape(batch, blocks).astype(np.int32)
    results = []
    for tensor in tensors:
        shape = (count, tensor.shape[1], page, *tensor.shape[3:])
        pages = np.full(shape, poison).astype(tensor.dtype)
        for b, j in np.ndindex(batch, keys):
            pages[table[b, j // page], :, j % page] = tensor[b, :, j]
        results.append(pages)
    return results, table
