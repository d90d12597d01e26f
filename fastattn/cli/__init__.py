# SPDX-License-Identifier: MIT
"""The command line, one module per subcommand.

A subcommand is a module with a function ``add(subparsers)`` that declares its options and sets
``run``, a function of the parsed options that returns the exit code: 0 fine, 1 a check failed,
2 bad input.
"""

import argparse
import contextlib
import io
import math
import os
import sys

DESCRIPTION = """\
fastattn: exact attention on CPUs.

Without a subcommand: what this machine and build are, a short check against the oracle, a short
bench and sentences through a real model, in under half a minute."""


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
    from fastattn.measure import pictures

    if not pictures.available():
        raise UsageError(f"{option} needs matplotlib: pip install 'fastattn[plot]'")


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


def parser():
    """Return the parser of the whole command line."""
    from fastattn.cli import bench, check, demo, info, profile, run
    from fastattn.config import version

    top = argparse.ArgumentParser(
        prog="python -m fastattn",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"fastattn {version()}")
    subparsers = top.add_subparsers(dest="command", metavar="{info,check,bench,profile,demo,run}")
    for module in (info, check, bench, profile, demo, run):
        module.add(subparsers)
    return top


def main(arguments=None):
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process if None.

    Returns
    -------
    int
        Exit code.
    """
    _take_any_text()
    options = parser().parse_args(arguments)
    name = "python -m fastattn" + (f" {options.command}" if options.command else "")
    try:
        code = overview() if options.command is None else options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # at exit nobody could say in one line why that fails
        return code
    except UsageError as error:
        complain(f"{name}: error: {error}")
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        if sys.stderr is not None:
            sys.stderr.close()
        return 1
    except OSError as error:  # mostly of standard output: those of files are UsageErrors
        with contextlib.suppress(OSError, AttributeError):
            sys.stdout.close()  # what is left in it would fail again at exit
        place = error.filename or "standard output"
        complain(f"{name}: error: {place}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 130


def _take_any_text():
    """Let the streams print a question mark for what is not in their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # nor need it be: others may have put theirs
            stream.reconfigure(errors="replace")


def complain(text):
    """Print on the error stream, if there is one."""
    if sys.stderr is not None:  # print would take standard output instead
        print(text, file=sys.stderr)


def overview():
    """Run info, a short check, a short bench and the demo; return the exit code."""
    parse = parser().parse_args
    codes = []
    for arguments in (["info"], ["check", "--count", "100"], ["bench", "--seconds", "1"], ["demo"]):
        options = parse(arguments)
        codes.append(options.run(options))
        print()
    return max(codes)
