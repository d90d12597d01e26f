# SPDX-License-Identifier: MIT
"""The picture that the demo writes."""

import numpy as np

from fastattn import plot
from fastattn.cli.arguments import file_errors


def draw(path, tokens, patterns, titles):
    """Write attention patterns side by side; the ending of the path says the format.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    figure = plot.heatmap(np.stack(patterns), tokens, titles=titles)
    with file_errors(path):
        figure.savefig(path, bbox_inches="tight")
