# SPDX-License-Identifier: MIT
"""Where the time of one call goes, from the timestamps of the instrumented build (src_c/profile.h).

The stages of a block run one by one there, a little slower than the fused ones, and a timestamp
takes some 20 ns: shares are what to look at, not the whole.
"""

import ctypes
import dataclasses

import numpy as np

# In the order of fa_stage.
STAGES = ("pack q", "load K V", "QKᵀ", "mask", "softmax", "PV", "merge", "write", "mask map",
          "matrix unit")  # fmt: skip
WAITING = "waiting"
CALL = -1
TAKES = 7  # the one of median length is shown
BUILD = "FASTATTN_PROFILE=1 pip install --target DIR . makes one, to run with PYTHONPATH=DIR"


class _Event(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("begin", "end", "stage")]


@dataclasses.dataclass(frozen=True)
class Trace:
    """One call.

    Attributes
    ----------
    begin, end : int
        Of the call, nanoseconds.
    events : list of ndarray, (n, 3) int64
        Of each thread, in order: begin, end, stage.
    """

    begin: int
    end: int
    events: list

    @property
    def seconds(self):
        """Of the call."""
        return (self.end - self.begin) / 1e9

    def stages(self, thread):
        """Return {stage: seconds} of a thread, what it waited included; they add up to the call."""
        events = self.events[thread]
        spent = {
            name: float((events[:, 1] - events[:, 0])[events[:, 2] == index].sum() / 1e9)
            for index, name in enumerate(STAGES)
        }
        return spent | {WAITING: self.seconds - sum(spent.values())}

    def shares(self, thread, bins):
        """Return the part of each of `bins` equal times that each stage takes, (stages, bins)."""
        edges = np.linspace(0, self.end - self.begin, bins + 1)
        found = np.zeros((len(STAGES), bins))
        for index in range(len(STAGES)):
            own = self.events[thread][self.events[thread][:, 2] == index]
            times = (own[:, :2] - self.begin).ravel().astype(float)
            # Time spent until each edge, by linear interpolation within the events.
            spent = np.cumsum((own[:, 1] - own[:, 0])[:, None] * [0, 1], axis=None)
            if len(times):
                found[index] = np.diff(np.interp(edges, times, spent, left=0))
        return found / (edges[1] - edges[0])


def library():
    """Return the core as a library for ctypes, or None if it is not the instrumented build."""
    from fastattn import _core

    core = ctypes.CDLL(_core.__file__)
    if not hasattr(core, "fa_profile_start"):
        return None
    core.fa_profile_events.restype = ctypes.POINTER(_Event)
    core.fa_profile_events.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int64)]
    return core


def record(core, call, threads):
    """Run `call` a few times; return the `Trace` of the one of median length."""
    call()
    traces = []
    for _ in range(TAKES):
        core.fa_profile_start()
        call()
        traces.append(_trace([_events(core, thread) for thread in range(threads)]))
    return sorted(traces, key=lambda trace: trace.seconds)[TAKES // 2]


def _events(core, thread):
    count = ctypes.c_int64()
    events = core.fa_profile_events(thread, ctypes.byref(count))
    if not count.value:
        return np.zeros((0, 3), np.int64)
    array = np.ctypeslib.as_array(
        ctypes.cast(events, ctypes.POINTER(ctypes.c_int64)), (count.value, 3)
    )
    return array.copy()


def _trace(events):
    [[begin, end, _]] = events[0][events[0][:, 2] == CALL]
    return Trace(int(begin), int(end), [each[each[:, 2] != CALL] for each in events])


def cells(trace):
    """Return (headings, lines): the share of the call that each thread spends on each stage."""
    spent = [trace.stages(thread) for thread in range(len(trace.events))]
    names = [name for name in (*STAGES, WAITING) if any(each[name] for each in spent)]
    lines = [
        [str(thread), *(f"{each[name] / trace.seconds:.1%}" for name in names)]
        for thread, each in enumerate(spent)
    ]
    mean = {name: np.mean([each[name] for each in spent]) for name in names}
    if len(spent) > 1:
        lines.append(["all", *(f"{mean[name] / trace.seconds:.1%}" for name in names)])
    return ["thread", *names], lines


def as_json(trace):
    """Return seconds of the call, and of every stage in each thread."""
    threads = [trace.stages(thread) for thread in range(len(trace.events))]
    return {"seconds": trace.seconds, "threads": threads}
