# SPDX-License-Identifier: MIT
"""The timestamps of the instrumented build, and what is made of them."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fastattn import _core, cli
from fastattn.measure import profile

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src_c").glob("*.c"))
COMPILER = shutil.which("gcc")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Build the core with timestamps and scalar kernels; return a program that runs one call."""
    if not SOURCES or COMPILER is None:
        pytest.skip("needs the source tree and gcc")
    target = tmp_path_factory.mktemp("profile") / "traced"
    command = [COMPILER, "-std=gnu11", "-O1", "-ffp-contract=off", f"-I{ROOT / 'src_c'}"]
    command += ["-DFA_PROFILE", "-DFA_HAVE_SCALAR", "-DFA_HAVE_THREADS", "-pthread"]
    kernels = []
    for bits in (32, 64):
        made = target.with_suffix(f".{bits}.o")
        source = ROOT / "src_c" / "isa" / "scalar.c"
        subprocess.run([*command, f"-DFA_REAL_BITS={bits}", "-c", source, "-o", made], check=True)
        kernels.append(made)
    main = Path(__file__).parent / "c" / "traced.c"
    subprocess.run([*command, main, *SOURCES, *kernels, "-lm", "-o", target], check=True)
    return target


def trace_of(program, threads, **environment):
    """Run the program; return a `profile.Trace`."""
    done = subprocess.run(
        [program, str(threads)], env=environment, capture_output=True, text=True, check=True
    )
    rows = np.array([line.split() for line in done.stdout.splitlines()], np.int64)
    return profile._trace([rows[rows[:, 0] == n, 1:] for n in range(threads)])


@pytest.mark.no_sanitizer
@pytest.mark.parametrize("threads", [1, 2])
def test_events_follow_one_another_within_the_call(program, threads):
    trace = trace_of(program, threads)
    assert sum(map(len, trace.events)) > 50
    for events in trace.events:
        assert (events[:, 0] <= events[:, 1]).all()
        assert (events[1:, 0] >= events[:-1, 1]).all()
        assert not len(events) or (trace.begin <= events[0, 0] and events[-1, 1] <= trace.end)
    seen = {profile.STAGES[n] for events in trace.events for n in np.unique(events[:, 2])}
    assert seen >= {"pack q", "load K V", "QKᵀ", "mask", "softmax", "PV", "write"}


def median_event(trace, stage):
    """Return how long an event of the stage takes, unmoved by the few that are interrupted."""
    begin, end, stages = trace.events[0].T
    return np.median((end - begin)[stages == profile.STAGES.index(stage)])


@pytest.mark.no_sanitizer
def test_a_kernel_that_is_slowed_shows(program):
    usual = trace_of(program, 1)
    slow = trace_of(program, 1, FASTATTN_SLOW="40")
    score, value = (
        median_event(slow, stage) / median_event(usual, stage) for stage in ("QKᵀ", "PV")
    )
    assert score > 4 * value


def test_the_ordinary_build_has_no_timestamps(capsys):
    if hasattr(ctypes.CDLL(_core.__file__), "fa_profile_start"):
        pytest.skip("this is the instrumented build")
    assert profile.library() is None
    assert cli.main(["profile", "--shape", "1,1,1,8,8,8"]) == 2
    assert "FASTATTN_PROFILE=1" in capsys.readouterr().err


TRACE = profile.Trace(
    1000,
    2000,
    [
        np.array([[1000, 1200, 2], [1200, 1300, 4], [1300, 1800, 5]]),
        np.array([[1500, 1750, 2], [1750, 2000, 2]]),
    ],
)

EVERY_STAGE = profile.Trace(
    0, 100, [np.array([[10 * n, 10 * n + 9, n] for n in range(len(profile.STAGES))])]
)


def test_stages_and_waiting_add_up_to_the_call():
    first, second = TRACE.stages(0), TRACE.stages(1)
    assert first["QKᵀ"] == pytest.approx(200e-9)
    assert first["PV"] == pytest.approx(500e-9)
    assert first["waiting"] == pytest.approx(200e-9)
    assert second["waiting"] == pytest.approx(500e-9)
    assert sum(second.values()) == pytest.approx(TRACE.seconds)
    headings, lines = profile.cells(TRACE)
    assert headings == ["thread", "QKᵀ", "softmax", "PV", "waiting"]
    assert lines[0] == ["0", "20.0%", "10.0%", "50.0%", "20.0%"]
    assert lines[-1] == ["all", "35.0%", "5.0%", "25.0%", "35.0%"]


def test_shares_over_time():
    first, second = TRACE.shares(0, 4), TRACE.shares(1, 4)
    np.testing.assert_allclose(first[2], [0.8, 0, 0, 0])
    np.testing.assert_allclose(first[4], [0.2, 0.2, 0, 0])
    np.testing.assert_allclose(first[5], [0, 0.8, 1, 0.2])
    np.testing.assert_allclose(second.sum(axis=0), [0, 0, 1, 1])


def test_timeline(tmp_path):
    pytest.importorskip("matplotlib")
    from fastattn.measure import timeline

    for theme in ("light", "dark"):
        timeline.draw(tmp_path / f"{theme}.png", TRACE, "a call", theme)
    light, dark = ((tmp_path / f"{theme}.png").read_bytes() for theme in ("light", "dark"))
    assert light.startswith(b"\x89PNG") and light != dark


def test_every_stage_has_a_color_of_its_own(tmp_path):
    pytest.importorskip("matplotlib")
    from fastattn.measure import timeline

    assert len(set(timeline.COLORS)) == len(timeline.COLORS) == len(profile.STAGES)
    timeline.draw(tmp_path / "x.png", EVERY_STAGE, "a call")


def test_the_name_of_every_stage_is_within_the_picture(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib.figure")
    from fastattn.measure import timeline

    drawn = []
    monkeypatch.setattr(matplotlib.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    timeline.draw("x.png", EVERY_STAGE, "a call")
    [figure] = drawn
    figure.draw_without_rendering()
    [legend] = figure.legends
    assert len(legend.get_texts()) == len(profile.STAGES) + 1
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(profile, "library", lambda: "a core")
    monkeypatch.setattr(profile, "record", lambda *_: TRACE)
    assert cli.main(["profile", "--shape", "1,1,1,8,8,8", "--json", "/dev/full"]) == 2
    assert capsys.readouterr().err.endswith("error: /dev/full: No space left on device\n")


def test_a_shape_that_does_not_fit_into_memory(monkeypatch, capsys):
    monkeypatch.setattr(profile, "library", lambda: "a core")
    assert cli.main(["profile", "--shape", "1,1,1,9999999999999,1,8"]) == 2
    error = capsys.readouterr().err
    assert "--shape: expected what fits into memory, got 1,1,1,9999999999999,1,8: Un" in error
    assert error.count("\n") == 1


def test_plot_without_an_ending(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(profile, "library", lambda: "a core")
    monkeypatch.setattr(profile, "record", lambda *_: TRACE)
    assert cli.main(["profile", "--shape", "1,1,1,8,8,8", "--plot", str(tmp_path / "x")]) == 0
    light, dark = (tmp_path / name for name in ("x.png", "x-dark.png"))
    assert set(tmp_path.iterdir()) == {light, dark}
    assert capsys.readouterr().out.endswith(f"timeline in {light} and {dark}\n")


def test_plot_of_another_ending(capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["profile", "--shape", "1,1,1,8,8,8", "--plot", "x.foo"]) == 2
    assert "x.foo: expected an ending of " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "1,2"], "--shape: expected B,Hq"),
        (["--shape", "1,1,1,8,8,8", "--isa", "mmx"], "--isa: expected one of"),
        (["--shape", "1,1,1,8,8,8", "--threads", "0"], "--threads: expected 1 to 1024, got 0"),
        (["--shape", "1,1,1,8,8,8", "--plot", "/no/such/x.png"], "no such directory"),
    ],
)
def test_bad_options(options, message, capsys):
    assert cli.main(["profile", *options]) == 2
    assert message in capsys.readouterr().err
