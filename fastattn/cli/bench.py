# SPDX-License-Identifier: MIT
"""``bench``: time and share of the FMA peak, side by side with what else is installed."""

import json
from pathlib import Path

from fastattn.cli import UsageError, progress

SUITES = ("short", "prefill", "causal", "masks", "small", "all")


def add(subparsers):
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="speed against NumPy, torch, ONNX Runtime and OpenVINO, and against the FMA peak",
        description="Time `attention` in interleaved rounds with the other libraries that are "
        "installed. Each result is compared with the oracle before it is timed. 'of peak' is the "
        "share of what a register-only FMA loop reaches in the same run, 'vs' how many times "
        "faster than that library. Exit code 1 if any result was wrong.",
    )
    parser.add_argument("--suite", choices=SUITES, default="short", help="problems (%(default)s)")
    parser.add_argument("--shape", metavar="B,Hq,Hkv,Sq,Sk,D", help="this problem, full and causal")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--isa", help="instruction set to use instead of the best one")
    parser.add_argument("--threads", type=int, help="of everything (default: what info says)")
    parser.add_argument("--peers", metavar="NAMES", help="comma-separated; 'none'; default: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="per problem (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.set_defaults(run=run)


def run(options):
    """Measure and print; return 0, or 1 if a result was wrong."""
    import fastattn
    from fastattn.measure import runner, table

    if options.isa is not None and options.isa not in fastattn.isas():
        raise UsageError(f"--isa: expected one of {', '.join(fastattn.isas())}, got {options.isa}")
    threads = fastattn.get_num_threads() if options.threads is None else options.threads
    if threads < 1 or options.seconds <= 0:
        raise UsageError("--threads and --seconds must be positive")
    for path in (options.json, options.markdown):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: no such directory")
    chosen = _problems(options)
    with progress.bar("bench") as update:
        try:
            rows = runner.measure_suite(
                chosen,
                threads=threads,
                isa=options.isa,
                peer_names=_peer_names(options.peers),
                seconds=options.seconds,
                progress=lambda problem, fraction: update(fraction, problem.name),
            )
        except ValueError as error:  # the name of a peer; what libraries raise is in the rows
            raise UsageError(error) from None
    used = table.count_text(threads, "thread")
    title = f"bench: {options.dtype}, {options.isa or fastattn.isa()}, {used}"
    table.show(*table.cells(rows), title=title)
    print(*table.summary(rows), sep="\n")
    _write(options, rows, threads, title)
    return 1 if any(row.failed for row in rows) else 0


def _problems(options):
    """Return the problems that were asked for."""
    from fastattn.measure import problems

    if options.shape is None:
        return problems.suite(options.suite, options.dtype)
    names = ("B", "Hq", "Hkv", "Sq", "Sk", "D")
    words = options.shape.split(",")
    if len(words) != len(names) or not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"--shape: expected {','.join(names)}, got {options.shape!r}")
    sizes = dict(zip(names, map(int, words), strict=True))
    try:
        return [
            problems.Problem(**sizes, causal=causal, dtype=options.dtype)
            for causal in (False, True)
        ]
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def _peer_names(text):
    """Return the names in `text`; None for every one installed."""
    if text is None or text == "all":
        return None
    return [name for name in text.split(",") if name and name != "none"]


def _write(options, rows, threads, title):
    """Write the JSON and the Markdown file that were asked for."""
    import fastattn
    from fastattn.measure import table

    if options.json is not None:
        machine = fastattn.config() | {"threads": threads}
        data = {"machine": machine, "rows": table.as_json(rows)}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    if options.markdown is not None:
        lines = [f"**{title}**, {fastattn.config()['cpu']}", table.markdown(*table.cells(rows))]
        lines.append("\n".join(f"- {line}" for line in table.summary(rows)))
        options.markdown.write_text("\n\n".join(lines) + "\n")
