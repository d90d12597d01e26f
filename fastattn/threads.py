# SPDX-License-Identifier: MIT
"""How many threads a call uses: argument > context > set_num_threads > environment > default."""

import contextlib
import contextvars
import importlib
import os
from pathlib import Path

from fastattn import _core
from fastattn._check_options import MOST_THREADS, thread_count
from fastattn._context import holding
from fastattn._environment import refused

_context = contextvars.ContextVar("fastattn_threads", default=(None, None))  # `holding` sets it
_setting = None  # set_num_threads
_environment = None  # FASTATTN_NUM_THREADS
_quota = None  # CPUs that the container may use; None is unlimited
_limit = None  # of threadpoolctl
_before_limit = None  # threads when it came: who sets so many again lifts it


def set_num_threads(n):
    """Set the number of threads of all later calls of this process.

    A lower limit of threadpoolctl wins while it is in force, and `num_threads` in its block.

    Parameters
    ----------
    n : int or None
        From 1 to 2^31 - 1. None goes back to the environment and the default.

    Raises
    ------
    TypeError, ValueError
        `n` is not such an integer.
    """
    global _setting
    _setting = None if n is None else thread_count("n", n)


def get_num_threads():
    """Number of threads that a call made here would use.

    That of `num_threads`; else that of `set_num_threads`, or of ``FASTATTN_NUM_THREADS``, or
    without any of them ``OMP_NUM_THREADS``, at most the CPUs that this process may run on and the
    quota of its container (cgroup). A lower limit of threadpoolctl wins over all but `num_threads`.

    Returns
    -------
    int
    """
    n = _context.get()[0]
    return outside_contexts() if n is None else n


def outside_contexts():
    """Threads of a call that is made outside of any `num_threads` context."""
    n = _unlimited()
    return n if _limit is None or n <= _limit else _limit


def _unlimited():
    """Threads of a call outside of any context, if threadpoolctl allows as many."""
    if _setting is not None:
        return _setting
    if _environment is not None:
        return _environment
    n = _core.max_threads()
    return n if _quota is None or n <= _quota else _quota


def set_limit(n):
    """Threads that calls may use outside of a `num_threads` context; as many as there were: all."""
    global _limit, _before_limit
    if _limit is None:
        _before_limit = _unlimited()
    _limit = n if n < _before_limit else None


def num_threads(n):
    """Use `n` threads in a ``with`` block, in this thread (context) only.

    Parameters
    ----------
    n : int
        From 1 to 2^31 - 1.

    Returns
    -------
    context manager
        For any number of blocks.

    Raises
    ------
    TypeError, ValueError
        `n` is not such an integer.
    """
    return holding(_context, thread_count("n", n))


def _cgroup_quota(root=Path("/sys/fs/cgroup"), membership=Path("/proc/self/cgroup")):
    """Whole CPUs that cgroup v2 or v1 grants this process, or None without a limit."""
    limits = []
    for line in _lines(membership):
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(root, path, "cpu.max")
        elif "cpu" in controllers.split(","):
            limits += _limits(root / "cpu", path, "cpu.cfs_quota_us")
    return max(1, min(limits)) if limits else None


def _limits(root, path, name):
    """Every limit from a group up to the root: each of them binds."""
    group = root / path.strip("/")
    limits = []
    for directory in [group, *group.parents]:
        words = " ".join(_lines(directory / name)).split()
        if name == "cpu.cfs_quota_us":
            words += " ".join(_lines(directory / "cpu.cfs_period_us")).split()
        quota, period = map(_whole, words) if len(words) == 2 else (None, None)
        if quota and period:
            limits.append(quota // period)
        if directory == root:
            break
    return limits


def _lines(path):
    """Lines of a file, where names of groups may be any bytes; none if it cannot be read."""
    try:
        return os.fsdecode(path.read_bytes()).split("\n")
    except (OSError, ValueError):  # the latter for a path with a null character
        return []


def _whole(text):
    """The whole number that a text is, or None."""
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:  # Python reads no more than thousands of digits
        return None


def _initialise():
    """Read the environment once, at import."""
    global _environment, _quota
    _quota = _cgroup_quota()
    text = os.environ.get("FASTATTN_NUM_THREADS")
    if not text:
        return
    threads = _whole(text)
    if threads is None or not 1 <= threads <= MOST_THREADS:
        raise refused(
            f"FASTATTN_NUM_THREADS: expected an integer from 1 to {MOST_THREADS}, got {text!r}"
        )
    _environment = threads


def _register():
    """Let threadpoolctl, where it is installed, see and limit these threads."""
    with contextlib.suppress(ImportError):  # not installed, or before 3.2
        importlib.import_module("fastattn._threadpoolctl")


_initialise()
_register()
