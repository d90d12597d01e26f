# SPDX-License-Identifier: MIT
"""``python -m fastattn run``: arrays in files, options as text, and what it says of bad ones."""

import sys
from pathlib import Path

import numpy as np
import pytest

import fastattn
from fastattn import cli, reference
from fastattn.cli import run
from fastattn.cli.random_problems import random_problem


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
    types = "q 2x4x9x16 float32, k 2x2x13x16 float32, v 2x2x13x8 float32, out 2x4x9x8 float32"
    assert types in printed
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
        (["--sinks=-1,0,0.5,2"], {"sinks": np.array([-1, 0, 0.5, 2])}),
        (["--alibi-slopes", "slopes.npy"], {"alibi_slopes": np.arange(4) / 4}),
    ],
    ids=["lead", "unsigned", "window", "negative", "sinks", "slopes"],
)
def test_run_takes_what_attention_takes(files, options, keywords, monkeypatch):
    folder, arrays = files
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array[:, None])
    np.save(folder / "lead.npy", np.array([[5], [13]]))
    np.save(folder / "unsigned.npy", np.array([5, 13], np.uint64))
    np.save(folder / "slopes.npy", np.arange(4) / 4)
    monkeypatch.chdir(folder)
    assert cli.main(command(folder, *options)) == 0
    expected = reference.attention(*(array[:, None] for array in arrays.values()), **keywords)
    close(np.load(folder / "out.npy"), expected)


def test_run_takes_one_number_per_head_of_one(files):
    folder, arrays = files
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array[0, 0])
    assert cli.main(command(folder, "--sinks", "1.5", "--alibi-slopes", "0.5")) == 0
    one = (array[0, 0] for array in arrays.values())
    expected = reference.attention(*one, sinks=np.array([1.5]), alibi_slopes=np.array([0.5]))
    close(np.load(folder / "out.npy"), expected)


def test_run_hands_precision_on(files, monkeypatch):
    real, given = fastattn.attention, []
    monkeypatch.setattr(
        fastattn, "attention", lambda *a, **kw: given.append(kw["precision"]) or real(*a, **kw)
    )
    for options in ([], ["--precision", "medium"]):
        assert cli.main(command(files[0], *options)) == 0
    assert given == ["highest", "medium"]


@pytest.mark.forces_isa
def test_run_on_another_isa(files, monkeypatch):
    used = []

    def attention(*arrays, **keywords):
        used.append(fastattn.isa())
        return real(*arrays, **keywords)

    real = fastattn.attention
    monkeypatch.setattr(fastattn, "attention", attention)
    for isa in fastattn.isas():
        assert cli.main(command(files[0], "--isa", isa)) == 0
    assert used == list(fastattn.isas())


def test_run_writes_under_exactly_that_name(files):
    folder, _ = files
    arguments = command(folder)
    arguments[arguments.index("-o") + 1] = str(folder / "result")
    assert cli.main(arguments) == 0
    assert (folder / "result").exists()


@pytest.mark.parametrize("option", ["-o", "--lse"])
@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "starts", "k_scale", "link"])
def test_run_keeps_its_inputs(files, name, option, capsys):
    folder, _ = files
    np.save(folder / "mask.npy", np.ones((9, 13), bool))
    np.save(folder / "starts.npy", np.zeros(2, int))
    np.save(folder / "k_scale.npy", np.ones(2))
    (folder / "link.npy").hardlink_to(folder / "q.npy")
    path = folder / f"{name}.npy"
    before = path.read_bytes()
    options = ["--mask", folder / "mask.npy", "--kv-starts", folder / "starts.npy"]
    options += ["--k-scale", folder / "k_scale.npy", option, path]
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


def save_narrow(folder, arrays, dtype, per="token"):
    """Write k.npy and v.npy of `dtype` as NumPy keeps them, and their scales; return all four."""
    k, v, *scales = fastattn.quantize_kv(arrays["k"], arrays["v"], dtype, per)
    as_bytes = dtype == "float8_e5m2"  # what NumPy writes for it NumPy does not read
    for name, array in zip(("k", "v", "k_scale", "v_scale"), (k, v, *scales), strict=True):
        np.save(
            folder / f"{name}.npy", array.view(np.uint8) if as_bytes and name in "kv" else array
        )
    return k, v, *scales


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("of_q", ["float32", "bfloat16"])
def test_run_reads_narrow_keys_and_values(files, dtype, of_q, capsys):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    folder, arrays = files
    q = arrays["q"].astype(getattr(ml_dtypes, of_q, of_q))
    np.save(folder / "q.npy", q)
    k, v, k_scale, v_scale = save_narrow(folder, arrays, dtype)
    options = [] if dtype == "int8" else ["--kv-dtype", dtype]
    options += [] if of_q == "float32" else ["--dtype", of_q]
    options += ["--k-scale", folder / "k_scale.npy", "--v-scale", folder / "v_scale.npy"]
    assert cli.main(command(folder, *options)) == 0
    got = np.load(folder / "out.npy").view(q.dtype)
    np.testing.assert_array_equal(
        got, fastattn.attention(q, k, v, k_scale=k_scale, v_scale=v_scale)
    )
    assert f"k 2x2x13x16 {dtype}, v 2x2x13x8 {dtype}, out 2x4x9x8 {of_q}" in capsys.readouterr().out


def test_run_takes_scales_as_numbers(files):
    folder, arrays = files
    k, v, k_scale, _ = save_narrow(folder, {n: a[:1] for n, a in arrays.items()}, "int8", "head")
    [(first, second)] = k_scale.tolist()
    assert cli.main(command(folder, f"--k-scale={first},{second}", "--v-scale", "0.5")) == 0
    expected = reference.attention(arrays["q"], k, v, k_scale=k_scale[0], v_scale=0.5)
    np.testing.assert_allclose(np.load(folder / "out.npy"), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("saved", "options", "message"),
    [
        ("e4m3fn", [], "k.npy: dtype |V1, as np.save writes float8_e4m3fn or float8_e5m2: expected "
                       "--kv-dtype with it"),
        ("e5m2", ["--kv-dtype", "float8_e5m2"], "k.npy: dtype <f1, as np.save writes float8_e5m2"),
        ("i1", ["--kv-dtype", "float8_e5m2"], "k.npy: expected bytes (uint8 or |V1) with "
                                              "--kv-dtype, got int8"),
        ("u1", [], "k: expected dtype float32, "),
        ("fields", [], "k.npy: dtype [('a', 'u1'), ('b', 'u1')], expected numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 9 else "",
)  # fmt: skip
def test_run_says_how_numpy_saves_bytes(files, saved, options, message, capsys):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    folder, arrays = files
    fields = np.dtype([("a", "u1"), ("b", "u1")])
    dtype = fields if saved == "fields" else getattr(ml_dtypes, f"float8_{saved}", saved)
    np.save(folder / "k.npy", np.zeros(arrays["k"].shape, dtype))
    assert cli.main(command(folder, *options)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (folder / "out.npy").exists()


def test_run_says_what_fp8_needs(files, monkeypatch, capsys):
    folder, arrays = files
    np.save(folder / "k.npy", np.zeros(arrays["k"].shape, np.uint8))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert cli.main(command(folder, "--kv-dtype", "float8_e4m3fn")) == 2
    assert "--kv-dtype float8_e4m3fn needs ml_dtypes: pip install" in capsys.readouterr().err


def spoil_missing(folder):
    (folder / "k.npy").unlink()


def spoil_text(folder):
    (folder / "k.npy").write_text("no array")


def spoil_cut(folder):
    data = (folder / "k.npy").read_bytes()
    (folder / "k.npy").write_bytes(data[: len(data) // 2])


def spoil_header(folder):
    data = (folder / "k.npy").read_bytes()
    (folder / "k.npy").write_bytes(data.replace(b"(2, 2,", b"((2, 2"))


def spoil_sign(folder):
    data = (folder / "k.npy").read_bytes()
    (folder / "k.npy").write_bytes(data.replace(b"(2, 2,", b"(2,-2,"))


def spoil_zip(folder):
    (folder / "k.npy").write_bytes(b"PK\3\4 and no more")


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
        (spoil_header, "k.npy: no readable .npy file"),
        (spoil_sign, "k.npy: no readable .npy file"),
        (spoil_zip, "k.npy: no readable .npy file"),
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
        (["--kv-lengths", f"1,{10**23}"], "--kv-lengths: expected integers of at most 64 bits"),
        (["--kv-lengths", "99"], "error: --kv-lengths: "),
        (["--scale", "nan"], "error: --scale: "),
        (["--k-scale", "x"], "--k-scale: expected numbers or a .npy file, got 'x'"),
        (["--v-scale", "nan"], "--v-scale: expected a finite number, got nan"),
        (["--sinks", "1,2"], "--sinks: expected shape (4,), got shape (2,)"),
        (["--alibi-slopes", "a"], "--alibi-slopes: expected numbers or a .npy file, got 'a'"),
        (["--v-scale", "1,2,3"], "--v-scale: expected a number or shape (2,), (2, 2) or (2, 2, "),
        (["--window", "-2", "0"], "error: --window: "),
        (["--mask", "q.npy"], "error: --mask: expected a shape that broadcasts to (2, 4, 9, 13)"),
        (["--threads", "0"], "error: --threads: "),
        (["--isa", "mmx"], "error: --isa: expected one of "),
        (["--lse", "/no/such/folder/lse.npy"], "no such directory"),
        (["-o", "x.npy", "--lse", "./x.npy"], "--lse: expected another file than the result's"),
    ],
)
def test_run_bad_options(files, options, message, monkeypatch, capsys):
    folder, _ = files
    monkeypatch.chdir(folder)
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
