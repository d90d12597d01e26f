# SPDX-License-Identifier: MIT
"""The picture of a `profile.Trace`: what each thread does, over the time of the call."""

import numpy as np

from fastattn.measure.pictures import DPI, THEMES
from fastattn.measure.profile import STAGES, WAITING

BINS = 400
ABREAST = 8  # so many names of stages fit side by side
COLORS = ("#56b4e9", "#0072b2", "#d55e00", "#cc79a7", "#e69f00", "#009e73", "#8a63d2", "#999999",
          "#b8a000", "#a50f15")  # fmt: skip


def draw(path, trace, title, theme="light"):
    """Write the picture: a strip for each thread, its height the shares of the stages.

    Parameters
    ----------
    path : Path
    trace : Trace
    title : str
    theme : {"light", "dark"}
    """
    from matplotlib.figure import Figure

    colors, threads = THEMES[theme], len(trace.events)
    figure = Figure(figsize=(9, 1.6 + 0.9 * threads), dpi=DPI, layout="constrained",
                    facecolor=colors["paper"])  # fmt: skip
    strips = figure.subplots(threads, 1, sharex=True, squeeze=False)[:, 0]
    figure.suptitle(title, color=colors["ink"], fontsize=12, x=0.02, ha="left")
    edges = np.linspace(0, trace.seconds * 1e3, BINS + 1)
    used = [any((e[:, 2] == index).any() for e in trace.events) for index in range(len(STAGES))]
    for thread, axes in enumerate(strips):
        below = np.zeros(BINS)
        for index, share in enumerate(trace.shares(thread, BINS)):
            if used[index]:
                axes.stairs(below + share, edges, baseline=below, fill=True, color=COLORS[index],
                            label=STAGES[index] if thread == 0 else None)  # fmt: skip
            below = below + share
        axes.set_facecolor(colors["faint"])
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        axes.set_ylabel(f"thread {thread}", color=colors["ink"], rotation=0, ha="right",
                        va="center")  # fmt: skip
        axes.tick_params(colors=colors["ink"])
        for spine in axes.spines.values():
            spine.set_visible(False)
    strips[-1].set_xlim(0, edges[-1])
    strips[-1].set_xlabel(
        "time since the call began, ms; height: share of each stage", color=colors["ink"]
    )
    handles, labels = strips[0].get_legend_handles_labels()
    handles.append(_patch(colors["faint"]))
    labels.append(WAITING)
    lines = -(-len(labels) // ABREAST)
    figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // lines),
                  fontsize=8, facecolor=colors["paper"], edgecolor=colors["paper"],
                  labelcolor=colors["ink"])  # fmt: skip
    figure.savefig(path, facecolor=colors["paper"])


def _patch(color):
    from matplotlib.patches import Patch

    return Patch(color=color)
