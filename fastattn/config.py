# SPDX-License-Identifier: MIT
"""What this installation is: build, machine, and where a C program finds the library."""

import platform
import sys
from pathlib import Path

import numpy as np

from fastattn import _core
from fastattn.isa import isa
from fastattn.threads import get_num_threads

PACKAGE = Path(__file__).parent


def config():
    """Build and machine as a dict.

    Returns
    -------
    dict
        version, isa (active), isas (name: "available" or why not), cpu, caches (name: bytes),
        threads, parallel (built with threads), python, numpy.
    """
    missing = _core.isa_table()
    return {
        "version": _core.VERSION,
        "isa": isa(),
        "isas": {name: reason or "available" for name, reason in missing.items()},
        "cpu": _cpu(),
        "caches": _caches(),
        "threads": get_num_threads(),
        "parallel": _core.has_threads(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def show_config():
    """Print `config()`."""
    facts = config()
    print(f"fastattn {facts['version']}, NumPy {facts['numpy']}, Python {facts['python']}")
    print(f"CPU      {facts['cpu']}")
    caches = ", ".join(f"{name} {size // 1024} KiB" for name, size in facts["caches"].items())
    print(f"caches   {caches or 'unknown'}")
    print(f"ISA      {facts['isa']} (active)")
    for name, state in facts["isas"].items():
        print(f"         {name}: {state}")
    serial = "" if facts["parallel"] else " (built without threads: serial)"
    print(f"threads  {facts['threads']}{serial}")


def get_include():
    """Directory of ``fastattn.h``.

    Returns
    -------
    str
    """
    return str(PACKAGE / "include")


def get_library():
    """Path of the shared C library, for programs in C.

    Returns
    -------
    str
    """
    names = {"win32": "fastattn.dll", "darwin": "libfastattn.dylib"}
    return str(PACKAGE / "lib" / names.get(sys.platform, "libfastattn.so"))


def get_cmake_dir():
    """Directory of the CMake package, for ``find_package(fastattn)``.

    ``cmake -Dfastattn_DIR=...`` with it gives the target ``fastattn::fastattn``; so does
    ``CMAKE_PREFIX_PATH`` with the site-packages directory.

    Returns
    -------
    str
    """
    return str(PACKAGE / "share" / "cmake" / "fastattn")


def get_pkgconfig_dir():
    """Directory of ``fastattn.pc``, for ``PKG_CONFIG_PATH``.

    Returns
    -------
    str
    """
    return str(PACKAGE / "share" / "pkgconfig")


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _caches():
    """Sizes in bytes as Linux tells them; empty elsewhere."""
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((index / n).read_text().strip() for n in ("type", "level", "size"))
        except OSError:
            continue
        name = f"L{level}{'' if kind == 'Unified' else kind[0].lower()}"
        unit = {"K": 1024, "M": 1024**2}.get(size[-1:], 1)
        caches[name] = int(size.rstrip("KM")) * unit
    return caches
