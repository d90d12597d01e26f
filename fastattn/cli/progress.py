# SPDX-License-Identifier: MIT
"""A progress bar on the error stream: rich's where it is installed, a plain one elsewhere.

Neither appears unless that stream is a terminal.
"""

import contextlib
import shutil
import sys
import time

WIDTH = 30
INTERVAL = 0.1  # seconds between two drawings of the plain bar


@contextlib.contextmanager
def bar(title):
    """Show a progress bar in a ``with`` block; gives ``update(fraction, text="")``."""
    if sys.stderr is None or not sys.stderr.isatty():  # None: the process began without it
        yield lambda fraction, text="": None
        return
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        with _plain(title) as update:
            yield update
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(WIDTH),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[text]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=1.0, text="")
        yield lambda fraction, text="": shown.update(task, completed=fraction, text=text)


@contextlib.contextmanager
def _plain(title):
    begin = time.monotonic()
    drawn = 0.0
    width = min(78, shutil.get_terminal_size().columns - 1)  # a longer line would stay where it is

    def update(fraction, text=""):
        nonlocal drawn
        now = time.monotonic()
        if now - drawn < INTERVAL and fraction < 1:
            return
        drawn = now
        left = f"{(now - begin) * (1 - fraction) / fraction:.0f} s left" if fraction else ""
        done = "#" * int(WIDTH * fraction)
        line = f"{title} [{done:<{WIDTH}}] {fraction:4.0%} {left} {text}"
        sys.stderr.write(f"\r{line:<{width}.{width}}")
        sys.stderr.flush()

    try:
        yield update
    finally:
        sys.stderr.write(f"\r{'':{width}}\r")
