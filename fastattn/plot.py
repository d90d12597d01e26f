# SPDX-License-Identifier: MIT
"""Pictures of attention weights: who looks at whom. Needs matplotlib."""

import numpy as np

from fastattn import _check_options as options
from fastattn._extras import needed

__all__ = ["heatmap"]

# Inches of a token's cell, and around all cells for the words; dots in an inch.
CELL, MARGIN, DPI = 0.32, 1.4, 110
COLUMNS = 4
FORBIDDEN = "0.88"  # grey: no shade of the weights
WORDS = 64  # beyond so many tokens they would be too small to read


def heatmap(weights, tokens=None, *, key_tokens=None, titles=None, allowed=None, largest=1.0):
    """Draw attention weights, one panel per head, a row for each query.

    Parameters
    ----------
    weights : array_like, (queries, keys) or (heads, queries, keys)
        As `fastattn.attention_weights` returns them for one batch.
    tokens : sequence of str, optional
        The words of the queries, and of the keys unless `key_tokens` is given.
    key_tokens : sequence of str, optional
    titles : sequence of str, optional
        One for each head; "head 1", "head 2" ... if None and there are several.
    allowed : array_like of bool, broadcastable to weights, optional
        Cells that are not are grey. If None, those whose weight is exactly 0, which is what
        masked keys have.
    largest : float or None
        The weight of the darkest cell; None is the largest one of each head.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``savefig("pattern.png", bbox_inches="tight")``; a notebook shows it.

    Raises
    ------
    ImportError
        Without matplotlib.
    TypeError
        An argument of a wrong type.
    ValueError
        `weights` of another rank, `allowed` of another shape, or as many words or titles as there
        are no rows, columns, heads.

    Examples
    --------
    >>> import numpy as np, fastattn
    >>> from fastattn import plot
    >>> x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    >>> figure = plot.heatmap(fastattn.attention_weights(x, x, causal=True), ["a", "b", "c"])
    >>> [axes.get_title() for axes in figure.axes]
    ['', '']
    """
    weights = _heads_of(weights)
    if largest is not None and options.number("largest", largest) <= 0:
        raise ValueError(f"largest: expected a positive number, got {largest:g}")
    heads, queries, keys = weights.shape
    rows = _words("tokens", tokens, queries)
    columns = _words("key_tokens", tokens if key_tokens is None else key_tokens, keys)
    if titles is None:
        titles = [f"head {n + 1}" for n in range(heads)] if heads > 1 else [""]
    titles = _words("titles", titles, heads)
    forbidden = weights == 0 if allowed is None else ~_allowed(allowed, weights.shape)
    figure, panels = _grid(heads, queries, keys)
    for n, axes in enumerate(panels):
        shown = np.ma.masked_where(forbidden[n], weights[n])
        image = axes.imshow(shown, cmap=_colors(), vmin=0, vmax=largest, aspect="equal")
        _label(axes, rows, columns)
        axes.set_title(titles[n], parse_math=False)
    figure.colorbar(image, ax=panels, shrink=0.6, label="attention weight (grey: masked)")
    return figure


def _array(name, value):
    """Return what is like an array of real numbers or bools as one."""
    try:
        value = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: expected an array, got a list of unequal parts") from None
    if value.dtype.kind not in "biuf" and value.dtype.name != "bfloat16":
        raise TypeError(f"{name}: expected an array of real numbers, got dtype {value.dtype.name}")
    return value


def _heads_of(weights):
    weights = _array("weights", weights)
    if weights.ndim not in (2, 3) or 0 in weights.shape:
        raise ValueError(
            "weights: expected (queries, keys) or (heads, queries, keys), not empty, "
            f"got shape {weights.shape}"
        )
    return weights.astype(float).reshape(-1, *weights.shape[-2:])


def _allowed(allowed, shape):
    allowed = _array("allowed", allowed).astype(bool)
    try:
        return np.broadcast_to(allowed, shape)
    except ValueError:
        raise ValueError(
            f"allowed: expected a shape that broadcasts to {shape}, got {allowed.shape}"
        ) from None


def _words(name, words, count):
    if words is None:
        return None
    try:
        words = [str(word) for word in words]
    except TypeError:
        found = options.described(words)
        raise TypeError(f"{name}: expected a sequence of words, got {found}") from None
    if len(words) != count:
        raise ValueError(f"{name}: expected {count}, one for each, got {len(words)}")
    return words


def _grid(heads, queries, keys):
    with needed("fastattn.plot", "plot"):
        from matplotlib.figure import Figure

    columns = min(heads, COLUMNS)
    lines = -(-heads // columns)
    width, height = (CELL * min(n, WORDS) + MARGIN for n in (keys, queries))
    figure = Figure(figsize=(columns * width, lines * height), dpi=DPI, layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[heads:]:
        axes.remove()
    return figure, grid[:heads]


def _colors():
    import matplotlib

    return matplotlib.colormaps["Blues"].with_extremes(bad=FORBIDDEN)


def _label(axes, rows, columns):
    columns, rows = (
        None if words is None or len(words) > WORDS else words for words in (columns, rows)
    )
    for axis, words in ((axes.xaxis, columns), (axes.yaxis, rows)):
        if words is None:
            axis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        else:
            # A dollar sign is a token like any other, no formula.
            axis.set_ticks(range(len(words)), words, parse_math=False)
    axes.tick_params(axis="x", rotation=90 if columns is not None else 0)
    axes.tick_params(length=0)
    axes.set_xlabel("key" if columns is None else "")
    axes.set_ylabel("query" if rows is None else "")
    for edge in axes.spines.values():
        edge.set_visible(False)
