# SPDX-License-Identifier: MIT
"""What the machine could do: FMA peak, read bandwidth per level of memory, exponentials.

They come from loops in C (`fastattn._kernels`): one that does nothing but fused multiply-adds in
registers, one that does nothing but read. They are meant to run within the same interleaved run as
the work that is compared with them (`timing.interleave`, argument `meters`).
"""

import concurrent.futures
import functools
import time

import numpy as np

METERS = 2  # their version: 1 timed calls from Python as well, which counted in the caches
SAMPLE_SECONDS = 4e-3  # long against the start of a thread, short against a change of clock
SAMPLES = 5  # of which `median_rate` takes the median
TRIES = 3  # one of three may meet an interruption
FIRST_LEVEL = 16 << 10  # bytes that the first-level cache of every CPU holds
DTYPES = ("float32", "float64")  # that kernels compute in
EXPONENTIALS = 1 << 12  # at a time: they stay in the first-level cache


@functools.cache
def _pool(threads):
    return concurrent.futures.ThreadPoolExecutor(threads)


class _Meter:
    """Rate of the same work on several threads at once: the sum of the rates of each.

    Each thread measures itself, so that the start of the threads does not count. A subclass says
    what one thread does in `_work`.
    """

    def __init__(self, threads):
        self.threads = threads
        self._pool = _pool(threads) if threads > 1 else None
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
    """Meter of the fused multiply-add peak; of bfloat16, that of the matrix unit.

    Parameters
    ----------
    isa : str
    dtype : str
        "float32" or "float64"; "bfloat16" where `fastattn._kernels.matrix_pieces(isa)`.
    threads : int
    """

    unit = "FLOP/s"

    def __init__(self, isa, dtype="float32", threads=1):
        from fastattn import _kernels

        self.isa, self.dtype = isa, dtype
        self._kernels = _kernels
        super().__init__(threads)

    @property
    def name(self):
        """What does the products: "matrix" unit, or "FMA"."""
        return "matrix" if self.dtype == "bfloat16" else "FMA"

    def _work(self, index):
        if self.name == "matrix":
            return self._kernels.product_loop(self.isa, self._repeats)
        return self._kernels.fma_loop(self.isa, self.dtype, self._repeats)


def peak_type(problem, isa):
    """Return the type of the `FmaPeak` that bounds a problem.

    16-bit products run on the matrix unit where it takes so many pieces; float32 ones are bounded
    by the multiply-adds that everybody else needs, which pieces on a matrix unit can pass.
    """
    from fastattn import _kernels

    pieces = {"bfloat16": 1, "float16": 2}.get(problem.dtype)
    return "bfloat16" if pieces in _kernels.matrix_pieces(isa) else problem.arithmetic


class ReadBandwidth(_Meter):
    """Meter of the read bandwidth over all threads.

    Parameters
    ----------
    isa : str
    working_set : int
        Bytes that each thread reads again and again, its own ones.
    threads : int
    parts : list of list of ndarray, optional
        What each thread reads instead: contiguous arrays of float32.
    """

    unit = "B/s"

    def __init__(self, isa, working_set, threads=1, parts=None):
        from fastattn import _kernels

        self.isa = isa
        self._loop = _kernels.read_loop
        floats = max(working_set // 4, 64)
        self._parts = parts or [[np.ones(floats, np.float32)] for _ in range(threads)]
        super().__init__(threads)

    def _work(self, index):
        return self._loop(self.isa, self._parts[index], self._repeats)


def read_of(problem, inputs, isa, threads):
    """Return the meter of a plain read of a problem's K and V by so many threads.

    It reads the very arrays, each thread its share. Where only a part of the keys is seen, and
    where they are so few that calling would count, it reads as many bytes of its own, at least half
    of a second-level cache.
    """
    least = working_sets(threads)["L2"]
    each = problem.kv_bytes() // threads
    whole = problem.packed or problem.keys_seen() == problem.B * problem.Sk
    if not whole or each < least:
        return ReadBandwidth(isa, max(each, least), threads)
    flat = [tensor.ravel(order="K").view(np.uint8) for tensor in (inputs.k, inputs.v)]
    parts = []
    for index in range(threads):
        cut = [
            piece[len(piece) * index // threads // 64 * 64 :][: len(piece) // threads // 64 * 64]
            for piece in flat
        ]
        parts.append([piece.view(np.float32) for piece in cut])
    return ReadBandwidth(isa, each, threads, parts)


class Exponentials(_Meter):
    """Meter of exponentials in one thread, of numbers in the first-level cache."""

    unit = "1/s"

    def __init__(self, isa, dtype="float32"):
        from fastattn import _kernels

        self.isa = isa
        self._loop = _kernels.elementwise
        self._numbers = np.linspace(-20, 0, EXPONENTIALS, dtype=dtype)
        super().__init__(1)

    def _work(self, index):
        self._loop("exp2", self.isa, self._numbers, self._repeats)
        return self._repeats * EXPONENTIALS


def median_rate(meter):
    """Return the median of several samples of `meter`."""
    return float(np.median([meter() for _ in range(SAMPLES)]))


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


def sweep_sizes():
    """Return bytes per thread from 16 KiB to 256 MiB, for bandwidth against working set."""
    return [1 << power for power in range(14, 29, 2)]


def machine(threads):
    """Measure all limits of this machine.

    Parameters
    ----------
    threads : int
        Everything is measured with 1 thread and with so many.

    Returns
    -------
    dict
        ``peaks``: [{isa, dtype, threads, flops}], ``bandwidth``: [{level, bytes, threads, rate}]
        with the working set of one thread in bytes, level "" between the levels;
        ``exponentials``: [{isa, dtype, threads, rate}]. Rates per second over all threads.
    """
    import fastattn
    from fastattn import _kernels

    counts = sorted({1, threads})
    peaks = [
        {
            "isa": isa,
            "dtype": dtype,
            "threads": count,
            "flops": median_rate(FmaPeak(isa, dtype, count)),
        }
        for isa in fastattn.isas()
        for dtype in (*DTYPES, *(["bfloat16"] if _kernels.matrix_pieces(isa) else []))
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
        for level, size in [*working_sets(count).items(), *(("", n) for n in sweep_sizes())]
    ]
    exponentials = [
        {
            "isa": isa,
            "dtype": dtype,
            "threads": 1,
            "rate": median_rate(Exponentials(isa, dtype)),
        }
        for isa in fastattn.isas()
        for dtype in DTYPES
    ]
    return {"peaks": peaks, "bandwidth": bandwidth, "exponentials": exponentials}
