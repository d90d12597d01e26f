# SPDX-License-Identifier: MIT
"""The figures that the package is held to, each measured here and compared with its goal.

A section is a function of `Settings` that returns figures and rows; `SECTIONS` lists them.
"""

import figures_decode
import figures_matrix
import figures_narrow
import figures_options
import figures_shapes
import memory
import numpy as np
from figure import (
    ERROR_SIZES,
    HEADINGS,
    Figure,
    Settings,
    beside,
    errors,
    measured_rows,
    relative_times,
    share_of_peak,
)

import fastattn
from fastattn import _kernels
from fastattn.measure import limits, peers, problems, runner, suites, timing


def accuracy(settings):
    """Float32 error against the oracle, standard normal input; the same for torch."""
    length = settings.length(2048)
    figures = []
    subjects = [peers.Fastattn(settings.threads, isa) for isa in _float32_isas()]
    for depth in suites.DEPTHS:
        problem = problems.Problem(Hq=suites.HEADS, Sq=length, D=depth)
        for name, sizes in errors(problem, settings, subjects).items():
            goals = {"max": 4e-7, "rms": 2e-8} if name.startswith("fastattn") else {}
            for (kind, unit), size in zip(ERROR_SIZES.items(), sizes, strict=True):
                label = f"error N={length} D={depth} {name} {kind}"
                figures.append(Figure(label, size, unit, goals.get(kind)))
    return figures, []


def _float32_isas():
    """Instruction sets but those whose unit for bfloat16 leaves float32 to the one below."""
    pieces = {isa: _kernels.matrix_pieces(isa) for isa in fastattn.isas()}
    return [isa for isa in pieces if not pieces[isa] or 3 in pieces[isa]]


# Share of the FMA peak that each ISA must reach at N = 4096, by depth.
PEAK_GOALS = {
    "amx": {128: 1.25, 64: 1.0},  # in pieces of bfloat16
    "avx512": {128: 0.85, 64: 0.80},
    "avx2": {128: 0.78, 64: 0.70},
}


def peak(settings):
    """Share of the FMA peak of the same ISA, for every ISA but scalar."""
    length, figures = settings.length(4096), []
    for isa in [name for name in _float32_isas() if name != "scalar"]:
        meter = limits.FmaPeak(isa, "float32", settings.threads)
        for depth in (128, 64):
            problem = problems.Problem(Hq=suites.HEADS, Sq=length, D=depth)
            subject = peers.Fastattn(settings.threads, isa)
            row = runner.measure(
                problem, [subject], meters={runner.PEAK: meter}, seconds=settings.seconds
            )
            goal = PEAK_GOALS.get(isa, {}).get(depth)
            name = f"share of FMA peak N={length} D={depth} {isa}"
            figures.append(share_of_peak(name, row, goal))
    return figures, []


def causal(settings):
    """Time of the causal problem relative to the full one."""
    length, figures = settings.length(2048), []
    for depth in suites.DEPTHS:
        full = problems.Problem(Hq=suites.HEADS, Sq=length, D=depth)
        half = problems.Problem(Hq=suites.HEADS, Sq=length, D=depth, causal=True)
        [time] = relative_times(full, [half], settings).values()
        figures.append(Figure(f"causal / full N={length} D={depth}", time, at_most=0.56))
    return figures, []


MASK_GOALS = {"blocks": 0.62, "random": 1.15, "float": 1.15}


def masks(settings):
    """Time with each kind of mask relative to none."""
    figures = []
    for length in sorted({settings.length(2048), settings.length(4096)}):
        base, *masked = suites.masks(length)[:-1]
        times = relative_times(base, masked, settings)
        figures += [
            Figure(
                f"mask {problem.mask} / none N={length} D={problem.D}",
                times[problem],
                at_most=MASK_GOALS[problem.mask],
            )
            for problem in masked
        ]
    return figures, []


def small(settings):
    """The tiny call and the MiniLM-like batches, with every peer."""
    rows = measured_rows(settings, suites.small())
    figures = []
    for row, goal in zip(rows, (2.0, 1.5, None), strict=True):
        if not row.measured:
            continue
        name, seconds = row.problem.name, row.entries[row.subject].timing.median
        if row.problem.name == suites.TINY.name:
            figures.append(Figure(f"{name} time", seconds * 1e6, "us", at_most=8.0))
        if row.peers:
            label = f"{name} against the best peer ({row.best_peer})"
            figures.append(Figure(label, row.ratio(), at_least=goal))
    return figures, rows


def prefill(settings):
    """Full and causal prefill against the best peer of each shape; heads side by side."""
    lengths = (256, 512) if settings.quick else suites.LENGTHS
    figures, rows = [], []
    for name, is_causal, goal in (("full", False, 1.3), ("causal", True, 1.5)):
        group = measured_rows(settings, suites.prefill(is_causal, lengths))
        rows += group
        ratios = [row.ratio() for row in group if row.measured and row.peers]
        if ratios:
            mean = timing.geomean(ratios)
            figures += [
                Figure(f"prefill {name}, geomean against the best peer", mean, at_least=goal),
                Figure(f"prefill {name}, smallest ratio", min(ratios), at_least=1.0),
            ]
    return [*figures, _beside(settings)], rows


def _beside(settings):
    """Time with the heads of a token side by side in memory relative to heads apart."""
    length = settings.length(2048)
    inputs = problems.Problem(Hq=suites.HEADS, Sq=length, D=128).inputs()
    apart = inputs.q, inputs.k, inputs.v
    calls = {
        name: lambda tensors=tensors: fastattn.attention(*tensors, num_threads=settings.threads)
        for name, tensors in (("apart", apart), ("beside", [beside(each) for each in apart]))
    }
    np.testing.assert_array_equal(calls["beside"](), calls["apart"]())
    run = timing.interleave(calls, seconds=settings.seconds)
    name = f"prefill N={length} D=128, heads side by side / apart"
    return Figure(name, 1 / run.ratio("beside", "apart"))


def lean(settings):
    """Peak memory above the arrays of a long causal call."""
    keys = settings.length(65536, 8192)
    figures = []
    for mask in (False, True):
        used = memory.in_subprocess(keys, mask=mask, threads=settings.threads)
        name = f"memory above the arrays N={keys} causal{' with a (1, Sk) mask' if mask else ''}"
        figures.append(Figure(name, used["bytes"] / 2**20, "MiB", at_most=64.0))
    return figures, []


__all__ = ["HEADINGS", "SECTIONS", "Figure", "Settings"]

SECTIONS = {
    "accuracy": accuracy,
    "peak": peak,
    "causal": causal,
    "masks": masks,
    "small": small,
    "prefill": prefill,
    "decode": figures_decode.decode,
    "caches": figures_decode.caches,
    "narrow": figures_narrow.narrow,
    "matrix": figures_matrix.matrix,
    "shapes": figures_shapes.shapes,
    "options": figures_options.options,
    "lean": lean,
}
