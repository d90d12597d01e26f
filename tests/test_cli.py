# SPDX-License-Identifier: MIT
"""The command line: exit codes and messages."""

import builtins
import importlib
import itertools
import json
import sys
import time

import numpy as np
import programs
import pytest

import fastattn
from fastattn import cli
from fastattn.cli import check, progress, random_problems
from fastattn.cli.random_problems import DTYPES, random_problem


def test_module_runs_as_a_program():
    done = programs.python("-m", "fastattn", "info", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["isas"]["scalar"] == "available"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("FASTATTN_ISA", "mmx", "one of scalar"),
        ("FASTATTN_NUM_THREADS", "two", "an integer from 1 to"),
    ],
)
@pytest.mark.parametrize("command", [["-m", "fastattn", "info"], ["-Bmfastattn"]], ids=str)
def test_a_variable_that_cannot_be_used_is_one_line(command, variable, value, expected):
    done = programs.python(*command, **{variable: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"python -m fastattn: error: {variable}: expected {expected}")
    assert f"got {value!r}" in done.stderr and done.stderr.count("\n") == 1


def test_importing_the_package_imports_no_more_than_it_needs():
    code = (
        "import sys, fastattn; "
        "parts = tuple('fastattn.' + name for name in ('measure', 'cli', 'layers', 'models')); "
        "assert not [m for m in sys.modules if m.startswith(parts)]; "
        "fastattn.layers, fastattn.models; "
        "assert not {'torch', 'transformers', 'tokenizers', 'ml_dtypes'} & set(sys.modules)"
    )
    done = programs.run(code)
    assert done.returncode == 0, done.stderr


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"fastattn {fastattn.__version__}\n"


def test_info_names_the_active_isa(capsys):
    assert cli.main(["info"]) == 0
    assert fastattn.isa() in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["run", "--help"]])
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 0
    assert "usage: python -m fastattn" in capsys.readouterr().out


def test_overview_runs_all_four(monkeypatch, capsys):
    seen = []
    for name, code in (("info", 0), ("check", 1), ("bench", 0), ("demo", 0)):
        module = importlib.import_module(f"fastattn.cli.{name}")
        monkeypatch.setattr(module, "run", lambda o, c=code: seen.append(o.command) or c)
    assert cli.main([]) == 1
    assert seen == ["info", "check", "bench", "demo"]


def test_check_passes(capsys):
    assert cli.main(["check", "--count", "25", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    assert "all right" in out
    assert all(isa in out for isa in fastattn.isas())


def test_check_finds_a_wrong_kernel(monkeypatch, capsys):
    right = fastattn.attention

    def wrong(q, k, v, **options):
        out, lse = right(q, k, v, **options)
        if out.size > 40:
            out.flat[37] += 1e-3
        return out, lse

    monkeypatch.setattr(fastattn, "attention", wrong)
    assert cli.main(["check", "--count", "10", "--isa", "scalar", "--dtype", "float32"]) == 1
    out = capsys.readouterr().out
    reproducer = next(line for line in out.splitlines() if "--index" in line).split()
    assert reproducer[:4] == ["python", "-m", "fastattn", "check"]
    assert cli.main(reproducer[3:]) == 1
    assert "1 problems" in capsys.readouterr().out
    monkeypatch.undo()
    assert cli.main(reproducer[3:]) == 0


def test_check_finds_a_nan_that_should_not_be_there():
    expected = np.zeros(3)
    assert check._error(np.array([0.0, np.nan, 0.0]), expected, 1e-6) == np.inf
    assert check._error(np.array([0.0, np.nan]), np.array([0.0, np.nan]), 1e-6) == 0
    assert check._error(np.array([-np.inf]), np.array([-np.inf]), 1e-6) == 0


def test_an_interrupted_check_keeps_what_it_found(monkeypatch, capsys):
    made = check.stored_problem

    def stopped(seed, index, dtype):
        if index == 2:
            raise KeyboardInterrupt
        return made(seed, index, dtype)

    monkeypatch.setattr(check, "stored_problem", stopped)
    monkeypatch.setattr(check, "_error", lambda got, expected, allowed: 2.0)
    assert cli.main(["check", "--isa", "scalar"]) == 130
    captured = capsys.readouterr()
    assert captured.out.startswith("check: 2 problems") and captured.out.endswith("2 misses\n")
    assert captured.err == "interrupted\n"


def test_check_reports_an_exception_as_a_miss(monkeypatch, capsys):
    def broken(*_, **__):
        raise ValueError("q: no reason")

    monkeypatch.setattr(fastattn, "attention", broken)
    assert cli.main(["check", "--count", "1", "--isa", "scalar"]) == 1
    assert "ValueError: q: no reason" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--isa", "mmx"], "--isa: expected one of"),
        (["check", "--count", "0"], "--count: expected at least 1, got 0"),
        (["check", "--seed", "-1"], "--seed: expected at least 0, got -1"),
        (["check", "--index", "-2"], "--index: expected at least 0, got -2"),
        (["bench", "--isa", "mmx"], "--isa: expected one of"),
        (["bench", "--peers", "cuda"], "--peers: peer 'cuda': expected one of numpy"),
        (["bench", "--shape", "1,2,3"], "--shape: expected B,Hq,Hkv,Sq,Sk,D, got '1,2,3'"),
        (["bench", "--shape", "1,3,2,8,8,8"], "no multiple of Hkv"),
        (["bench", "--threads", "0"], "--threads: expected 1 to 1024, got 0"),
        (["bench", "--seconds", "1e-3", "--threads", "1025"], "expected 1 to 1024, got 1025"),
        (["bench", "--seconds", "0"], "--seconds: expected a finite time above 0, got 0.0"),
        (["bench", "--seconds", "nan"], "--seconds: expected a finite time above 0, got nan"),
        (["bench", "--seconds", "inf"], "--seconds: expected a finite time above 0, got inf"),
        (["bench", "--shape", "1,1,1,9999999999999,1,8"], "--shape: expected what fits into"),
        (["bench", "--shape", f"{2**30},1,1,{2**30},1,1"], "--shape: expected arrays of less than"),
        (["bench", "--shape", f"{'9' * 5000},1,1,1,1,1"], "--shape: expected B,Hq,Hkv,Sq,Sk,D, go"),
        (["bench", "--shape", "1,1,0,8,8,8"], "--shape: expected sizes of at least 1, got 1,1,0,8"),
        (["bench", "--shape=-1,1,1,8,8,8"], "--shape: expected sizes of at least 1, got -1,1,1,8"),
        (["bench", "--json", "/no/such/folder/x.json"], "no such directory"),
        (["bench", "--csv", "/no/such/folder/x.csv"], "no such directory"),
        (["bench", "--plot", __file__], "test_cli.py: a file, expected a directory"),
        (["bench", "--plot", f"{__file__}/x"], "test_cli.py: a file, expected a directory"),
        (["bench", "--markdown", "."], ".: a directory, expected a file"),
        (["bench", "--fail-below", "1.5"], "--fail-below"),
        (["bench", "--compare", "/no/such/x.json"], "No such file"),
        (["bench", "--compare", __file__], "no figures of `bench --json`"),
    ],
)
def test_bad_options(arguments, message, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith(f"python -m fastattn {arguments[0]}: error: ")
    assert captured.err.count("\n") == 1


def test_random_problems_are_reproducible_and_various():
    problems = [random_problem(0, index) for index in range(200)]
    again = random_problem(0, 17)
    for one, other in zip(problems[17].arrays, again.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.strides == other.strides
    assert {problem.dtype for problem in problems} == set(DTYPES)
    assert {problem.arrays[0].ndim for problem in problems} == {2, 3, 4, 5}
    used = set().union(*(problem.options for problem in problems))
    assert used == {
        "attn_mask", "causal", "window_size", "scale", "softcap", "alibi_slopes", "sinks",
        "q_offset", "kv_lengths", "kv_starts", "layout", "out",
    }  # fmt: skip
    poisoned = [p for p in problems if any(np.isnan(array).any() for array in p.arrays)]
    assert len(poisoned) > 20
    assert not any(np.isnan(array).any() for problem in problems for array in problem.clean)
    assert any(stride < 0 for p in problems for array in p.arrays for stride in array.strides)


@pytest.mark.parametrize(
    ("kind", "strides"),
    [
        ("plain", {(160, 40, 8)}),
        ("gap", {(320, 40, 8), (320, 80, 8), (320, 80, 16)}),
        ("reversed", {(-160, 40, 8), (160, -40, 8)}),
        ("swapped", {(40, 120, 8), (160, 40, 8), (160, 8, 32)}),
        ("column-step", {(320, 80, 16)}),
        ("offset", {(192, 48, 8)}),
    ],
)
def test_random_strides_are_of_the_kind_that_is_drawn(kind, strides, rng, monkeypatch):
    assert kind in random_problems.STRIDES
    monkeypatch.setattr(random_problems, "STRIDES", (kind,))
    array = rng.standard_normal((3, 4, 5))
    found = [random_problems.strided(rng, array) for _ in range(50)]
    assert {each.strides for each in found} == strides
    for each in found:
        np.testing.assert_array_equal(each, array)


@pytest.mark.parametrize("columns", [80, 30])
def test_plain_progress_bar_without_rich(columns, monkeypatch, capsys):
    real_import = builtins.__import__

    def no_rich(name, *rest):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_rich)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    now = itertools.chain([100.0, 101.0, 101.05, 104.0, 104.05])  # one of them too soon to draw
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with progress.bar("work") as update:
        for fraction, text in (0.0, "begun"), (0.25, "soon"), (0.5, "half"), (1.0, "done"):
            update(fraction, text)
    drawn = [line.rstrip() for line in capsys.readouterr().err.split("\r")]
    lines = [
        "",
        f"work [{' ' * 30}]   0%  begun",
        f"work [{'#' * 15}{' ' * 15}]  50% 4 s left half",
        f"work [{'#' * 30}] 100% 0 s left done",
        "",
        "",
    ]
    assert drawn == [line[: columns - 1].rstrip() for line in lines]
