# SPDX-License-Identifier: MIT
"""Pictures of what was measured, each in a light and a dark variant; needs matplotlib.

A library has the same color and marker in every picture, this package is the dark line in front.
"""

import importlib.util
import math

import numpy as np

from fastattn.measure.runner import READ
from fastattn.measure.sweeps import LENGTH
from fastattn.measure.table import count_text

# Light and dark: paper, ink, faint ink, this package.
THEMES = {
    "light": {"paper": "#ffffff", "ink": "#1f2328", "faint": "#d0d7de", "subject": "#0b3d91"},
    "dark": {"paper": "#0d1117", "ink": "#e6edf3", "faint": "#30363d", "subject": "#79b8ff"},
}
# After Okabe and Ito's palette, told apart with any color vision, readable on both papers.
STYLES = {
    "numpy": ("#999999", "s"),
    "torch": ("#d55e00", "o"),
    "flex": ("#e69f00", "D"),
    "ort-attention": ("#009e73", "^"),
    "ort-mha": ("#66c2a5", "v"),
    "ort-gqa": ("#1b7837", "<"),
    "openvino": ("#cc79a7", "P"),
    "jax": ("#b8a000", "X"),
    "vllm": ("#8a63d2", "h"),
}
SUBJECT_MARKER = "*"
SIZE, DPI = (8, 4.8), 150
MATRIX = "bfloat16"  # the type under which `limits` keeps the peak of a matrix unit
BARS = 16  # problems in a picture of ratios
LABELS = 3  # of a log axis, at least
ROOM = 24  # labels of a linear axis, at most


def available():
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def where(machine):
    """Return the line below every title, of `fastattn.config()` with "threads"."""
    return (
        f"{machine['cpu']}, {count_text(machine['threads'], 'thread')}, {machine['isa']}, "
        f"fastattn {machine['version']}"
    )


def style(library, theme):
    """Return (color, marker) of a library; this package, on any instruction set, has its own."""
    if library.startswith("fastattn"):
        return THEMES[theme]["subject"], SUBJECT_MARKER
    return STYLES.get(library, (THEMES[theme]["ink"], "."))


class Sheet:
    """One picture: axes with title and labels, written as <name>-<theme>.png."""

    def __init__(self, theme, title, subtitle, xlabel, ylabel, size=SIZE):
        from matplotlib.figure import Figure

        colors = THEMES[theme]
        self.theme, self.colors = theme, colors
        self.figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor=colors["paper"])
        self.axes = self.figure.add_subplot(facecolor=colors["paper"])
        self.figure.suptitle(title, color=colors["ink"], fontsize=14, x=0.02, ha="left")
        self.axes.set_title(subtitle, color=colors["ink"], fontsize=9, loc="left", wrap=True)
        self.axes.set_xlabel(xlabel, color=colors["ink"])
        self.axes.set_ylabel(ylabel, color=colors["ink"])
        self.axes.tick_params(colors=colors["ink"], which="both")
        self.axes.grid(color=colors["faint"], linewidth=0.6)
        self.axes.set_axisbelow(True)
        for name, spine in self.axes.spines.items():
            spine.set_color(colors["faint"])
            spine.set_visible(name in ("left", "bottom"))

    def line(self, library, x, y):
        """Draw a curve with a marker at every point."""
        color, marker = style(library, self.theme)
        ours = library.startswith("fastattn")
        self.axes.plot(
            x, y, color=color, marker=marker, label=library, linewidth=2.6 if ours else 1.5,
            markersize=12 if ours else 6, zorder=3 if ours else 2,
        )  # fmt: skip

    def legend(self, **options):
        """Say which color is which library."""
        self.axes.legend(
            facecolor=self.colors["paper"], edgecolor=self.colors["faint"],
            labelcolor=self.colors["ink"], fontsize=8, **options,
        )  # fmt: skip

    def save(self, folder, name):
        """Write the file; return its path."""
        path = folder / f"{name}-{self.theme}.png"
        self.figure.savefig(path, facecolor=self.colors["paper"])
        return path


def libraries(points):
    """Return the names in `points`, this package last, so that it is drawn in front."""
    names = dict.fromkeys(point.library for point in points)
    return sorted(names, key=lambda name: name.startswith("fastattn"))


def powers(axis, values):
    """Label an axis of powers of two with plain numbers."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_minor_locator(_none())


def _none():
    from matplotlib.ticker import NullLocator

    return NullLocator()


def sweep_pictures(sweeps, where, theme):
    """Yield (name, Sheet) of `sweeps.run_all`."""
    length = f"8 heads, {LENGTH} tokens, depth 64"
    yield "threads", _threads(sweeps["threads"], f"causal, {length}; {where}", theme)
    yield "mask-share", _masks(sweeps["masks"], f"{length}, float32; {where}", theme)
    yield "precision", _precisions(sweeps["precisions"], f"{length}; {where}", theme)


def _threads(points, subtitle, theme):
    sheet = Sheet(theme, "Speed over threads", subtitle, "threads", "speed relative to 1 thread")
    counts = sorted({point.x for point in points})
    sheet.axes.plot(counts, counts, color=sheet.colors["ink"], linestyle="--", linewidth=1,
                    label="perfect")  # fmt: skip
    for name in libraries(points):
        own = {point.x: point.seconds for point in points if point.library == name}
        if 1 in own:
            sheet.line(name, list(own), [own[1] / seconds for seconds in own.values()])
    powers(sheet.axes.xaxis, _apart(counts))
    sheet.axes.set_ylim(bottom=0)
    sheet.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return sheet


def _apart(counts):
    """Return the last of ascending counts, and those before it that leave room for a label each."""
    kept = []
    for count in reversed(counts):
        if not kept or kept[-1] - count > counts[-1] / ROOM:
            kept.append(count)
    return kept[::-1]


def _masks(points, subtitle, theme):
    sheet = Sheet(theme, "Time over the part of the mask that allows", subtitle,
                  "allowed 64 x 64 blocks, %", "time per call, ms")  # fmt: skip
    for name in libraries(points):
        own = [point for point in points if point.library == name]
        sheet.line(name, [100 * p.x for p in own], [1e3 * p.seconds for p in own])
    sheet.axes.set_xlim(0, 102)
    sheet.axes.set_yscale("log")
    _plain_log(sheet.axes.yaxis)
    sheet.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return sheet


def _precisions(points, subtitle, theme):
    sheet = Sheet(theme, "Error against time, by type", subtitle,
                  "time per call, ms", "largest error, relative to max|v|")  # fmt: skip
    for name in libraries(points):
        color, marker = style(name, theme)
        own = [point for point in points if point.library == name and point.error > 0]
        x, y = [1e3 * p.seconds for p in own], [p.error for p in own]
        ours = name.startswith("fastattn")
        sheet.axes.scatter(x, y, color=color, marker=marker, s=150 if ours else 45, label=name,
                           zorder=3 if ours else 2)  # fmt: skip
    for dtype in dict.fromkeys(point.x for point in points):
        # Types differ by orders of magnitude in error: one label for each, at the side.
        errors = [point.error for point in points if point.x == dtype and point.error > 0]
        if errors:
            height = math.exp(np.mean(np.log(errors)))
            sheet.axes.annotate(
                dtype, (1.01, height), xycoords=("axes fraction", "data"), va="center",
                color=sheet.colors["ink"], fontsize=9,
            )  # fmt: skip
    sheet.axes.set_xscale("log")
    sheet.axes.set_yscale("log")
    _plain_log(sheet.axes.xaxis)
    sheet.legend(loc="center left", bbox_to_anchor=(1.12, 0.5))
    return sheet


def _plain_log(axis):
    """Numbers in place of powers of ten, enough for a scale and few enough to read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    locator = LogLocator(base=10, subs=(1, 2, 5))
    low, high = axis.get_view_interval()
    if sum(low <= value <= high for value in locator.tick_values(low, high)) < LABELS:
        locator = MaxNLocator(8, steps=[1, 2, 5, 10])  # over so little, a log axis is nearly linear
    axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(_none())


def row_pictures(rows, measured, where, theme):
    """Yield (name, Sheet) of the rows of a suite, and of `limits.machine`."""
    shown = [row for row in rows if row.measured]
    if not shown:
        return
    yield "roofline", roofline(shown, measured, where, theme)
    compared = [row for row in shown if row.peers]
    for first in range(0, len(compared), BARS):
        part = f"-{first // BARS + 1}" if len(compared) > BARS else ""
        yield f"ratios{part}", ratios(compared[first : first + BARS], where, theme)
    for name, group in curves(shown).items():
        yield f"length-{name}", lengths(group, where, theme)


def roofline(rows, measured, where, theme):
    """Every measured point under the roofs: operations per second over operations per byte."""
    subtitle = f"points: one problem each, {rows[0].subject}; {where}"
    sheet = Sheet(theme, "Roofline", subtitle, "operations per byte that has to be read or written",
                  "GFLOP/s")  # fmt: skip
    x = np.array([row.problem.flops() / row.problem.bytes() for row in rows])
    span = np.geomspace(min(x.min(), 1) / 2, x.max() * 2, 200)
    peaks = _peaks(rows, measured)
    for level, dash in zip(_levels(measured), ("-", "--", ":"), strict=False):
        sheet.axes.plot(
            span, np.minimum(span * level["rate"], max(peaks.values())) / 1e9, linestyle=dash,
            color=sheet.colors["ink"], linewidth=1.2,
            label=f"{level['level']} {level['rate'] / 1e9:.0f} GB/s",
        )  # fmt: skip
    for name, flops in peaks.items():
        sheet.axes.axhline(flops / 1e9, color=sheet.colors["ink"], linewidth=0.8, alpha=0.5)
        sheet.axes.annotate(
            f"{name}: {flops / 1e9:.0f} GFLOP/s", (span[0], flops / 1e9), xytext=(2, -10),
            textcoords="offset points", fontsize=8, color=sheet.colors["ink"], zorder=2.5,
            bbox={"facecolor": sheet.colors["paper"], "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    for bound, marker, label in (
        (READ, "o", "bound by reading"),
        ("peak", "*", "bound by arithmetic"),
    ):
        own = [row for row in rows if row.bound == bound]
        if own:
            sheet.axes.scatter(
                [row.problem.flops() / row.problem.bytes() for row in own],
                [row.gflops() for row in own], color=sheet.colors["subject"], marker=marker,
                s=60 if marker == "o" else 130, zorder=3, label=label,
            )  # fmt: skip
    sheet.axes.set_xscale("log")
    sheet.axes.set_yscale("log")
    _plain_log(sheet.axes.xaxis)
    _plain_log(sheet.axes.yaxis)
    sheet.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    return sheet


def _levels(measured):
    """Return the levels of memory, with the bandwidth over all threads that were measured."""
    threads = max(each["threads"] for each in measured["bandwidth"])
    return [each for each in measured["bandwidth"] if each["level"] and each["threads"] == threads]


def _peaks(rows, measured):
    """Return {what: FLOP/s} of the arithmetic that the rows use or, with a matrix unit, can use."""
    threads = max(each["threads"] for each in measured["peaks"])
    own = {
        each["dtype"]: each["flops"]
        for each in measured["peaks"]
        if each["threads"] == threads and each["isa"] == measured["isa"]
    }
    used = dict.fromkeys([*(row.problem.arithmetic for row in rows), MATRIX])
    return {
        "matrix unit, bfloat16" if dtype == MATRIX else f"FMA, {dtype}": own[dtype]
        for dtype in used
        if dtype in own
    }


def ratios(rows, where, theme):
    """Bars: how many times faster than each library, on each problem."""
    names = [name for name in STYLES if any(name in row.peers for row in rows)]
    height = max(SIZE[1], 1.3 + 0.11 * len(rows) * (len(names) + 1))
    sheet = Sheet(theme, f"{rows[0].subject}: how many times faster", where,
                  "time of the library / time of ours; right of 1: we are faster", "",
                  (SIZE[0], height))  # fmt: skip
    thick = 0.8 / len(names)
    for index, name in enumerate(names):
        own = [(place, row.ratio(name)) for place, row in enumerate(rows) if name in row.peers]
        y = [place + (index - (len(names) - 1) / 2) * thick for place, _ in own]
        sheet.axes.barh(y, [ratio - 1 for _, ratio in own], thick * 0.9, left=1,
                        color=style(name, theme)[0], label=name)  # fmt: skip
    sheet.axes.axvline(1, color=sheet.colors["ink"], linewidth=1)
    sheet.axes.set_xscale("log")
    _plain_log(sheet.axes.xaxis)
    sheet.axes.set_yticks(range(len(rows)), [row.problem.name for row in rows])
    sheet.axes.set_ylim(len(rows) - 0.5, -0.5)
    sheet.axes.grid(False, axis="y")
    sheet.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return sheet


def curves(rows):
    """Return {name: rows} of problems that differ in nothing but their length, two at least."""
    groups = {}
    for row in rows:
        p = row.problem
        if p.packed or p.padded or p.mask != "none" or p.window >= 0 or p.Sq != p.Sk:
            continue
        groups.setdefault(_curve_name(p), {})[p.Sq] = row
    return {
        name: [group[length] for length in sorted(group)]
        for name, group in groups.items()
        if len(group) > 1
    }


def _curve_name(p):
    """Return what tells a problem from every other one but its lengths, as in a file name."""
    batch = f"{p.B}x" if p.B > 1 else ""
    words = ["causal"] if p.causal else []
    words += [f"{batch}{p.heads}x{p.depth}".translate(str.maketrans("/:", "--")), *_kinds(p)]
    return "-".join(words).replace(" ", "-")


def _kinds(p):
    """Return in words what is special beside the shape, the types first."""
    words = [p.dtype]
    words += [f"{p.kv_dtype} kv"] if p.kv_dtype != p.dtype else []
    words += [f"softcap {p.softcap:g}"] if p.softcap else []
    words += ["ALiBi"] if p.alibi else []
    return words + (["sinks"] if p.sinks else [])


def lengths(rows, where, theme):
    """Speed over the sequence length, a curve for each library."""
    p = rows[0].problem
    what = ["causal" if p.causal else "full", f"batch {p.B}", count_text(p.Hq, "head")]
    what += [f"{p.Hkv} of keys"] if p.Hkv != p.Hq else []
    subtitle = f"{', '.join([*what, f'depth {p.depth}', *_kinds(p)])}; {where}"
    sheet = Sheet(theme, "Speed over sequence length", subtitle, "tokens", "GFLOP/s")
    names = [*STYLES, rows[0].subject]
    for name in names:
        own = [row for row in rows if name in (row.subject, *row.peers)]
        if own:
            sheet.line(name, [row.problem.Sq for row in own], [row.gflops(name) for row in own])
    sheet.axes.set_xscale("log", base=2)
    powers(sheet.axes.xaxis, [row.problem.Sq for row in rows])
    sheet.axes.set_ylim(bottom=0)
    sheet.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return sheet


def draw(folder, rows, measured, sweeps, where):
    """Write every picture in both themes; return the paths.

    Parameters
    ----------
    folder : Path
    rows : list of Row
    measured : dict
        `limits.machine`, with the "isa" that was used.
    sweeps : dict
        `sweeps.run_all`.
    where : str
        CPU, threads and version: stands below every title.
    """
    paths = []
    for theme in THEMES:
        pictures = [
            *row_pictures(rows, measured, where, theme),
            *sweep_pictures(sweeps, where, theme),
        ]
        paths += [sheet.save(folder, name) for name, sheet in pictures]
    return paths
