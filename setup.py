"""Build fastattn: one C library, each instruction set with its own compiler flags."""

import hashlib
import os
import platform
import runpy
import shutil
import struct
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError
from setuptools.modified import newer_group

# A universal Python of macOS asks for two machines at once: it gets this one, and says so.
if sysconfig.get_platform().endswith("universal2") and "ARCHFLAGS" not in os.environ:
    os.environ["ARCHFLAGS"] = f"-arch {platform.machine()}"
    os.environ["_PYTHON_HOST_PLATFORM"] = sysconfig.get_platform().replace(
        "universal2", platform.machine()
    )

TABLE = "src_c/isa/flags.py"
ISAS = runpy.run_path(TABLE)["ISAS"]
# What GCC and Clang, and MSVC, define when they compile for a machine of the table.
MACHINES = {"x86_64": ("__x86_64__", "_M_X64"), "aarch64": ("__aarch64__", "_M_ARM64")}
# Tiles have to be asked for, which only Linux is asked here.
SYSTEM_HAS = {
    "avx512_bf16": sys.platform != "win32",
    "amx": sys.platform == "linux",
    "neon_bf16": sys.platform in ("linux", "darwin"),
}
# A unit beside the kernels of the level below, and nothing else.
UNITS = {"avx512_bf16", "amx", "neon_bf16"}
# Arithmetic as it is written, whatever CFLAGS say.
EXACT = {
    "unix": ["-fno-fast-math", "-fno-unsafe-math-optimizations", "-fno-finite-math-only"],
    "msvc": [],
}
# -ffast-math and -Ofast also link code that takes denormals from the whole process.
LINKED = {"unix": ["-O3", *EXACT["unix"]], "msvc": []}
# What Python's own flags ask for would be a quarter of the wheel.
NO_DEBUGGING = {"unix": ["-g0"], "msvc": []}
COMMON = {
    "unix": ["-std=c11", "-O3", *EXACT["unix"], "-ffp-contract=off"]
    + ["-fvisibility=hidden", "-fPIC", *NO_DEBUGGING["unix"]],
    "msvc": ["/std:c11", "/O2", "/fp:precise"],
}
# Link-time optimisation may move code of one instruction set into another's functions.
ISOLATED = {"unix": ["-fno-lto"], "msvc": ["/GL-"]}
# Our calls of our functions: of another libfastattn in the process, whose come first, never.
OWN_SYMBOLS = ["-Wl,-Bsymbolic"] if sys.platform not in ("darwin", "win32") else []
MATH = ["m"] if sys.platform != "win32" else []
SOURCES = sorted(glob("src_c/*.c"))
# What an extension links of it; others all. _kernels asks _core for the kernels themselves.
NEEDED = {"fastattn._dlpack": [], "fastattn._kernels": ["src_c/schedule.c"]}
HEADERS = [str(path) for path in Path("src_c").rglob("*") if path.suffix in (".h", ".inc")]
LIBRARIES = {"win32": "fastattn.dll", "darwin": "libfastattn.dylib"}
# Folders of the package for what is built and no extension.
BESIDE = ("lib", "include", "share")
# Made from src_c/package, and where they go below share.
DESCRIPTIONS = {
    "fastattn-config.cmake": "cmake/fastattn",
    "fastattn-config-version.cmake": "cmake/fastattn",
    "fastattn.pc": "pkgconfig",
}
PROBE = """#include <pthread.h>
#include <stdatomic.h>
static atomic_int ready;
int main(void) { return pthread_atfork(0, 0, 0) + atomic_load(&ready); }
"""
LIMITED_API = "0x030B0000"
# Python with free threads has no limited API yet: a wheel of its own.
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")


def is_set(name):
    """Whether the environment asks for this; 0 does not."""
    return os.environ.get(name, "0") not in ("", "0")


class BuildExt(build_ext):
    """Compile src_c once and link it into the extensions and into a shared library."""

    def build_extensions(self):
        kind = "msvc" if self.compiler.compiler_type == "msvc" else "unix"
        if not self.compiles("int probe;\n"):
            command = self.compiler.cc if kind == "msvc" else " ".join(self.compiler.compiler_so)
            raise CompileError(f"the C compiler does not compile anything (CC, CFLAGS): {command}")
        threads = ["-pthread"] if kind == "unix" and self.has_threads() else []
        if not threads:
            print("fastattn: no POSIX threads and atomics; building a serial library", flush=True)
        isas = self.isas(kind)
        have = [(f"FA_HAVE_{name.upper()}", "1") for name in isas]
        have += [("FA_HAVE_THREADS", "1")] if threads else []
        # Timestamps for `python -m fastattn profile`.
        have += [("FA_PROFILE", "1")] if is_set("FASTATTN_PROFILE") else []
        flags = [*COMMON[kind], *threads]
        jobs = {path: (path, flags, have) for path in SOURCES}
        for name in isas:
            path = f"src_c/isa/{name}.c"
            flags = [*COMMON[kind], *ISAS[name][2 if kind == "msvc" else 1], *ISOLATED[kind]]
            for bits in ("32",) if name in UNITS else ("32", "64"):
                jobs[path, bits] = (path, flags, [("FA_REAL_BITS", bits)])
        objects = self.compile_all(jobs)
        links = [*threads, *LINKED[kind], *OWN_SYMBOLS]
        version = self.distribution.get_version()
        settings = self.note_settings([*objects.values(), *links, version])
        for extension in self.extensions:
            extension.define_macros += [("FASTATTN_VERSION", f'"{version}"')]
            extension.extra_objects += [
                objects[name] for name in NEEDED.get(extension.name, objects)
            ]
            extension.extra_compile_args += [*EXACT[kind], *NO_DEBUGGING[kind]]
            extension.extra_link_args += links
            extension.depends += [settings, *extension.extra_objects]
        super().build_extensions()
        self.link_library([*objects.values()], kind, links)

    def compile_all(self, jobs):
        """Compile on all processors; the last of ISAS, which take longest, first."""
        with ThreadPoolExecutor(self.parallel or os.cpu_count()) as pool:
            running = {name: pool.submit(self.compile, *jobs[name]) for name in reversed(jobs)}
        return {name: running[name].result() for name in jobs}

    def compile(self, path, flags, macros):
        """Compile one file if it or any header is newer than its object.

        Objects of other settings, which an earlier build may have left, are in other directories.
        """
        macros = [*macros, ("FA_BUILD_SHARED", "1")]
        key = hashlib.sha256(repr((self.commands(), flags, macros)).encode()).hexdigest()[:12]
        directory = os.path.join(self.build_temp, f"objects-{key}")
        [target] = self.compiler.object_filenames([path], output_dir=directory)
        if self.force or newer_group([path, *HEADERS], target):
            self.compiler.compile(
                [path],
                output_dir=directory,
                include_dirs=["src_c"],
                macros=macros,
                extra_postargs=flags,
            )
        return target

    def commands(self):
        """What the environment and the options say about compiling and linking."""
        names = ("cc", "compiler_so", "linker", "linker_so", "macros")
        return [getattr(self.compiler, name, None) for name in names]

    def note_settings(self, words):
        """A file that is newer than what was built with other settings."""
        path = Path(self.build_temp, "settings.txt")
        text = repr([*self.commands(), *words])
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        return str(path)

    def isas(self, kind):
        """The instruction sets of the compiler's machine that it knows.

        With FASTATTN_REQUIRE_ISAS=1 it must be one of MACHINES, and know all of them.
        """
        required = is_set("FASTATTN_REQUIRE_ISAS")
        isas, machine = [], self.machine()
        if required and not machine:
            raise CompileError(f"FASTATTN_REQUIRE_ISAS: expected a compiler for {[*MACHINES]}")
        for name, (needed, *flags) in ISAS.items():
            if needed not in ("any", machine) or not SYSTEM_HAS.get(name, True):
                continue
            # What every machine has is not left out: if it fails, the build does.
            if needed == "any" or self.compiles("int probe;\n", flags[kind == "msvc"]):
                isas.append(name)
            elif required:
                raise CompileError(f"FASTATTN_REQUIRE_ISAS: the compiler does not know {name}")
            else:
                print(f"fastattn: the compiler does not know {name}; building without", flush=True)
        return isas

    def machine(self):
        """Which of MACHINES the compiler compiles for: not always what it runs on."""
        for name, macros in MACHINES.items():
            known = " || ".join(f"defined({macro})" for macro in macros)
            if self.compiles(f"#if !({known})\n#error not {name}\n#endif\nint probe;\n"):
                return name
        return None

    def has_threads(self):
        """Whether a program with POSIX threads and C11 atomics compiles and links.

        FASTATTN_NO_THREADS=1 says no.
        """
        if is_set("FASTATTN_NO_THREADS"):
            return False
        return self.compiles(PROBE, ["-std=c11", "-pthread"], link=True)

    def compiles(self, text, flags=(), link=False):
        """Whether the compiler takes this text with these flags."""
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "probe.c")
            source.write_text(text)
            try:
                objects = self.compiler.compile(
                    [str(source)], output_dir=directory, extra_postargs=[*flags]
                )
                if link:
                    self.compiler.link_executable(
                        objects, "probe", output_dir=directory, extra_postargs=[*flags]
                    )
            except (CompileError, LinkError):
                return False
        return True

    def link_library(self, objects, kind, links):
        """libfastattn, for programs in C: inside the package, found by fastattn.get_library()."""
        package = Path(self.get_ext_fullpath("fastattn._core")).parent
        target = package / "lib" / LIBRARIES.get(sys.platform, "libfastattn.so")
        (package / "include").mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(exist_ok=True)
        target.unlink(missing_ok=True)  # of whatever settings, and no matter how new
        flags = [*links, *self.name_flags(target.name)] if kind == "unix" else links
        self.compiler.link_shared_object(objects, str(target), libraries=MATH, extra_postargs=flags)
        self.copy_file("src_c/fastattn.h", str(package / "include" / "fastattn.h"))
        self.describe_library(package, target.name)

    def name_flags(self, name):
        """What makes a program look for the library by name, not by its path, and keep it."""
        if sys.platform != "darwin":
            # Threads of the pool never end: the library must not go from under them in dlclose.
            return [f"-Wl,-soname,{name}", "-Wl,-z,nodelete"]
        # A bundle, which an extension is, cannot be linked against.
        self.compiler.linker_so = [
            "-dynamiclib" if word == "-bundle" else word for word in self.compiler.linker_so
        ]
        return [f"-Wl,-install_name,@rpath/{name}"]

    def describe_library(self, package, library):
        """The files that CMake and pkg-config find the library by; see fastattn.get_cmake_dir()."""
        words = {
            "VERSION": self.distribution.get_version(),
            "LIBRARY": library,
            "SONAME": f"@rpath/{library}" if sys.platform == "darwin" else library,
            "POINTER_BYTES": str(struct.calcsize("P")),
        }
        for name, folder in DESCRIPTIONS.items():
            text = Path("src_c", "package", f"{name}.in").read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace(f"@{word}@", value)
            target = package / "share" / folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def copy_extensions_to_source(self):
        """In a build in place, what goes beside the extensions as well."""
        super().copy_extensions_to_source()
        for name in BESIDE:
            built = Path(self.build_lib, "fastattn", name)
            shutil.copytree(built, Path("fastattn", name), dirs_exist_ok=True)

    def get_output_mapping(self):
        """The same files for an editable installation that links each file by itself."""
        mapping = super().get_output_mapping()
        for name in BESIDE if self.inplace else ():
            for path in Path(self.build_lib, "fastattn", name).rglob("*"):
                if path.is_file():
                    mapping[str(path)] = str(path.relative_to(self.build_lib))
        return mapping


def extension(name):
    return Extension(
        f"fastattn.{name}",
        [f"fastattn/{name}.pyx"],
        include_dirs=["src_c", numpy.get_include()],
        define_macros=[
            *([("Py_LIMITED_API", LIMITED_API)] if ABI3 else []),
            ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),
            ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
        ],
        libraries=MATH,
        py_limited_api=ABI3,
        depends=["setup.py", *HEADERS, *glob("fastattn/*.pxd"), *glob("fastattn/*.pxi")],
    )


setup(
    ext_modules=[extension("_core"), extension("_kernels"), extension("_dlpack")],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
