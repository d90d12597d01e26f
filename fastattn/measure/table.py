# SPDX-License-Identifier: MIT
"""Rows as a text table, as Markdown and as JSON.

A table is first plain data, a list of headings and lists of cells, so that every form shows the
same figures.
"""

import importlib.util
import math
import sys

from fastattn.measure.timing import geomean

FAILED = "wrong"
NOTHING = "-"
NOISY = 0.05  # ratios of medians that hold to less are not worth quoting


def seconds_text(seconds):
    """Three digits with a unit: 4.21 us, 35.0 ms, 1.20 s."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value):
    """Write with three significant digits and no exponent."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:.0f}" if value == 0 else str(value)
    rounded = float(f"{value:.2e}")  # or 0.9997 would have the digits of a number below 1
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(rounded)))}f}"


def ratio_text(ratio):
    """A ratio with two digits behind the point."""
    return f"{ratio:.2f}x" if ratio < 99.5 else f"{ratio:.0f}x"


def count_text(number, noun):
    """A number with its noun, in the plural where that is due."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def peer_names(rows):
    """Return the names of all peers that appear, in the order of the first row."""
    return list(dict.fromkeys(name for row in rows for name in list(row.entries)[1:]))


def cells(rows):
    """Return (headings, lines) for `rows`.

    Times are medians, errors are relative to max|v|; a column of a peer says how many times faster
    the subject is.
    """
    names = peer_names(rows)
    headings = ["problem", "time", "+-", "GFLOP/s", "of peak", "error"]
    headings += [f"vs {name}" for name in names]
    return headings, [_line(row, names) for row in rows]


def _line(row, names):
    subject = row.entries[row.subject]
    line = [row.problem.name]
    if row.measured:
        share = row.share()
        line += [
            seconds_text(subject.timing.median),
            f"{subject.timing.noise:.1%}",
            _three_digits(row.gflops()),
            NOTHING if share is None else f"{share:.0%}",
            f"{subject.error:.1e}",
        ]
    else:
        line += [FAILED if subject.failed else NOTHING] + [NOTHING] * 4
    for name in names:
        entry = row.entries.get(name)
        if entry is not None and entry.failed:
            line.append(FAILED)
        elif entry is None or entry.timing is None or not row.measured:
            line.append(NOTHING)
        else:
            line.append(ratio_text(row.ratio(name)))
    return line


def summary(rows):
    """Return lines about all rows together: `geomeans`, then `remarks`."""
    return geomeans(rows) + remarks(rows)


def geomeans(rows):
    """Return lines with the geometric mean and the smallest ratio to the best peer per problem."""
    lines = []
    compared = [row for row in rows if row.measured and row.peers]
    groups = {
        "full": [row for row in compared if not row.problem.causal],
        "causal": [row for row in compared if row.problem.causal],
    }
    for name, group in groups.items():
        if group:
            ratios = [row.ratio() for row in group]
            lines.append(
                f"{name}: {ratio_text(geomean(ratios))} the best peer per problem "
                f"(geometric mean of {len(group)}, at least {ratio_text(min(ratios))})"
            )
    return lines


def remarks(rows):
    """Return lines about the noise and about every wrong result."""
    lines = []
    timed = [row for row in rows if row.run is not None]
    if timed:
        noise = max(row.run.noise for row in timed)
        advice = "" if noise <= NOISY else "; too much to conclude from, is the machine busy?"
        lines.append(f"noise: medians hold to {noise:.1%} at worst (95 %){advice}")
    for row in rows:
        for entry in row.entries.values():
            if entry.failed:
                lines.append(f"{row.problem.name}: {entry.name}: {entry.note}")
    return lines


def versions(rows):
    """Return {name: version} of everything in `rows`."""
    return {
        name: entry.version
        for row in rows
        for name, entry in row.entries.items()
    }  # fmt: skip


def plain(headings, lines):
    """Return a text table with aligned columns, for a terminal without rich."""
    table = [headings, *lines]
    widths = [max(len(line[i]) for line in table) for i in range(len(headings))]

    def aligned(line):
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([aligned(headings), rule, *map(aligned, lines)])


def markdown(headings, lines):
    """Return a Markdown table, numbers to the right."""
    rule = [":---"] + ["---:"] * (len(headings) - 1)
    table = [headings, rule, *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def show(headings, lines, title=None):
    """Print a table: with rich in a terminal, as aligned text otherwise."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        print("\n".join([*([title] if title else []), plain(headings, lines)]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def as_json(rows):
    """Return the rows as data for `json.dump`: every sample's summary, nothing rounded."""
    return [_row_json(row) for row in rows]


def _row_json(row):
    problem = row.problem
    fields = ("name", "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "causal", "mask", "padded", "dtype")
    data = {field: getattr(problem, field) for field in fields}
    data["flops"] = problem.flops()
    data["subject"] = row.subject
    data["share_of_peak"] = row.share() if row.measured else None
    data["ratios"] = {name: row.ratio(name) for name in row.peers} if row.measured else {}
    data["best_peer"] = row.best_peer
    data["entries"] = {name: _entry_json(row, entry) for name, entry in row.entries.items()}
    if row.run is not None:
        data["rates"] = {name: list(map(float, rate)) for name, rate in row.run.rates.items()}
    return data


def _entry_json(row, entry):
    data = {"version": entry.version, "error": entry.error}
    if entry.note:
        data |= {"note": entry.note, "failed": entry.failed}
    if entry.timing is not None:
        first, third = entry.timing.quartiles
        data |= {
            "seconds": entry.timing.median,
            "quartiles": [first, third],
            "noise": entry.timing.noise,
            "outliers": entry.timing.outliers,
            "rounds": len(entry.timing.samples),
            "calls_per_sample": entry.timing.calls,
            "gflops": row.gflops(entry.name),
        }
    return data
