# SPDX-License-Identifier: MIT
"""Private: settings that hold in a ``with`` block."""

import contextlib


class holding(contextlib.ContextDecorator):
    """Set a context variable in ``with`` blocks. Callers check the value when they are called.

    The variable holds [value, how to reset it], because one object may serve several blocks at
    once: one in another, or of several threads.
    """

    def __init__(self, variable, value):
        self._variable, self._value = variable, value

    def __enter__(self):
        held = [self._value, None]
        held[1] = self._variable.set(held)

    def __exit__(self, *error):
        self._variable.reset(self._variable.get()[1])
