# SPDX-License-Identifier: MIT
"""Measure every figure that the package is held to, and write the results down.

    python bench/report.py                       # everything; writes results and README
    python bench/report.py --only peak,masks     # some sections, printed only
    python bench/report.py --quick               # small sizes: does it run? printed only

Writes bench/results/<date>-<cpu>.json and .md and pictures beside them, and replaces what stands in
README.md between <!-- bench:begin --> and <!-- bench:end -->.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import figures
import machine
from arguments import refused_by
from figure import PEERS, installed

from fastattn import cli
from fastattn.measure import limits, peers, pictures, runner, sweeps, table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
SHOWN = {
    "length-8x128-float32": "Speed over sequence length, 8 heads of depth 128",
    "length-causal-8x128-float32": "The same, causal",
    "roofline": "Roofline: every problem under the limits of the machine",
}
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def measure(names, settings, found, rows, say):
    """Run the sections; add to a list of figures and to {section: rows} whenever one is done."""
    for name in names:
        begin = time.perf_counter()
        try:
            section_figures, section_rows = figures.SECTIONS[name](settings)
        except Exception as error:  # such as a wrong result; the other sections are worth having
            traceback.print_exc()
            failed = figures.Figure(f"section {name}", None, note=runner.reason(error))
            section_figures, section_rows = [failed], []
        found += section_figures
        if section_rows:
            rows[name] = section_rows
        say(f"{name}: {time.perf_counter() - begin:.0f} s")
        if section_rows:
            table.show(*table.cells(section_rows))
        table.show(figures.HEADINGS, [figure.cells() for figure in section_figures])
        print()


def as_markdown(known, measured, found, rows):
    """Return the whole report."""
    parts = [f"# {machine.heading(known)}", versions_line(rows)]
    parts += ["## Figures", table.markdown(figures.HEADINGS, [each.cells() for each in found])]
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


def every(rows):
    """Return the rows of all sections."""
    return [row for each in rows.values() for row in each]


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
            tags.append(
                f'<picture><source media="(prefers-color-scheme: dark)" srcset="{darks}">'
                f'<img alt="{text}" src="{lights}"></picture>'
            )
    return "\n".join(tags)


def readme_part(known, found, rows, paths=()):
    """Return what goes into README.md."""
    lines = [
        f"{machine.heading(known)}. Time is the median of interleaved repeats; the limit is, "
        "measured in the same rounds, a loop of multiply-adds in registers (FMA), of tiles in "
        "registers (matrix) or a plain read of the same K and V (read), whichever takes longer; "
        "`vs` is how many times faster than that library."
    ]
    lines += [tags] if (tags := shown(paths)) else []
    for name, each in rows.items():
        lines += [figures.SECTIONS[name].__doc__, table.markdown(*table.cells(each))]
    lines += [
        "\n".join(f"- {line}" for line in table.remarks(every(rows))),
        table.markdown(figures.HEADINGS, [figure.cells() for figure in found]),
        f"Versions: {versions_line(rows)}. Made by `python bench/report.py`.",
    ]
    return "\n\n".join(lines)


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


def write_data(ending, known, measured, found, rows):
    """Write the results as JSON; return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{known['date'][:10]}-{machine.slug(known['cpu'])}{ending}.json"
    data = {
        "machine": known,
        "limits": measured,
        "figures": [vars(figure) | {"reached": figure.reached} for figure in found],
        "rows": table.as_json(every(rows)),
    }
    path.write_text(json.dumps(data, indent=1, default=float) + "\n")
    return path


def write(known, measured, found, rows, settings):
    """Write the results and the README's table; return the paths that were written."""
    paths = [write_data("", known, measured, found, rows)]
    paths.append(paths[0].with_suffix(".md"))
    paths[1].write_text(as_markdown(known, measured, found, rows))
    paths += draw(RESULTS, known, measured, rows, settings)
    readme = ROOT / "README.md"
    try:
        text = replace_between(readme.read_text(), readme_part(known, found, rows, paths))
    except (OSError, ValueError) as error:
        print(f"README.md is left as it is: {error}", file=sys.stderr)
    else:
        readme.write_text(text)
        paths.append(readme)
    return paths


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
    return parser


def checked(options, say):
    """Return (names of sections, Settings); raise UsageError for what cannot be."""
    names = list(figures.SECTIONS) if options.only is None else options.only.split(",")
    if not set(names) <= set(figures.SECTIONS):
        expected = ",".join(figures.SECTIONS)
        raise cli.UsageError(f"--only: expected {expected}, got {options.only!r}")
    threads = cli.threads_of(options)
    default = 0.3 if options.quick else 4.0
    seconds = default if options.seconds is None else options.seconds
    cli.check_seconds(seconds)
    others = cli.peer_names(options.peers)
    try:
        peers.select(others, threads)
    except ValueError as error:
        raise cli.UsageError(error) from None
    others = None if others is None else tuple(others)
    return names, figures.Settings(threads, others, seconds, options.quick, Progress(say))


def main(arguments=None):
    """Measure, print, write; return 1 if a goal was missed."""
    parser = arguments_parser()
    options = parser.parse_args(arguments)

    def say(text):
        print(text, file=sys.stderr, flush=True)

    with refused_by(parser):
        names, settings = checked(options, say)
    known = machine.facts() | {"threads": settings.threads}
    print(machine.heading(known), "\n")
    whole = not options.quick and options.only is None
    found, rows = [], {}
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
    missed = [figure for figure in found if figure.reached is False]
    say(f"{len(found)} figures, {len(missed)} goals missed")
    return 1 if missed or any(row.failed for row in every(rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
