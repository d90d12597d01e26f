# SPDX-License-Identifier: MIT
"""The command ``bench``: its files, an earlier run beside it, what fails within it."""

import itertools
import json
import sys

import pytest
from fake_peers import Exact, measured

import fastattn
from fastattn import cli
from fastattn.cli import bench
from fastattn.measure import peers, runner, suites, table
from fastattn.measure.problems import Problem


def test_bench_one_shape(tmp_path, capsys):
    figures, text = tmp_path / "x.json", tmp_path / "x.md"
    arguments = ["bench", "--shape", "1,4,2,16,16,8", "--peers", "numpy", "--seconds", "0.01"]
    assert cli.main([*arguments, "--json", str(figures), "--markdown", str(text)]) == 0
    assert "vs numpy" in capsys.readouterr().out
    rows = json.loads(figures.read_text())["rows"]
    assert [row["causal"] for row in rows] == [False, True]
    assert rows[0]["entries"]["numpy"]["seconds"] > 0
    assert rows[0]["ratios"]["numpy"] > 0
    assert "| 1x4/2x16x8 |" in text.read_text()


def test_every_suite_is_offered():
    assert list(bench.SUITES) == [*suites.SUITES, "all"]


@pytest.mark.parametrize(
    ("shape", "variants"),
    [("1,2,2,6,6,8", [False, True]), ("1,2,2,1,6,8", [False]), ("1,2,2,7,6,8", [False])],
)
def test_the_causal_variant_has_keys_for_every_query(shape, variants):
    options = cli.parser().parse_args(["bench", "--shape", shape])
    assert [problem.causal for problem in bench._problems(options)] == variants


def test_the_default_of_threads_may_be_too_large(capsys):
    with fastattn.num_threads(1025):
        assert cli.main(["bench", "--seconds", "0"]) == 2
    assert "--threads: expected 1 to 1024, got 1025\n" in capsys.readouterr().err


def test_bench_compares_with_an_earlier_run(tmp_path, capsys):
    figures, lines = tmp_path / "x.json", tmp_path / "x.csv"
    arguments = ["bench", "--shape", "1,4,2,1,16,8", "--peers", "none", "--seconds", "0.01"]
    arguments += ["--dtype", "int8"]
    assert cli.main([*arguments, "--json", str(figures), "--csv", str(lines)]) == 0
    heading, line = lines.read_text().splitlines()
    assert dict(zip(heading.split(","), line.split(","), strict=True))["kv_dtype"] == "int8"
    data = json.loads(figures.read_text())
    samples = data["rows"][0]["entries"]["fastattn"]["samples"]
    samples[:] = [seconds / 1000 for seconds in samples]
    faster = tmp_path / "faster.json"
    faster.write_text(json.dumps(data))
    capsys.readouterr()
    assert cli.main([*arguments, "--compare", str(faster)]) == 1
    assert "1 SLOWER" in capsys.readouterr().out
    data["rows"][0]["others"] = 0.4
    faster.write_text(json.dumps(data))
    assert cli.main([*arguments, "--compare", str(faster)]) == 1
    assert "took up to 40% of the CPUs then, " in capsys.readouterr().out
    data["machine"]["threads"] += 1
    faster.write_text(json.dumps(data))
    assert cli.main([*arguments, "--compare", str(faster)]) == 2
    assert "the runs do not compare: threads" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types_are_those_of_keys_and_values(dtype, capsys):
    pytest.importorskip("ml_dtypes")
    options = cli.parser().parse_args(["bench", "--suite", "decode", "--dtype", dtype])
    chosen = bench._problems(options)
    assert len(chosen) == len(suites.suite("decode"))
    assert {(each.dtype, each.kv_dtype) for each in chosen} == {("float32", dtype)}
    assert all(each.name.endswith(dtype) for each in chosen)
    options = cli.parser().parse_args(["profile", "--shape", "1,4,2,1,16,8", "--dtype", dtype])
    expected = Problem(Hq=4, Hkv=2, Sk=16, D=8, kv_dtype=dtype)
    assert bench.one_problem(options.shape, options.dtype, False) == expected
    arguments = ["bench", "--shape", "1,4,2,1,16,8", "--seconds", "0.01", "--peers", "none"]
    assert cli.main([*arguments, "--dtype", dtype]) == 0  # it compares with the oracle
    assert f"1x4/2x1:16x8 {dtype}" in capsys.readouterr().out


UNNAMED = '[{"name": 3, "subject": "us", "bound": null, "entries": {"us": {}}}]'


@pytest.mark.parametrize(
    "rows",
    ["3", "[3]", "[{}]", '[{"name": "a", "subject": "b"}]', '["a"]', UNNAMED, "[" * 100_000],
    ids=range(7),
)
def test_bench_compares_with_no_other_rows(rows, tmp_path, capsys):
    (tmp_path / "x.json").write_text(f'{{"machine": {{}}, "rows": {rows}}}')
    assert cli.main(["bench", "--compare", str(tmp_path / "x.json")]) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("x.json: no figures of `bench --json`\n")
    assert captured.out == ""  # nothing was measured


def test_bench_does_not_measure_what_it_cannot_compare(tmp_path, monkeypatch, capsys):
    figures, without = tmp_path / "x.json", tmp_path / "without.json"
    arguments = ["bench", "--shape", "1,4,2,1,16,8", "--peers", "none", "--seconds", "0.01"]
    assert cli.main([*arguments, "--json", str(figures)]) == 0
    data = json.loads(figures.read_text())
    del data["rows"][0]["entries"]["fastattn"]["samples"]
    without.write_text(json.dumps(data))
    monkeypatch.setattr(runner, "measure_suite", None)
    other = ["bench", "--shape", "1,4,2,1,17,8"]
    for command, path in ((arguments, without), (other, figures)):
        capsys.readouterr()
        assert cli.main([*command, "--compare", str(path)]) == 2
        assert "no samples of any problem that would be measured" in capsys.readouterr().err


def test_bench_plots(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    from fastattn.measure import limits, sweeps

    measured = {
        "peaks": [{"isa": fastattn.isa(), "dtype": "float32", "threads": 1, "flops": 1e11}],
        "bandwidth": [{"level": "L2", "bytes": 1, "threads": 1, "rate": 1e11}],
        "exponentials": [],
    }
    points = [sweeps.Point("fastattn", 1, 1e-3, 1e-7)]
    found = {"threads": points, "masks": points, "precisions": points}
    monkeypatch.setattr(limits, "machine", lambda threads: measured)
    monkeypatch.setattr(sweeps, "run_all", lambda *_: (found, ["threads 1: torch: no"]))
    arguments = ["bench", "--shape", "1,2,1,1,16,8", "--peers", "none", "--seconds", "0.01"]
    arguments += ["--threads", "1", "--limits", "--plot", str(tmp_path / "out")]
    assert cli.main(arguments) == 1  # what only pictures show was wrong
    assert (tmp_path / "out" / "roofline-dark.png").exists()
    printed = capsys.readouterr().out
    assert "threads 1: torch: no\n8 pictures in" in printed
    assert "Read bandwidth" in printed


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(runner, "measure_suite", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["bench", "--plot", str(tmp_path)]) == 2
    message = "--plot needs matplotlib: pip install 'fastattn[plot]'\n"
    assert capsys.readouterr().err.endswith(message)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_library_that_raises_while_it_is_timed_fails_alone(rounds):
    rates = []

    class Late(Exact):
        name = "late"

        def prepare(self, problem, inputs):
            right, checked = super().prepare(problem, inputs).call, itertools.count()

            def call():
                if next(checked) and len(rates) >= rounds:
                    raise RuntimeError("no memory\nwith a long story")
                return right()

            return peers.Prepared(call)

    row = measured(Exact, Late, meters={"peak": lambda: rates.append(0) or 1e9})
    assert row.measured and row.failed and row.peers == []
    assert [len(row.run.timings["exact"].samples), *map(len, row.run.rates.values())] == [3, 3]
    assert any("late: RuntimeError: no memory" in line for line in table.summary([row]))
    assert table.details([row])[1][1][1:3] == ["late", "wrong: RuntimeError: no memory"]
    rates.clear()
    alone = measured(Late, meters={"peak": lambda: rates.append(0) or 1e9})
    assert not alone.measured and alone.run is None
    assert table.cells([alone])[1][0][1] == "wrong"


def test_a_depth_that_a_library_does_not_know_is_no_failure():
    grouped = peers.classes()["ort-gqa"](1)
    assert grouped.supports(Problem(Hq=4, Hkv=2, Sq=1, Sk=9, D=12)) == "no depth 12"
    assert grouped.supports(Problem(Hq=4, Hkv=2, Sq=1, Sk=9, D=16)) is None


def test_only_ml_dtypes_is_the_fault_of_the_type(monkeypatch, capsys):
    def missing(*_):
        raise ModuleNotFoundError("No module named 'x'", name=name)

    monkeypatch.setattr(runner.peers, "select", missing)
    name = "ml_dtypes"
    assert cli.main(["bench", "--dtype", "bfloat16"]) == 2
    assert capsys.readouterr().err.endswith(
        ": --dtype bfloat16 needs ml_dtypes: pip install ml_dtypes\n"
    )
    name = "another"
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'x'$"):
        cli.main(["bench"])


@pytest.mark.parametrize("finished", [0, 1])
def test_an_interrupted_run_keeps_what_was_measured(finished, tmp_path, monkeypatch, capsys):
    measure, names = runner.measure, []

    def interrupted(problem, *arguments, **options):
        if len(names) == finished:
            raise KeyboardInterrupt
        names.append(problem.name)
        return measure(problem, *arguments, **options)

    monkeypatch.setattr(runner, "measure", interrupted)
    figures = tmp_path / "x.json"
    arguments = ["bench", "--suite", "small", "--peers", "none", "--seconds", "0.01"]
    assert cli.main([*arguments, "--json", str(figures)]) == 130
    captured = capsys.readouterr()
    assert captured.err == "interrupted\n"
    if finished:
        assert [row["name"] for row in json.loads(figures.read_text())["rows"]] == names
        assert names[0] in captured.out
    else:
        assert (captured.out, figures.exists()) == ("", False)
