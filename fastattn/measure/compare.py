# SPDX-License-Identifier: MIT
"""Two runs of the same problems: what became slower, and what the noise does not let say.

Seconds of two runs do not compare, because clock and neighbours change in between. So each time is
divided by that of its limit in the same round (multiply-adds in registers, or a plain read of K and
V), which drifts along, and these shares are compared. A neighbour on the same core can take from
the caches what it leaves to the registers, so a verdict has to hold by the speed of the first-level
cache, too; else the machine was another one, and nothing can be told. What that does not even out,
such as other processes in one of the runs, is said beside the verdicts.
"""

import dataclasses
import math

import numpy as np

from fastattn.measure import table
from fastattn.measure.problems import Problem
from fastattn.measure.runner import CACHE
from fastattn.measure.timing import relative_noise, shares

SAME, SLOWER, FASTER, UNCLEAR, MISSING, WRONG, FIRST = (
    "same", "SLOWER", "faster", "cannot tell", "missing", "WRONG", "no figure then",
)  # fmt: skip
SETTINGS = ("cpu", "isa", "threads", "meters")  # nothing to compare if one differs


@dataclasses.dataclass(frozen=True)
class Change:
    """One problem in both runs.

    Attributes
    ----------
    name : str
    ratio : float or None
        Speed now over speed then, both relative to the limit.
    noise : float
        Half width of its 95 % interval, as far as the samples of times and limits tell.
    verdict : str
    """

    name: str
    ratio: float | None
    noise: float
    verdict: str


def settings_differ(old, new):
    """Return a sentence about the first setting in which two machines differ, or None."""
    for name in SETTINGS:
        if old.get(name) != new.get(name):
            return f"{name}: {old.get(name)!r} there, {new.get(name)!r} here"
    return None


def changes(old, new, fail_below=0.95):
    """Compare rows as `table.as_json` makes them.

    Parameters
    ----------
    old, new : list of dict
    fail_below : float
        Ratio below which a problem is slower, if the noise does not reach from it to 1.

    Returns
    -------
    list of Change
        In the order of `old`; problems that only `new` has are left out.
    """
    present = {_key(row): row for row in new}
    return [_change(row, present.get(_key(row)), fail_below) for row in old]


def comparable(old, problems):
    """Whether `old` has a figure of any of these `Problem`."""
    wanted = {_key(dataclasses.asdict(problem)) for problem in problems}
    return any(_key(row) in wanted and _has_figure(row, row.get("bound")) for row in old)


def _has_figure(row, bound):
    """Whether there are samples of the subject, and of that limit."""
    subject = row["entries"][row["subject"]]
    return bool(subject.get("samples")) and bound in row.get("rates", {})


def _key(row):
    fields = ("name", "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "causal", "mask", "allowed",
              "padded", "dtype", "kv_dtype", "window", "softcap", "alibi", "sinks")  # fmt: skip
    defaults = {each.name: each.default for each in dataclasses.fields(Problem)}
    return tuple(row.get(field, defaults[field]) for field in fields)


def _change(old, new, fail_below):
    name = old["name"]
    if new is None:
        return Change(name, None, 0.0, MISSING)
    subject = new["entries"][new["subject"]]
    if subject.get("failed"):
        return Change(name, None, 0.0, WRONG)
    # The limit of the old run in both, also where the other one is a little longer today.
    bound = old.get("bound")
    for row, verdict in ((old, FIRST), (new, MISSING)):
        if not _has_figure(row, bound):
            return Change(name, None, 0.0, verdict)
    ratio, noise = _speed(old, new, bound)
    verdict = _verdict(ratio, noise, fail_below)
    if CACHE in old["rates"] and CACHE in new["rates"] and verdict in (SLOWER, FASTER):
        verdict = verdict if _verdict(*_speed(old, new, CACHE), fail_below) == verdict else UNCLEAR
    return Change(name, ratio, noise, verdict)


def _speed(old, new, meter):
    """Return (speed now / then, both relative to a meter, half width of its 95 % interval)."""
    then, now = (
        shares(row["entries"][row["subject"]]["samples"], row["rates"][meter]) for row in (old, new)
    )
    ratio = float(np.median(now) / np.median(then))
    return ratio, math.hypot(relative_noise(now), relative_noise(then)) * ratio


def _verdict(ratio, noise, fail_below):
    if ratio < fail_below:
        return SLOWER if ratio + noise < 1 else UNCLEAR
    if ratio > 1 / fail_below:
        return FASTER if ratio - noise > 1 else UNCLEAR
    return SAME if noise < 1 - fail_below else UNCLEAR


def failed(found):
    """Whether anything became slower, wrong, or is gone."""
    return any(change.verdict in (SLOWER, WRONG, MISSING) for change in found)


def cells(found):
    """Return (headings, lines)."""
    lines = [
        [
            change.name,
            table.NOTHING if change.ratio is None else table.ratio_text(change.ratio),
            f"{change.noise:.1%}",
            change.verdict,
        ]
        for change in found
    ]
    return ["problem", "speed now / then", "+-", "verdict"], lines


def busy(old, new):
    """Return a sentence if other processes took much of the CPUs in either run, or None."""
    then, now = (max((row.get("others") or 0.0 for row in rows), default=0) for rows in (old, new))
    if max(then, now) <= table.BUSY:
        return None
    return (
        f"other processes took up to {then:.0%} of the CPUs then, {now:.0%} now: "
        "repeat both on a quiet machine before you believe it"
    )


def summary(found, fail_below):
    """Return one line about all of them."""
    counts = {}
    for change in found:
        counts[change.verdict] = counts.get(change.verdict, 0) + 1
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    advice = ""
    if counts.get(UNCLEAR):
        advice = (
            "; where it cannot tell, the noise is larger than the difference, or the caches of the "
            "machine changed with it: measure longer, or again"
        )
    return f"{text} (limit {fail_below:g}){advice}"
