# SPDX-License-Identifier: MIT
"""What to raise, at import, for a variable of the environment that cannot be used."""

import sys


def refused(message):
    """Return ImportError; in ``python -m fastattn`` the exit of its other bad input.

    Python imports the package before its ``__main__``, where nothing could be caught any more.
    """
    if not _is_command():
        return ImportError(message)
    from fastattn import cli

    cli.complain(f"python -m fastattn: error: {message}")
    return SystemExit(2)


def _is_command():
    """Whether this process is ``python -m fastattn``, however its options are written."""
    if sys.argv[:1] != ["-m"]:  # so it is until the module is found
        return False
    module = sys.orig_argv[-len(sys.argv)]
    return module == "fastattn" or (module.startswith("-") and module.endswith("mfastattn"))
