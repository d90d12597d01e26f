# SPDX-License-Identifier: MIT
"""Instruction sets: which there are, which is active, and how to force one."""

import contextvars
import os

from fastattn import _core
from fastattn._context import holding
from fastattn._environment import refused


def isas():
    """Names of the instruction sets that can be used on this machine, best last.

    Returns
    -------
    list of str
        For instance ``["scalar", "avx2", "avx512"]``.
    """
    return [name for name, missing in _core.isa_table().items() if missing is None]


def isa():
    """Name of the instruction set that a call made here would use.

    The best one the CPU and the operating system allow, unless the environment variable
    ``FASTATTN_ISA`` or `use_isa` says otherwise.

    Returns
    -------
    str
    """
    return active().decode()


def use_isa(name):
    """Use one instruction set in a ``with`` block, in this thread (context) only.

    Parameters
    ----------
    name : str
        One of `isas()`.

    Returns
    -------
    context manager
        For any number of blocks.

    Raises
    ------
    TypeError
        `name` is not a string.
    ValueError
        It is not known, or not available on this machine.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a string, got {type(name).__name__}")
    _require(name, "name", ValueError)
    return holding(_active, name.encode())


def active():
    """`isa()` as the binding takes it."""
    return _active.get()[0]


def _require(name, what, error):
    missing = _core.isa_table().get(name, "there is no such instruction set in this build")
    if missing is not None:
        raise error(f"{what}: expected one of {', '.join(isas())}, got {name!r}: {missing}")


def _initial():
    """The default, from ``FASTATTN_ISA`` or the machine; a silent fallback would mislead."""
    name = os.environ.get("FASTATTN_ISA")
    if name:
        _require(name, "FASTATTN_ISA", refused)
    return _core.default_isa().encode()


# The name as the binding takes it, as `holding` sets it.
_active = contextvars.ContextVar("fastattn_isa", default=(_initial(), None))
