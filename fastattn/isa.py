# SPDX-License-Identifier: MIT
"""Instruction sets: which there are, which is active, and how to force one."""

import contextlib
import contextvars
import os

from fastattn import _core

_forced = contextvars.ContextVar("fastattn_isa", default=None)


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
    forced = _forced.get()
    return forced.decode() if forced is not None else _core.default_isa()


@contextlib.contextmanager
def use_isa(name):
    """Use one instruction set in a ``with`` block, in this thread (context) only.

    Parameters
    ----------
    name : str
        One of `isas()`.

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
    token = _forced.set(name.encode())
    try:
        yield
    finally:
        _forced.reset(token)


def forced():
    """What `use_isa` forces here, as the binding takes it: bytes, or None."""
    return _forced.get()


def _require(name, what, error):
    table = _core.isa_table()
    missing = table.get(name, "there is no such instruction set in this build")
    if missing is not None:
        raise error(f"{what}: expected one of {', '.join(isas())}, got {name!r}: {missing}")


def check_environment():
    """Refuse an unusable ``FASTATTN_ISA`` at import; a silent fallback would mislead."""
    name = os.environ.get("FASTATTN_ISA")
    if name:
        _require(name, "FASTATTN_ISA", ImportError)
