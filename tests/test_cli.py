# SPDX-License-Identifier: MIT
"""The command line: exit codes, messages, and the round trip of ``run``."""

import builtins
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import programs
import pytest

import fastattn
from fastattn import cli, reference
from fastattn.cli import check, progress, run
from fastattn.cli.random_problems import DTYPES, random_problem


@pytest.fixture
def files(tmp_path):
    """Write q.npy, k.npy, v.npy; return their folder and the arrays."""
    rng = np.random.default_rng(3)
    shapes = {"q": (2, 4, 9, 16), "k": (2, 2, 13, 16), "v": (2, 2, 13, 8)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path, arrays


def command(folder, *options):
    """Return the arguments of ``run`` with the three files and out.npy in `folder`."""
    paths = [str(folder / f"{name}.npy") for name in "qkv"]
    return ["run", *paths, "-o", str(folder / "out.npy"), *map(str, options)]


def close(got, expected):
    """Compare a float32 result with the oracle."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-6)


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
        (["bench", "--peers", "cuda"], "peer 'cuda': expected one of numpy"),
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


def test_run_round_trip(files, capsys):
    folder, arrays = files
    mask = np.random.default_rng(0).random((9, 13)) < 0.8
    np.save(folder / "mask.npy", mask)
    np.save(folder / "lengths.npy", np.array([5, 13]))
    options = ["--mask", folder / "mask.npy", "--causal", "--window", -1, 4, "--scale", 0.5]
    options += ["--softcap", 3, "--q-offset", "2,4", "--kv-lengths", folder / "lengths.npy"]
    options += ["--kv-starts", 1, "--lse", folder / "lse.npy", "--threads", 1]
    assert cli.main(command(folder, *options)) == 0
    out, lse = reference.attention(
        *arrays.values(), attn_mask=mask, causal=True, window_size=(-1, 4), scale=0.5, softcap=3.0,
        q_offset=np.array([2, 4]), kv_lengths=np.array([5, 13]), kv_starts=1, return_lse=True,
    )  # fmt: skip
    close(np.load(folder / "out.npy"), out)
    close(np.load(folder / "lse.npy"), lse)
    printed = capsys.readouterr().out
    assert "q 2x4x9x16, k 2x2x13x16, v 2x2x13x8, out 2x4x9x8 float32" in printed
    assert "GFLOP/s" in printed


def test_run_other_layout_and_two_axes(files):
    folder, arrays = files
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.swapaxes(1, 2))
    assert cli.main(command(folder, "--layout", "bshd")) == 0
    expected = reference.attention(*arrays.values())
    close(np.load(folder / "out.npy").swapaxes(1, 2), expected)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array[1, 1])
    assert cli.main(command(folder)) == 0
    close(np.load(folder / "out.npy"), reference.attention(*(a[1, 1] for a in arrays.values())))


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        (["--kv-lengths", "lead.npy"], {"kv_lengths": np.array([[5], [13]])}),
        (["--kv-lengths", "unsigned.npy"], {"kv_lengths": np.array([5, 13])}),
        (["--window", str(10**23), "2"], {"window_size": (-1, 2)}),
        (["--q-offset=-2,4", "--causal"], {"q_offset": np.array([-2, 4]), "causal": True}),
    ],
    ids=["lead", "unsigned", "window", "negative"],
)
def test_run_takes_what_attention_takes(files, options, keywords, monkeypatch):
    folder, arrays = files
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array[:, None])
    np.save(folder / "lead.npy", np.array([[5], [13]]))
    np.save(folder / "unsigned.npy", np.array([5, 13], np.uint64))
    monkeypatch.chdir(folder)
    assert cli.main(command(folder, *options)) == 0
    expected = reference.attention(*(array[:, None] for array in arrays.values()), **keywords)
    close(np.load(folder / "out.npy"), expected)


def test_run_writes_under_exactly_that_name(files):
    folder, _ = files
    arguments = command(folder)
    arguments[arguments.index("-o") + 1] = str(folder / "result")
    assert cli.main(arguments) == 0
    assert (folder / "result").exists()


@pytest.mark.parametrize("option", ["-o", "--lse"])
@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "starts", "link"])
def test_run_keeps_its_inputs(files, name, option, capsys):
    folder, _ = files
    np.save(folder / "mask.npy", np.ones((9, 13), bool))
    np.save(folder / "starts.npy", np.zeros(2, int))
    (folder / "link.npy").hardlink_to(folder / "q.npy")
    path = folder / f"{name}.npy"
    before = path.read_bytes()
    options = ["--mask", folder / "mask.npy", "--kv-starts", folder / "starts.npy", option, path]
    assert cli.main(command(folder, *options)) == 2
    argument = option.replace("-o", "--out")
    assert f"{argument}: expected another file than the inputs, got " in capsys.readouterr().err
    assert path.read_bytes() == before and not (folder / "out.npy").exists()


def test_run_reads_bfloat16_as_numpy_saves_it(files, capsys):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    folder, arrays = files
    narrow = [array.astype(ml_dtypes.bfloat16) for array in arrays.values()]
    for name, array in zip(arrays, narrow, strict=True):
        np.save(folder / f"{name}.npy", array)
    assert cli.main(command(folder)) == 2
    assert "q.npy: dtype |V2, as np.save writes bfloat16: expected" in capsys.readouterr().err
    assert cli.main(command(folder, "--dtype", "bfloat16")) == 0
    got = np.load(folder / "out.npy").view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, fastattn.attention(*narrow))


def spoil_missing(folder):
    (folder / "k.npy").unlink()


def spoil_text(folder):
    (folder / "k.npy").write_text("no array")


def spoil_cut(folder):
    data = (folder / "k.npy").read_bytes()
    (folder / "k.npy").write_bytes(data[: len(data) // 2])


def spoil_objects(folder):
    np.save(folder / "k.npy", np.array([{}, []], object), allow_pickle=True)


def spoil_archive(folder):
    with (folder / "k.npy").open("wb") as file:
        np.savez(file, k=np.zeros(3))


def spoil_shape(folder):
    np.save(folder / "k.npy", np.zeros((2, 2, 13, 15), np.float32))


def spoil_dtype(folder):
    np.save(folder / "k.npy", np.zeros((2, 2, 13, 16), np.int32))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_missing, "No such file"),
        (spoil_text, "k.npy: no readable .npy file"),
        (spoil_cut, "k.npy: no readable .npy file"),
        (spoil_objects, "k.npy: no readable .npy file"),
        (spoil_archive, "an .npz archive"),
        (spoil_shape, "k: expected depth 16"),
        (spoil_dtype, "k: expected"),
    ],
)
def test_run_bad_files(files, spoil, message, capsys):
    folder, _ = files
    spoil(folder)
    assert cli.main(command(folder)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "out.npy").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kv-lengths", "x"], "--kv-lengths: expected integers or a .npy file, got 'x'"),
        (["--kv-lengths", ""], "--kv-lengths: expected integers or a .npy file, got ''"),
        (["--kv-lengths", f"1,{10**23}"], "kv_lengths: expected integers of at most 64 bits"),
        (["--kv-lengths", "99"], "kv_lengths: "),
        (["--scale", "nan"], "scale: "),
        (["--threads", "0"], "num_threads: "),
        (["--isa", "mmx"], "error: --isa: expected one of "),
        (["--lse", "/no/such/folder/lse.npy"], "no such directory"),
        (["-o", "x.npy", "--lse", "./x.npy"], "--lse: expected another file than the result's"),
    ],
)
def test_run_bad_options(files, options, message, capsys):
    folder, _ = files
    assert cli.main(command(folder, *options)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "out.npy").exists()


@pytest.mark.parametrize("index", range(40))
def test_operations_of_run_are_those_of_allowed_scores(index):
    problem = random_problem(11, index)
    names = ("attn_mask", "q_offset", "kv_lengths", "kv_starts", "window_size")
    keywords = dict.fromkeys(names) | {"layout": "bhsd", "causal": False} | problem.options
    oracle_options = {name: v for name, v in problem.options.items() if name != "out"}
    scores = reference.attention(*problem.clean, **oracle_options, return_scores="masked")[1]
    depth = problem.arrays[0].shape[-1] + problem.arrays[2].shape[-1]
    assert run._flops(problem.arrays, keywords) == 2 * depth * np.count_nonzero(scores > -np.inf)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_operations_of_run_where_some_tensors_are_one_head(layout):
    many, one = ((64, 4, 16) if layout == "bshd" else (4, 64, 16)), (128, 16)
    keywords = run._keywords(cli.parser().parse_args(command(Path(), "--layout", layout)))
    assert run._flops([np.zeros(many), np.zeros(one), np.zeros(one)], keywords) == 2097152
    few = (128, 1, 16) if layout == "bshd" else (1, 128, 16)
    assert run._flops([np.zeros((64, 16)), np.zeros(few), np.zeros(few)], keywords) == 524288


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


def test_plain_progress_bar_without_rich(monkeypatch, capsys):
    real_import = builtins.__import__

    def no_rich(name, *rest):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_rich)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.bar("work") as update:
        update(0.5, "half")
        update(1.0)
    error = capsys.readouterr().err
    assert "work [###############" in error
    assert "100%" in error
