# SPDX-License-Identifier: MIT
"""Values of options: the scripts refuse what cannot be, with a usage message, before they run."""

import argparse
import contextlib
import math

from fastattn.cli import arguments as checks


def at_least(least, most=math.inf):
    """Return a type for `argparse`: a whole number, neither below `least` nor above `most`."""
    expected = f"at least {least}" if most == math.inf else f"{least} to {most}"

    def number(text):
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {expected}, got {value}")
        return value

    return number


@contextlib.contextmanager
def refused_by(parser):
    """Let the parser say what the checks of the command line find in a ``with`` block."""
    try:
        yield
    except checks.UsageError as error:
        parser.error(str(error))
