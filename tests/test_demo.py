# SPDX-License-Identifier: MIT
"""``demo``, with the real model and without it."""

import importlib.metadata
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fastattn import cli
from fastattn.cli import demo, minilm, random_bert

PNG = b"\x89PNG\r\n\x1a\n"
TEXTS = ["--text", "Rain falls on the hills.", "--text", "It pours in the mountains."]


@pytest.fixture(scope="module")
def real_model():
    pytest.importorskip("tokenizers")
    try:
        return minilm.load()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{minilm.DISTRIBUTION} is not installed")


@pytest.fixture(params=["random", "real"])
def model_name(request, monkeypatch):
    if request.param == "random":
        monkeypatch.setattr(demo, "missing", lambda: ["the model"])
    else:
        model = request.getfixturevalue("real_model")
        monkeypatch.setattr(minilm, "load", lambda: model)
    return request.param


@pytest.fixture
def untimed(monkeypatch):
    monkeypatch.setattr(demo, "show_times", lambda model, sentences, repeats: None)


def test_similarities_and_times(model_name, capsys):
    assert cli.main(["demo", "--repeats", "1", *TEXTS]) == 0
    out = capsys.readouterr().out
    assert "Rain falls on the hills." in out and "It pours in the mountains." in out
    table = re.findall(r"^ +\d ((?: +-?\d\.\d\d)+)", out, flags=re.M)
    cosines = np.array([row.split() for row in table], float)
    assert cosines.shape == (2, 2)
    np.testing.assert_array_equal(cosines, cosines.T)
    np.testing.assert_array_equal(np.diag(cosines), 1)
    for way in ("NumPy attention", "fastattn", "packed"):
        assert re.search(rf"^  .*{way}.* [\d.]+ ms$", out, flags=re.M)
    assert (demo.INSTALL in out) == (model_name == "random")


@pytest.mark.parametrize("repeats", ["0", "-5"])
def test_repeats_that_are_none(repeats, capsys):
    assert cli.main(["demo", "--repeats", repeats]) == 2
    captured = capsys.readouterr()
    assert f"--repeats: expected at least 1, got {repeats}\n" in captured.err and not captured.out


def test_text_that_the_locale_does_not_decode(model_name, untimed, capsys):
    """As in the C locale: Python hands on the bytes as surrogates."""
    text = "Café, naïve".encode() + b" \xff"
    given = text.decode("ascii", "surrogateescape")
    assert cli.main(["demo", "--repeats", "1", "--text", given]) == 0
    assert "Café, naïve \ufffd\n" in capsys.readouterr().out


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(minilm, "DISTRIBUTION", "no-such-distribution")
    assert "no-such-distribution" in demo.missing()


@pytest.mark.parametrize("options", [[], ["--layer", "2", "--head", "3"]], ids=["all", "one"])
def test_heatmap(model_name, untimed, options, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "pattern.png"
    assert cli.main(["demo", "--repeats", "1", *TEXTS, "--heatmap", str(path), *options]) == 0
    assert path.read_bytes().startswith(PNG)
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, layer, heads", [([], 0, range(6)), (["--layer", "3", "--head", "6"], 2, [5])]
)
def test_the_head_that_is_named_is_drawn(options, layer, heads, untimed, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(demo, "missing", lambda: ["the model"])
    monkeypatch.setattr(demo.heatmap, "draw", lambda *given: drawn.append(given))
    path = tmp_path / "pattern.png"
    assert cli.main(["demo", "--repeats", "1", *TEXTS, "--heatmap", str(path), *options]) == 0
    [(file, tokens, patterns, titles)] = drawn
    words, weights = random_bert.make().patterns(TEXTS[1])
    assert (file, tokens) == (path, words)
    assert titles == [f"layer {layer + 1}, head {head + 1}" for head in heads]
    np.testing.assert_array_equal(patterns, weights[layer, heads])


def test_heatmap_without_an_ending(untimed, monkeypatch, tmp_path, capsys):
    """The name that matplotlib makes of it is the one that is printed, and checked."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo, "missing", lambda: ["the model"])
    command = ["demo", "--repeats", "1", *TEXTS, "--heatmap", str(tmp_path / "pattern")]
    assert cli.main(command) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["pattern.png"]
    assert capsys.readouterr().out.endswith(f": {tmp_path / 'pattern.png'}\n")
    (tmp_path / "pattern.png").unlink()
    (tmp_path / "pattern.png").mkdir()
    assert cli.main(command) == 2
    assert capsys.readouterr().err.endswith("pattern.png: a directory, expected a file\n")


@pytest.mark.parametrize(
    "options, message",
    [
        (["--layer", "4"], "--layer: expected 1 to 3, got 4"),
        (["--head", "0"], "--head: expected 1 to 6, got 0"),
        (["--heatmap", "no/such/folder.png"], "no such directory"),
        (["--heatmap", "pattern.nonsense"], "pattern.nonsense: expected an ending of "),
    ],
)
def test_bad_options(options, message, monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "missing", lambda: ["the model"])
    assert cli.main(["demo", "--repeats", "1", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1
    assert "ms" not in captured.out  # nothing was timed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_heatmap_on_a_full_disk(untimed, monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo, "missing", lambda: ["the model"])
    path = tmp_path / "pattern.png"
    path.symlink_to("/dev/full")
    assert cli.main(["demo", "--repeats", "1", *TEXTS, "--heatmap", str(path)]) == 2
    assert capsys.readouterr().err.endswith(f"error: {path}: No space left on device\n")


def test_heatmap_without_matplotlib(monkeypatch, capsys):
    monkeypatch.setattr(demo, "missing", lambda: ["the model"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["demo", "--repeats", "1", "--heatmap", "out.png"]) == 2
    message = "--heatmap needs matplotlib: pip install 'fastattn[plot]'"
    assert message in capsys.readouterr().err


def test_random_model_is_the_same_each_time():
    text = "one two three"
    np.testing.assert_array_equal(random_bert.make().encode(text), random_bert.make().encode(text))
    vectors = random_bert.make().encode([text, "one two four", "a wholly other thing"])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
