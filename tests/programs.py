# SPDX-License-Identifier: MIT
"""Other Python processes that use the package under test, installed or built in place."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import fastattn

COMPILER = shutil.which("gcc") or shutil.which("cc")


def python(*arguments, **environment):
    """Run the interpreter with these arguments; the completed process, with its text.

    ``-P``: a source folder in the working directory must not hide the package under test.
    """
    package = str(Path(fastattn.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": package, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(code, *arguments, **environment):
    """Run a program given as text, indented or not."""
    return python("-c", textwrap.dedent(code), *arguments, **environment)
