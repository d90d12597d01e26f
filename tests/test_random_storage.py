# SPDX-License-Identifier: MIT
"""Random problems in pages, packs and narrow types: all drawn, all valid, and errors are found."""

import itertools
import sys

import numpy as np
import pytest

import fastattn
from fastattn import cli, reference
from fastattn.cli import check
from fastattn.cli.random_storage import stored_problem


def test_poison_and_nonsense_are_never_read():
    """The oracle gets what the core gets, and finds what it finds without poison."""
    for index in range(80):
        problem = stored_problem(3, index)
        options = {name: value for name, value in problem.options.items() if name != "out"}
        function = getattr(reference, problem.function)
        found = function(*problem.arrays, **options, return_lse=True)
        out, lse, *allowed = problem.expected()
        for result, expected, error in zip(found, (out, lse), allowed, strict=True):
            np.testing.assert_allclose(
                result, expected, rtol=0, atol=error, err_msg=problem.describe()
            )


def test_core_against_the_oracle():
    """On every instruction set."""
    for index in range(100):
        problem = stored_problem(8, index)
        assert check.check(problem, fastattn.isas()) == []


def test_problems_are_various():
    pytest.importorskip("ml_dtypes")
    problems = [stored_problem(0, index) for index in range(400)]
    assert {problem.dtype for problem in problems} == set(check.TOLERANCE)
    of_kv = {problem.arrays[1].dtype.name for problem in problems}
    assert of_kv == {*check.TOLERANCE, "int8", "float8_e4m3fn", "float8_e5m2"}
    kinds = {(problem.function, "block_table" in problem.options) for problem in problems}
    assert len(kinds) == 4
    ranks = {np.ndim(p.options["k_scale"]) for p in problems if "k_scale" in p.options}
    assert ranks >= {0, 1, 2, 3}
    packs = [problem for problem in problems if problem.function == "attention_varlen"]
    used = set().union(*(problem.options for problem in packs))
    assert used >= {"kv_lengths", "kv_starts", "q_offset", "causal", "window_size", "sinks"}
    assert any(0 in np.diff(problem.options["cu_seqlens_q"]) for problem in packs)
    pages = [problem for problem in problems if "block_table" in problem.options]
    assert any((p.options["block_table"] < 0).any() for p in pages)
    assert any(p.options.get("layout") == "bshd" for p in pages)
    assert any("attn_mask" in p.options for p in pages)


def test_problems_follow_from_seed_and_index():
    pytest.importorskip("ml_dtypes")
    for index in range(30):
        one, other = (stored_problem(0, index) for _ in range(2))
        assert one.describe() == other.describe()
        for array, again in zip(one.arrays, other.arrays, strict=True):
            np.testing.assert_array_equal(array.astype(float), again.astype(float))
            assert array.strides == again.strides
        for name, value in one.options.items():
            if not isinstance(value, str | tuple):
                value, again = (np.asarray(each, float) for each in (value, other.options[name]))
                np.testing.assert_array_equal(value, again)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_pinned_dtype(dtype):
    pytest.importorskip("ml_dtypes")
    assert {stored_problem(0, i, dtype).dtype for i in range(30)} == {dtype}


@pytest.mark.parametrize("option", ["v_scale", "kv_starts", "block_table"])
def test_an_option_that_is_ignored_is_found(option, monkeypatch):
    """Scales of one, sequences that begin at 0, a table in another order."""

    def wrong(function):
        def call(*arrays, **options):
            if option == "v_scale" and option in options:
                options[option] = np.ones_like(options[option])
            elif option == "block_table" and option in options:
                pages = arrays[1].shape[0]
                table = np.clip(options[option], 0, pages - 1)
                options[option] = np.where(table == 0, pages - 1, table - 1)
            elif option == "kv_starts":
                options.pop(option, None)
            return function(*arrays, **options)

        return call

    for function in fastattn.attention, fastattn.attention_varlen:
        monkeypatch.setattr(fastattn, function.__name__, wrong(function))
    problems = (stored_problem(3, index) for index in itertools.count())
    problems = itertools.islice((each for each in problems if option in each.options), 15)
    assert sum(bool(check.check(problem, ["scalar"])) for problem in problems) >= 5


@pytest.fixture
def without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)


def test_missing_ml_dtypes_is_no_error(without_ml_dtypes):
    """The types of NumPy are drawn, 16-bit and narrow ones too."""
    problems = [stored_problem(0, index) for index in range(100)]
    assert {problem.dtype for problem in problems} == {"float32", "float64", "float16"}
    of_kv = {problem.arrays[1].dtype.name for problem in problems}
    assert of_kv == {"float32", "float64", "float16", "int8"}


def test_dtype_of_missing_ml_dtypes(without_ml_dtypes, capsys):
    assert cli.main(["check", "--dtype", "bfloat16"]) == 2
    assert "--dtype bfloat16 needs ml_dtypes: pip install ml_dtypes" in capsys.readouterr().err
    assert cli.main(["check", "--dtype", "float16", "--count", "1"]) == 0


def test_there_may_be_any_number_of_problems(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "stored_problem", stop)
    assert cli.main(["check", "--count", str(2**63)]) == 130
