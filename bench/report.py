# SPDX-License-Identifier: MIT
"""Measure every figure that the package is held to, and write the results down.

    python bench/report.py                       # everything; writes results and README
    python bench/report.py --only peak,masks     # some sections, printed only
    python bench/report.py --quick               # small sizes: does it run? printed only
    python bench/report.py --from FILE.json      # the README of these results, nothing measured

Writes bench/results/<date>-<cpu>.json and .md and pictures beside them, and puts a summary into
README.md between <!-- bench:begin --> and <!-- bench:end -->.
"""

import argparse
import json
import sys
import textwrap
import time
import traceback
from pathlib import Path

import figures
import machine
from arguments import refused_by
from figure import PEERS, installed

from fastattn.cli import arguments as checks
from fastattn.measure import limits, peers, pictures, runner, sweeps, table, timing

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
SHOWN = {
    "length-8x128-float32": "Speed over sequence length, 8 heads of depth 128",
    "length-causal-8x128-float32": "The same, causal",
    "roofline": "Roofline: every problem under the limits of the machine",
}
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
COLUMNS = (
    "Time is the median of interleaved repeats; the limit is, measured in the same rounds, a loop "
    "of multiply-adds in registers (FMA), of tiles in registers (matrix) or a plain read of the "
    "same K and V (read), whichever takes longer; `vs` is how many times faster than that library."
)
SUMMARY = (
    "A ratio is how many times faster fastattn is than the fastest other library on the same "
    "problem (its best peer), the median of interleaved rounds: below 1 it is slower. Goals are "
    "those that the package is held to. Times, every other library by itself and all figures are "
    "in [{report}]({report}); [bench/README.md](bench/README.md) says what each one means."
)
# By the version of `limits.METERS`; files without one are of the first.
CAUTIONS = {
    1: "Caution: the limits of the machine in these results come from older meters, which timed "
    "calls from Python as well. Rates of reading less than about 1 MiB a thread came out too low, "
    "and shares of them too high.",
}


def measure(names, settings, found, rows, say):
    """Run the sections; add to {section: figures} and {section: rows} whenever one is done."""
    for name in names:
        begin = time.perf_counter()
        try:
            section_figures, section_rows = figures.SECTIONS[name](settings)
        except Exception as error:  # such as a wrong result; the other sections are worth having
            traceback.print_exc()
            failed = figures.Figure(f"section {name}", None, note=runner.reason(error))
            section_figures, section_rows = [failed], []
        found[name] = section_figures
        if section_rows:
            rows[name] = section_rows
        say(f"{name}: {time.perf_counter() - begin:.0f} s")
        if section_rows:
            table.show(*table.cells(section_rows))
        table.show(figures.HEADINGS, [figure.cells() for figure in section_figures])
        print()


def as_markdown(known, measured, found, rows):
    """Return the whole report."""
    parts = [f"# {machine.heading(known)}", versions_line(rows), "## Figures"]
    parts += [table.markdown(figures.HEADINGS, [each.cells() for each in every(found)])]
    parts += [COLUMNS] if rows else []
    for name, each in rows.items():
        parts += [f"## {name}", figures.SECTIONS[name].__doc__, table.markdown(*table.cells(each))]
        parts += ["\n".join(f"- {line}" for line in table.summary(each))]
    parts += ["## Limits"]
    for title, cells in table.limits(measured).items():
        parts += [title, table.markdown(*cells)]
    return "\n\n".join(part for part in parts if part) + "\n"


def versions_line(rows):
    """Return one line with the version of everything that was compared."""
    known = table.versions(every(rows))
    return ", ".join(f"{name} {version}" for name, version in known.items())


def every(sections):
    """Return the rows, or the figures, of all sections."""
    return [entry for each in sections.values() for entry in each]


def draw(folder, known, measured, rows, settings):
    """Measure what only pictures show, and draw everything; return the paths."""
    if not pictures.available():
        print("no pictures: matplotlib is not installed", file=sys.stderr)
        return []
    names = installed(PEERS) if settings.peers is None else settings.peers
    found, failures = sweeps.run_all(settings.threads, names, settings.seconds / 2)
    print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)
    known = known | measured
    return pictures.draw(folder, every(rows), known, found, pictures.where(known))


def shown(paths):
    """Return Markdown of the pictures that the README shows, light or dark as the reader likes."""
    tags = []
    for name, text in SHOWN.items():
        light, dark = (
            [path for path in paths if path.name == f"{name}-{theme}.png"]
            for theme in pictures.THEMES
        )
        if light and dark:
            lights, darks = (path[0].relative_to(ROOT).as_posix() for path in (light, dark))
            tags += [
                "<picture>",
                f'<source media="(prefers-color-scheme: dark)" srcset="{darks}">',
                f'<img alt="{text}" src="{lights}">',
                "</picture>",
            ]
    return "\n".join(tags)


def sections_table(found, rows):
    """Return (headings, lines): problems, ratios to the best peers and goals of each section."""
    headings = ["section", "problems", "with peers", "geomean", "smallest", "goals reached"]
    lines = []
    for name in found:
        section_rows = rows.get(name, [])
        ratios = [row.ratio() for row in section_rows if row.measured and row.peers]
        verdicts = [figure.reached for figure in found[name] if figure.reached is not None]
        what = " ".join(figures.SECTIONS[name].__doc__.split())
        line = [f"`{name}`: {what}"]
        line += [str(len(each)) if each else table.NOTHING for each in (section_rows, ratios)]
        for value in (timing.geomean, min):
            line.append(table.ratio_text(value(ratios)) if ratios else table.NOTHING)
        reached = f"{sum(verdicts)} of {len(verdicts)}" if verdicts else table.NOTHING
        lines += [[*line, reached]] if section_rows or found[name] else []
    return headings, lines


def goals_missed(found):
    """Return a line that counts them and, if there are any, a table of them, or nothing."""
    goals = [figure for figure in every(found) if figure.reached is not None]
    missed = [figure.cells()[:3] for figure in goals if not figure.reached]
    line = f"{len(missed)} of {table.count_text(len(goals), 'goal')} missed"
    return [f"{line}:", table.markdown(figures.HEADINGS[:3], missed)] if missed else [f"{line}."]


def wrapped(text, **indents):
    """Return a paragraph in lines that a reader of the source can read, too."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False, **indents)


def readme_part(known, found, rows, paths=()):
    """Return what goes into README.md: a summary of the report."""
    report = results_file(known, ".md").relative_to(ROOT).as_posix()
    parts = [wrapped(f"{machine.heading(known)}. {SUMMARY.format(report=report)}")]
    if known.get("meters", 1) in CAUTIONS:
        parts.append(wrapped(CAUTIONS[known.get("meters", 1)]))
    parts += [
        shown(paths),
        table.markdown(*sections_table(found, rows)),
        *goals_missed(found),
        "\n".join(
            wrapped(f"- {line}", subsequent_indent="  ") for line in table.remarks(every(rows))
        ),
        wrapped(f"Versions: {versions_line(rows)}. Made by `python bench/report.py`."),
    ]
    return "\n\n".join(part for part in parts if part)


def replace_between(text, part):
    """Return `text` with `part` between the markers.

    Raises
    ------
    ValueError
        The markers are missing or in the wrong order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def results_file(known, ending):
    """Return the path of the results of this machine and day."""
    return RESULTS / f"{known['date'][:10]}-{machine.slug(known['cpu'])}{ending}"


def write_data(ending, known, measured, found, rows):
    """Write the results as JSON; return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = results_file(known, f"{ending}.json")
    data = {
        "machine": known,
        "limits": measured,
        "figures": [
            vars(figure) | {"reached": figure.reached, "section": name}
            for name, each in found.items()
            for figure in each
        ],
        "rows": [
            row | {"section": name} for name, each in rows.items() for row in table.as_json(each)
        ],
    }
    path.write_text(json.dumps(data, indent=1, default=float) + "\n")
    return path


def read_data(path):
    """Return (machine, {section: figures}, {section: rows}) of results that were written.

    Raises
    ------
    UsageError
        There are none, or none of the sections of today.
    """
    found, rows = {}, {}
    try:
        with checks.file_errors(path):
            data = json.loads(path.read_text())
        for each in data["figures"]:
            fields = {name: each[name] for name in vars(figures.Figure("", None)) if name in each}
            found.setdefault(each["section"], []).append(figures.Figure(**fields))
        for each in data["rows"]:
            rows.setdefault(each["section"], []).append(table.from_json(each))
        if not found.keys() | rows.keys() <= figures.SECTIONS.keys():
            raise ValueError("unknown section")
        machine.heading(data["machine"])
    except (ValueError, TypeError, KeyError, AttributeError):
        raise checks.UsageError(f"{path}: no results of report.py, with their sections") from None
    return data["machine"], found, rows


def write(known, measured, found, rows, settings):
    """Write the results and the README's table; return the paths that were written."""
    paths = [write_data("", known, measured, found, rows)]
    paths.append(paths[0].with_suffix(".md"))
    paths[1].write_text(as_markdown(known, measured, found, rows))
    paths += draw(RESULTS, known, measured, rows, settings)
    return paths + write_readme(readme_part(known, found, rows, paths))


def write_readme(part):
    """Put a summary into the README; return [its path], or [] if that cannot be."""
    readme = ROOT / "README.md"
    try:
        text = replace_between(readme.read_text(encoding="utf-8"), part)
        readme.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"README.md is left as it is: {error}", file=sys.stderr)
        return []
    return [readme]


class Progress:
    """Says which problem is being measured, once for each."""

    def __init__(self, say):
        self.say, self.last = say, None

    def __call__(self, problem, part):
        if problem is not self.last:
            self.say(f"  {part:4.0%} {problem.label}")
            self.last = problem


def arguments_parser():
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(figures.SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    parser.add_argument("--threads", type=int, help="of everything (default: what info says)")
    parser.add_argument("--peers", metavar="NAMES", help="instead of those installed; or 'none'")
    parser.add_argument("--seconds", type=float, help="per problem (4; 0.3 if quick)")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE",
        help="put these results (.json) into the README, and measure nothing",
    )  # fmt: skip
    return parser


def checked(options, say):
    """Return (names of sections, Settings); raise UsageError for what cannot be."""
    names = list(figures.SECTIONS) if options.only is None else options.only.split(",")
    if not set(names) <= set(figures.SECTIONS):
        expected = ",".join(figures.SECTIONS)
        raise checks.UsageError(f"--only: expected {expected}, got {options.only!r}")
    threads = checks.threads_of(options)
    default = 0.3 if options.quick else 4.0
    seconds = default if options.seconds is None else options.seconds
    checks.check_seconds(seconds)
    others = checks.peer_names(options.peers)
    try:
        peers.select(others, threads)
    except ValueError as error:
        raise checks.UsageError(error) from None
    others = None if others is None else tuple(others)
    return names, figures.Settings(threads, others, seconds, options.quick, Progress(say))


def main(arguments=None):
    """Measure, print, write; return 1 if a goal was missed, or nothing could be written."""
    parser = arguments_parser()
    options = parser.parse_args(arguments)

    def say(text):
        print(text, file=sys.stderr, flush=True)

    with refused_by(parser):
        names, settings = checked(options, say)
        saved = read_data(options.source) if options.source else None
    if saved:
        paths = write_readme(readme_part(*saved, sorted(RESULTS.glob("*.png"))))
        return 0 if paths else 1
    known = machine.facts() | {"threads": settings.threads}
    print(machine.heading(known), "\n")
    whole = not options.quick and options.only is None
    found, rows = {}, {}
    try:
        measure(names, settings, found, rows, say)
        noise = max((row.noise for row in every(rows)), default=0.0)
        if noise > table.NOISY:
            say(f"noisy: a median holds to {noise:.0%} only; other work on this machine?")
        if whole:
            for path in write(known, limits.machine(settings.threads), found, rows, settings):
                say(f"wrote {path.relative_to(ROOT)}")
    except KeyboardInterrupt:
        if whole and found:  # beside earlier results, which are whole, and not into the README
            say(f"wrote {write_data('-interrupted', known, {}, found, rows)}")
        say("interrupted")
        return 130
    missed = [figure for figure in every(found) if figure.reached is False]
    say(f"{len(every(found))} figures, {len(missed)} goals missed")
    return 1 if missed or any(row.failed for row in every(rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
