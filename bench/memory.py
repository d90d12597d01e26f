# SPDX-License-Identifier: MIT
"""Peak memory of one call above its arrays, in a process of its own.

    python bench/memory.py [--keys 65536] [--depth 64] [--threads N] [--mask]
    python bench/memory.py --mapped --keys 1048576 --depth 128

Prints JSON: seconds, and the bytes that the peak resident size grew over what it was with all
arrays, the output included, in place. With --mapped one query against K and V that are
memory-mapped from files; pages of the files, which belong to the page cache, do not count.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from arguments import at_least, refused_by

import fastattn
from fastattn.cli import arguments as checks

STATUS = Path("/proc/self/status")


def peak_bytes():
    """Return the largest resident size so far (VmHWM where there is one)."""
    if STATUS.exists():
        [line] = [line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak():
    """Let VmHWM start anew from the current size; the temporaries of making arrays are past."""
    # Where that fails the peak only grows if the call needs more than making the arrays did.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def measure(keys, depth, mask, threads):
    """Run one causal float32 call with one head; return what it needed."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, keys, depth), dtype=np.float32) for _ in range(3))
    out = np.zeros_like(q)
    attn_mask = np.arange(keys)[None] % 3 > 0 if mask else None
    reset_peak()
    before = peak_bytes()
    begin = time.perf_counter()
    fastattn.attention(q, k, v, causal=True, attn_mask=attn_mask, out=out, num_threads=threads)
    seconds = time.perf_counter() - begin
    return {"keys": keys, "depth": depth, "mask": bool(mask), "seconds": seconds,
            "bytes": peak_bytes() - before}  # fmt: skip


def own_bytes():
    """Return the resident memory that no file stands behind."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


class Watch:
    """The largest `own_bytes` while a ``with`` block runs, looked at every millisecond."""

    def __enter__(self):
        self.most, self._done = own_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self):
        while not self._done.wait(1e-3):
            self.most = max(self.most, own_bytes())

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


def write_random(path, keys, depth):
    """Write a .npy file (1, 1, keys, depth), a part at a time."""
    rng = np.random.default_rng(0)
    shape = (1, 1, keys, depth)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    for begin in range(0, keys, 1 << 14):
        part = file[0, 0, begin : begin + (1 << 14)]
        part[...] = rng.standard_normal(part.shape, dtype=np.float32)


def measure_mapped(keys, depth, threads):
    """Run one query of one kv head against memory-mapped K and V; return what it needed."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{name}.npy") for name in "kv"]
        for path in paths:
            write_random(path, keys, depth)
        k, v = (np.load(path, mmap_mode="r") for path in paths)
        q = np.ones((1, 1, 1, depth), np.float32)
        # Threads and code are there before the call that counts.
        fastattn.attention(q, k[:, :, :64], v[:, :, :64], num_threads=threads)
        before = own_bytes()
        with Watch() as watch:
            begin = time.perf_counter()
            fastattn.attention(q, k, v, num_threads=threads)
            seconds = time.perf_counter() - begin
    return {"keys": keys, "depth": depth, "seconds": seconds, "bytes": watch.most - before,
            "rate": 2 * keys * depth * 4 / seconds}  # fmt: skip


def in_subprocess(keys, depth=64, mask=False, mapped=False, *, threads):
    """Return `measure`, or `measure_mapped`, of a fresh process."""
    command = [sys.executable, __file__, "--keys", str(keys), "--depth", str(depth)]
    command += ["--threads", str(threads)]
    command += ["--mask"] if mask else []
    command += ["--mapped"] if mapped else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main(arguments=None):
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=at_least(1), default=65536, help="queries and keys")
    parser.add_argument("--depth", type=at_least(1), default=64)
    parser.add_argument("--threads", type=int, help="of the call (default: what info says)")
    parser.add_argument("--mask", action="store_true", help="with a bool mask of shape (1, keys)")
    parser.add_argument("--mapped", action="store_true", help="one query, K and V from files")
    options = parser.parse_args(arguments)
    with refused_by(parser):
        threads = checks.threads_of(options)
    if options.mapped:
        print(json.dumps(measure_mapped(options.keys, options.depth, threads)))
        return
    print(json.dumps(measure(options.keys, options.depth, options.mask, threads)))


if __name__ == "__main__":
    main()
