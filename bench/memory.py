# SPDX-License-Identifier: MIT
"""Peak memory of one call above its arrays, in a process of its own.

    python bench/memory.py [--keys 65536] [--depth 64] [--mask]

Prints JSON: seconds, and the bytes that the peak resident size grew over what it was with all
arrays, the output included, in place.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import fastattn

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


def measure(keys, depth, mask):
    """Run one causal float32 call with one head; return what it needed."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, keys, depth), dtype=np.float32) for _ in range(3))
    out = np.zeros_like(q)
    attn_mask = np.arange(keys)[None] % 3 > 0 if mask else None
    reset_peak()
    before = peak_bytes()
    begin = time.perf_counter()
    fastattn.attention(q, k, v, causal=True, attn_mask=attn_mask, out=out)
    seconds = time.perf_counter() - begin
    return {"keys": keys, "depth": depth, "mask": bool(mask), "seconds": seconds,
            "bytes": peak_bytes() - before}  # fmt: skip


def in_subprocess(keys, depth=64, mask=False):
    """Return `measure` of a fresh process."""
    command = [sys.executable, __file__, "--keys", str(keys), "--depth", str(depth)]
    command += ["--mask"] if mask else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main(arguments=None):
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=65536, help="queries and keys")
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--mask", action="store_true", help="with a bool mask of shape (1, keys)")
    options = parser.parse_args(arguments)
    print(json.dumps(measure(options.keys, options.depth, options.mask)))


if __name__ == "__main__":
    main()
