# SPDX-License-Identifier: MIT
"""What every section of the report is made of: settings in, figures out."""

import dataclasses

import numpy as np

from fastattn import _aligned as aligned
from fastattn import reference
from fastattn.measure import checking, peers, runner, table, timing

# Not jax, which compiles for seconds per problem: the time of the report is limited.
PEERS = ("numpy", "torch", "ort-attention", "ort-mha", "openvino", "vllm")


def installed(names):
    """Return those of these peers that are installed."""
    known = peers.classes()
    return tuple(name for name in names if known[name].available())


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to measure: threads, names of peers (None: `PEERS`), seconds per problem, small sizes."""

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
    value : float or None
        None if nothing right could be measured: that misses every goal.
    unit : str
        "" is a ratio, "%" a share (1 is 100 %), "us", "MiB", "GB/s", "error", or "ulp".
    at_most, at_least : float or None
        The goal. None is no goal: the figure is there to compare with.
    note : str
        Why there is no value.
    """

    name: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def reached(self):
        """Whether the goal is reached; None without a goal. No NumPy bool, which is not False."""
        if self.value is None:
            return False
        if self.at_most is not None:
            return bool(self.value <= self.at_most)
        return None if self.at_least is None else bool(self.value >= self.at_least)

    def text(self, value):
        """Return a value in the unit of this figure."""
        forms = {"": "{:.3f}", "%": "{:.1%}", "us": "{:.2f} us", "error": "{:.2e}",
                 "ulp": "{:.2f} ulp"}  # fmt: skip
        return forms.get(self.unit, f"{{:.1f}} {self.unit}").format(value)

    def cells(self):
        """Return name, value, goal and verdict as text."""
        goal = ""
        for sign, bound in (("<=", self.at_most), (">=", self.at_least)):
            if bound is not None:
                goal = f"{sign} {self.text(bound)}"
        verdict = {None: "", True: "yes", False: "NO"}[self.reached]
        value = self.note or table.NOTHING if self.value is None else self.text(self.value)
        return [self.name, value, goal, verdict]


HEADINGS = ["figure", "measured", "goal", "reached"]


def measured_rows(settings, chosen, names=PEERS):
    """Return rows of these problems, beside the peers of the settings, or else these."""
    rows = runner.measure_suite(
        chosen,
        threads=settings.threads,
        peer_names=installed(names) if settings.peers is None else settings.peers,
        seconds=settings.seconds,
        progress=settings.progress,
    )
    return list(rows)


def share_of_peak(name, row, at_least):
    """Return the figure of the subject's share of the peak, of whatever the row's meter keeps busy.

    A wrong result has no share, but its reason.
    """
    note = row.entries[row.subject].note
    return Figure(name, row.share(bound=runner.PEAK), "%", at_least=at_least, note=note)


def relative_times(base, others, settings):
    """Return {problem: time relative to `base`}, all interleaved in one run, each checked."""
    subject = peers.Fastattn(settings.threads)
    calls = {}
    for problem in (base, *others):
        inputs = problem.inputs()
        prepared = subject.prepare(problem, inputs)
        checking.check(prepared, problem, inputs)
        calls[problem] = prepared.call
    run = timing.interleave(calls, seconds=settings.seconds)
    return {problem: 1 / run.ratio(problem, base) for problem in others}


def beside(array):
    """Return the same array, (B, H, S, D), with the heads of a token side by side in memory."""
    return aligned.copy(array.swapaxes(1, 2)).swapaxes(1, 2)


# What `error_sizes` returns, and the unit of each.
ERROR_SIZES = {"max": "error", "rms": "error", "ulp": "ulp"}
DIGITS = {"float32": 24, "float16": 11, "bfloat16": 8}  # binary


def error_sizes(out, expected, dtype):
    """Return the largest error, the root of the mean square, and the median in ulp.

    A unit in the last place is that of each exact result as a number of `dtype`: where every one is
    rounded to nearest, half of the errors are below 0.25. A mean would be that of results near 0.
    """
    error = np.abs(out.astype(np.float64) - expected)
    _, exponent = np.frexp(expected)
    places = np.ldexp(error, DIGITS[dtype] - exponent)
    return error.max(), np.sqrt((error**2).mean()), np.median(places)


def errors(problem, settings, subjects):
    """Return {name: `error_sizes`} of these peers against the oracle, and of torch."""
    inputs = problem.inputs()
    group = problem.Hq // problem.Hkv
    scales = {"k_scale": inputs.scale, "v_scale": inputs.scale}
    expected = np.stack([
        reference.attention(inputs.q[0, h], inputs.k[0, h // group], inputs.v[0, h // group],
                            **scales)
        for h in range(problem.Hq)
    ])  # fmt: skip
    others = peers.select(installed(["torch"]), settings.threads)
    found = {}
    for subject in (*subjects, *others):
        if subject.supports(problem) is None:
            prepared = subject.prepare(problem, inputs)
            out = prepared.array(prepared.call())[0]
            found[subject.name] = error_sizes(out, expected, problem.dtype)
    return found
