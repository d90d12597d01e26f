# SPDX-License-Identifier: MIT
"""Checks of options that several subcommands have."""

import contextlib
import importlib
import math
import os

from fastattn._extras import needed

MOST_METERED_THREADS = 1024  # the meters of the limits have an array and a thread for each


class UsageError(Exception):
    """Bad input: the message goes to the user, without a traceback, with exit code 2."""


def check_output(path):
    """Raise UsageError unless a file can be written there; before long work, not after it."""
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such directory")
    if path.is_dir():
        raise UsageError(f"{path}: a directory, expected a file")
    _check_writable(path if path.exists() else path.parent)


def check_folder(path):
    """Raise UsageError unless files can be written into that folder, new or not."""
    nearest = next(each for each in (path, *path.parents) if each.exists())
    if not nearest.is_dir():
        raise UsageError(f"{nearest}: a file, expected a directory")
    _check_writable(nearest)


def _check_writable(path):
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path}: no permission to write there")


def check_matplotlib(option):
    """Raise UsageError unless matplotlib, which this option needs, is installed."""
    with library_errors(option, "matplotlib", "plot"):
        importlib.import_module("matplotlib")


def check_picture(option, path):
    """Return the path that matplotlib will write: a name without an ending gets one.

    Raises
    ------
    UsageError
        It cannot write a file of that name.
    """
    check_output(path)
    check_matplotlib(option)
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix in ("", "."):
        path = path.with_name(f"{path.name.rstrip('.')}.{FigureCanvasBase.get_default_filetype()}")
        check_output(path)
    endings = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise UsageError(f"{path}: expected an ending of {', '.join(endings)}")
    return path


@contextlib.contextmanager
def file_errors(path):
    """Raise UsageError for what the system says of a file in a ``with`` block."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


@contextlib.contextmanager
def library_errors(part, library, extra=None):
    """Raise UsageError where a ``with`` block misses a library; see `needed`."""
    try:
        with needed(part, extra):
            yield
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise UsageError(error) from None


def dtype_errors(dtype, option="--dtype"):
    """Raise UsageError where a ``with`` block misses ml_dtypes, which this option needs."""
    return library_errors(f"{option} {dtype}", "ml_dtypes")


def check_isa(name):
    """Refuse the value of ``--isa`` if this machine has no such instruction set; None will do."""
    import fastattn

    if name is not None and name not in fastattn.isas():
        raise UsageError(f"--isa: expected one of {', '.join(fastattn.isas())}, got {name}")


def threads_of(options):
    """Return the value of ``--threads``, or without it what a call would use.

    Raises
    ------
    UsageError
        There cannot be so many.
    """
    import fastattn

    count = fastattn.get_num_threads() if options.threads is None else options.threads
    if not 1 <= count <= MOST_METERED_THREADS:
        raise UsageError(f"--threads: expected 1 to {MOST_METERED_THREADS}, got {count}")
    return count


def check_seconds(seconds):
    """Raise UsageError unless that is a time to measure for."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds: expected a finite time above 0, got {seconds}")


def peer_names(text):
    """Return the names in the value of ``--peers``; None for every one installed."""
    if text is None or text == "all":
        return None
    return [name for name in text.split(",") if name and name != "none"]
