# SPDX-License-Identifier: MIT
"""Time several callables side by side, so that their ratios hold on a machine that drifts.

One round takes one sample of each callable. Clock speed, temperature and neighbours change slowly
against a round, so they hit all callables alike, and a ratio is the median of the ratios within the
rounds. Nothing may be compared across two runs.
"""

import contextlib
import dataclasses
import os
import statistics
import time
from pathlib import Path

import numpy as np

STRETCH_SECONDS = 1e-3  # what is timed at once: 10^4 times the resolution of the clock
# A sample is the median of so many stretches: less chance in it, and short beside the rest.
SAMPLE_SECONDS = 20e-3
# Idle time before a sample: OpenBLAS's threads spin for some 25 ms after their work, on the cores
# that the next contestant wants.
SETTLE_SECONDS = 6e-2
ALONE_SECONDS = 1e-3  # the same where there is no other contestant
MIN_ROUNDS = 5  # fewer say nothing about quartiles
MAX_ROUNDS = 501
WARM_SECONDS = 50e-3  # a callable that runs longer than this warms itself up within a sample


@dataclasses.dataclass(frozen=True)
class Timing:
    """Samples of one callable, in seconds per call.

    Attributes
    ----------
    samples : ndarray
        (rounds,), in the order of the rounds.
    calls : int
        Calls in each stretch of a sample.
    """

    samples: np.ndarray
    calls: int = 1

    @property
    def median(self):
        """Median in seconds: what is quoted."""
        return float(np.median(self.samples))

    @property
    def quartiles(self):
        """First and third quartile in seconds."""
        first, third = np.percentile(self.samples, [25, 75])
        return float(first), float(third)

    @property
    def noise(self):
        """Half width of the 95 % interval of the median, relative to it."""
        return relative_noise(self.samples)

    @property
    def outliers(self):
        """Number of samples beyond 1.5 interquartile ranges from the quartiles (Tukey)."""
        first, third = self.quartiles
        reach = 1.5 * (third - first)
        return int(((self.samples < first - reach) | (self.samples > third + reach)).sum())


@dataclasses.dataclass(frozen=True)
class Run:
    """What `interleave` measured.

    Attributes
    ----------
    timings : dict of str to Timing
    rates : dict of str to ndarray
        What each meter returned, (rounds,).
    others : float or None
        Share of the time of all CPUs that other processes took meanwhile; None: not known.
    """

    timings: dict
    rates: dict
    others: float | None = None

    def ratios(self, name, base):
        """How many times faster `name` is than `base`, in each round."""
        return self.timings[base].samples / self.timings[name].samples

    def ratio_noise(self, name, base):
        """Half width of the 95 % interval of `ratio`, relative to it."""
        return relative_noise(self.ratios(name, base))

    def ratio(self, name, base):
        """Median of `ratios`."""
        return float(np.median(self.ratios(name, base)))

    def share(self, name, meter, work):
        """Median over the rounds of (`work` per second of `name`) / (rate of `meter`)."""
        return float(np.median(shares(self.timings[name].samples, self.rates[meter], work)))

    @property
    def noise(self):
        """Largest relative half width of a 95 % interval of a median in this run."""
        return max((timing.noise for timing in self.timings.values()), default=0.0)


def shares(seconds, rates, work=1.0):
    """Return, for each round, (`work` in so many seconds) / (rate of a meter)."""
    return work / np.asarray(seconds) / np.asarray(rates)


def relative_noise(samples):
    """Half width of the 95 % interval of the median of `samples`, relative to the median.

    The median of many normal ones has a standard deviation of 0.93 IQR / sqrt(n) (McGill, Tukey and
    Larsen, Variations of box plots, 1978), the interval 1.96 of these. (Their own 1.57 is for two
    medians that may differ if such intervals do not overlap.) Of a few samples quartiles say less:
    the last factor is fitted, so that also of 5 the interval holds the median 9 times of 10.
    """
    first, median, third = np.percentile(samples, [25, 50, 75])
    count = len(samples)
    half = 1.82 * (third - first) / np.sqrt(count) * (1 + 5 / count)
    return float(half / median) if median else 0.0


def cpu_seconds(text):
    """Return (busy, all) seconds of all CPUs since the start, from the text of /proc/stat."""
    user, nice, system, idle, waiting, *rest = map(int, text.splitlines()[0].split()[1:9])
    busy = user + nice + system + sum(rest)  # interrupts, and what a hypervisor took
    ticks = os.sysconf("SC_CLK_TCK")
    return busy / ticks, (busy + idle + waiting) / ticks


class _Others:
    """How much of the CPUs other processes take, from the making of it on."""

    def __init__(self):
        self._before = self._look()

    def _look(self):
        try:
            text = Path("/proc/stat").read_text()
        except OSError:
            return None
        return np.array([*cpu_seconds(text), time.process_time()])

    def share(self):
        """Return the share of the time of all CPUs; None where there is no /proc."""
        now = self._look()
        if now is None or self._before is None:
            return None
        busy, all_of_it, own = now - self._before
        return max(0.0, float((busy - own) / all_of_it)) if all_of_it > 0 else None


def geomean(values):
    """Geometric mean, the mean for ratios; NaN for nothing."""
    values = list(values)
    return statistics.geometric_mean(values) if values else float("nan")


def interleave(
    callables, *, meters=None, seconds=2.0, rounds=None, settle=None, progress=None, failures=None
):
    """Time `callables` in interleaved rounds.

    Parameters
    ----------
    callables : dict of str to callable
        Without arguments. Results are thrown away.
    meters : dict of str to callable, optional
        Measure themselves: each is called once per round and returns a rate.
    seconds : float
        Time to spend, from which the number of rounds follows (5 to 501).
    rounds : int, optional
        Number of rounds instead.
    settle : float, optional
        Seconds of rest before each sample, where there are several callables. Thread pools of other
        libraries spin on for a while after their work is done, on the cores that the next one wants
        to use.
    progress : callable, optional
        Called as ``progress(done, total)`` after every round.
    failures : dict, optional
        Gets the exception of each callable that raises, which is left out from then on and has no
        `Timing`. Without it the exception ends the run.

    Returns
    -------
    Run
    """
    meters = meters or {}
    if settle is None:
        settle = SETTLE_SECONDS if len(callables) > 1 else ALONE_SECONDS
    samplers = {}
    for name, call in callables.items():
        with _noting(failures, name):
            samplers[name] = _Sampler(call)
    if rounds is None:
        cost = sum(sampler.cost for sampler in samplers.values())
        cost += sum(_elapsed(meter) for meter in meters.values())
        cost += settle * (len(samplers) + len(meters))
        rounds = int(min(max(seconds / max(cost, 1e-9), MIN_ROUNDS), MAX_ROUNDS))
    samples = {name: np.empty(rounds) for name in samplers}
    rates = {name: np.empty(rounds) for name in meters}
    others = _Others()
    for index in range(rounds):
        for name in _order([*samples, *meters], index):
            time.sleep(settle)
            if name in meters:
                rates[name][index] = meters[name]()
                continue
            with _noting(failures, name):
                samples[name][index] = samplers[name].sample()
        if failures:
            samples = {name: each for name, each in samples.items() if name not in failures}
        if progress is not None:
            progress(index + 1, rounds)
    timings = {name: Timing(each, samplers[name].calls) for name, each in samples.items()}
    return Run(timings, rates, others.share())


@contextlib.contextmanager
def _noting(failures, name):
    """Put what a ``with`` block raises into `failures` under that name, unless that is None."""
    try:
        yield
    except Exception as error:  # a library may raise anything
        if failures is None:
            raise
        failures[name] = error


class _Sampler:
    """A callable, how many calls and stretches make a sample, and whether an untimed call is first.

    That is found by running it. After the untimed call caches, clock and the own worker threads are
    in the state in which a program that calls repeatedly finds them; a long call reaches that state
    by itself.
    """

    def __init__(self, call):
        self.call, self.calls, self.stretches, self.warm = call, 1, 1, False
        self.seconds = self.sample()  # of one call; about, it was cold
        if self.seconds >= WARM_SECONDS:
            return
        while True:
            # The smaller of two: an interruption would look like a call that is long enough.
            self.seconds = min(self.sample(), self.sample())
            elapsed = self.seconds * self.calls
            if elapsed >= STRETCH_SECONDS:
                break
            # Aim a little high; at most tenfold, because a short first look is a bad guess.
            factor = min(1.2 * STRETCH_SECONDS / max(elapsed, 1e-9), 10)
            self.calls = max(self.calls + 1, int(self.calls * factor))
        self.stretches = max(1, round(SAMPLE_SECONDS / elapsed))
        self.warm = self.seconds < WARM_SECONDS

    @property
    def cost(self):
        """About the seconds that taking a sample takes."""
        return self.seconds * (self.calls * self.stretches + self.warm)

    def sample(self):
        """Return the seconds per call of `calls` calls in a row, the median of all stretches."""
        if self.warm:
            self.call()
        return statistics.median(self._stretch() for _ in range(self.stretches))

    def _stretch(self):
        call, repeats = self.call, range(self.calls)
        begin = time.perf_counter()
        for _ in repeats:
            call()
        return (time.perf_counter() - begin) / self.calls


def _elapsed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _order(names, index):
    """Return the order of round `index`: rotated, and backwards in every other round.

    So nobody is always first after a pause, nor always behind the same neighbour.
    """
    shift = index // 2 % len(names) if names else 0
    rotated = names[shift:] + names[:shift]
    return rotated[::-1] if index % 2 else rotated
