# SPDX-License-Identifier: MIT
"""The command line, one module per subcommand.

A subcommand is a module with a function ``add(subparsers)`` that declares its options and sets
``run``, a function of the parsed options that returns the exit code: 0 fine, 1 a check failed,
2 bad input.
"""

import argparse
import contextlib
import io
import sys

from fastattn.cli.arguments import UsageError

DESCRIPTION = """\
fastattn: exact attention on CPUs.

Without a subcommand: what this machine and build are, a short check against the oracle, a short
bench and sentences through a real model, in under half a minute."""


def parser():
    """Return the parser of the whole command line."""
    from fastattn import __version__
    from fastattn.cli import bench, check, demo, info, profile, run

    top = argparse.ArgumentParser(
        prog="python -m fastattn",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"fastattn {__version__}")
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
