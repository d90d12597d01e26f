# SPDX-License-Identifier: MIT
"""What setup.py has compiled and linked, by a compiler that only writes down what it is told."""

import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

import programs
import pytest

import fastattn

setuptools = pytest.importorskip("setuptools")
pytest.importorskip("setuptools.modified")  # of those that setup.py asks for, not of venv's
CompileError = pytest.importorskip("setuptools.errors").CompileError

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.forces_isa,
    pytest.mark.no_sanitizer,
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree"),
    pytest.mark.skipif(sys.platform == "win32", reason="the compiler is a script of the shell"),
]
SOURCES = ["dispatch.c", "schedule.c"]
# An object holds the line that made it; what is linked holds its own line and its objects.
STUB = """#!/bin/sh
for word; do
    case " $REFUSED " in *" $word "*) echo "unknown option $word" >&2; exit 1 ;; esac
    case $last,$word in
        -o,*) out=$word ;;
        *.o) objects="$objects $word" ;;
    esac
    last=$word
done
echo "$*" >>"$LOG"
{ echo "$*"; [ -z "$objects" ] || cat $objects; } >"$out"
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the sources, with empty files for what Cython makes."""
    ours = [f"FASTATTN_{name}" for name in ("PROFILE", "NO_THREADS", "REQUIRE_ISAS")]
    for name in (*ours, "CFLAGS", "LDFLAGS", "ARCHFLAGS"):
        monkeypatch.delenv(name, raising=False)
    tree = tmp_path / "tree"
    # Of the sources below isa all, of the others two, which is faster.
    left_out = [path.name for path in (ROOT / "src_c").glob("*.c") if path.name not in SOURCES]
    shutil.copytree(ROOT / "src_c", tree / "src_c", ignore=lambda *_: left_out)
    shutil.copy(ROOT / "setup.py", tree)
    (tree / "fastattn").mkdir()
    for name in ("_core", "_kernels", "_dlpack"):
        (tree / "fastattn" / f"{name}.c").touch()
    stub = tmp_path / "stub-cc"
    stub.write_text(STUB)
    stub.chmod(0o755)
    monkeypatch.setenv("CC", str(stub))
    monkeypatch.setenv("LDSHARED", f"{stub} -shared")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.chdir(tree)
    return tree


def command(monkeypatch, version="1"):
    """The command build_ext of setup.py."""
    arguments = {}
    with monkeypatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **words: arguments.update(words))
        runpy.run_path("setup.py")
    for extension in arguments["ext_modules"]:
        extension.sources = [source.replace(".pyx", ".c") for source in extension.sources]
    distribution = setuptools.Distribution({"name": "fastattn", "version": version, **arguments})
    build_ext = distribution.get_command_obj("build_ext")
    build_ext.build_lib, build_ext.build_temp = "build/lib", "build/temp"
    build_ext.ensure_finalized()
    return build_ext


def build(monkeypatch, version="1", **environment):
    """Build; the text of each file that was linked, and which files were compiled."""
    log = Path(os.environ["LOG"])
    log.unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        command(monkeypatch, version).run()
    words = [line.split() for line in log.read_text().splitlines()]
    compiled = [line[line.index("-c") + 1] for line in words if "-c" in line]
    linked = {path.name.partition(".")[0]: path.read_text() for path in Path("build/lib").rglob("*")
              if path.suffix in (".so", ".dylib")}  # fmt: skip
    assert {*linked} == {"_core", "_kernels", "_dlpack", "libfastattn"}
    return linked, [path for path in compiled if path.startswith(("src_c", "fastattn"))]


def test_an_earlier_build_decides_nothing(tree, monkeypatch):
    """Files of other settings are as new as any, and must not be taken for these."""
    plain, _ = build(monkeypatch)
    settings = {"FASTATTN_PROFILE": "1", "FASTATTN_NO_THREADS": "1", "CFLAGS": "-DOTHER"}
    other, _ = build(monkeypatch, **settings, REFUSED="-mavx512f")
    for name in ("_core", "libfastattn"):
        for sign in ("-DFA_PROFILE=1", "-DOTHER"):
            assert sign in other[name]
            assert sign not in plain[name]
        for sign in ("-DFA_HAVE_THREADS=1", "isa/avx512.c"):
            assert sign not in other[name]
            assert sign in plain[name]
    assert build(monkeypatch)[0] == plain
    unset = {"FASTATTN_PROFILE": "0", "FASTATTN_NO_THREADS": "0", "FASTATTN_REQUIRE_ISAS": "0"}
    assert build(monkeypatch, **unset)[0] == plain


def test_the_version_is_that_of_the_project(tree, monkeypatch):
    """Built in, so also of what is not installed; and a new one is built in."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert fastattn.__version__ == fastattn.config()["version"] == version
    assert '-DFASTATTN_VERSION="1"' in build(monkeypatch)[0]["_core"]
    assert '-DFASTATTN_VERSION="2"' in build(monkeypatch, "2")[0]["_core"]


def test_a_library_in_the_source_is_not_shipped(tree, monkeypatch):
    plain, _ = build(monkeypatch)
    [library] = Path("build/lib/fastattn/lib").iterdir()
    library.write_text("another one's")
    os.utime(library, (time.time() + 9,) * 2)
    assert build(monkeypatch)[0] == plain
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert not [name for name in options["package-data"]["fastattn"] if "/" in name]


def test_only_what_was_edited_is_compiled(tree, monkeypatch):
    _, everything = build(monkeypatch)
    assert {*map(str, Path("src_c").glob("*.c"))} < {*everything}
    assert build(monkeypatch)[1] == []
    os.utime("src_c/schedule.c", (time.time() + 9,) * 2)
    _, compiled = build(monkeypatch)
    assert sorted(compiled) == ["fastattn/_core.c", "fastattn/_kernels.c", "src_c/schedule.c"]


def test_nothing_for_debuggers_is_shipped(tree, monkeypatch):
    linked, _ = build(monkeypatch, CFLAGS="-g")
    lines = [line for text in linked.values() for line in text.splitlines() if " -c " in line]
    for source in ("fastattn/_core.c", "src_c/dispatch.c"):
        assert any(f" -c {source} " in line for line in lines)
    for words in map(str.split, lines):
        assert words.index("-g") < words.index("-g0")


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations"])
def test_arithmetic_stays_exact(tree, monkeypatch, flag):
    """Neither our loops nor, in the whole process, denormals change with CFLAGS."""
    linked, _ = build(monkeypatch, CFLAGS=flag)
    for text in linked.values():
        for words in map(str.split, text.splitlines()):
            assert words.index(flag) < words.index("-fno-fast-math")
    if not (compiler := shutil.which("gcc") or shutil.which("clang")):
        return
    words = linked["libfastattn"].splitlines()[0].split()
    ours = words[words.index("-o") + 2 :]
    Path("value.c").write_text("int value;\n")
    command = [compiler, flag, "-shared", "-fPIC", "value.c", *ours, "-o", "value.so"]
    subprocess.run(command, check=True)
    code = """
        import ctypes, sys, numpy as np
        ctypes.CDLL(sys.argv[1])
        print(np.float32(1e-40) * np.float32(0.5) != 0)
    """
    result = programs.run(code, tree / "value.so")  # a process that may lose its denormals
    assert result.stdout.strip() == "True", result.stderr


def test_everything_names_its_libraries(tree, monkeypatch):
    """The interpreter may be linked without libm, which the core needs."""
    linked, _ = build(monkeypatch)
    for text in linked.values():
        assert "-lm" in text.splitlines()[0].split()


@pytest.mark.parametrize(
    ("compiler", "isas"),
    [
        ("clang --target=x86_64-linux-gnu", ["scalar", "avx2", "avx512", "avx512_bf16", "amx"]),
        ("clang --target=i386-linux-gnu", ["scalar"]),
        ("clang --target=aarch64-linux-gnu", ["scalar", "neon", "neon_bf16"]),
        ("aarch64-linux-gnu-gcc", ["scalar", "neon", "neon_bf16"]),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack some")
def test_kernels_are_of_the_compilers_machine(tree, monkeypatch, compiler, isas):
    """Which is another one's for a cross compiler, and nobody's under a Python of 32 bits."""
    if not shutil.which(compiler.split()[0]):
        pytest.skip(f"needs {compiler}")
    monkeypatch.setenv("CC", compiler)
    build_ext, found = command(monkeypatch), []
    monkeypatch.setattr(build_ext, "build_extensions", lambda: found.extend(build_ext.isas("unix")))
    build_ext.run()
    assert found == isas


def test_releases_have_every_kernel(tree, monkeypatch):
    """cibuildwheel sets this: an old compiler knows no AMX, and only says so."""
    monkeypatch.setenv("FASTATTN_REQUIRE_ISAS", "1")
    build(monkeypatch)
    with pytest.raises(CompileError, match=r"FASTATTN_REQUIRE_ISAS: .* does not know avx2"):
        build(monkeypatch, REFUSED="-mavx2")
    other = command(monkeypatch)
    monkeypatch.setattr(other, "machine", lambda: None)
    with pytest.raises(CompileError, match=r"FASTATTN_REQUIRE_ISAS: expected .*'x86_64'"):
        other.run()
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert options["environment"]["FASTATTN_REQUIRE_ISAS"] == "1"


def test_a_universal_python_gets_one_machine(tree, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "macosx-10.9-universal2")
    command(monkeypatch)
    assert os.environ["ARCHFLAGS"] == f"-arch {platform.machine()}"
    assert os.environ["_PYTHON_HOST_PLATFORM"] == f"macosx-10.9-{platform.machine()}"


@pytest.mark.parametrize("setting", ["CC", "CFLAGS"])
def test_a_compiler_that_does_not_work_is_the_error(tree, monkeypatch, setting, capfd):
    value = {"CC": "/nonexistent/cc", "CFLAGS": "-refused"}[setting]
    monkeypatch.setenv(setting, value)
    with pytest.raises(CompileError, match=f"the C compiler .*: .*{value}"):
        build(monkeypatch, REFUSED="-refused")
    assert "fastattn: " not in capfd.readouterr().out  # nothing about threads or kernels


def test_scalar_kernels_are_never_left_out(tree, monkeypatch):
    with pytest.raises(CompileError):
        build(monkeypatch, REFUSED="-fno-tree-vectorize")


@pytest.mark.filterwarnings("ignore:setup.py install is deprecated")
def test_editable_installations_have_the_library(tree, monkeypatch):
    """Beside the extensions in the source; one in strict mode links each file that is named."""
    build_ext = command(monkeypatch)
    build_ext.inplace = True
    build_ext.run()
    mapping = build_ext.get_output_mapping()
    assert {*mapping} == {*build_ext.get_outputs()}
    for built, source in mapping.items():
        assert Path(built).read_bytes() == Path(source).read_bytes()
    names = {Path(source).parts[1] for source in mapping.values()}
    assert {"lib", "include", "share"} < names
