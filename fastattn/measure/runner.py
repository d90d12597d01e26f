# SPDX-License-Identifier: MIT
"""Measure problems: this package, its peers and the FMA peak side by side, each result checked."""

import dataclasses

from fastattn.measure import limits, peers, timing

PEAK = "peak"


@dataclasses.dataclass
class Entry:
    """What one implementation did with one problem.

    Attributes
    ----------
    name, version : str
    error : float or None
        Largest error of the rows compared with the oracle, relative to max|v|.
    timing : Timing or None
        None if it was not timed.
    note : str
        Why it was not timed: not supported, or what was wrong.
    failed : bool
        The result was wrong, or the library raised.
    """

    name: str
    version: str
    error: float | None = None
    timing: object = None
    note: str = ""
    failed: bool = False


@dataclasses.dataclass
class Row:
    """One problem and everything that was measured for it, in one interleaved run.

    Attributes
    ----------
    problem : Problem
    entries : dict of str to Entry
        The first one is the subject: what the others are compared with.
    run : Run or None
        None if there was nothing right to time.
    """

    problem: object
    entries: dict
    run: object = None

    @property
    def subject(self):
        """Name of the first entry."""
        return next(iter(self.entries))

    @property
    def peers(self):
        """Names of the entries after the subject that were timed."""
        return [name for name in list(self.entries)[1:] if self.entries[name].timing is not None]

    @property
    def measured(self):
        """Whether the subject has a figure."""
        return self.entries[self.subject].timing is not None

    @property
    def failed(self):
        """Whether anything was wrong."""
        return any(entry.failed for entry in self.entries.values())

    @property
    def best_peer(self):
        """Name of the fastest peer, or None."""
        timed = self.peers
        return min(timed, key=lambda name: self.entries[name].timing.median) if timed else None

    def ratio(self, peer=None):
        """How many times faster the subject is than `peer`, the best one if None."""
        return self.run.ratio(self.subject, peer or self.best_peer)

    def gflops(self, name=None):
        """10^9 operations per second of the allowed pairs."""
        entry = self.entries[name or self.subject]
        return self.problem.flops() / entry.timing.median / 1e9

    def share(self, name=None):
        """Share of the FMA peak, or None if no peak was measured."""
        if self.run is None or PEAK not in self.run.rates:
            return None
        return self.run.share(name or self.subject, PEAK, self.problem.flops())


def measure(problem, contestants, *, peak=None, seconds=2.0, rounds=None, progress=None):
    """Measure one problem.

    Parameters
    ----------
    problem : Problem
    contestants : sequence of Peer
        The first one is the subject.
    peak : callable, optional
        Meter of the limit, run in every round.
    seconds, rounds : float, int
        See `timing.interleave`.
    progress : callable, optional

    Returns
    -------
    Row
        A contestant with a wrong result, or one that raises, has a note and no figure.
    """
    inputs = problem.inputs()
    entries, ready = {}, {}
    for peer in contestants:
        entry = entries[peer.name] = Entry(peer.name, peer.version)
        reason = peer.supports(problem)
        if reason is not None:
            entry.note = reason
            continue
        try:
            prepared = peer.prepare(problem, inputs)
            entry.error = peers.check(prepared, problem, inputs)
        except Exception as error:  # a library may raise anything; the row says so
            entry.failed = True
            entry.note = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            ready[peer.name] = prepared
    row = Row(problem, entries)
    if ready:
        calls = {name: prepared.call for name, prepared in ready.items()}
        meters = {} if peak is None else {PEAK: peak}
        row.run = timing.interleave(
            calls, meters=meters, seconds=seconds, rounds=rounds, progress=progress
        )
        for name in ready:
            entries[name].timing = row.run.timings[name]
    return row


def measure_suite(
    problems, *, threads, isa=None, peer_names=None, seconds=2.0, rounds=None, progress=None
):
    """Measure several problems; return the rows.

    Parameters
    ----------
    problems : sequence of Problem
    threads : int
        For this package, every peer and the peak.
    isa : str, optional
        Forced for this package; its peak is the limit then.
    peer_names : iterable of str, optional
        Every one installed if None.
    seconds : float
        Per problem.
    rounds : int, optional
    progress : callable, optional
        Called as ``progress(problem, fraction of the suite)``.
    """
    import fastattn

    subject = peers.Fastattn(threads, isa)
    contestants = [subject, *peers.select(peer_names, threads)]
    active = isa or fastattn.isa()
    peaks, rows = {}, []
    for index, problem in enumerate(problems):
        if problem.dtype not in peaks:
            peaks[problem.dtype] = limits.FmaPeak(active, problem.dtype, threads)

        def within(done, total, index=index, problem=problem):
            if progress is not None:
                progress(problem, (index + done / total) / len(problems))

        within(0, 1)
        peak = peaks[problem.dtype]
        row = measure(
            problem, contestants, peak=peak, seconds=seconds, rounds=rounds, progress=within
        )
        rows.append(row)
    return rows
