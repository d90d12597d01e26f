# SPDX-License-Identifier: MIT
"""Private: settings that hold in a ``with`` block."""

import contextlib


@contextlib.contextmanager
def holding(variable, value):
    """Set a context variable in a ``with`` block. Callers check the value when they are called."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
