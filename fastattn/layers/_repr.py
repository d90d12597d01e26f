# SPDX-License-Identifier: MIT
"""A short repr of layers and models: shapes and settings, where the elements would be kilobytes."""

import dataclasses
from numbers import Number
from typing import Any

from fastattn import _check_options as options


def short_repr(layer: Any) -> str:
    """Return the repr of a dataclass, without what is at its default; for ``__repr__``."""
    parts = []
    for field in dataclasses.fields(layer):
        value = getattr(layer, field.name)
        if type(value) is not type(field.default) or value != field.default:
            parts.append(f"{field.name}={_described(value)}")
    return f"{type(layer).__name__}({', '.join(parts)})"


def _described(value):
    """Describe an array by its type and shape, a stack by its length; else as repr does."""
    if getattr(value, "shape", ()):
        return f"<{value.dtype} {tuple(value.shape)}>"
    if isinstance(value, list | tuple) and any(map(dataclasses.is_dataclass, value)):
        kinds = dict.fromkeys(type(each).__name__ for each in value)
        return f"<{len(value)} {' and '.join(kinds)}>"
    plain = Number | str | list | tuple | dict | set | frozenset | None
    if isinstance(value, plain) or dataclasses.is_dataclass(value):
        return repr(value)
    return f"<{options.described(value)}>"  # of a tokenizer, repr is its vocabulary
