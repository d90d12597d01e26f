# SPDX-License-Identifier: MIT
"""Measure problems: this package, its peers and the limits side by side, each result checked."""

import dataclasses

import numpy as np

from fastattn.measure import checking, limits, peers, timing

# Meters: products in registers, a plain read of K and V, one of what the first-level cache holds.
# The last one is no limit; it tells runs apart in which the machine was another one.
PEAK, READ, CACHE = "peak", "read", "cache"


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

    def fail(self, error):
        """Note the exception for which there is no figure."""
        self.failed, self.note = True, reason(error)


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
    arithmetic : str
        What the meter `PEAK` kept busy: "FMA" or "matrix" unit.
    """

    problem: object
    entries: dict
    run: object = None
    arithmetic: str = "FMA"

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

    @property
    def noise(self):
        """Half width of the 95 % interval of the least certain ratio to a peer.

        Without a peer that of the share of the limit, or of the time; 0 if nothing was timed.
        """
        if not self.measured:
            return 0.0
        if self.peers:
            return max(self.run.ratio_noise(self.subject, name) for name in self.peers)
        own = self.run.timings[self.subject]
        if self.bound is None:
            return own.noise
        return timing.relative_noise(timing.shares(own.samples, self.run.rates[self.bound]))

    def gflops(self, name=None):
        """10^9 operations per second of the allowed pairs."""
        entry = self.entries[name or self.subject]
        return self.problem.flops() / entry.timing.median / 1e9

    def least_seconds(self):
        """Return {meter: median time that the work takes at its rate}; both are lower bounds."""
        work = {PEAK: self.problem.flops(), READ: self.problem.bytes()}
        rates = {} if self.run is None else self.run.rates
        return {name: float(np.median(work[name] / rates[name])) for name in work if name in rates}

    @property
    def bound(self):
        """The limit that applies, `PEAK` or `READ`: the one that takes longer; None: unmeasured."""
        least = self.least_seconds()
        return max(least, key=least.get) if least else None

    def share(self, name=None, bound=None):
        """Share of the limit that applies, or of the one that is named; None if not measured."""
        bound, name = bound or self.bound, name or self.subject
        if self.entries[name].timing is None or bound not in self.run.rates:
            return None
        work = self.problem.flops() if bound == PEAK else self.problem.bytes()
        return self.run.share(name, bound, work)

    def bandwidth(self, name=None):
        """10^9 bytes per second, of those that have to be read or written at least once."""
        entry = self.entries[name or self.subject]
        return self.problem.bytes() / entry.timing.median / 1e9


def reason(error):
    """Return the type of an exception and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def measure(problem, contestants, *, meters=None, seconds=2.0, rounds=None, progress=None):
    """Measure one problem.

    Parameters
    ----------
    problem : Problem
    contestants : sequence of Peer
        The first one is the subject.
    meters : dict of str to callable, optional
        Of `PEAK`, `READ` and `CACHE`, run in every round.
    seconds, rounds : float, int
        See `timing.interleave`.
    progress : callable, optional

    Returns
    -------
    Row
        A contestant with a wrong result, or one that raises, has a note and no figure.
    """
    inputs = problem.inputs()
    expected = checking.expected_rows(problem, inputs)
    entries, ready = {}, {}
    for peer in contestants:
        entry = entries[peer.name] = Entry(peer.name, peers.UNKNOWN)
        try:
            entry.version = peer.version
            entry.note = peer.supports(problem) or ""
            if entry.note:
                continue
            prepared = peer.prepare(problem, inputs)
            entry.error = checking.check(prepared, problem, inputs, expected)
        except Exception as error:  # a library may raise anything; the row says so
            entry.fail(error)
        else:
            ready[peer.name] = prepared
    meters = meters or {}
    row = Row(problem, entries, arithmetic=getattr(meters.get(PEAK), "name", "FMA"))
    if ready:
        calls = {name: prepared.call for name, prepared in ready.items()}
        failures = {}
        run = timing.interleave(
            calls, meters=meters, seconds=seconds, rounds=rounds, progress=progress,
            failures=failures,
        )  # fmt: skip
        for name, raised in failures.items():
            entries[name].fail(raised)
        for name, timed in run.timings.items():
            entries[name].timing = timed
        row.run = run if run.timings else None
    return row


def measure_suite(problems, *, threads, isa=None, peer_names=None, seconds=2.0, progress=None):
    """Measure several problems; yield each row when it is there, so that none is lost later.

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
    progress : callable, optional
        Called as ``progress(problem, fraction of the suite)``.
    """
    import fastattn

    subject = peers.Fastattn(threads, isa)
    contestants = [subject, *peers.select(peer_names, threads)]
    active = isa or fastattn.isa()
    cache = limits.ReadBandwidth(active, limits.FIRST_LEVEL, threads)
    peaks = {}
    for index, problem in enumerate(problems):
        kind = limits.peak_type(problem, active)
        if kind not in peaks:
            peaks[kind] = limits.FmaPeak(active, kind, threads)

        def within(done, total, index=index, problem=problem):
            if progress is not None:
                progress(problem, (index + done / total) / len(problems))

        within(0, 1)
        meters = {
            PEAK: peaks[kind],
            READ: limits.read_of(problem, problem.inputs(), active, threads),
            CACHE: cache,
        }
        yield measure(problem, contestants, meters=meters, seconds=seconds, progress=within)
