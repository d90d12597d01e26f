# SPDX-License-Identifier: MIT
"""What the report writes down: rows that can be read back, and the README's summary of them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from fake_peers import SMALL

from fastattn.measure import runner, table, timing

pytest.importorskip("resource")  # of POSIX; memory.py asks it

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.forces_isa,
    pytest.mark.skipif(not (ROOT / "bench").exists(), reason="needs the source tree"),
]
NO_LIMITS = {"peaks": [], "bandwidth": [], "exponentials": []}


def row(**contestants):
    """Return what was measured of contestants: their times, or why they have none."""
    entries = {
        name: runner.Entry(name, "1", note=given, failed="Error" in given)
        if isinstance(given, str)
        else runner.Entry(name, "1", 1e-7, timing.Timing(given * np.array([0.9, 1.1, 1.0]), 7))
        for name, given in contestants.items()
    }
    timings = {name: entry.timing for name, entry in entries.items() if entry.timing is not None}
    rates = {runner.PEAK: np.array([1e3, 2e3, 3e3]), runner.READ: np.full(3, 1e12)}
    run = timing.Run(timings, rates, 0.25) if timings else None
    return runner.Row(SMALL, entries, run, "matrix")


@pytest.fixture
def report(script, monkeypatch, tmp_path):
    """Return the script, whose README and results are in `tmp_path`, with two sections."""

    def one():
        """Of problems,
        in two lines.
        """

    def two():
        """Of figures."""

    module = script("report")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "bench" / "results")
    monkeypatch.setattr(module.figures, "SECTIONS", {"one": one, "two": two})
    module.RESULTS.mkdir(parents=True)
    return module


@pytest.fixture
def results(report):
    """Return (machine, figures, rows): the second problem has no peer, and two goals are missed."""
    Figure = report.figures.Figure
    known = report.machine.facts() | {"threads": 1}
    rows = {"one": [row(us=1.0, a=2.0, b=3.0), row(us=1.0, a="no masks"), row(us=1.0, b=0.5)]}
    found = {
        "one": [Figure("fine", 2.0, at_least=1.0), Figure("low", 0.5, "%", at_least=0.8)],
        "two": [Figure("free", np.float64(3.0)), Figure("none", None, at_most=1.0, note="why")],
    }
    return known, found, rows


@pytest.mark.parametrize(
    "contestants",
    [{"us": 1.0, "a": 2.0, "b": "no masks"}, {"us": "WrongResultError: 1", "a": 2.0}, {"us": "no"}],
)
def test_rows_are_read_back_as_they_were(contestants):
    before = row(**contestants)
    text = json.dumps(table.as_json([before]))
    after = table.from_json(json.loads(text)[0])
    assert json.dumps(table.as_json([after])) == text
    assert table.cells([after]) == table.cells([before])
    assert table.summary([after]) == table.summary([before])


def test_results_are_read_back_as_they_were(report, results):
    known, found, rows = results
    path = report.write_data("", known, {}, found, rows)
    again = report.read_data(path)
    assert again[:2] == (known, found)
    assert report.readme_part(*again) == report.readme_part(*results)


def test_the_summary_has_a_line_for_each_section(report, results):
    known, found, rows = results
    part = report.readme_part(known, found, rows)
    assert "| `one`: Of problems, in two lines. | 3 | 2 | 1.00x | 0.50x | 1 of 2 |" in part
    assert "| `two`: Of figures. | - | - | - | - | 0 of 1 |" in part
    found["two"] = []
    assert "`two`" not in report.readme_part(known, found, rows)  # as on a machine without a unit


def test_the_summary_names_the_goals_that_were_missed(report, results):
    known, found, rows = results
    part = report.readme_part(known, found, rows)
    assert "2 of 3 goals missed:" in part
    assert "| low | 50.0% | >= 80.0% |" in part
    assert "| none | why | <= 1.000 |" in part
    assert "| fine |" not in part
    for figure in report.every(found):
        object.__setattr__(figure, "value", 0.9)
    found["one"].pop(0)
    assert "0 of 2 goals missed.\n" in report.readme_part(known, found, rows)


def test_the_summary_warns_of_limits_by_older_meters(report, results):
    known, found, rows = results
    assert "Caution" not in report.readme_part(known, found, rows)
    del known["meters"]
    assert "Caution" in report.readme_part(known, found, rows)
    assert set(report.CAUTIONS) == set(range(1, report.limits.METERS))


def test_the_columns_are_explained_where_they_stand(report, results):
    known, found, rows = results
    for unit in ("FMA", "matrix"):
        rows["one"][0].arithmetic = unit
        before, _, behind = report.as_markdown(known, NO_LIMITS, found, rows).partition("## one")
        assert f"({unit})" in before
        assert f"% {unit} |" in behind


def test_saved_results_go_into_the_readme_and_nowhere_else(report, results, tmp_path, monkeypatch):
    saved = report.write_data("", results[0], {}, *results[1:])
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    before = saved.read_bytes()
    monkeypatch.setattr(report, "measure", None)
    assert report.main(["--from", str(saved)]) == 0
    part = report.readme_part(*results)
    assert readme.read_text() == f"before\n{report.BEGIN}\n{part}\n{report.END}\nafter\n"
    assert saved.read_bytes() == before
    readme.write_text("no markers")
    assert report.main(["--from", str(saved)]) == 1


def test_the_readme_shows_the_results_that_it_links(script):
    pytest.importorskip("ml_dtypes")
    report = script("report")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.partition(f"{report.BEGIN}\n")[2].partition(f"\n{report.END}")[0]
    [path] = set(re.findall(r"\]\((bench/results/.*?)\.md\)", shown))
    assert (ROOT / f"{path}.md").exists()
    pictures = sorted((ROOT / "bench" / "results").glob("*.png"))
    assert report.readme_part(*report.read_data(ROOT / f"{path}.json"), pictures) == shown
