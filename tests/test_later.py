# SPDX-License-Identifier: MIT
"""What arguments may say and the C core cannot do yet is an error, and nothing is written.

This file goes when attention._reject_later does; what the core can already do is skipped here.
"""

import abilities
import numpy as np
import pytest
from error_cases import OUT_SHAPE, K, Q, V
from error_cases_cache import PAGED

import fastattn

F16 = np.float16
LATER = {
    "float16": {"q": Q.astype(F16), "k": K.astype(F16), "v": V.astype(F16)},
    "float16 K and V": {"q": Q, "k": K.astype(F16), "v": V.astype(F16)},
    "int8": {"q": Q, "k": K.astype(np.int8), "v": V.astype(np.int8)},
    "scales": {"q": Q, "k": K, "v": V, "v_scale": 0.5},
    "block_table": PAGED,
}


@pytest.mark.parametrize("ability", LATER)
def test_later(ability):
    if abilities.can(ability):
        pytest.skip("the core can do this")
    arguments = LATER[ability]
    out = np.full(OUT_SHAPE, 7, arguments["q"].dtype)
    with pytest.raises(NotImplementedError):
        fastattn.attention(**arguments, out=out)
    assert (out == 7).all()
