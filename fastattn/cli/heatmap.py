# SPDX-License-Identifier: MIT
"""The picture that the demo writes."""

import importlib.util

import numpy as np

from fastattn import plot
from fastattn.cli import UsageError, check_output, file_errors


def check(path):
    """Raise UsageError unless a picture can be written there: a folder, and matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--heatmap needs matplotlib: pip install matplotlib")
    check_output(path)


def draw(path, tokens, patterns, titles):
    """Write attention patterns side by side; the ending of the path says the format.

    Raises
    ------
    UsageError
        matplotlib cannot write this format, or the system this file.
    """
    figure = plot.heatmap(np.stack(patterns), tokens, titles=titles)
    try:
        with file_errors(path):
            figure.savefig(path, bbox_inches="tight")
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
