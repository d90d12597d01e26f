# SPDX-License-Identifier: MIT
"""Section of the report about the matrix unit: 16-bit types, and float32 in pieces of bfloat16."""

from figure import ERROR_SIZES, Figure, errors, measured_rows, share_of_peak
from figures_narrow import named

import fastattn
from fastattn import _kernels
from fastattn.measure import limits, peers, runner, suites, timing
from fastattn.measure.problems import Problem

PEERS = ("torch", "ort-attention", "openvino", "vllm")
# Share of the peak of the unit that bfloat16 must reach on AMX: (N, D).
SHARES = {(4096, 128): 0.33, (4096, 64): 0.25, (512, 128): 0.20, (512, 64): 0.20}
# Share of the FMA peak that "high" must reach; "highest" is in the section `peak`.
HIGH_SHARE = 1.6
# Pieces, and what the error at N = 2048 may be.
ERRORS = {"highest": (3, {"max": 2.5e-7, "rms": 2e-8}), "high": (2, {"max": 2e-6}),
          "medium": (1, {})}  # fmt: skip


def matrix(settings):
    """Products of bfloat16 by a unit made for them: share of its peak, error, peers."""
    if not _kernels.matrix_pieces(fastattn.isa()):
        return [], []
    figures, rows = [], []
    for part in (_shares, _floats, _errors, _against_peers, _small):
        part_figures, part_rows = part(settings)
        figures += part_figures
        rows += part_rows
    return figures, rows


def _has(pieces):
    """Whether numbers are multiplied in so many pieces: three on AMX, elsewhere one."""
    return pieces in _kernels.matrix_pieces(fastattn.isa())


def _shares(settings):
    """Share of the peak of the unit."""
    figures = []
    meter = limits.FmaPeak(fastattn.isa(), "bfloat16", settings.threads)
    for (length, depth), goal in SHARES.items():
        problem = named(Problem(Hq=suites.HEADS, Sq=settings.length(length), D=depth), "bfloat16")
        row = runner.measure(
            problem,
            [peers.Fastattn(settings.threads)],
            meters={runner.PEAK: meter},
            seconds=settings.seconds,
        )
        name = f"share of matrix peak {problem.name}"
        figures.append(share_of_peak(name, row, goal if _has(3) else None))
    return figures, []


def _floats(settings):
    """float32 in pieces: beside the FMA peak, and the medium one beside bfloat16."""
    figures = []
    meter = limits.FmaPeak(fastattn.isa(), "float32", settings.threads)
    for depth in (128, 64):
        problem = Problem(Hq=suites.HEADS, Sq=settings.length(4096), D=depth)
        if _has(2):
            subject = peers.Fastattn(settings.threads, precision="high")
            row = runner.measure(
                problem, [subject], meters={runner.PEAK: meter}, seconds=settings.seconds
            )
            name = f"share of FMA peak {problem.label} high"
            figures.append(share_of_peak(name, row, HIGH_SHARE))
        time = _medium(problem, settings)
        figures.append(Figure(f"medium / bfloat16 {problem.label}", time, at_most=1.25))
    return figures, []


def _medium(problem, settings):
    narrow = named(problem, "bfloat16")
    medium = peers.Fastattn(settings.threads, precision="medium")
    plain = peers.Fastattn(settings.threads)
    calls = {
        "medium": medium.prepare(problem, problem.inputs()).call,
        "bfloat16": plain.prepare(narrow, narrow.inputs()).call,
    }
    return 1 / timing.interleave(calls, seconds=settings.seconds).ratio("medium", "bfloat16")


def _errors(settings):
    """Error of each precision of float32 against the oracle, standard normal input; torch's too."""
    figures, heads = [], 2
    there = [precision for precision, (pieces, _) in ERRORS.items() if _has(pieces)]
    subjects = [peers.Fastattn(settings.threads, precision=precision) for precision in there]
    goals = {own.name: ERRORS[own.precision][1] for own in subjects}
    for depth in (64, 128):
        problem = Problem(Hq=heads, Sq=settings.length(2048), D=depth)
        for name, sizes in errors(problem, settings, subjects).items():
            for (kind, unit), size in zip(ERROR_SIZES.items(), sizes, strict=True):
                label = f"error {problem.label} {name} {kind}"
                figures.append(Figure(label, size, unit, goals.get(name, {}).get(kind)))
    return figures, []


# Pieces, geometric mean and smallest ratio to the best peer.
GOALS = {"bfloat16": (1, 1.5, 1.1), "float16": (2, 3.0, None), "float32": (3, 1.6, None)}


def _against_peers(settings):
    """Full and causal prefill of every type against the best peer of each shape."""
    figures, rows = [], []
    lengths = (512,) if settings.quick else (512, 1024, 2048, 4096)
    for dtype, (pieces, mean, least) in GOALS.items():
        if not _has(pieces):
            continue
        chosen = [
            named(Problem(Hq=suites.HEADS, Sq=length, D=depth, causal=causal), dtype)
            for length in lengths
            for depth in suites.DEPTHS
            for causal in (False, True)
        ]
        group = measured_rows(settings, chosen, PEERS)
        rows += group
        ratios = [row.ratio() for row in group if row.measured and row.peers]
        if ratios:
            name = f"prefill {dtype} against the best peer"
            figures.append(Figure(f"{name}, geomean", timing.geomean(ratios), at_least=mean))
            figures.append(Figure(f"{name}, smallest", min(ratios), at_least=least))
    return figures, rows


def _small(settings):
    """Batches of short sequences."""
    chosen = [
        named(Problem(B=32, Hq=12, Sq=128, D=32), "bfloat16"),
        named(Problem(B=64, Hq=12, Sq=64, D=64), "bfloat16"),
    ]
    rows = measured_rows(settings, chosen, ("torch",))
    figures = [
        Figure(f"{row.problem.name} against torch", row.ratio(), at_least=1.5)
        for row in rows
        if row.measured and row.peers
    ]
    return figures, rows
