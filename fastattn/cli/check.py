# SPDX-License-Identifier: MIT
"""``check``: random problems against the oracle, on every instruction set of this machine."""

import dataclasses

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn.cli import progress
from fastattn.cli.arguments import UsageError, check_isa, dtype_errors
from fastattn.cli.random_problems import TOLERANCE
from fastattn.cli.random_storage import stored_problem

MISSES_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Miss:
    """A result that is wrong, or an exception; `command` runs that problem alone."""

    command: str
    problem: str
    reason: str


def add(subparsers):
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "check",
        help="random problems against a float64 oracle, on every instruction set",
        description="Compare `attention` with a plain float64 NumPy implementation on random "
        "problems: all options, awkward shapes and strides, every type and kind of storage that "
        "there is, on every instruction set that this machine has. Exit code 1 on a miss, with a "
        "command that reproduces it.",
    )
    parser.add_argument("--count", type=int, default=300, help="number of problems (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the problems (%(default)s)")
    parser.add_argument("--index", type=int, help="only this one of the problems")
    parser.add_argument("--isa", help="only this instruction set")
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), help="only queries of this type")
    parser.set_defaults(run=run)


def run(options):
    """Check and print; return 0, or 1 on a miss."""
    import fastattn

    check_isa(options.isa)
    for name, least in ("count", 1), ("seed", 0), ("index", 0):
        given = getattr(options, name)
        if given is not None and given < least:
            raise UsageError(f"--{name}: expected at least {least}, got {given}")
    if options.dtype is not None:
        with dtype_errors(options.dtype):
            dtypes.named(options.dtype)
    isas = [options.isa] if options.isa else fastattn.isas()
    count = options.count if options.index is None else 1
    indices = range(count) if options.index is None else [options.index]
    worst, misses, done = {}, [], 0
    try:
        with progress.bar("check") as update:
            for index in indices:
                update(done / count, f"{len(misses)} misses" if misses else "")
                problem = stored_problem(options.seed, index, options.dtype)
                misses += check(problem, isas, worst, pinned_dtype=options.dtype)
                done += 1
    finally:  # an interruption must not take along what was found
        if done:
            _report(worst, misses, done)
    return 1 if misses else 0


def check(problem, isas, worst=None, pinned_dtype=None):
    """Compare one problem with the oracle on several instruction sets.

    Parameters
    ----------
    problem : RandomProblem
    isas : sequence of str
    worst : dict, optional
        Updated: {(isa, dtype): [largest error of out, of lse]}, as shares of what is allowed.
    pinned_dtype : str, optional
        The dtype, if the problem was made with one; part of the reproducer then.

    Returns
    -------
    list of Miss
    """
    import fastattn

    worst = {} if worst is None else worst
    expected = problem.expected()
    misses = []
    for isa in isas:
        try:
            with fastattn.use_isa(isa):
                function = getattr(fastattn, problem.function)
                got = function(*problem.arrays, **problem.options, return_lse=True)
            errors = [_error(*pair) for pair in zip(got, expected[:2], expected[2:], strict=True)]
        except Exception as error:  # any exception is a miss: the problems are all valid
            errors, reason = [], f"{type(error).__name__}: {error}"
        else:
            labels = zip(("out", "lse"), errors, strict=True)
            reason = ", ".join(f"{name} off by {e:.3g} x tolerance" for name, e in labels if e > 1)
            before = worst.get((isa, problem.dtype), [0.0, 0.0])
            worst[isa, problem.dtype] = [max(pair) for pair in zip(before, errors, strict=True)]
        if reason:
            where = f"--seed {problem.seed} --index {problem.index} --isa {isa}"
            where += f" --dtype {pinned_dtype}" if pinned_dtype else ""
            command = f"python -m fastattn check {where}"
            misses.append(Miss(command, problem.describe(), reason))
    return misses


def _error(got, expected, allowed):
    """Return the largest error as a share of what is allowed; infinity for NaN in a wrong place."""
    if got.shape != expected.shape:
        raise ValueError(f"result of shape {got.shape}, expected {expected.shape}")
    if got.size == 0:
        return 0.0
    got = got.astype(np.float64)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(got - expected))
    largest = float(error.max())
    return float("inf") if np.isnan(largest) else largest / allowed


def _report(worst, misses, count):
    """Print the worst errors, and how to reproduce what was missed."""
    print(f"check: {count} problems, largest error as a share of what is allowed")
    for (isa, dtype), (out, lse) in sorted(worst.items()):
        print(f"  {isa:12} {dtype}   out {out:6.1%}   lse {lse:6.1%}")
    for miss in misses[:MISSES_SHOWN]:
        print(f"miss: {miss.reason}\n  {miss.problem}\n  {miss.command}")
    if len(misses) > MISSES_SHOWN:
        print(f"... and {len(misses) - MISSES_SHOWN} more")
    print("all right" if not misses else f"{len(misses)} misses")
