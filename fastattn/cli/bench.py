# SPDX-License-Identifier: MIT
"""``bench``: time and share of the machine's limits, side by side with what else is installed."""

import contextlib
import csv
import json
from pathlib import Path

from fastattn._check_dtypes import FLOATS, NARROW
from fastattn.cli import progress
from fastattn.cli.arguments import (
    UsageError,
    check_folder,
    check_isa,
    check_matplotlib,
    check_output,
    check_seconds,
    dtype_errors,
    file_errors,
    peer_names,
    threads_of,
)

# Those of measure.suites, which imports what no other subcommand needs.
SUITES = ("short", "prefill", "causal", "decode", "varlen", "masks", "small", "models", "all")
DTYPES = (*FLOATS, *NARROW)
DETAILED = 2  # so many problems have a line for each library without being asked


def add(subparsers):
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="speed against other libraries and against the limits of the machine",
        description="Time `attention` in interleaved rounds with the other libraries that are "
        "installed. Each result is compared with the oracle before it is timed. 'of limit' is the "
        "share of what the machine can do in the same run: a loop of multiply-adds in registers "
        "(FMA), of tiles in registers (matrix) or a plain read of the same K and V (read), "
        "whichever takes longer; 'vs' is how many times faster than that library. Exit code 1 if "
        "any result was wrong, or with --compare if anything became slower.",
    )
    parser.add_argument("--suite", choices=SUITES, default="short", help="problems (%(default)s)")
    parser.add_argument(
        "--shape", metavar="B,Hq,Hkv,Sq,Sk,D",
        help="this problem, full and, unless some query would have no key, causal",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32",
        help="of q, k and v; int8 and fp8: of k and v, beside float32 queries (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--isa", help="instruction set to use instead of the best one")
    parser.add_argument("--threads", type=int, help="of everything (default: what info says)")
    parser.add_argument(
        "--peers", metavar="NAMES",
        help="comma-separated; 'none'; default: all that are installed, but flex, which compiles "
        "for a minute per problem and has to be named",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=2.0, help="per problem (%(default)s)")
    parser.add_argument("--details", action="store_true", help="a line for each library")
    parser.add_argument("--limits", action="store_true", help="measure those of the machine, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a line for each library there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR",
        help="write pictures there; measures threads, masks and types for them, a minute more",
    )  # fmt: skip
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="with an earlier --json")
    parser.add_argument(
        "--fail-below", type=float, default=0.95, metavar="RATIO",
        help="slower is: speed now / then below this, by more than noise (%(default)s)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options):
    """Measure and print; return 0, or 1 if a result was wrong or anything became slower."""
    import fastattn
    from fastattn.measure import limits, table

    threads = _checked(options)
    chosen = _problems(options)
    machine = fastattn.config() | {"threads": threads, "isa": options.isa or fastattn.isa()}
    machine["meters"] = limits.METERS
    old = None if options.compare is None else _old(options.compare, machine, chosen)
    if options.limits or options.plot:
        machine |= limits.machine(threads)
    if options.limits:
        _show_limits(machine)
    rows, interrupted = _measure(options, chosen, threads)
    used = table.count_text(threads, "thread")
    title = f"bench: {options.dtype}, {machine['isa']}, {used}"
    if options.details or len(chosen) <= DETAILED:
        table.show(*table.details(rows))
        print()
    table.show(*table.cells(rows), title=title)
    print(*table.summary(rows), sep="\n")
    _write(options, rows, machine, title)
    if interrupted:
        raise KeyboardInterrupt
    wrong = any(row.failed for row in rows)
    if options.plot is not None:
        wrong |= _plot(options, rows, machine)
    slower = old is not None and _compare(old, rows, options.fail_below)
    return 1 if slower or wrong else 0


def _checked(options):
    """Return the number of threads; raise UsageError for what cannot be."""
    check_isa(options.isa)
    threads = threads_of(options)
    check_seconds(options.seconds)
    if not 0 < options.fail_below <= 1:
        raise UsageError(f"--fail-below: expected above 0 and at most 1, got {options.fail_below}")
    for path in (options.json, options.csv, options.markdown):
        if path is not None:
            check_output(path)
    if options.plot is not None:
        check_folder(options.plot)
        check_matplotlib("--plot")
    return threads


def _measure(options, chosen, threads):
    """Return (rows, whether the user interrupted); then the finished ones, if there are any."""
    from fastattn.measure import runner

    rows = []
    with progress.bar("bench") as update:
        measured = runner.measure_suite(
            chosen,
            threads=threads,
            isa=options.isa,
            peer_names=peer_names(options.peers),
            seconds=options.seconds,
            progress=lambda problem, fraction: update(fraction, problem.name),
        )
        try:
            with problem_errors(options):
                for row in measured:
                    rows.append(row)  # one by one: an interruption must not take the others along
        except KeyboardInterrupt:
            if not rows:
                raise
            return rows, True
        except ValueError as error:  # the name of a peer; what libraries raise is in the rows
            raise UsageError(f"--peers: {error}") from None
    return rows, False


@contextlib.contextmanager
def problem_errors(options):
    """Raise UsageError for a problem whose arrays there cannot be, in a ``with`` block."""
    try:
        with dtype_errors(options.dtype):
            yield
    except MemoryError as error:
        name = "suite" if options.shape is None else "shape"
        raise UsageError(
            f"--{name}: expected what fits into memory, got {getattr(options, name)}: {error}"
        ) from None


def _problems(options):
    """Return the problems that were asked for."""
    from fastattn.measure import suites

    if options.shape is None:
        return suites.suite(options.suite, options.dtype)
    full = one_problem(options.shape, options.dtype, False)
    # With more queries than keys the first rows would have no key, which everybody defines
    # differently: there is nothing to compare.
    if full.Sq == 1 or full.Sq > full.Sk:
        return [full]
    return [full, one_problem(options.shape, options.dtype, True)]


def one_problem(text, dtype, causal):
    """Return the problem of a shape in words of the command line.

    Raises
    ------
    UsageError
        The text is no shape, or there is no such problem.
    """
    from fastattn.measure import problems, suites

    names = ("B", "Hq", "Hkv", "Sq", "Sk", "D")
    try:
        sizes = dict(zip(names, map(int, text.split(",")), strict=True))
    except ValueError:
        raise UsageError(f"--shape: expected {','.join(names)}, got {text!r}") from None
    if min(sizes.values()) < 1:  # a Problem takes 0 for the default
        raise UsageError(f"--shape: expected sizes of at least 1, got {text}")
    try:
        return problems.Problem(**sizes, **suites.types(dtype), causal=causal)
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def _old(path, machine, chosen):
    """Return the rows of an earlier run on the same machine, of some of the same problems."""
    from fastattn.measure import compare, table

    try:
        with file_errors(path):
            data = json.loads(path.read_text())
        rows, there = data["rows"], dict(data["machine"])
        compare.busy(rows, rows)
        # What cannot be compared must show before the measurements.
        table.plain(*compare.cells(compare.changes(rows, rows)))
        known = compare.comparable(rows, chosen)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{path}: no figures of `bench --json`") from None
    if reason := compare.settings_differ(there, machine):
        raise UsageError(f"--compare: the runs do not compare: {reason}")
    if not known:
        raise UsageError(f"{path}: no samples of any problem that would be measured")
    return rows


def _compare(old, rows, fail_below):
    """Print what changed; return whether anything became slower."""
    from fastattn.measure import compare, table

    new = table.as_json(rows)
    found = compare.changes(old, new, fail_below)
    print()
    table.show(*compare.cells(found), title="against the earlier run")
    print(compare.summary(found, fail_below))
    if warning := compare.busy(old, new):
        print(warning)
    return compare.failed(found)


def _show_limits(measured):
    """Print the limits of the machine."""
    from fastattn.measure import table

    for title, cells in table.limits(measured).items():
        table.show(*cells, title=title)
        print()


def _plot(options, rows, machine):
    """Measure what only pictures show, draw everything, say where; return whether any failed."""
    from fastattn.measure import pictures, sweeps

    with progress.bar("pictures") as update:
        names, seconds = peer_names(options.peers), options.seconds / 2
        found, failures = sweeps.run_all(machine["threads"], names, seconds, options.isa, update)
    with file_errors(options.plot):
        options.plot.mkdir(parents=True, exist_ok=True)
        paths = pictures.draw(options.plot, rows, machine, found, pictures.where(machine))
    print(*failures, f"{len(paths)} pictures in {options.plot}", sep="\n")
    return bool(failures)


def _write(options, rows, machine, title):
    """Write the files that were asked for."""
    import fastattn
    from fastattn.measure import table

    if options.json is not None:
        data = {"machine": machine, "rows": table.as_json(rows)}
        with file_errors(options.json):
            options.json.write_text(json.dumps(data, indent=1) + "\n")
    if options.csv is not None:
        headings, lines = table.records(rows)
        with file_errors(options.csv), options.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([headings, *lines])
    if options.markdown is not None:
        lines = [f"**{title}**, {fastattn.config()['cpu']}", table.markdown(*table.cells(rows))]
        lines.append("\n".join(f"- {line}" for line in table.summary(rows)))
        with file_errors(options.markdown):
            options.markdown.write_text("\n\n".join(lines) + "\n")
