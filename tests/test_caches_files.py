# SPDX-License-Identifier: MIT
"""Caches in files and copied: saved and loaded, memory-mapped, readable by NumPy alone, pickled."""

import copy
import io
import os
import pickle
import stat
import sys

import cases
import numpy as np
import programs
import pytest
from cache_cases import LAYOUTS, filled, given, read_back

import fastattn
from fastattn import _aligned as aligned

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "float8_e4m3fn"]
KINDS = ["dense", "paged"]


def same(found, expected):
    """Two caches of equal content."""
    assert type(found) is type(expected) and found.layout == expected.layout
    assert found.dtype == expected.dtype and found.k.dtype == expected.v.dtype
    states = found.state(), expected.state()
    assert states[0].keys() == states[1].keys()
    for name, array in states[1].items():
        np.testing.assert_array_equal(states[0][name], array)
        assert states[0][name].dtype == array.dtype


def grow(rng, cache, other=None):
    """Append the same to one cache or two, to copy-on-write pages too."""
    both = [cache] if other is None else [cache, other]
    if isinstance(cache, fastattn.KVCache):
        tokens = given(rng, cache, 3, 2)
        for each in both:
            each.append(*tokens, lengths=[2, 1, 0])
        return
    tokens = given(rng, cache, len(cache.ids), 2)
    new = [each.new() for each in both]
    assert len(set(new)) == 1
    for each in both:
        each.append(each.ids[:-1], *tokens)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind, dtype, layout, rng, tmp_path):
    cache = filled(rng, kind, dtype=cases.dtype_of(dtype), layout=layout)
    path = tmp_path / "cache"  # not renamed to cache.npz
    cache.save(path)
    found = type(cache).load(path)
    same(found, cache)
    grow(rng, found, cache)
    if kind == "dense":
        same(found, cache)
    else:
        for name in cache.ids:
            assert found.length(name) == cache.length(name)
        assert found.free_pages == cache.free_pages


def test_what_is_attended_to_comes_back(rng, tmp_path):
    cache = filled(rng, "dense")
    cache.save(str(tmp_path / "cache.npz"))
    q = rng.standard_normal((3, 4, 1, 8)).astype(np.float32)
    for mode in None, "r", "c":
        found = fastattn.KVCache.load(str(tmp_path / "cache.npz"), mode)
        np.testing.assert_array_equal(found.attend(q), cache.attend(q))


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_reads_and_writes_it(kind, rng, tmp_path):
    cache = filled(rng, kind, dtype=np.float16)
    cache.save(tmp_path / "ours.npz")
    with np.load(tmp_path / "ours.npz") as archive:
        np.testing.assert_array_equal(archive["k"], cache.k)
        assert str(archive["dtype"]) == "float16" and str(archive["kind"]) == type(cache).__name__
    np.savez(tmp_path / "theirs.npz", **cache.state())
    np.savez_compressed(tmp_path / "small.npz", **cache.state())
    for name in "theirs.npz", "small.npz":
        same(type(cache).load(tmp_path / name), cache)
        with np.load(tmp_path / name) as archive:
            same(type(cache).from_state(archive), cache)


def test_names_of_freed_sequences_stay_taken(tmp_path):
    cache = fastattn.PagedKVCache(4, 4, 2, 8)
    assert [cache.new() for _ in range(3)] == [0, 1, 2]
    cache.free(2)
    cache.save(tmp_path / "cache")
    assert fastattn.PagedKVCache.load(tmp_path / "cache").new() == 3


@pytest.mark.parametrize("mode", [None, "r", "c"])
def test_arrays_in_the_order_of_fortran(mode, rng, tmp_path):
    cache = filled(rng, "dense")
    state = cache.state() | {"k": np.asfortranarray(cache.k)}
    fastattn.KVCache.from_state(state).save(tmp_path / "cache")
    same(fastattn.KVCache.load(tmp_path / "cache", mode), cache)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_a_type_that_no_file_holds(kind, dtype, rng, tmp_path):
    cache = filled(rng, kind, dtype=cases.dtype_of(dtype))
    found = type(cache).from_state(cache.state() | {"k": cache.k, "v": cache.v})
    same(found, cache)
    assert np.shares_memory(found.k, cache.k) and np.shares_memory(found.v, cache.v)
    found.save(tmp_path / "cache")
    same(type(cache).load(tmp_path / "cache"), cache)


def test_file_objects(rng):
    cache, file = filled(rng, "paged"), io.BytesIO()
    cache.save(file)
    file.seek(0)
    same(fastattn.PagedKVCache.load(file), cache)


def test_state_holds_the_arrays_themselves(rng):
    cache = filled(rng, "dense", dtype=np.int8)
    again = fastattn.KVCache.from_state(cache.state())
    for name in "k", "v", "k_scale", "v_scale":
        assert np.shares_memory(getattr(again, name), getattr(cache, name))
    state = again.state()
    again.append(*given(rng, again, 3, 1))
    assert cache.lengths.tolist() == state["lengths"].tolist() == [6, 0, 3]


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda cache, protocol=protocol: pickle.loads(
            pickle.dumps(cache, protocol)
        )
        for protocol in (0, 2, pickle.DEFAULT_PROTOCOL)
    },
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_take_tokens_of_their_own(kind, dtype, how, rng):
    """What is appended to a copy is in it, in what is attended to and what is saved, only there."""
    cache = filled(rng, kind, dtype=cases.dtype_of(dtype), layout="bshd")
    again = type(cache).from_state(copy.deepcopy(cache.state()))
    found = COPIES[how](cache)
    grow(rng, found, again)
    same(type(cache).from_state(found.state()), again)
    first = () if kind == "dense" else (found.ids[:-1],)
    q = rng.standard_normal((len(first[0]) if first else 3, 1, 4, 8)).astype(np.float32)
    np.testing.assert_array_equal(found.attend(*first, q), again.attend(*first, q))
    assert not np.array_equal(found.state()["lengths"], cache.state()["lengths"])
    for name, array in cache.state().items():
        assert not np.shares_memory(found.state()[name], array)


@pytest.mark.parametrize("how", ["grow", "take back"])
@pytest.mark.parametrize("kind", KINDS)
def test_pickles_with_buffers_that_are_read_only(kind, how, rng):
    """As other processes get them; protocol 5 makes some itself of a cache that is read-only."""
    cache, buffers = filled(rng, kind), []
    pickled = pickle.dumps(cache, 5, buffer_callback=buffers.append)
    lines = [aligned.copy(np.frombuffer(buffer, np.uint8)) for buffer in buffers]
    for line in lines:
        line.flags.writeable = False
    found = pickle.loads(pickled, buffers=lines)
    same(found, cache)
    if how == "grow":
        grow(rng, found, cache)
    else:
        for each in found, cache:
            each.reset() if kind == "dense" else each.truncate(each.ids[0], 8)
    same(found, cache)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_of_several_keep_what_they_share(how, rng):
    cache = filled(rng, "paged")
    caches = how([cache, cache, filled(rng, "dense")])
    assert caches[0] is caches[1] and caches[0] is not cache
    caches[0].free(caches[0].ids[0])
    assert len(cache.ids) == len(caches[1].ids) + 1


@pytest.mark.parametrize("how", [*COPIES, "load"])
def test_copies_begin_at_a_line(how, rng):
    """As new caches do; NumPy's arrays begin at one by chance, a quarter of them."""
    for kind in KINDS:
        found = (COPIES | {"load": read_back})[how](filled(rng, kind, dtype=np.int8))
        for array in found.k, found.v, found.k_scale, found.v_scale:
            assert array.ctypes.data % 64 == 0


def test_directories_are_read_to_a_line(rng, tmp_path):
    for n in range(4):
        cache = filled(rng, "dense", tmp_path / str(n))
        cache.flush()
        found = fastattn.KVCache.load(tmp_path / str(n))
        same(found, cache)
        assert found.k.ctypes.data % 64 == found.v.ctypes.data % 64 == 0


# ---- files that are there already ---------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "c"])
def test_save_onto_the_file_it_is_mapped_from(mode, tmp_path):
    """In a process of its own: what reads a mapped file that was cut off dies of SIGBUS."""
    done = programs.run(
        """
        import sys
        import numpy as np
        import fastattn
        path, mode = sys.argv[1:]
        cache = fastattn.KVCache(1, 2, 8, capacity=512)
        tokens = np.ones((1, 2, 100, 8), np.float32)
        cache.append(tokens, tokens)
        cache.save(path)
        mapped = fastattn.KVCache.load(path, mmap_mode=mode)
        if mode == "c":
            mapped.append(2 * tokens, tokens)
        mapped.save(path)
        print(fastattn.KVCache.load(path).k.sum(), mapped.k.sum())
        """,
        tmp_path / "cache.npz",
        mode,
    )
    total = 1600.0 if mode == "r" else 4800.0
    assert (done.returncode, done.stdout) == (0, f"{total} {total}\n"), done.stderr
    assert os.listdir(tmp_path) == ["cache.npz"]


def test_save_that_fails_leaves_the_old_file(rng, tmp_path, monkeypatch):
    cache = filled(rng, "dense")
    cache.save(tmp_path / "cache")
    before = (tmp_path / "cache").read_bytes()
    state = cache.state() | {"lengths": np.array([None])}  # refused behind k and v: a pickle
    monkeypatch.setattr(cache, "state", lambda: state)
    with pytest.raises(ValueError, match="allow_pickle"):
        cache.save(tmp_path / "cache")
    assert (tmp_path / "cache").read_bytes() == before
    assert os.listdir(tmp_path) == ["cache"]


@pytest.mark.skipif(os.name != "posix", reason="links and permissions of POSIX")
def test_save_keeps_links_and_permissions(rng, tmp_path):
    cache, path = filled(rng, "dense"), tmp_path / "cache"
    path.touch()
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    cache.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and path.stat().st_mode & 0o777 == 0o640
    same(fastattn.KVCache.load(path), cache)
    null = os.devnull
    if os.geteuid() == 0:  # it could be replaced, and everybody needs it
        null = tmp_path / "null"
        os.mknod(null, os.stat(os.devnull).st_mode, os.stat(os.devnull).st_rdev)
    cache.save(null)
    assert stat.S_ISCHR(os.stat(null).st_mode)


# ---- memory maps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_map_of_a_file(kind, dtype, rng, tmp_path):
    cache = filled(rng, kind, dtype=cases.dtype_of(dtype))
    path = tmp_path / "cache.npz"
    cache.save(path)
    with open(path, "rb") as file:
        before = file.read()
    found = type(cache).load(path, mmap_mode="r")
    same(found, cache)
    for name in "k", "v":
        array = getattr(found, name)
        assert type(array) is np.ndarray and not array.flags.writeable and array.flags.aligned
        mapped = found.state()[name]
        assert isinstance(mapped, np.memmap) and mapped.offset % 64 == 0
        assert np.shares_memory(mapped, array)
    first = () if kind == "dense" else (found.ids[0],)
    batch = 3 if kind == "dense" else 1
    with pytest.raises(ValueError, match="k: expected a cache that can be written, got one that"):
        found.append(*first, *given(rng, found, batch, 1))
    grow(rng, type(cache).load(path, mmap_mode="c"), cache)  # changes stay in memory
    with open(path, "rb") as file:
        assert file.read() == before


@pytest.mark.parametrize("name", ["k", "v", "k_scale", "v_scale"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_array_that_is_read_only(kind, name, rng):
    """Nothing is written to the others."""
    state = {each: array.copy() for each, array in filled(rng, kind, dtype=np.int8).state().items()}
    state[name].flags.writeable = False
    cache = (fastattn.KVCache if kind == "dense" else fastattn.PagedKVCache).from_state(state)
    before = {each: array.copy() for each, array in cache.state().items()}
    first, batch = ((), 3) if kind == "dense" else ((cache.ids[0],), 1)
    with pytest.raises(ValueError, match=f"^{name}: expected a cache that can be written, got "):
        cache.append(*first, *given(rng, cache, batch, 1))
    for each, array in before.items():
        np.testing.assert_array_equal(cache.state()[each], array)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_map_of_a_directory(kind, dtype, rng, tmp_path):
    path = tmp_path / "deep" / "cache"
    cache = filled(rng, kind, path, dtype=cases.dtype_of(dtype), layout="bshd")
    empty = type(cache).load(path)
    assert not np.any(empty.state()["lengths"])  # as long as it was not flushed
    cache.flush()
    same(type(cache).load(path), cache)
    same(type(cache).load(path, mmap_mode="r"), cache)
    writing = type(cache).load(path, mmap_mode="r+")
    same(writing, cache)
    grow(rng, writing)
    writing.flush()
    same(type(cache).load(path, mmap_mode="r"), writing)
    before = writing.k.copy()
    grow(rng, type(cache).load(path, mmap_mode="c"))
    np.testing.assert_array_equal(writing.k, before)


def test_a_map_stays_where_it_was_made(rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = filled(rng, "dense", "cache")
    grow(rng, cache)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    cache.flush()
    monkeypatch.chdir(tmp_path)
    found = type(cache).load("cache", mmap_mode="r+")
    same(found, cache)
    monkeypatch.chdir("elsewhere")
    grow(rng, found)
    found.flush()
    same(type(cache).load("../cache"), found)
    assert os.listdir() == []


def test_flush_writes_every_array(rng, tmp_path, monkeypatch):
    cache, flushed = filled(rng, "dense", tmp_path / "cache", dtype=np.int8), []
    monkeypatch.setattr(np.memmap, "flush", lambda array: flushed.append(array))
    cache.flush()
    assert [id(array) for array in flushed] == [
        id(cache.state()[name]) for name in ("k", "v", "k_scale", "v_scale")
    ]


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_map_are_in_memory(how, rng, tmp_path):
    cache = filled(rng, "dense", tmp_path / "cache", dtype=cases.dtype_of("bfloat16"))
    cache.flush()
    found = COPIES[how](cache)
    same(found, cache)
    found.append(*given(rng, found, 3, 1))
    with pytest.raises(ValueError, match="flush: expected a cache that is mapped to be written"):
        found.flush()
    assert not any(isinstance(array, np.memmap) for array in found.state().values())
    same(fastattn.KVCache.load(tmp_path / "cache"), cache)


@pytest.mark.skipif(sys.platform != "linux", reason="not every file system has sparse files")
def test_large_map_takes_no_memory(tmp_path):
    """A context of a million keys is made without writing it."""
    cache = fastattn.KVCache.memmap(tmp_path / "big", 1, 1, 64, capacity=2**20)
    k = np.ones((1, 1, 3, 64), np.float32)
    cache.append(k, k)
    assert cache.nbytes == 2 * 2**20 * 64 * 4
    cache.flush()
    used = sum(file.stat().st_blocks for file in (tmp_path / "big").iterdir()) * 512
    assert used < 2**20
    np.testing.assert_array_equal(cache.attend(k[:, :, :1]), k[:, :, :1])
