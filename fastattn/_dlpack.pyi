# SPDX-License-Identifier: MIT
from typing import Any

import numpy.typing as npt

def view(value: object, dtypes: dict[int, int]) -> npt.NDArray[Any]: ...

HOST_MEMORY: tuple[int, ...]
