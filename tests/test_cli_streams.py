# SPDX-License-Identifier: MIT
"""The command line where its streams or files are closed, full, or of another encoding."""

import contextlib
import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fastattn import attention, cli
from fastattn.measure import table

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
BENCH = ["bench", "--shape", "1,1,1,1,3,4", "--peers", "none", "--seconds", "0.01"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("arguments", [["check", "--count", "2"], BENCH], ids=["check", "bench"])
def test_streams_may_be_closed(stream, arguments, monkeypatch):
    monkeypatch.setattr(sys, stream, None)  # what it is in a program that starts without it
    assert cli.main(arguments) == 0


def test_errors_do_not_take_another_stream(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["check", "--isa", "mmx"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_streams_may_have_another_encoding(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["profile", "--help"])
    sys.stdout.flush()
    assert stopped.value.code == 0
    assert b"packing, QK?, softmax" in written.getvalue()


def test_streams_may_be_of_another_kind(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert cli.main(["info"]) == 0
    assert "ISA" in sys.stdout.getvalue()


@needs_full
@pytest.mark.parametrize("option", ["--json", "--csv", "--markdown"])
def test_bench_says_that_a_file_is_full(option, capsys):
    assert cli.main([*BENCH, option, str(FULL)]) == 2
    assert capsys.readouterr().err == (
        "python -m fastattn bench: error: /dev/full: No space left on device\n"
    )


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_places_that_cannot_be_written(option, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *_: False)  # which to root is true of every place
    assert cli.main(["bench", option, str(tmp_path / "new")]) == 2
    captured = capsys.readouterr()
    assert f"{tmp_path}: no permission to write there" in captured.err
    assert captured.out == ""


@needs_full
@pytest.mark.parametrize("buffering", [1, 1 << 16], ids=["line", "block"])
def test_standard_output_may_be_full(buffering, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", FULL.open("w", buffering))
    assert cli.main(["info"]) == 2
    assert sys.stdout.closed  # or Python would try again at exit, and speak of that
    monkeypatch.undo()
    assert capsys.readouterr().err == (
        "python -m fastattn info: error: standard output: No space left on device\n"
    )


@pytest.mark.parametrize("buffering", [1, 1 << 16], ids=["line", "block"])
def test_readers_may_have_seen_enough(buffering, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    pipe = open(writer, "w", buffering)  # noqa: SIM115 - closing it is an error, too
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    code = cli.main(["info"])
    with contextlib.suppress(BrokenPipeError):
        pipe.close()
    assert code == 1
    assert sys.stderr.closed


@pytest.mark.parametrize(("columns", "boxed"), [(80, True), (30, True), (29, False), (1, False)])
def test_terminals_show_whole_cells(columns, boxed, monkeypatch, capsys):
    """Rich would cut off what is wider, and take words in brackets for styles."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    cells = ["tiny 1x12", "1.23 ms", "[/b]"]
    table.show(["problem", "time", "vs"], [cells])
    shown = capsys.readouterr().out
    assert ("│" in shown) is boxed
    assert all(cell in shown for cell in cells)


@pytest.fixture
def arrays(tmp_path):
    """The arguments of ``run`` with one array as q, k and v, and the result."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return ["run", *[str(tmp_path / "x.npy")] * 3], attention(x, x, x)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs names of pipes")
def test_run_writes_to_a_pipe(arrays):
    command, expected = arrays
    reader, writer = os.pipe()
    with open(reader, "rb") as source:
        with open(writer, "wb"):
            assert cli.main([*command, "-o", f"/dev/fd/{writer}"]) == 0
        np.testing.assert_array_equal(np.load(io.BytesIO(source.read())), expected)


@pytest.mark.parametrize("name", ["out.npy", "link.npy"])
def test_run_leaves_no_part_of_a_result(arrays, name, tmp_path, capsys):
    """Of what does not fit; but names such as /dev/stdout, which are links, stay."""
    resource = pytest.importorskip("resource")
    (tmp_path / "link.npy").symlink_to(tmp_path / "linked.npy")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
    try:
        assert cli.main([*arrays[0], "-o", str(tmp_path / name)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err.endswith(f"{name}: File too large\n")
    assert not (tmp_path / "out.npy").exists()
    assert (tmp_path / "link.npy").is_symlink()


def test_run_leaves_no_part_of_a_result_that_was_interrupted(arrays, tmp_path, monkeypatch):
    def interrupted(file, array):
        file.write(b"part")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupted)
    assert cli.main([*arrays[0], "-o", str(tmp_path / "out.npy")]) == 130
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("own", ["-o", "--lse"])
def test_run_keeps_its_report_out_of_the_result(arrays, own, tmp_path, monkeypatch, capsys):
    command, expected = arrays
    paths = {option: tmp_path / f"{option}.npy" for option in ("-o", "--lse")}
    with paths[own].open("w") as stream:  # as by -o /dev/stdout > out.npy
        monkeypatch.setattr(sys, "stdout", stream)
        options = [text for option, path in paths.items() for text in (option, str(path))]
        assert cli.main([*command, *options]) == 0
        monkeypatch.undo()
    results = np.load(paths["-o"]), np.load(paths["--lse"])
    np.testing.assert_array_equal(results[0], expected)
    written = results[("-o", "--lse").index(own)]
    assert paths[own].stat().st_size == 128 + written.nbytes
    assert "GFLOP/s" in capsys.readouterr().err
