# SPDX-License-Identifier: MIT
"""The figures that the package is held to, each measured here and compared with its goal.

A section is a function of `Settings` that returns figures and rows; `SECTIONS` lists them.
"""

import dataclasses

import memory
import numpy as np

import fastattn
from fastattn import reference
from fastattn.measure import checking, limits, peers, problems, runner, suites, timing


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to measure: threads, names of peers (None: all), seconds per problem, small sizes."""

    threads: int
    peers: tuple | None = None
    seconds: float = 4.0
    quick: bool = False
    progress: object = None

    def length(self, full, quick=512):
        """Return a sequence length, a small one for a trial."""
        return quick if self.quick else full


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes
    ----------
    name : str
    value : float
    unit : str
        "" is a ratio, "%" a share (1 is 100 %), "us", "MiB", or "error".
    at_most, at_least : float or None
        The goal. None is no goal: the figure is there to compare with.
    """

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def reached(self):
        """Whether the goal is reached; None without a goal."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    def text(self, value):
        """Return a value in the unit of this figure."""
        forms = {"%": "{:.1%}", "us": "{:.2f} us", "MiB": "{:.1f} MiB", "error": "{:.2e}"}
        return forms.get(self.unit, "{:.3f}").format(value)

    def cells(self):
        """Return name, value, goal and verdict as text."""
        goal = verdict = ""
        if self.reached is not None:
            bound = self.at_most if self.at_most is not None else self.at_least
            goal = f"{'<=' if self.at_most is not None else '>='} {self.text(bound)}"
            verdict = "yes" if self.reached else "NO"
        return [self.name, self.text(self.value), goal, verdict]


HEADINGS = ["figure", "measured", "goal", "reached"]


def accuracy(settings):
    """Float32 error against the oracle, standard normal input; the same for torch."""
    length = settings.length(2048)
    figures = []
    for depth in suites.DEPTHS:
        problem = problems.Problem(Hq=suites.HEADS, Sq=length, D=depth)
        inputs = problem.inputs()
        expected = np.stack(
            [
                reference.attention(*head)
                for head in zip(inputs.q[0], inputs.k[0], inputs.v[0], strict=True)
            ]
        )
        subjects = [peers.Fastattn(settings.threads, isa) for isa in fastattn.isas()]
        if peers.classes()["torch"].available():
            subjects += peers.select(["torch"], settings.threads)
        for subject in subjects:
            prepared = subject.prepare(problem, inputs)
            error = prepared.array(prepared.call())[0].astype(np.float64) - expected
            ours = isinstance(subject, peers.Fastattn)
            label = f"error N={length} D={depth} {subject.name}"
            figures += [
                Figure(f"{label} max", np.abs(error).max(), "error", 4e-7 if ours else None),
                Figure(f"{label} rms", np.sqrt((error**2).mean()), "error", 2e-8 if ours else None),
            ]
    return figures, []


# Share of the FMA peak that each ISA must reach at N = 4096, by depth.
PEAK_GOALS = {"avx512": {128: 0.85, 64: 0.80}, "avx2": {128: 0.78, 64: 0.70}}


def peak(settings):
    """Share of the FMA peak of the same ISA, for every ISA but scalar."""
    length, figures = settings.length(4096), []
    for isa in [name for name in fastattn.isas() if name != "scalar"]:
        meter = limits.FmaPeak(isa, "float32", settings.threads)
        for depth in (128, 64):
            problem = problems.Problem(Hq=suites.HEADS, Sq=length, D=depth)
            subject = peers.Fastattn(settings.threads, isa)
            row = runner.measure(problem, [subject], peak=meter, seconds=settings.seconds)
            goal = PEAK_GOALS.get(isa, {}).get(depth)
            name = f"share of FMA peak N={length} D={depth} {isa}"
            figures.append(Figure(name, row.share(), "%", at_least=goal))
    return figures, []


def relative_times(base, others, settings):
    """Return {label: time relative to `base`}, all interleaved in one run, each checked."""
    subject = peers.Fastattn(settings.threads)
    calls = {}
    for problem in (base, *others):
        inputs = problem.inputs()
        prepared = subject.prepare(problem, inputs)
        checking.check(prepared, problem, inputs)
        calls[problem.label] = prepared.call
    run = timing.interleave(calls, seconds=settings.seconds)
    return {problem.label: 1 / run.ratio(problem.label, base.label) for problem in others}


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
                times[problem.label],
                at_most=MASK_GOALS[problem.mask],
            )
            for problem in masked
        ]
    return figures, []


def _rows(settings, chosen):
    return runner.measure_suite(
        chosen,
        threads=settings.threads,
        peer_names=settings.peers,
        seconds=settings.seconds,
        progress=settings.progress,
    )


def small(settings):
    """The tiny call and the MiniLM-like batches, with every peer."""
    rows = _rows(settings, suites.small())
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
    """Full and causal prefill against the best peer of each shape."""
    lengths = (256, 512) if settings.quick else suites.LENGTHS
    figures, rows = [], []
    for name, is_causal, goal in (("full", False, 1.3), ("causal", True, 1.5)):
        group = _rows(settings, suites.prefill(is_causal, lengths))
        rows += group
        ratios = [row.ratio() for row in group if row.measured and row.peers]
        if ratios:
            mean = timing.geomean(ratios)
            figures += [
                Figure(f"prefill {name}, geomean against the best peer", mean, at_least=goal),
                Figure(f"prefill {name}, smallest ratio", min(ratios), at_least=1.0),
            ]
    return figures, rows


def lean(settings):
    """Peak memory above the arrays of a long causal call."""
    keys = settings.length(65536, 8192)
    figures = []
    for mask in (False, True):
        used = memory.in_subprocess(keys, mask=mask)
        name = f"memory above the arrays N={keys} causal{' with a (1, Sk) mask' if mask else ''}"
        figures.append(Figure(name, used["bytes"] / 2**20, "MiB", at_most=64.0))
    return figures, []


SECTIONS = {
    "accuracy": accuracy,
    "peak": peak,
    "causal": causal,
    "masks": masks,
    "small": small,
    "prefill": prefill,
    "lean": lean,
}
