# SPDX-License-Identifier: MIT
"""Validation of what changes scores, for every kind of problem."""

import math

from fastattn import _check_options as options


def set_scores(p, lead, causal, window_size, scale, softcap, alibi_slopes, sinks):
    """Set causal, window, scale, softcap, ALiBi and sinks of `p`, whose q is set."""
    heads, depth = p.q.shape[-3], p.q.shape[-1]
    p.causal = options.flag("causal", causal)
    p.left, p.right = options.window(window_size)
    p.scale = 1.0 / math.sqrt(depth) if scale is None else options.number("scale", scale)
    p.softcap = options.number("softcap", softcap, 0.0)
    p.alibi = None if alibi_slopes is None else options.alibi(alibi_slopes, lead, heads)
    p.sinks = None if sinks is None else options.sink_logits(sinks, heads)


def set_effort(p, precision, num_threads):
    """Set how `p` is to be computed."""
    p.precision = options.choice("precision", precision, options.PRECISIONS)
    p.num_threads = (
        None if num_threads is None else options.thread_count("num_threads", num_threads)
    )
