# SPDX-License-Identifier: MIT
"""Values of options: the scripts refuse what cannot be, with a usage message, before they run."""

import argparse
import contextlib

from fastattn import cli


def at_least(least):
    """Return a type for `argparse`: a whole number that is not below `least`."""

    def number(text):
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {value}")
        return value

    return number


@contextlib.contextmanager
def refused_by(parser):
    """Let the parser say what the checks of the command line find in a ``with`` block."""
    try:
        yield
    except cli.UsageError as error:
        parser.error(str(error))
