# SPDX-License-Identifier: MIT
"""Pictures of figures that are made up here: which there are, and who has which color."""

import itertools

import numpy as np
import pytest

from fastattn.measure import pictures, runner, suites, sweeps, timing
from fastattn.measure.problems import Problem

pytestmark = pytest.mark.forces_isa

pytest.importorskip("matplotlib")

MACHINE = {
    "cpu": "a CPU", "threads": 2, "isa": "avx2", "version": "1",
    "peaks": [{"isa": "avx2", "dtype": "float32", "threads": 2, "flops": 1e11}],
    "bandwidth": [{"level": level, "bytes": 1, "threads": 2, "rate": rate}
                  for level, rate in (("L2", 2e11), ("", 1e11), ("DRAM", 3e10))],
}  # fmt: skip


def row(problem, **seconds):
    """Return a row as if these libraries had taken so long."""
    timings = {name: timing.Timing(np.full(3, each)) for name, each in seconds.items()}
    rates = {"peak": np.full(3, 1e11), "read": np.full(3, 3e10)}
    entries = {
        name: runner.Entry(name, "1", 1e-7, timings[name]) for name in seconds
    }  # fmt: skip
    return runner.Row(problem, entries, timing.Run(timings, rates))


def points(*settings):
    """Return a point of two libraries for each setting."""
    return [
        sweeps.Point(name, x, 1e-3 * (1 + n), 1e-7)
        for n, name in enumerate(("fastattn", "torch"))
        for x in settings
    ]


ROWS = [
    row(Problem(Hq=8, Sq=256), fastattn=1e-3, torch=2e-3, numpy=5e-4),
    row(Problem(Hq=8, Sq=512), fastattn=2e-3, torch=2e-3),
    row(Problem(Hq=8, Hkv=2, Sq=1, Sk=4096), fastattn=1e-3, torch=2e-3),
    runner.Row(Problem(Sq=9), {"fastattn": runner.Entry("fastattn", "1", failed=True)}),
]
SWEEPS = {
    "threads": points(1, 2),
    "masks": points(*suites.SHARES),
    "precisions": points("float32", "bfloat16"),
}


def test_every_picture_is_drawn_for_light_and_dark(tmp_path):
    paths = pictures.draw(tmp_path, ROWS, MACHINE, SWEEPS, pictures.where(MACHINE))
    names = ("roofline", "ratios", "length-8x64-float32", "threads", "mask-share", "precision")
    assert {path.name for path in paths} == {
        f"{name}-{theme}.png" for name in names for theme in pictures.THEMES
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_without_anything_measured_only_the_sweeps_are_drawn(tmp_path):
    paths = pictures.draw(tmp_path, ROWS[-1:], MACHINE, SWEEPS, "")
    assert len(paths) == 2 * len(SWEEPS)


@pytest.mark.parametrize("theme", pictures.THEMES)
def test_a_library_has_one_color_of_its_own_in_every_picture(theme):
    drawn = dict(pictures.row_pictures(ROWS, MACHINE, "", theme))
    drawn |= dict(pictures.sweep_pictures(SWEEPS, "", theme))
    for name in ("length-8x64-float32", "threads", "mask-share"):
        lines = {line.get_label(): line.get_color() for line in drawn[name].axes.lines}
        assert lines["torch"] == pictures.STYLES["torch"][0]
        assert lines["fastattn"] == pictures.THEMES[theme]["subject"]
    colors = [color for color, _ in pictures.STYLES.values()]
    assert len({*colors, pictures.THEMES[theme]["subject"]}) == len(colors) + 1


def test_titles_and_units_are_there():
    for name, sheet in [
        *pictures.row_pictures(ROWS, MACHINE, "a CPU", "light"),
        *pictures.sweep_pictures(SWEEPS, "a CPU", "light"),
    ]:
        assert sheet.figure.get_suptitle(), name
        assert "a CPU" in sheet.axes.get_title("left"), name
        assert sheet.axes.get_xlabel(), name


def test_a_long_name_of_a_cpu_is_within_the_picture():
    machine = MACHINE | {"cpu": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "version": "1.2.3"}
    [(_, sheet), *_] = pictures.sweep_pictures(SWEEPS, pictures.where(machine), "light")
    sheet.figure.draw_without_rendering()
    assert sheet.axes.get_tightbbox().x1 <= sheet.figure.bbox.x1


def test_lines_of_the_roofline_do_not_cross_its_words():
    sheet = pictures.roofline(ROWS[:1], MACHINE, "", "dark")
    [words] = sheet.axes.texts
    assert words.get_bbox_patch().get_facecolor()[:3] == sheet.figure.get_facecolor()[:3]
    lines, dots = sheet.axes.lines, sheet.axes.collections
    assert max(line.zorder for line in lines) < words.zorder < min(dot.zorder for dot in dots)


def test_one_thread_is_no_threads():
    assert pictures.where(MACHINE) == "a CPU, 2 threads, avx2, fastattn 1"
    assert pictures.where(MACHINE | {"threads": 1}) == "a CPU, 1 thread, avx2, fastattn 1"


def test_curves_join_what_differs_in_length_only():
    assert {name: [row.problem.Sq for row in rows] for name, rows in
            pictures.curves(ROWS[:3]).items()} == {"8x64-float32": [256, 512]}  # fmt: skip


CURVES = {
    "8x64-float32": ({}, "full, batch 1, 8 heads, depth 64, float32"),
    "causal-8x64-float32": ({"causal": True}, "causal, batch 1, 8 heads, depth 64, float32"),
    "2x8x64-float32": ({"B": 2}, "full, batch 2, 8 heads, depth 64, float32"),
    "8-2x64-float32": ({"Hkv": 2}, "full, batch 1, 8 heads, 2 of keys, depth 64, float32"),
    "8x64-32-float32": ({"Dv": 32}, "full, batch 1, 8 heads, depth 64:32, float32"),
    "8x64-float16": ({"dtype": "float16"}, "full, batch 1, 8 heads, depth 64, float16"),
    "8x64-float32-int8-kv": (
        {"kv_dtype": "int8"}, "full, batch 1, 8 heads, depth 64, float32, int8 kv",
    ),
    "8x64-float32-softcap-50": (
        {"softcap": 50.0}, "full, batch 1, 8 heads, depth 64, float32, softcap 50",
    ),
    "8x64-float32-sinks": ({"sinks": True}, "full, batch 1, 8 heads, depth 64, float32, sinks"),
}  # fmt: skip


def test_curves_of_other_problems_have_another_name_and_subtitle():
    rows = [
        row(Problem(**({"Hq": 8, "Sq": length} | options)), fastattn=1e-3, torch=2e-3)
        for options, _ in CURVES.values()
        for length in (64, 128)
    ]
    found = pictures.curves(rows)
    assert list(found) == list(CURVES)
    for name, (_, words) in CURVES.items():
        assert [row.problem.Sq for row in found[name]] == [64, 128]
        drawn = pictures.lengths(found[name], "a CPU", "light")
        assert drawn.axes.get_title("left") == f"{words}; a CPU"


def test_a_library_that_is_faster_has_its_bar_to_the_left():
    axes = pictures.ratios(ROWS[:1], "", "light").axes
    widths = {bars.get_label(): bars[0].get_width() for bars in axes.containers}
    assert widths["torch"] == pytest.approx(1)
    assert widths["numpy"] == pytest.approx(-0.5)


def labels(axis):
    """Return the numbers that are written along an axis."""
    axis.figure.draw_without_rendering()
    low, high = axis.get_view_interval()
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [text.get_text() for value, text in ticks if low <= value <= high]


@pytest.mark.parametrize("theme", pictures.THEMES)
def test_perfect_scaling_stands_out_from_the_grid(theme):
    axes = dict(pictures.sweep_pictures(SWEEPS, "", theme))["threads"].axes
    [color] = [line.get_color() for line in axes.lines if line.get_label() == "perfect"]
    assert color != axes.get_xgridlines()[0].get_color()


@pytest.mark.parametrize("most", [1, 2, 3, 16, 33, 64, 72, 96, 192])
def test_counts_of_threads_do_not_overlap(most):
    counts = sorted({*(1 << n for n in range(most.bit_length())), most})
    found = dict(pictures.sweep_pictures(SWEEPS | {"threads": points(*counts)}, "", "light"))
    axis = found["threads"].axes.xaxis
    assert labels(axis)[-1] == str(most)
    boxes = [text.get_window_extent() for text in axis.get_majorticklabels()]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((1.4, 1.08), ["1", "1.1", "1.2", "1.3", "1.4"]),
        ((0.82, 0.97), ["0.85", "0.9", "0.95", "1"]),
        ((1.4, 4.4), ["1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5"]),
        ((1.4, 12.0), ["1", "2", "5", "10"]),
    ],
)
def test_ratios_have_a_scale_however_close_they_are(seconds, expected):
    torch, openvino = seconds
    close = row(Problem(Hq=8, Sq=256), fastattn=1.0, torch=torch, openvino=openvino)
    assert labels(pictures.ratios([close], "", "light").axes.xaxis) == expected
