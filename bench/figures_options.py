# SPDX-License-Identifier: MIT
"""Section of the report about options that change every score."""

import dataclasses

from figure import Figure, relative_times
from figures_narrow import named

from fastattn.measure import suites
from fastattn.measure.problems import Problem

TYPES = (("float32", ""), ("float16", ""), ("bfloat16", ""), ("bfloat16", "int8"))
OPTIONS = ({"softcap": 30.0}, {"alibi": True}, {"mask": "random"}, {"mask": "float"})
# Of the time without the option; and of causal ALiBi where most keys are too far away to count.
NO_LONGER = 1.15
FAR_KEYS = 1.0


def options(settings):
    """Softcap, ALiBi and masks that skip nothing, in decoding and in prefill, relative to none."""
    keys = settings.length(1024)
    figures = []
    for types in TYPES:
        for queries in (1, 4, keys):
            plain = Problem(Hq=suites.HEADS, Sq=queries, Sk=keys, D=64)
            others = [dataclasses.replace(plain, name="", **each) for each in OPTIONS]
            base, *others = (named(problem, *types) for problem in (plain, *others))
            figures += [
                Figure(f"{problem.name} / plain", time, at_most=NO_LONGER)
                for problem, time in relative_times(base, others, settings).items()
            ]
        far = settings.length(4096)
        plain = Problem(Hq=suites.HEADS, Sq=far, Sk=far, D=64, causal=True)
        alibi = dataclasses.replace(plain, name="", alibi=True)
        base, other = (named(problem, *types) for problem in (plain, alibi))
        [time] = relative_times(base, [other], settings).values()
        figures.append(Figure(f"{other.name} / plain", time, at_most=FAR_KEYS))
    return figures, []
