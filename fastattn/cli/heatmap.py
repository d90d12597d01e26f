# SPDX-License-Identifier: MIT
"""A picture of attention patterns: who looks at whom."""

import importlib.util

from fastattn.cli import UsageError

# Inches of a token's cell, and around all cells for the words; dots in an inch.
CELL, MARGIN, DPI = 0.32, 1.4, 110


def check(path):
    """Raise UsageError unless a picture can be written there: a folder, and matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--heatmap needs matplotlib: pip install matplotlib")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such directory")


def draw(path, tokens, patterns, titles):
    """Write a picture of attention patterns side by side, a row for each token that looks.

    Parameters
    ----------
    path : path
        Its ending says the format: .png, .svg, .pdf.
    tokens : list of str
    patterns : list of ndarray, (tokens, tokens)
        Row i is what token i takes from each token.
    titles : list of str
        One for each pattern.

    Raises
    ------
    UsageError
        matplotlib cannot write this format.
    """
    from matplotlib.figure import Figure

    columns = min(len(patterns), 4)
    rows = -(-len(patterns) // columns)
    side = CELL * len(tokens) + MARGIN
    figure = Figure(figsize=(columns * side, rows * side), dpi=DPI, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes, pattern, title in zip(grid, patterns, titles, strict=False):
        image = axes.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
        places = range(len(tokens))
        axes.set_xticks(places, tokens, rotation=90)
        axes.set_yticks(places, tokens)
        axes.tick_params(length=0)
        axes.set_title(title)
        for edge in axes.spines.values():
            edge.set_visible(False)
    for axes in list(grid)[len(patterns) :]:
        axes.set_visible(False)
    figure.colorbar(image, ax=list(figure.axes), shrink=0.6, label="attention weight")
    try:
        figure.savefig(path, bbox_inches="tight")
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
