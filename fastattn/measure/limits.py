# SPDX-License-Identifier: MIT
"""What the machine could do: FMA peak per ISA and type, read bandwidth per level of memory.

Both come from loops in C (`fastattn._kernels`): one that does nothing but fused multiply-adds in
registers, one that does nothing but read. They are meant to run within the same interleaved run as
the work that is compared with them (`timing.interleave`, argument `meters`).
"""

import concurrent.futures
import time

import numpy as np

SAMPLE_SECONDS = 4e-3  # long against the start of a thread, short against a change of clock
TRIES = 3  # one of three may meet an interruption


class _Meter:
    """Rate of the same work on several threads at once: the sum of the rates of each.

    Each thread measures itself, so that the start of the threads does not count. A subclass says
    what one thread does in `_work`.
    """

    def __init__(self, threads):
        self.threads = threads
        self._pool = concurrent.futures.ThreadPoolExecutor(threads) if threads > 1 else None
        self._repeats = 1
        while (elapsed := min(self._elapsed() for _ in range(TRIES))) < SAMPLE_SECONDS / 2:
            self._repeats *= 4
        self._repeats = max(1, round(self._repeats * SAMPLE_SECONDS / elapsed))

    def _work(self, index):
        """Do the work of thread `index` once, `_repeats` long; return its amount."""
        raise NotImplementedError

    def _elapsed(self):
        begin = time.perf_counter()
        self._work(0)
        return time.perf_counter() - begin

    def _own_rate(self, index):
        begin = time.perf_counter()
        amount = self._work(index)
        return amount / (time.perf_counter() - begin)

    def _rate(self):
        if self._pool is None:
            return self._own_rate(0)
        return sum(self._pool.map(self._own_rate, range(self.threads)))

    def __call__(self):
        """Return the rate in `unit`, the median of a few samples in a row."""
        return float(np.median([self._rate() for _ in range(TRIES)]))


class FmaPeak(_Meter):
    """Meter of the fused multiply-add peak.

    Parameters
    ----------
    isa : str
    dtype : str
        "float32" or "float64".
    threads : int
    """

    unit = "FLOP/s"

    def __init__(self, isa, dtype="float32", threads=1):
        from fastattn import _kernels

        self.isa, self.dtype = isa, dtype
        self._loop = _kernels.fma_loop
        super().__init__(threads)

    def _work(self, index):
        return self._loop(self.isa, self.dtype, self._repeats)


class ReadBandwidth(_Meter):
    """Meter of the read bandwidth over all threads.

    Parameters
    ----------
    isa : str
    working_set : int
        Bytes that each thread reads again and again, its own ones.
    threads : int
    """

    unit = "B/s"

    def __init__(self, isa, working_set, threads=1):
        from fastattn import _kernels

        self.isa = isa
        self._loop = _kernels.read_loop
        floats = max(working_set // 4, 64)
        self._arrays = [np.ones(floats, np.float32) for _ in range(threads)]
        super().__init__(threads)

    def _work(self, index):
        array = self._arrays[index]
        return sum(self._loop(self.isa, array) for _ in range(self._repeats))


def median_rate(meter, samples=5):
    """Return the median of several samples of `meter`."""
    return float(np.median([meter() for _ in range(samples)]))


def working_sets(threads):
    """Return {"L2": bytes, "L3": bytes, "DRAM": bytes} per thread that live in that level.

    Half of a private cache; the geometric middle between L2 and a share of L3; four times L3,
    shared by the threads and at least 64 MiB, for memory.
    """
    import fastattn

    sizes = fastattn.config()["caches"]
    l2 = sizes.get("L2", 1 << 20)
    l3 = sizes.get("L3", 0)
    share = l3 // threads
    sets = {"L2": l2 // 2}
    if share > 2 * l2:
        sets["L3"] = int((l2 * share) ** 0.5)
    sets["DRAM"] = min(max(4 * l3 // threads, 64 << 20), 512 << 20)
    return sets


def machine(threads, isas=None, dtypes=("float32", "float64")):
    """Measure all limits of this machine.

    Parameters
    ----------
    threads : int
        Everything is measured with 1 thread and with so many.
    isas : sequence of str, optional
        All available ones if None.
    dtypes : sequence of str

    Returns
    -------
    dict
        ``peaks``: [{isa, dtype, threads, flops}], ``bandwidth``: [{level, bytes, threads, rate}]
        with the working set of one thread in bytes; rates per second over all threads.
    """
    import fastattn

    counts = sorted({1, threads})
    peaks = [
        {
            "isa": isa,
            "dtype": dtype,
            "threads": count,
            "flops": median_rate(FmaPeak(isa, dtype, count)),
        }
        for isa in (fastattn.isas() if isas is None else isas)
        for dtype in dtypes
        for count in counts
    ]
    best = fastattn.isa()
    bandwidth = [
        {
            "level": level,
            "bytes": size,
            "threads": count,
            "rate": median_rate(ReadBandwidth(best, size, count)),
        }
        for count in counts
        for level, size in working_sets(count).items()
    ]
    return {"peaks": peaks, "bandwidth": bandwidth}
