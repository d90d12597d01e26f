# SPDX-License-Identifier: MIT
"""Reading model files: memory-mapped tensors, shards, and damage that is named."""

import json
import struct
import sys

import ml_dtypes
import numpy as np
import pytest

from fastattn.models import Checkpoint
from fastattn.models.checkpoint import load_tokenizer, map_safetensors

safetensors_numpy = pytest.importorskip("safetensors.numpy")


def write(directory, tensors, config=None):
    (directory / "config.json").write_text(json.dumps(config or {}))
    safetensors_numpy.save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_tensors_are_views_of_the_file(tmp_path, rng, dtype):
    tensors = {f"part.{n}": rng.standard_normal((3, n)).astype(dtype) for n in (1, 2, 5)}
    write(tmp_path, {**tensors, "scalar": np.array(2, dtype), "ids": np.arange(3)})
    checkpoint = Checkpoint(tmp_path)
    mapped = next(iter(map_safetensors(tmp_path / "model.safetensors").values()))
    for name, expected in tensors.items():
        found = checkpoint.tensor(name, *expected.shape)
        assert type(found) is np.ndarray and found.dtype == dtype
        assert not found.flags.owndata and not found.flags.writeable and found.flags.aligned
        np.testing.assert_array_equal(found, expected)
    assert "ids" not in checkpoint and checkpoint.tensor("scalar").shape == ()
    base = mapped
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_conversion_is_asked_for(tmp_path, rng):
    tensor = rng.standard_normal((3, 4)).astype(ml_dtypes.bfloat16)
    write(tmp_path, {"a": tensor})
    found = Checkpoint(tmp_path, np.float32).tensor("a", 3, 4)
    assert found.dtype == np.float32 and found.flags.owndata
    np.testing.assert_array_equal(found, tensor.astype(np.float32))
    for wrong, name in (np.float16, "float16"), (">f4", "byte-swapped"), ("no", "'no'"):
        with pytest.raises(TypeError, match=f"^dtype: expected float32 or float64, got {name}"):
            Checkpoint(tmp_path, wrong)


def test_shards(tmp_path):
    for n in range(3):
        part = {f"part.{n}": np.full((2, 2), n, np.float32)}
        safetensors_numpy.save_file(part, tmp_path / f"shard-{n}.safetensors")
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {f"part.{n}": f"shard-{n}.safetensors" for n in range(3)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = Checkpoint(tmp_path)
    for n in range(3):
        assert (checkpoint.tensor(f"part.{n}", 2, 2) == n).all()
    (tmp_path / "shard-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="shard-1"):
        Checkpoint(tmp_path)


def test_a_tensor_in_two_shards(tmp_path):
    for n in range(2):
        tensors = {"both": np.full(2, n, np.float32), f"part.{n}": np.ones(2, np.float32)}
        safetensors_numpy.save_file(tensors, tmp_path / f"shard-{n}.safetensors")
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {f"part.{n}": f"shard-{n}.safetensors" for n in range(2)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"^both: expected in one file, got .*shard-0.*shard-1"):
        Checkpoint(tmp_path)


def test_missing_and_unused_tensors(tmp_path):
    write(tmp_path, {"model.a": np.zeros((2, 3), np.float32), "other": np.zeros(1, np.float32)})
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"model.b: expected a tensor of shape \(2, 3\) in .*none"):
        checkpoint.tensor("model.b", 2, 3)
    with pytest.raises(ValueError, match=r"model.a: expected shape \(3, 2\), got \(2, 3\)"):
        checkpoint.tensor("model.a", 3, 2)
    with pytest.raises(ValueError, match=r"model\.a: expected no such tensor"):
        checkpoint.expect_used("model.")
    checkpoint.expect_used("model.", ".a")
    checkpoint.tensor("model.a", 2, 3)
    checkpoint.expect_used("model.")


@pytest.mark.parametrize("directory", [None, 5, b"model"])
def test_directory_is_a_path(directory):
    with pytest.raises(TypeError, match=r"^directory: expected a path, got "):
        Checkpoint(directory)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"expected model.safetensors or model.safetens"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"pytorch_model.bin is a pickle: convert it"):
        Checkpoint(tmp_path)


def test_unaligned_tensors_are_copied(tmp_path):
    """The format once allowed headers of any length."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (1 - len(header) % 8 % 2)  # an odd length
    values = np.array([1.5, -2.0], np.float32)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + values.tobytes())
    found = map_safetensors(path)["a"]
    assert found.flags.aligned
    np.testing.assert_array_equal(found, values)


def damaged(header=b"{}", size=None, content=b""):
    return struct.pack("<Q", len(header) if size is None else size) + header + content


def entry(**changes):
    fields = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return json.dumps({"a": fields}).encode()


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "its header does not fit"),
        (damaged(size=10), "its header does not fit"),  # but for the size itself
        (b"1234567", "its header does not fit"),
        (damaged(size=1 << 40), "its header does not fit"),
        (damaged(b"nonsense"), "header: expected JSON, Expecting value"),
        (damaged(b'{"a": "\xff"}'), "header: expected JSON, 'utf-8' codec"),
        (damaged(b"[" * 200_000), "header: expected JSON, "),
        (damaged(b"[]"), "header: expected a JSON object, got list"),
        (damaged(b'{"a": 3}'), "a: expected a JSON object, got int"),
        (damaged(entry(dtype=None)), "a: expected dtype, there is none"),
        (damaged(entry(dtype=["F32"])), "a: dtype: expected a string, got list"),
        (damaged(entry(data_offsets=None)), "a: expected data_offsets, there is none"),
        (damaged(entry(data_offsets=8)), "a: data_offsets: expected a JSON array, got int"),
        (damaged(entry(data_offsets=["0", "8"])), "a: data_offsets: expected an integer, got str"),
        (
            damaged(entry(data_offsets=[0, 4, 8])),
            r"a: data_offsets: expected a pair, got \[0, 4",
        ),
        (damaged(entry(shape=[-1, -1])), "a: shape: expected an integer not below 0, got -1"),
        (damaged(entry(shape=[2.0])), "a: shape: expected an integer, got float"),
        (damaged(entry(shape=[True])), "a: shape: expected an integer, got bool"),
        (damaged(entry(shape=[0, 2**70], data_offsets=[0, 0])), "a: expected a shape of an array"),
        (
            damaged(entry(), content=b"1234"),
            f"a: expected a file of at least {16 + len(entry())} bytes, got {12 + len(entry())}",
        ),
        (damaged(entry(shape=[3]), content=b"12345678"), "a: expected 12 bytes, got 0 to 8"),
        (damaged(entry(data_offsets=[-8, 0])), "a: data_offsets: expected an integer not below 0"),
        (damaged(entry(data_offsets=[8, 0])), "a: expected 8 bytes, got 8 to 0"),
        (damaged(entry(dtype="F8_E4M3")), "a: expected dtype F64, F32, F16, BF16, got F8_E4M3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_files(tmp_path, data, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"model.safetensors: .*{message}"):
        map_safetensors(path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("config.json", b"{", "expected JSON, Expecting property name"),
        ("config.json", "{}".encode("utf-16"), "expected JSON, 'utf-8' codec can't decode"),
        ("config.json", b"[]", "expected a JSON object, got list"),
        ("model.safetensors.index.json", b"[]", "expected a JSON object, got list"),
        ("model.safetensors.index.json", b"{}", "expected weight_map, there is none"),
        (
            "model.safetensors.index.json", b'{"weight_map": []}',
            "weight_map: expected a JSON object, got list",
        ),
        (
            "model.safetensors.index.json", b'{"weight_map": {"a": 1, "b": "c"}}',
            "a: expected a string, got int",
        ),
    ],
)  # fmt: skip
def test_damaged_json(tmp_path, name, content, message):
    write(tmp_path, {})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "found, kind, message",
    [
        ("6", int, "expected an integer, got str"),
        (6.0, int, "expected an integer, got float"),
        (True, int, "expected an integer, got bool"),
        ("1e-6", float, "expected a number, got str"),
        ("false", bool, "expected True or False, got str"),
        ({}, list, "expected a JSON array, got dict"),
        ([], dict, "expected a JSON object, got list"),
    ],
)
def test_values_of_another_kind(tmp_path, found, kind, message):
    write(tmp_path, {}, {"a": found, "b": None})
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.value("b", "a") == found
    with pytest.raises(ValueError, match=f"config.json: a: {message}"):
        checkpoint.value("b", "a", kind=kind)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda checkpoint: checkpoint.value("a", None), "names"),
        (lambda checkpoint: checkpoint.supported(None, (1,)), "names"),
        (lambda checkpoint: checkpoint.tensor(None, 2), "name"),
        (lambda checkpoint: checkpoint.weight(None, 2, 2), "name"),
        (lambda checkpoint: checkpoint.expect_used(None), "prefix"),
        (lambda checkpoint: checkpoint.expect_used("a", None), "ignored"),
    ],
)
def test_names_are_words(tmp_path, call, name):
    """Said before anything is looked up: here there is nothing that is unused."""
    write(tmp_path, {}, {"a": 1})
    with pytest.raises(TypeError, match=f"^{name}: expected a str, got NoneType"):
        call(Checkpoint(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_damaged_tokenizer(tmp_path, content):
    pytest.importorskip("tokenizers")
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer.json: expected a tokenizer, \w+"):
        load_tokenizer(tmp_path)


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    write(tmp_path, {"a": np.zeros(2, ml_dtypes.bfloat16)})
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in "ml_dtypes", "tokenizers":
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"^dtype 'bfloat16' needs ml_dtypes: pip install ml_d"):
        Checkpoint(tmp_path)
    with pytest.raises(ImportError, match=r"^tokenizer.json needs tokenizers: pip install token"):
        load_tokenizer(tmp_path)


def test_none_is_a_default(tmp_path):
    write(tmp_path, {}, {"null": None})
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.value("null", "other", default=None) is None
    assert checkpoint.supported("null", (None, 1), default=None) is None
    with pytest.raises(ValueError, match=r"config.json: expected null or other, there is none"):
        checkpoint.value("null", "other")


def test_repr(tmp_path):
    write(tmp_path, {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})
    assert repr(Checkpoint(tmp_path)) == f"<Checkpoint {tmp_path}, 2 tensors, as stored>"
    assert repr(Checkpoint(tmp_path, "float64")) == f"<Checkpoint {tmp_path}, 2 tensors, float64>"
