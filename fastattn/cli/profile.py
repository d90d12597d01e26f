# SPDX-License-Identifier: MIT
"""``profile``: where the time of one call goes, stage by stage, thread by thread."""

import json
from pathlib import Path

from fastattn.cli.arguments import (
    UsageError,
    check_isa,
    check_output,
    check_picture,
    file_errors,
    threads_of,
)
from fastattn.cli.bench import DTYPES, one_problem, problem_errors


def add(subparsers):
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "profile",
        help="where the time of one call goes; needs the instrumented build",
        description="Time the stages of one call in each thread: packing, QKᵀ, softmax, PV, "
        "merging, waiting. Needs a build with timestamps (FASTATTN_PROFILE=1 when it is built), "
        "which no ordinary build has.",
    )
    parser.add_argument("--shape", metavar="B,Hq,Hkv,Sq,Sk,D", required=True)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="(%(default)s)")
    parser.add_argument("--isa", help="instruction set to use instead of the best one")
    parser.add_argument("--threads", type=int, help="number of threads")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the seconds there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png",
        help="write the timeline there, and a dark one beside it as FILE-dark.png",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options):
    """Record, print, write; return 0."""
    import fastattn
    from fastattn.measure import peers, profile, table

    problem = one_problem(options.shape, options.dtype, options.causal)
    threads = threads_of(options)
    check_isa(options.isa)
    if options.json is not None:
        check_output(options.json)
    picture = options.plot and check_picture("--plot", options.plot)
    core = profile.library()
    if core is None:
        raise UsageError(f"this build has no timestamps; {profile.BUILD}")
    with problem_errors(options):
        call = peers.Fastattn(threads, options.isa).prepare(problem, problem.inputs()).call
        trace = profile.record(core, call, threads)
    isa = options.isa or fastattn.isa()
    title = f"{problem.label} {problem.dtype}, {isa}: {table.seconds_text(trace.seconds)}"
    table.show(*profile.cells(trace), title=title)
    if options.json is not None:
        with file_errors(options.json):
            options.json.write_text(json.dumps(profile.as_json(trace), indent=1) + "\n")
    if picture:
        _plot(picture, trace, title)
    return 0


def _plot(path, trace, title):
    from fastattn.measure import timeline

    dark = path.with_name(f"{path.stem}-dark{path.suffix}")
    for each, theme in ((path, "light"), (dark, "dark")):
        with file_errors(each):
            timeline.draw(each, trace, title, theme)
    print(f"timeline in {path} and {dark}")
