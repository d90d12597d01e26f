# SPDX-License-Identifier: MIT
"""The one place that knows whether the core computes in 16 bits; goes when every core does."""

import numpy as np
import pytest

import fastattn


def skip_without(dtype):
    """Skip the running test if `fastattn.attention` says that `dtype` comes later."""
    tensor = np.zeros((1, 1, 1, 8), dtype)
    try:
        fastattn.attention(tensor, tensor, tensor)
    except NotImplementedError as later:
        pytest.skip(f"the core does not compute in {tensor.dtype.name}: {later}")
