# SPDX-License-Identifier: MIT
"""Files and states that are no cache's: refused before anything is made of them."""

import io
import os
import re
import zipfile

import numpy as np
import pytest
from cache_cases import filled

import fastattn
from fastattn.caches import files


def test_wrong_kind(rng, tmp_path):
    filled(rng, "dense").save(tmp_path / "cache")
    with pytest.raises(
        ValueError, match="arrays: expected the state of a PagedKVCache, got KVCache"
    ):
        fastattn.PagedKVCache.load(tmp_path / "cache")
    np.savez(tmp_path / "other.npz", k=np.ones(3))
    with pytest.raises(ValueError, match="expected the state of a KVCache, got something else"):
        fastattn.KVCache.load(tmp_path / "other.npz")


CONTENTS = {"empty": b"", "garbage": b"no array", "broken zip": b"PK\x03\x04", "array": None}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_no_file_of_a_cache(content, tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.ones(3)) if content is None else path.write_bytes(content)
    for file, mode in (path, None), (path, "r"), (io.BytesIO(path.read_bytes()), None):
        message = f"file: expected one that a cache or numpy.savez saved, got {str(file)!r}"
        with pytest.raises(ValueError, match=re.escape(message)):
            fastattn.KVCache.load(file, mode)


@pytest.mark.parametrize("mode", [None, "r"])
def test_damaged_arrays(mode, rng, tmp_path):
    """A byte of a header that is another, in one file and in that of a directory."""
    filled(rng, "dense").save(tmp_path / "cache")
    filled(rng, "dense", tmp_path / "mapped")
    for path, opened in ("cache", "cache"), ("mapped/k.npy", "mapped"):
        data = (tmp_path / path).read_bytes()
        (tmp_path / path).write_bytes(data.replace(b"'descr'", b"'xxxxx'", 1))
        message = rf"^file: expected one that a cache or numpy.savez saved, got .*{path}'"
        with pytest.raises(ValueError, match=message):
            fastattn.KVCache.load(tmp_path / opened, mode)


@pytest.mark.parametrize("mode", [None, "r"])
def test_any_damage(mode, rng, tmp_path):
    """Found, or in what is not read: never an error that does not name the file."""
    filled(rng, "dense").save(tmp_path / "cache")
    data, found = (tmp_path / "cache").read_bytes(), 0
    for _ in range(500):
        damaged = bytearray(data)
        for at in rng.integers(len(data), size=2):
            damaged[at] = rng.integers(256)
        begin, gone = rng.integers(len(data)), rng.integers(10)
        del damaged[begin : begin + gone]
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            fastattn.KVCache.load(tmp_path / "damaged", mode)
        except ValueError:
            found += 1
    assert found > 200


@pytest.mark.parametrize("mode", [None, "r", "c"])
def test_objects_of_python_are_not_read(mode, rng, tmp_path):
    """Mapped, the pickle of them would be pointers. One of eight names lies at an aligned place."""
    for size in range(1, 9):
        np.savez(tmp_path / "a.npz", **{"k" * size: np.array([{}, 1], object)})
        with pytest.raises(ValueError, match=r"^file: expected one that a cache .*a\.npz'$"):
            fastattn.KVCache.load(tmp_path / "a.npz", mode)
    filled(rng, "dense", tmp_path / "mapped")
    np.save(tmp_path / "mapped/k.npy", np.array([{}, 1], object))
    with pytest.raises(ValueError, match=r"^file: expected one that a cache .*k\.npy'$"):
        fastattn.KVCache.load(tmp_path / "mapped", mode)


@pytest.mark.parametrize("path", ["cache", "mapped/v.npy"])
def test_damaged_values(path, rng, tmp_path):
    """Another byte in a file with checksums, and the end of one without."""
    filled(rng, "dense").save(tmp_path / "cache")
    filled(rng, "dense", tmp_path / "mapped")
    data = bytearray((tmp_path / path).read_bytes())
    if path == "cache":
        data[400] ^= 1
    else:
        del data[-40:]
    (tmp_path / path).write_bytes(data)
    with pytest.raises(ValueError, match=rf"^file: expected one that a cache .*{path}'"):
        fastattn.KVCache.load(tmp_path / path.split("/")[0])


def test_a_zip_file_of_other_things(tmp_path):
    with zipfile.ZipFile(tmp_path / "words", "w") as archive:
        archive.writestr("k.txt", "text")
    with pytest.raises(ValueError, match=r"^arrays: expected the state of a KVCache, got some"):
        fastattn.KVCache.load(tmp_path / "words")


def test_wrong_modes(rng, tmp_path):
    cache = filled(rng, "dense")
    cache.save(tmp_path / "cache")
    with pytest.raises(ValueError, match="mmap_mode: expected None, 'r', 'c' or 'r\\+', got 'w'"):
        fastattn.KVCache.load(tmp_path / "cache", "w")
    for wrong in 3, ["r"], np.ones(3):
        with pytest.raises(ValueError, match=r"^mmap_mode: expected None, 'r', 'c' or 'r\+', g"):
            fastattn.KVCache.load(tmp_path / "cache", wrong)
    with pytest.raises(ValueError, match="mmap_mode: expected 'r' or 'c' for a single file"):
        fastattn.KVCache.load(tmp_path / "cache", "r+")
    np.savez_compressed(tmp_path / "small.npz", **cache.state())
    with pytest.raises(ValueError, match="mmap_mode: expected None for a compressed file, got 'r'"):
        fastattn.KVCache.load(tmp_path / "small.npz", "r")


@pytest.mark.parametrize(
    "file", [5, None, ["a"], b"a", io.StringIO()], ids=lambda x: type(x).__name__
)
def test_what_is_no_file_is_named(file, rng):
    cache = filled(rng, "dense")
    message = "^file: expected a path or a binary file object, got "
    for call in (
        lambda: cache.save(file),
        lambda: fastattn.KVCache.load(file),
        lambda: fastattn.KVCache.load(file, "r"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(TypeError, match=r"^path: expected a path, got "):
        fastattn.KVCache.memmap(file, 1, 2, 8, capacity=4)


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_a_file_object_is_not_mapped(mode, rng, tmp_path):
    filled(rng, "dense").save(tmp_path / "cache")
    with open(tmp_path / "cache", "rb") as file:
        for each in file, io.BytesIO(file.read()):
            with pytest.raises(ValueError, match=r"^mmap_mode: expected None for a file object"):
                fastattn.KVCache.load(each, mode)


def test_data_at_odd_places(tmp_path):
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive, archive.open("k.npy", "w") as file:
        np.lib.format.write_array(file, np.ones(3))
    with open(tmp_path / "odd.npz", "rb") as file:
        assert file.read().index(np.ones(1).tobytes()) % 8
    with pytest.raises(ValueError, match=r"mmap_mode: expected None for a file of numpy\.savez"):
        files.load(tmp_path / "odd.npz", "r")


@pytest.mark.parametrize("changes", [{"tables": np.array([0, 1, 99, 3, 0, 1])}, {"evicted": []}])
def test_state_that_does_not_fit(changes, rng):
    state = filled(rng, "paged").state()
    name, array = next(iter(changes.items()))
    state[name] = np.resize(np.array(array, np.int64), state[name].size if len(array) else 0)
    with pytest.raises(ValueError, match="arrays: expected tables of pages that are there"):
        fastattn.PagedKVCache.from_state(state)


@pytest.mark.parametrize("arrays", [None, 5, b"a", [np.ones(3), np.ones(2)]])
def test_what_is_no_state_is_named(arrays):
    for cache in fastattn.KVCache, fastattn.PagedKVCache:
        with pytest.raises(TypeError, match=r"^arrays: expected a mapping, got "):
            cache.from_state(arrays)


WRONG_STATES = {
    "layout": ("dense", {"layout": np.array("foo")}, ValueError,
               "layout: expected one of 'bhsd', 'bshd', got 'foo'"),
    "no v": ("dense", {"v": None}, ValueError, "arrays: expected 'v' among them, got "),
    "no scales": ("int8", {"v_scale": None}, ValueError, "arrays: expected 'v_scale' among them"),
    "no lengths": ("dense", {"lengths": None}, ValueError, "arrays: expected 'lengths' among them"),
    "lengths past": ("dense", {"lengths": np.array([12, 0, 0])}, ValueError,
                     "lengths: expected values from 0 to 11, got 12"),
    "no tables": ("paged", {"tables": None}, ValueError, "arrays: expected 'tables' among them"),
    "wider dtype": ("dense", {"dtype": np.array("float64")}, TypeError,
                    "k: expected dtype float64 for a cache of float64, got float32"),
    "dtype of v": ("dense", {"v": np.zeros((3, 2, 11, 5), np.int32)}, TypeError,
                   "v: expected dtype float32 for a cache of float32, got int32"),
    "dtype of scales": ("int8", {"k_scale": np.ones((3, 2, 11))}, TypeError,
                        "k_scale: expected dtype float32 for a cache of int8, got float64"),
    "axes": ("dense", {"k": np.zeros((3, 2, 11), np.float32)}, ValueError,
             "k: expected 4 axes, none of them empty, got shape (3, 2, 11)"),
    "empty": ("dense", {"k": np.zeros((3, 2, 0, 8), np.float32),
                        "v": np.zeros((3, 2, 0, 5), np.float32)}, ValueError,
              "k: expected 4 axes, none of them empty, got shape (3, 2, 0, 8)"),
    "tokens of v": ("dense", {"v": np.zeros((3, 2, 12, 5), np.float32)}, ValueError,
                    "v: expected shape (3, 2, 11, Dv) like k, got shape (3, 2, 12, 5)"),
    "scales of k": ("int8", {"k_scale": np.ones((3, 11, 2), np.float32)}, ValueError,
                    "k_scale: expected shape (3, 2, 11), got shape (3, 11, 2)"),
    "scales": ("int8", {"v_scale": np.ones((3, 11, 2), np.float32)}, ValueError,
               "v_scale: expected shape (3, 2, 11), got shape (3, 11, 2)"),
    "ids": ("paged", {"ids": np.array([2, 2, 3])}, ValueError,
            "arrays: expected ids from 0 to 3, each once, got [2, 2, 3]"),
    "next_id": ("paged", {"next_id": np.array(3)}, ValueError,
                "arrays: expected ids from 0 to 2, each once, got [0, 2, 3]"),
    "next_id of a word": ("paged", {"next_id": "x"}, TypeError,
                          "next_id: expected an integer or an array of integers, got str"),
    "next_id of two": ("paged", {"next_id": [4, 5]}, ValueError,
                       "next_id: expected an integer or shape (1,), got shape (2,)"),
    "next_id with a fraction": ("paged", {"next_id": np.array(4.0)}, TypeError,
                                "next_id: expected integers, got dtype float64"),
    "next_id below 0": ("paged", {"ids": [], "lengths": [], "evicted": [], "tables": [],
                                  "next_id": -1}, ValueError, "next_id: expected values from 0"),
    "ids of unequal parts": ("paged", {"ids": [[0], [2, 3]]}, ValueError,
                             "ids: expected an array of integers, got a list of unequal parts"),
    "lengths of unequal parts": ("dense", {"lengths": [[1], [2, 3]]}, ValueError,
                                 "lengths: expected an integer or an array of integers, got a "),
    "evicted": ("paged", {"evicted": np.array([1, 0, -1])}, ValueError,
                "arrays: expected tables of pages that are there"),
    "evicted past the length": ("paged", {"evicted": np.array([3, 0, 0])}, ValueError,
                                "arrays: expected tables of pages that are there"),
    "page twice": ("paged", {"tables": np.array([0, 1, 2, 3, 0, 1, 1])}, ValueError,
                   "arrays: expected each page once in a table, got 1 again"),
    "lengths": ("paged", {"lengths": np.array([9, -1, 9])}, ValueError,
                "arrays: expected tables of pages that are there"),
}  # fmt: skip


@pytest.mark.parametrize("kind, changes, exception, message", WRONG_STATES.values(),
                         ids=WRONG_STATES)  # fmt: skip
def test_wrong_states(kind, changes, exception, message, rng):
    cache = filled(rng, "dense", dtype=np.int8) if kind == "int8" else filled(rng, kind)
    state = cache.state() | changes
    with pytest.raises(exception) as caught:
        type(cache).from_state({name: each for name, each in state.items() if each is not None})
    assert str(caught.value).startswith(message)


def test_directory_that_is_in_use(rng, tmp_path):
    filled(rng, "dense", tmp_path / "cache")
    with pytest.raises(FileExistsError, match="path: expected a new or empty directory, got "):
        filled(rng, "paged", tmp_path / "cache")


def test_map_of_sizes_that_do_not_fit(rng, tmp_path):
    with pytest.raises(OSError) as caught:
        fastattn.KVCache.memmap(tmp_path, 1, 2, 2**50, 8, capacity=11)
    assert not isinstance(caught.value, FileNotFoundError)  # v is not begun
    assert os.listdir(tmp_path) == []
    filled(rng, "dense", tmp_path)


def test_flush_needs_files(rng, tmp_path):
    cache = filled(rng, "dense", tmp_path / "cache")
    for each in filled(rng, "dense"), fastattn.KVCache.load(tmp_path / "cache", "c"):
        with pytest.raises(
            ValueError, match="flush: expected a cache that is mapped to be written"
        ):
            each.flush()
    cache.flush()
