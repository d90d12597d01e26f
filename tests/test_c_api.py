# SPDX-License-Identifier: MIT
"""A C program against the installed header and library."""

import os
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from programs import COMPILER

import fastattn

PROGRAMS = Path(__file__).parent / "c"
pytestmark = [
    pytest.mark.no_sanitizer,
    pytest.mark.skipif(sys.platform == "win32" or not COMPILER, reason="needs a Unix C compiler"),
]


def run_program(name, folder):
    library = Path(fastattn.get_library())
    command = [COMPILER, "-std=c11", "-O1", PROGRAMS / f"{name}.c", f"-I{fastattn.get_include()}"]
    command += [library, f"-Wl,-rpath,{library.parent}", "-lm", "-o", folder / name]
    subprocess.run(command, check=True)
    result = subprocess.run(
        [folder / name], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, (result.returncode, result.stdout)
    assert result.stdout.rstrip().endswith(" 0 failed")
    return result.stdout


def test_c_program(tmp_path):
    assert run_program("check_kernels", tmp_path).startswith(f"default: {fastattn.isa()}")


def test_arguments_that_make_no_sense(tmp_path):
    run_program("check_arguments", tmp_path)


def test_inside_an_openmp_region(tmp_path):
    library = Path(fastattn.get_library())
    target = tmp_path / "in_openmp"
    command = [COMPILER, "-std=c11", "-O1", "-fopenmp", PROGRAMS / "in_openmp.c", library]
    command += [f"-I{fastattn.get_include()}", f"-Wl,-rpath,{library.parent}", "-o", target]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the C compiler has no OpenMP")
    result = subprocess.run([target], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout


def test_unusable_isa_is_refused_in_c(tmp_path):
    target = tmp_path / "check"
    library = Path(fastattn.get_library())
    source = tmp_path / "isa.c"
    source.write_text(
        '#include "fastattn.h"\n#include <stdio.h>\n'
        'int main(void) { const char *isa = fa_isa_default(); puts(isa ? isa : "none"); }\n'
    )
    command = [COMPILER, source, f"-I{fastattn.get_include()}", library]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", target], check=True)
    for name, expected in [("scalar", "scalar"), ("avx1024", "none")]:
        environment = {**os.environ, "FASTATTN_ISA": name}
        result = subprocess.run(
            [target], env=environment, capture_output=True, text=True, check=True
        )
        assert result.stdout.strip() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_outlive_no_library():
    """Nobody ends the pool's threads, so a program that closes the library keeps it."""
    result = programs.run("""
        import _ctypes, ctypes, fastattn
        path = fastattn.get_library()
        library = ctypes.CDLL(path)
        _ctypes.dlclose(library._handle)
        print(path in open("/proc/self/maps").read())
    """)
    assert result.stdout.strip() == "True", result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")
def test_another_library_in_the_process_replaces_nothing(tmp_path):
    """As in a program that is linked to another version and embeds Python."""
    other, source = tmp_path / "libother.so", tmp_path / "other.c"
    source.write_text(
        '#include <stdio.h>\nint fa_attention(const void *args) { return puts("other"), 1; }\n'
        'const char *fa_isa_default(void) { return "other"; }\n'
    )
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", other], check=True)
    code = """
        import ctypes, fastattn, numpy as np
        assert ctypes.CDLL(None).fa_isa_default
        print(fastattn.isa(), fastattn.attention(*np.ones((3, 1, 1), np.float32)).item())
    """
    result = programs.run(code, LD_PRELOAD=str(other))
    assert result.stdout.split() == [fastattn.isa(), "1.0"], result.stderr
