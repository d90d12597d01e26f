# SPDX-License-Identifier: MIT
"""Programs of others against the installed package: by CMake, by pkg-config, in Cython."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from programs import COMPILER, python

import fastattn

CONSUMER = Path(__file__).parent / "c" / "consumer"
PACKAGE = Path(fastattn.__file__).parent
pytestmark = [
    pytest.mark.no_sanitizer,
    pytest.mark.skipif(sys.platform == "win32" or not COMPILER, reason="needs a Unix C compiler"),
]
needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")


def arrays():
    """The tensors of main.c."""
    shapes = {3: (2, 3, 4), 5: (2, 5, 4), 7: (2, 5, 4)}
    return [
        ((np.arange(np.prod(shape)) * step % 17 - 8) / 8).astype(np.float32).reshape(shape)
        for step, shape in shapes.items()
    ]


def expected():
    return fastattn.attention(*arrays(), scale=0.5, causal=True)


def check_program(program):
    """The program finds the library by itself and computes the bits that Python does."""
    environment = {name: v for name, v in os.environ.items() if name != "LD_LIBRARY_PATH"}
    result = subprocess.run(
        [program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    numbers = [float.fromhex(line) for line in result.stdout.split()]
    np.testing.assert_array_equal(np.array(numbers, np.float32), expected().ravel())


def configure(source, build, *options):
    command = ["cmake", "-S", source, "-B", build, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_cmake
@pytest.mark.parametrize(
    "option",
    [f"-Dfastattn_DIR={fastattn.get_cmake_dir()}", f"-DCMAKE_PREFIX_PATH={PACKAGE.parent}"],
    ids=["get_cmake_dir", "site-packages"],
)
def test_cmake(option, tmp_path):
    result = configure(CONSUMER, tmp_path, option, "-DCMAKE_BUILD_TYPE=Release")
    assert result.returncode == 0, result.stderr
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    check_program(tmp_path / "consumer")


@needs_cmake
@pytest.mark.parametrize(
    ("wanted", "found"),
    [("", True), ("0.1", True), ("0.0.9", True), ("0.99", False), ("99", False)],
)
def test_cmake_version(wanted, found, tmp_path):
    """Any of the same major number that is not older; without a compiler."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.15)\nproject(version NONE)\n"
        f"find_package(fastattn {wanted} REQUIRED)\n"
    )
    directory = f"-Dfastattn_DIR={fastattn.get_cmake_dir()}"
    result = configure(tmp_path, tmp_path / "build", directory)
    assert (result.returncode == 0) is found, result.stderr
    if not found:
        assert f'compatible with requested version "{wanted}"' in " ".join(result.stderr.split())


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="needs pkg-config")
def test_pkg_config(tmp_path):
    environment = {**os.environ, "PKG_CONFIG_PATH": fastattn.get_pkgconfig_dir()}

    def ask(question):
        command = ["pkg-config", question, "fastattn"]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    version = (Path(fastattn.get_cmake_dir()) / "fastattn-config-version.cmake").read_text()
    assert f'PACKAGE_VERSION "{ask("--modversion")}"' in version
    assert ask("--modversion") == fastattn.__version__
    program = tmp_path / "consumer"
    flags = [*shlex.split(ask("--cflags")), *shlex.split(ask("--libs"))]
    command = [COMPILER, "-std=c11", CONSUMER / "main.c", *flags, "-o", program]
    subprocess.run(command, check=True)
    check_program(program)


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_header_in_cpp(tmp_path):
    source = tmp_path / "header.cpp"
    source.write_text(
        "#include <fastattn.h>\n"
        "int main() { fa_args args{}; args.size = sizeof args; return fa_attention(&args); }\n"
    )
    flags = ["-std=c++11", "-Wall", "-Wextra", "-pedantic-errors", "-Werror", "-fsyntax-only"]
    subprocess.run(["g++", *flags, f"-I{fastattn.get_include()}", source], check=True)


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("language", ["c", "c++"])
def test_example_of_the_header(language, tmp_path):
    header = (Path(fastattn.get_include()) / "fastattn.h").read_text()
    example = re.search(r" \*     (fa_args args = .*?)\n \*\n", header, re.S)[1]
    lines = [line.removeprefix(" *     ") for line in example.splitlines()]
    code = "\n".join(line.replace("...", ";") for line in lines if not line.startswith("..."))
    source = tmp_path / "example.c"
    source.write_text(f"#include <fastattn.h>\nvoid example(float *q)\n{{\n{code}\n}}\n")
    standard = {"c": "c11", "c++": "c++20"}[language]
    command = ["g++", "-x", language, f"-std={standard}", "-fsyntax-only"]
    subprocess.run([*command, f"-I{fastattn.get_include()}", source], check=True)


@pytest.mark.skipif(not find_spec("Cython") or not find_spec("setuptools"), reason="needs Cython")
def test_cython(tmp_path, monkeypatch):
    for name in ("consumer.pyx", "setup.py"):
        shutil.copy(CONSUMER / name, tmp_path)
    build = python(tmp_path / "setup.py", "-q", "build_ext", "--inplace", CFLAGS="-O0")
    assert build.returncode == 0, build.stderr
    monkeypatch.syspath_prepend(tmp_path)
    import consumer

    out = np.zeros((2, 3, 4), np.float32)
    consumer.attention(*arrays(), out)
    np.testing.assert_array_equal(out, expected())
