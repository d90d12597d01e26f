# SPDX-License-Identifier: MIT
"""Rows as a text table, as Markdown and as JSON.

A table is first plain data, a list of headings and lists of cells, so that every form shows the
same figures.
"""

import dataclasses
import importlib.util
import math
import sys

import numpy as np

from fastattn.measure.problems import Problem
from fastattn.measure.runner import READ, Entry, Row
from fastattn.measure.timing import Run, Timing, geomean

FAILED = "wrong"
NOTHING = "-"
NOISY = 0.05  # ratios of medians that hold to less are not worth quoting
BUSY = 0.05  # nor are those beside other processes that take more of the CPUs


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
    the subject is. The limit is multiply-adds in registers (FMA), products of tiles in registers
    (matrix) or a plain read of K and V (read).
    """
    names = [name for name in peer_names(rows) if any(_known(row, name) for row in rows)]
    headings = ["problem", "time", "+-", "speed", "of limit", "error"]
    headings += [f"vs {name}" for name in names]
    return headings, [_line(row, names) for row in rows]


def _known(row, name):
    """Whether there is anything to say about a peer."""
    entry = row.entries.get(name)
    return entry is not None and (entry.failed or entry.timing is not None)


def limit_text(row, name=None):
    """Share of the limit that applies, and which it is."""
    share = row.share(name)
    return NOTHING if share is None else f"{share:.0%} {_limit_name(row)}"


def _limit_name(row):
    return READ if row.bound == READ else row.arithmetic


def speed_text(row, name=None):
    """Bytes per second where reading is the limit, operations per second elsewhere."""
    if row.bound == READ:
        return f"{_three_digits(row.bandwidth(name))} GB/s"
    return f"{_three_digits(row.gflops(name))} GFLOP/s"


def _line(row, names):
    subject = row.entries[row.subject]
    line = [row.problem.name]
    if row.measured:
        line += [
            seconds_text(subject.timing.median),
            f"{subject.timing.noise:.1%}",
            speed_text(row),
            limit_text(row),
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


def details(rows):
    """Return (headings, lines) with a line for each library on each problem."""
    headings = [
        "problem", "library", "time", "quartiles", "+-", "outliers", "speed", "of limit", "error",
    ]  # fmt: skip
    lines = []
    for row in rows:
        for name, entry in row.entries.items():
            line = [row.problem.name, name]
            if entry.timing is None:
                what = f"{FAILED}: {entry.note}" if entry.failed else entry.note
                lines.append([*line, what, *[NOTHING] * 6])
                continue
            timing = entry.timing
            lines.append([
                *line,
                seconds_text(timing.median),
                " ... ".join(map(seconds_text, timing.quartiles)),
                f"{timing.noise:.1%}",
                f"{timing.outliers} of {len(timing.samples)}",
                speed_text(row, name),
                limit_text(row, name),
                f"{entry.error:.1e}",
            ])  # fmt: skip
    return headings, lines


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
    """Return lines about the noise, every wrong result, and peers that have no figure at all."""
    lines = []
    timed = [row for row in rows if row.run is not None]
    if timed:
        noise = max(row.run.noise for row in timed)
        lines.append(f"noise: medians hold to {noise:.1%} at worst (95 %)")
        if noisy := [row.problem.name for row in timed if row.noise > NOISY]:
            lines.append(
                f"too noisy to promise {NOISY:.0%} on ratios, measure longer or on a quiet "
                f"machine: {len(noisy)} of {len(timed)}: {', '.join(noisy[:4])}"
                f"{', ...' if len(noisy) > 4 else ''}"
            )
        most = max(row.run.others or 0.0 for row in timed)
        if most > BUSY:
            lines.append(
                f"other processes took up to {most:.0%} of the CPUs: another day the figures will "
                "be others, whatever the noise within this run"
            )
        outliers = sum(t.outliers for row in timed for t in row.run.timings.values())
        samples = sum(len(t.samples) for row in timed for t in row.run.timings.values())
        lines.append(f"outliers: {outliers} of {samples} samples (beyond 1.5 quartile ranges)")
    return lines + failures(rows) + absences(rows)


def failures(rows):
    """Return a line about every result that was wrong, or raised."""
    return [
        f"{row.problem.name}: {entry.name}: {entry.note}"
        for row in rows
        for entry in row.entries.values()
        if entry.failed
    ]


def absences(rows):
    """Return a line about every peer that was left out of all rows, and why: it has no column."""
    lines = []
    for name in peer_names(rows):
        if not any(_known(row, name) for row in rows):
            reasons = dict.fromkeys(row.entries[name].note for row in rows if name in row.entries)
            lines.append(f"{name}: no figures: {', '.join(reasons)}")
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
    """Print a table: with rich in a terminal that is wide enough, as aligned text otherwise."""
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None: the process began without it
    if terminal and importlib.util.find_spec("rich") is not None:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left", title_style="bold")
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
        for line in lines:
            table.add_row(*line)
        console = Console(markup=False, emoji=False)  # what libraries say may have brackets
        unlimited = console.options.update(width=10**6)
        if console.measure(table, options=unlimited).maximum <= console.width:
            console.print(table)
            return  # in a narrower one rich would cut figures off
    print("\n".join([*([title] if title else []), plain(headings, lines)]))


def as_json(rows):
    """Return the rows as data for `json.dump`: every sample's summary, nothing rounded."""
    return [_row_json(row) for row in rows]


def _row_json(row):
    problem = row.problem
    data = dataclasses.asdict(problem)
    data |= {"flops": problem.flops(), "bytes": problem.bytes(), "subject": row.subject}
    data |= {"bound": row.bound, "arithmetic": row.arithmetic}
    data["share"] = row.share() if row.measured else None
    data["ratios"] = {name: row.ratio(name) for name in row.peers} if row.measured else {}
    data["best_peer"] = row.best_peer
    data["entries"] = {name: _entry_json(row, entry) for name, entry in row.entries.items()}
    if row.run is not None:
        data["others"] = row.run.others
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
            "samples": list(map(float, entry.timing.samples)),
            "quartiles": [first, third],
            "noise": entry.timing.noise,
            "outliers": entry.timing.outliers,
            "rounds": len(entry.timing.samples),
            "calls_per_sample": entry.timing.calls,
            "gflops": row.gflops(entry.name),
            "gigabytes": row.bandwidth(entry.name),
            "share": row.share(entry.name),
        }
    return data


def from_json(data):
    """Return the `Row` that `as_json` made this of; of older files its limit is called FMA."""
    fields = dataclasses.fields(Problem)
    shape = {each.name: data.get(each.name, each.default) for each in fields}
    shape["packed"] = tuple(map(tuple, shape["packed"]))
    entries = {name: _entry_from_json(name, each) for name, each in data["entries"].items()}
    timings = {name: entry.timing for name, entry in entries.items() if entry.timing is not None}
    row = Row(Problem(**shape), entries, arithmetic=data.get("arithmetic", "FMA"))
    if timings:
        rates = {name: np.array(rate) for name, rate in data["rates"].items()}
        row.run = Run(timings, rates, data["others"])
    return row


def _entry_from_json(name, data):
    timing = None
    if "samples" in data:
        timing = Timing(np.array(data["samples"]), data["calls_per_sample"])
    note, failed = data.get("note", ""), data.get("failed", False)
    return Entry(name, data["version"], data["error"], timing, note, failed)


def records(rows):
    """Return (headings, lines) for CSV, a line for each library on each problem."""
    headings = ["problem", "dtype", "kv_dtype", "library", "version", "seconds", "first_quartile",
                "third_quartile", "noise", "outliers", "rounds", "gflops", "gigabytes", "bound",
                "share", "error", "note"]  # fmt: skip
    lines = []
    for row in rows:
        for name, entry in row.entries.items():
            data = _entry_json(row, entry)
            first, third = data.get("quartiles", (None, None))
            data |= {
                "problem": row.problem.name, "dtype": row.problem.dtype,
                "kv_dtype": row.problem.kv_dtype, "library": name, "bound": row.bound,
                "first_quartile": first, "third_quartile": third,
            }  # fmt: skip
            lines.append([data.get(heading) for heading in headings])
    return headings, lines


def limits(measured):
    """Return {title: (headings, lines)} of what `limits.machine` found."""
    peaks = [
        [each["isa"], each["dtype"], str(each["threads"]), f"{each['flops'] / 1e9:.1f}"]
        for each in measured["peaks"]
    ]
    reads = [
        [
            f"{each['bytes'] / 2**20:.3g}",
            each["level"],
            str(each["threads"]),
            f"{each['rate'] / 1e9:.1f}",
        ]
        for each in sorted(measured["bandwidth"], key=lambda each: (each["threads"], each["bytes"]))
    ]
    exponentials = [
        [each["isa"], each["dtype"], f"{each['rate'] / 1e9:.2f}"]
        for each in measured["exponentials"]
    ]
    return {
        "FMA peak": (["ISA", "type", "threads", "GFLOP/s"], peaks),
        "Read bandwidth": (["MiB per thread", "lives in", "threads", "GB/s"], reads),
        "Exponentials of one thread": (["ISA", "type", "10^9 per second"], exponentials),
    }
