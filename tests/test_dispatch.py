# SPDX-License-Identifier: MIT
"""A forced instruction set is really active; an unusable one is refused, never replaced."""

import os
import platform
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import programs
import pytest

import fastattn
from fastattn import _core, _kernels

SHOW = "import fastattn; print(fastattn.isa())"


def test_environment_forces(isa):
    assert programs.run(SHOW, FASTATTN_ISA=isa).stdout.strip() == isa


def test_unknown_and_unavailable_names_are_refused():
    unavailable = [name for name, missing in _core.isa_table().items() if missing]
    for name in ["avx1024", *unavailable]:
        result = programs.run(SHOW, FASTATTN_ISA=name)
        expected = f"FASTATTN_ISA: expected one of {', '.join(fastattn.isas())}, got {name!r}: "
        assert result.returncode != 0
        assert result.stderr.splitlines()[-1].startswith(f"ImportError: {expected}")
        with pytest.raises(ValueError, match=f"name: expected one of .*{name}"):
            fastattn.use_isa(name)  # where it is called, not where the block begins
        with pytest.raises(ValueError, match="cannot be used"):
            _kernels.tile(name, "float32")
    with pytest.raises(TypeError, match="name: expected a string"):
        fastattn.use_isa(3)


def test_use_isa_nests(isa):
    before = fastattn.isa()
    with fastattn.use_isa(isa):
        assert fastattn.isa() == isa
        with fastattn.use_isa("scalar"):
            assert fastattn.isa() == "scalar"
        assert fastattn.isa() == isa
    assert fastattn.isa() == before


@pytest.mark.parametrize("setting", ["isa", "threads"])
def test_one_context_serves_many_blocks(setting):
    """One after another, in each other, around calls, and in several threads at once."""
    if setting == "isa":
        context, other, get = fastattn.use_isa("scalar"), fastattn.use_isa("scalar"), fastattn.isa
    else:
        context, other = fastattn.num_threads(71), fastattn.num_threads(72)
        get = fastattn.get_num_threads
    before, both = get(), threading.Barrier(2)

    @context
    def called():
        both.wait(10)
        return get()

    for _ in range(2):
        with context:
            inside = get()
            with other, context:
                assert get() == inside
        assert get() == before
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(called) for _ in range(2)]
        assert [call.result() for call in calls] == [inside] * 2
    with pytest.raises(TypeError):
        context.__exit__(None, None, None)  # of no block
    assert get() == before


def test_the_forced_kernels_are_the_ones_that_run(rng):
    """Sums run in another order on another instruction set, or of fewer bits; bits show it."""
    q, k, v = (rng.standard_normal((1, 1, 600, 64)).astype(np.float32) for _ in range(3))
    results = {}
    for name in fastattn.isas():
        with fastattn.use_isa(name):
            results[name] = fastattn.attention(q, k, v, precision="medium").tobytes()
    assert len(set(results.values())) == len(results)


def test_default_is_the_best():
    if not os.environ.get("FASTATTN_ISA"):
        assert fastattn.isa() == fastattn.isas()[-1]
    assert fastattn.isas()[0] == "scalar"


def test_config():
    facts = fastattn.config()
    available = [name for name, state in facts["isas"].items() if state == "available"]
    assert available == fastattn.isas() and facts["isa"] == fastattn.isa()
    assert facts["threads"] == fastattn.get_num_threads()
    assert os.path.exists(os.path.join(fastattn.get_include(), "fastattn.h"))
    assert os.path.exists(fastattn.get_library())


def test_config_reads_what_linux_tells(tmp_path, monkeypatch, capsys):
    own = sys.modules["fastattn.config"]  # `fastattn.config` is the function
    monkeypatch.setattr(own, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert (own._caches(), own._cpu()) == ({}, platform.processor() or platform.machine())
    fastattn.show_config()
    assert "\ncaches   unknown\n" in capsys.readouterr().out
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("cpu\t: 0\nmodel name\t: One: fast\nmodel name\t: Two\n")
    for index, facts in enumerate(
        [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "4M"), ("Unified",)]
    ):
        cache = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        cache.mkdir(parents=True)
        for name, fact in zip(("type", "level", "size"), facts, strict=False):
            (cache / name).write_text(f"{fact}\n")
    assert own._caches() == {"L1d": 48 << 10, "L1i": 32 << 10, "L2": 4 << 20}
    fastattn.show_config()
    printed = capsys.readouterr().out
    assert "\nCPU      One: fast\ncaches   L1d 48 KiB, L1i 32 KiB, L2 4096 KiB\n" in printed


CPU = Path("/proc/cpuinfo").read_text() if sys.platform == "linux" else ""
PERMITTED = """
import ctypes, numpy as np, fastattn
x = np.ones((1, 1, 64, 64), np.float32)
fastattn.attention(x, x, x)
fastattn.config()
states = ctypes.c_uint64()
assert not ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(states))  # ARCH_GET_XCOMP_PERM
print(states.value >> 18 & 1)
"""


@pytest.mark.skipif("amx_tile" not in CPU, reason="this machine has no AMX")
def test_tiles_are_asked_for_only_where_they_are_used():
    assert programs.run(PERMITTED, FASTATTN_ISA="avx512").stdout.strip() == "0"
    assert programs.run(PERMITTED, FASTATTN_ISA="amx").stdout.strip() == "1"


def test_import_without_the_extensions_says_why(tmp_path):
    """A source folder that hides the installed package is the usual reason."""
    (tmp_path / "fastattn").mkdir()
    shutil.copy(fastattn.__file__, tmp_path / "fastattn")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path, "fastattn")
    for path in (str(tmp_path), archive):
        result = programs.run("import fastattn", PYTHONPATH=path)
        message = result.stderr.splitlines()[-1]
        assert message.startswith("ImportError: fastattn: its C extensions are not in " + path)
        assert "run Python with -P" in message
        assert "cannot import name '_core'" in result.stderr  # the cause


def test_extensions_that_do_not_load_speak_for_themselves(tmp_path):
    (tmp_path / "fastattn").mkdir()
    shutil.copy(fastattn.__file__, tmp_path / "fastattn")
    suffix = EXTENSION_SUFFIXES[0]
    (tmp_path / "fastattn" / f"_core{suffix}").write_text("damaged")
    result = programs.run("import fastattn", PYTHONPATH=str(tmp_path))
    assert result.returncode
    assert f"_core{suffix}" in result.stderr.splitlines()[-1]
