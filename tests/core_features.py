# SPDX-License-Identifier: MIT
"""Marks for tests of what the core gains while the adapters wait: they run as soon as it can."""

import numpy as np
import pytest

import fastattn


def _works(*tensors, **options):
    try:
        fastattn.attention(*tensors, **options)
    except NotImplementedError:
        return False
    return True


def _bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return [np.zeros((1, 1, 2, 8), ml_dtypes.bfloat16)] * 3


needs_16_bit = pytest.mark.skipif(
    not _works(*_bfloat16()), reason="core has no bfloat16 and float16 yet"
)
needs_pages = pytest.mark.skipif(
    not _works(
        np.zeros((1, 1, 1, 8), np.float32),
        *[np.zeros((2, 1, 4, 8), np.float32)] * 2,
        block_table=np.zeros((1, 2), np.int32),
    ),
    reason="core has no block_table yet",
)
needs_varlen = pytest.mark.skipif(
    not hasattr(fastattn, "attention_varlen"), reason="core has no attention_varlen yet"
)
