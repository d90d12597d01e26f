# SPDX-License-Identifier: MIT
"""The scripts in bench/: what fails within a report, and arguments that cannot be."""

import argparse
import contextlib
import importlib.util
import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from fake_peers import Exact, Wrong, measured

from fastattn.measure import checking

pytest.importorskip("resource")  # of POSIX; memory.py asks it

BENCH = Path(__file__).parent.parent / "bench"
pytestmark = [
    pytest.mark.forces_isa,
    pytest.mark.skipif(not BENCH.exists(), reason="needs the source tree"),
]


def test_a_wrong_result_has_a_figure_that_misses_its_goal(script):
    figure = script("figure")
    row = measured(Wrong, meters={"peak": lambda: 1e9})
    missed = figure.share_of_peak("share", row, 0.5)
    assert missed.reached is False
    name, value, goal, verdict = missed.cells()
    assert (name, goal, verdict) == ("share", ">= 50.0%", "NO")
    assert value.startswith("WrongResultError: error ")
    right = measured(Exact, meters={"peak": lambda: 1.0})
    assert figure.share_of_peak("share", right, 0.5).cells()[2:] == [">= 50.0%", "yes"]
    assert figure.share_of_peak("share", right, None).cells()[2:] == ["", ""]


@pytest.fixture
def sections(script, monkeypatch, tmp_path):
    """Return a function that runs the report with these sections; results are in `tmp_path`."""
    report = script("report")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "write", lambda *_: [])
    monkeypatch.setattr(report.limits, "machine", lambda _: {})

    def run(chosen, *arguments):
        monkeypatch.setattr(report.figures, "SECTIONS", chosen)
        return report.main([*arguments])

    run.Figure = report.figures.Figure
    return run


def test_a_section_that_fails_is_a_goal_missed(sections, capsys):
    def torn(settings):
        raise checking.WrongResultError("error 1.0 of max|v|")

    def fine(settings):
        return [sections.Figure("fine", np.float64(2.0), at_least=1.0)], []

    assert sections({"torn": torn, "fine": fine}) == 1
    captured = capsys.readouterr()
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert "section torn WrongResultError: error 1.0 of max|v| NO" in lines
    assert "fine 2.000 >= 1.000 yes" in lines
    assert captured.err.endswith("2 figures, 1 goals missed\n")


@pytest.mark.parametrize("arguments", [[], ["--quick"]])
def test_an_interrupted_report_keeps_its_finished_sections(arguments, sections, tmp_path, capsys):
    def stopped(settings):
        raise KeyboardInterrupt

    def fine(settings):
        return [sections.Figure("fine", 2.0)], []

    assert sections({"fine": fine, "stopped": stopped, "never": None}, *arguments) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")
    written = [json.loads(path.read_text())["figures"] for path in tmp_path.iterdir()]
    assert [[each["name"] for each in figures] for figures in written] == (
        [] if arguments else [["fine"]]
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("report", ["--threads", "0"], "--threads: expected 1 to 1024, got 0"),
        ("report", ["--seconds", "nan"], "--seconds: expected a finite time above 0, got nan"),
        ("report", ["--seconds", "0"], "--seconds: expected a finite time above 0, got 0.0"),
        ("report", ["--peers", "numpy,nope"], "peer 'nope': expected one of numpy"),
        ("report", ["--only", ""], "--only: expected accuracy,peak"),
        ("report", ["--from", "/no/such.json"], "/no/such.json: No such file"),
        ("report", ["--from", __file__], "no results of report.py, with their sections"),
        ("machine", ["--threads", "0"], "--threads: expected 1 to 1024, got 0"),
        ("machine", ["--json", "/no/such/x.json"], "/no/such: no such directory"),
        ("memory", ["--threads", "0"], "--threads: expected 1 to 1024, got 0"),
        ("bench_llama", ["--tokens", "1"], "--tokens: expected at least 2, got 1"),
        ("bench_llama", ["--width", "100"], "--width: expected a multiple of 256, got 100"),
        ("instructions", ["--compare", "/no/such.json"], "/no/such.json: No such file"),
        ("instructions", ["--compare", __file__], "no counts of instructions.py --json"),
    ],
)
def test_bad_arguments(name, arguments, message, script, monkeypatch, capsys):
    module = script(name)
    for work in ("measure", "write", "write_readme"):  # or a report would overwrite the README
        monkeypatch.setattr(module, work, None, raising=False)
    with pytest.raises(SystemExit) as stopped:
        module.main(arguments)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""  # nothing was measured


@pytest.mark.parametrize("threads", ["0", "99999999999"])
def test_threads_that_the_benches_cannot_have(threads, script, capsys):
    script("arguments")  # the conftest of the scripts, which is not the one of the tests, needs it
    spec = importlib.util.spec_from_file_location("bench_conftest", BENCH / "conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    parser = argparse.ArgumentParser()
    parser.addoption = parser.add_argument
    conftest.pytest_addoption(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--threads", threads])
    assert f"--threads: expected 1 to 1024, got {threads}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "names"), [("none", ()), ("numpy", ("numpy",)), ("all", None), (None, None)]
)
def test_a_report_takes_the_peers_that_bench_takes(text, names, script):
    report = script("report")
    options = report.arguments_parser().parse_args([] if text is None else ["--peers", text])
    assert report.checked(options, print)[1].peers == names


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="own memory is read there")
@pytest.mark.parametrize(
    ("module", "section"), [("figures", "lean"), ("figures_decode", "_mapped")]
)
def test_memory_is_measured_on_the_threads_of_the_report(module, section, script, monkeypatch):
    memory, seen = script("memory"), []

    def run(command, **_):
        monkeypatch.setattr(
            memory.fastattn, "attention", lambda *_, **options: seen.append(options)
        )
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            memory.main(command[2:])
        return subprocess.CompletedProcess(command, 0, output.getvalue())

    monkeypatch.setattr(memory.subprocess, "run", run)
    settings = script("figure").Settings(threads=3, quick=True)
    monkeypatch.setattr(settings.__class__, "length", lambda *_: 64)
    assert getattr(script(module), section)(settings)
    assert {options["num_threads"] for options in seen} == {3}
