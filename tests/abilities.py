# SPDX-License-Identifier: MIT
"""What the C core can do, found out by trying: tests of what it will do later wait for it."""

import functools

import numpy as np
import pytest

import fastattn


def _dense(dtype, kv_dtype=None, **options):
    q = np.ones((1, 1, 2, 4), dtype)
    k = q.astype(kv_dtype or dtype)
    fastattn.attention(q, k, k, **options)


def _varlen():
    q = np.ones((2, 1, 4), np.float32)
    fastattn.attention_varlen(q, q, q, [0, 1, 2])


TRIALS = {
    "block_table": lambda: _dense(np.float32, block_table=[[0]]),
    "float16": lambda: _dense(np.float16),
    "float16 K and V": lambda: _dense(np.float32, np.float16),
    "int8": lambda: _dense(np.float32, np.int8),
    "scales": lambda: _dense(np.float32, k_scale=0.5, v_scale=0.5),
    "varlen": _varlen,
}


@functools.cache
def can(ability):
    """Say whether the core has this one of `TRIALS`."""
    try:
        TRIALS[ability]()
    except NotImplementedError:
        return False
    return True


def needs(*abilities):
    """Return a mark that skips a test until the core has all of these."""
    missing = [each for each in abilities if not can(each)]
    return pytest.mark.skipif(bool(missing), reason=f"the core has no {', '.join(missing)} yet")
