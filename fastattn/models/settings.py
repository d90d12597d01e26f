# SPDX-License-Identifier: MIT
"""The JSON of model files: what is wrong in it is a ValueError that says where."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastattn import _check_options as options

# The default that stands for none; None is one.
REQUIRED: Any = object()
KINDS: dict[type, str] = {dict: "a JSON object", list: "a JSON array", str: "a string"}


@contextlib.contextmanager
def of_a_file() -> Iterator[None]:
    """Let a TypeError be a ValueError: in a file, a wrong type is damage like any other."""
    try:
        yield
    except TypeError as error:
        raise ValueError(str(error)) from None


def of_kind(name: str, value: Any, kind: type, least: float = -math.inf) -> Any:
    """Return a value of a file, which must be a dict, list, str, bool, int or float (finite).

    A number must not be below `least`.
    """
    with of_a_file():
        if kind is int:
            return options.integer(name, value, least)
        if kind is float:
            return options.number(name, value, least)
        if kind is bool:
            return options.flag(name, value)
        if not isinstance(value, kind):
            raise TypeError(f"{name}: expected {KINDS[kind]}, got {options.described(value)}")
    return value


def parsed(name: str, data: bytes, kind: type = dict) -> Any:
    """Return the content of some JSON, an object or an array by `kind`."""
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected JSON, {error}") from None
    return of_kind(name, content, kind)


def read_json(path: Path, kind: type = dict) -> Any:
    """Return the content of a JSON file, an object or an array by `kind`."""
    return parsed(str(path), path.read_bytes(), kind)


def setting(
    where: str | Path,
    values: Mapping[str, Any],
    *names: str,
    kind: type | None = None,
    least: float = -math.inf,
    default: Any = REQUIRED,
) -> Any:
    """Return the value of the first of these names that a JSON object has, not null.

    Parameters
    ----------
    where : str or path
        Where it stands, for messages.
    values : mapping
        The object.
    *names : str
    kind, least : optional
        As in `of_kind`.
    default : optional
        If it has none of the names; without a default that is an error.

    Raises
    ------
    ValueError
        It has none of them, or a value of another kind or out of range.
    """
    for name in names:
        value = values.get(name)
        if value is not None:
            return value if kind is None else of_kind(f"{where}: {name}", value, kind, least)
    if default is REQUIRED:
        raise ValueError(f"{where}: expected {' or '.join(names)}, there is none")
    return default
