# SPDX-License-Identifier: MIT
"""Rules of the house that a reader can check: sizes, directions of includes, symbols, registers."""

import ast
import importlib
import inspect
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import fastattn

ROOT = Path(__file__).parent.parent
C_FILES = [p for p in (ROOT / "src_c").rglob("*") if p.suffix in (".c", ".h", ".inc")]
PYTHON = [*(ROOT / "fastattn").rglob("*.py"), *(ROOT / "tests").rglob("*.py"),
          *(ROOT / "bench").rglob("*.py"), ROOT / "setup.py"]  # fmt: skip
OTHER = [*(ROOT / "fastattn").glob("*.pyx"), *(ROOT / "fastattn").glob("*.pxi"),
         *(ROOT / "tests").rglob("*.c")]  # fmt: skip
pytestmark = [
    pytest.mark.forces_isa,
    pytest.mark.no_sanitizer,  # none of it runs the library, and most of it compilers
    pytest.mark.skipif(not C_FILES, reason="needs the source tree"),
]
COMPILER = shutil.which("gcc")
TABLE = runpy.run_path(ROOT / "src_c" / "isa" / "flags.py")["ISAS"] if C_FILES else {}
FLAGS = {isa: flags for isa, (machine, flags, _) in TABLE.items() if machine in ("any", "x86_64")}


@pytest.mark.parametrize("path", [*C_FILES, *PYTHON, *OTHER], ids=lambda p: p.name)
def test_file_size(path):
    assert len(path.read_text().splitlines()) <= 400


def python_functions(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            doc = node.body[0] if ast.get_docstring(node) else None
            lines = node.end_lineno - node.lineno + 1
            yield node.name, lines - (doc.end_lineno - doc.lineno + 1 if doc else 0)


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: p.name)
def test_python_function_size(path):
    assert {name: n for name, n in python_functions(path) if n > 60} == {}


CYTHON = [path for path in OTHER if path.suffix != ".c"]


@pytest.mark.parametrize("path", CYTHON, ids=lambda p: p.name)
def test_cython_function_size(path):
    text = path.read_text()
    # From a def to the last line that is indented further, or closes the parameters.
    functions = re.finditer(r"^( *)c?p?def (?!class)[^=\n]*\(.*\n(\1[ )].*\n|\n)*", text, re.M)
    lines = {each[0].partition("\n")[0]: each[0].rstrip().count("\n") + 1 for each in functions}
    assert lines and {name: n for name, n in lines.items() if n > 60} == {}


@pytest.mark.parametrize("path", C_FILES, ids=lambda p: p.name)
def test_c_function_size(path):
    limit = 100 if "kernels" in path.parts else 60
    begin, long = None, {}
    for number, line in enumerate(path.read_text().splitlines()):
        if line == "{":
            begin = number
        elif line == "}" and begin is not None:
            if number - begin > limit:
                long[begin] = number - begin
            begin = None
    assert long == {}


@pytest.mark.parametrize("name", ["_core", "_dlpack"])
def test_stubs_name_the_parameters(name):
    """mypy's stubtest compares types as well, but only CI runs it."""
    module = importlib.import_module(f"fastattn.{name}")
    functions = {
        node.name: [argument.arg for argument in node.args.args]
        for node in ast.parse((ROOT / "fastattn" / f"{name}.pyi").read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert functions
    for function, arguments in functions.items():
        found = inspect.signature(getattr(module, function)).parameters
        assert [*found] == arguments, function


def exported(path):
    """`__all__` of a module or stub, without running it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


@pytest.mark.parametrize(
    "stub", [*(ROOT / "fastattn").rglob("__init__.pyi")], ids=lambda p: p.parent.name
)
def test_stubs_export_what_modules_do(stub):
    assert exported(stub) == exported(stub.with_suffix(".py")) is not None


def test_stub_has_every_room():
    """What `import fastattn` gives without another import, type checkers know, too."""
    tree = ast.parse((ROOT / "fastattn" / "__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {*fastattn._LAZY} <= {alias.asname for node in imports for alias in node.names}


def public_functions(module):
    """Functions, classes and their methods that a module exports, each with its name."""
    own = [name for name, value in vars(module).items() if name[0] != "_"
           and inspect.isfunction(value) and value.__module__ == module.__name__]  # fmt: skip
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, value
        if inspect.isclass(value):
            for method, function in inspect.getmembers(value, inspect.isroutine):
                function = getattr(function, "__func__", function)  # of a classmethod
                if inspect.isfunction(function) and (method[0] != "_" or method == "__call__"):
                    yield f"{name}.{method}", function


@pytest.mark.parametrize(
    "name", ["", ".flash_attn", ".flash_attn.bert_padding", ".jax", ".layers", ".models", ".onnx",
             ".plot", ".reference", ".torch", ".transformers"],
)  # fmt: skip
def test_docstrings_name_the_parameters(name):
    libraries = {".flash_attn.bert_padding": "torch"}
    libraries |= {f".{library}": library for library in ("jax", "torch", "transformers")}
    if name in libraries:
        pytest.importorskip(libraries[name])
    missing = {}
    for function, value in public_functions(importlib.import_module(f"fastattn{name}")):
        listed = (value.__doc__ or "").partition("Parameters\n")[2].partition("\n\n")[0]
        if getattr(value, "_is_protocol", False) or "every other argument" in listed:
            continue
        parameters = {*inspect.signature(value).parameters} - {"self", "cls"}
        missing[function] = {p for p in parameters if not re.search(rf"\b{p}\b", listed)}
    assert missing and not any(missing.values()), missing


def test_source_distributions_hold_nothing_built(tmp_path, monkeypatch):
    """What a build in place copies into the package is of this machine."""
    egg_info = pytest.importorskip("setuptools.command.egg_info")
    setup = (ROOT / "setup.py").read_text()
    folders = ast.literal_eval(re.search(r"^BESIDE = (.*)$", setup, re.M)[1])
    built = {f"fastattn/{folder}/deep/file" for folder in folders}
    kept = {"fastattn/kept.py", "CHANGELOG.md", "src_c/README.md"}
    for path in built | kept:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.chdir(tmp_path)
    files = egg_info.FileList()
    files.extend([*built, "fastattn/kept.py"])
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        if not line.startswith("#"):
            files.process_template_line(line)
    assert {*files.files} == kept


def test_every_room_of_the_library_is_described():
    folder = ROOT / "src_c"
    paths = [p for p in folder.rglob("*") if "__pycache__" not in p.parts]
    rooms = {p.relative_to(folder).as_posix() + "/" * p.is_dir() for p in paths}
    table = re.findall(r"^\| (`.*?) \|", (folder / "README.md").read_text("utf-8"), flags=re.M)
    assert {name for cell in table for name in re.findall("`(.*?)`", cell)} == rooms - {"README.md"}


PIECES = {p.name for p in (ROOT / "src_c" / "pieces").glob("*.inc")}
ALLOWED_INCLUDES = {
    "kernels": {"kernels.h", "vec_math.inc", "string.h"},
    "pieces": {"immintrin.h"},
    "amx": PIECES,
    "dot": PIECES,
    "mmla": {"range.inc"},
    "madd": {"range.inc"},
    "vec": {"platform.h", "vec.h", "stdint.h", "string.h", "immintrin.h", "arm_neon.h"},
    "isa": {"vec_scalar.h", "vec_avx2.h", "vec_avx512.h", "vec_neon.h"}
    | {"all.inc", "shared.inc", "unit.inc"},
}


@pytest.mark.parametrize("path", C_FILES, ids=lambda p: p.name)
def test_include_directions(path):
    included = {Path(name).name for name in re.findall(r'#include ["<](.*?)[">]', path.read_text())}
    folder = path.parent.name
    if folder in ALLOWED_INCLUDES:
        own = {p.name for p in path.parent.glob("*.inc")}
        assert included <= ALLOWED_INCLUDES[folder] | own
    elif path.name in ("kernels.h", "fastattn.h", "platform.h"):
        assert included <= {"stddef.h", "stdint.h", "platform.h"}
    assert not {"pthread.h", "stdatomic.h"} & included or path.name == "parallel.c"
    assert "Python.h" not in included


def test_instruction_sets_stay_in_their_rooms():
    rooms = {"vec", "isa", "pieces", "amx", "dot", "mmla", "madd"}
    for path in C_FILES:
        if path.parent.name in rooms or path.name in ("cpu.c", "dispatch.c", "cpu.h"):
            continue
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
        assert not re.search(r"_mm\d*_|__AVX|__ARM|__m\d{3}", code), path


# What multiplies in wide tiles, in which functions; AMX has registers of its own for that.
MULTIPLIES = {"avx2": ("vfmadd231ps", ""), "avx512": ("vfmadd231ps", "")}
MULTIPLIES["avx512_bf16"] = ("vdpbf16ps", "update_1")


@pytest.fixture(scope="module", params=FLAGS)
def compiled(request, tmp_path_factory):
    if COMPILER is None:
        pytest.skip("needs gcc")
    machine = subprocess.run([COMPILER, "-dumpmachine"], capture_output=True, text=True, check=True)
    if not machine.stdout.startswith("x86_64"):
        pytest.skip("these flags are those of x86-64")
    target = tmp_path_factory.mktemp("isa") / f"{request.param}.o"
    command = [COMPILER, "-std=c11", "-ffp-contract=off", "-fPIC", "-DFA_REAL_BITS=32"]
    # As shipped, where instructions are read; symbols are the same, and in half the time.
    command += ["-O3" if request.param in MULTIPLIES else "-O1", *FLAGS[request.param]]
    source = ROOT / "src_c" / "isa" / f"{request.param}.c"
    subprocess.run([*command, "-c", source, "-o", target], check=True)
    return request.param, target


def test_one_symbol_per_table_and_unit(compiled):
    isa, path = compiled
    table = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    symbols = [line.split()[-2:] for line in table.splitlines()]
    defined = {name for kind, name in symbols if kind.isupper() and kind != "U"}
    missing = {name for kind, name in symbols if kind == "U"} - {"_GLOBAL_OFFSET_TABLE_"}
    kernels, unit = f"fa_kernels_{isa}_f32", f"fa_unit_{isa}"
    expected = {"avx2": {kernels, unit}, "avx512_bf16": {unit}, "amx": {unit}}
    assert defined == expected.get(isa, {kernels})
    assert missing <= {"memcpy", "memset"}  # the compiler's own idea of a short loop


@pytest.mark.parametrize("compiled", MULTIPLIES, indirect=True)
def test_accumulators_stay_in_registers(compiled):
    """No stack traffic inside a loop of multiply-adds: a compiler upgrade must not spill tiles."""
    isa, path = compiled
    multiply, where = MULTIPLIES[isa]
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    functions = re.split(r"\n[0-9a-f]+ <(.*)>:\n", listing)
    loops = 0
    for name, code in zip(functions[1::2], functions[2::2], strict=True):
        for body in re.split(r"\n\s*[0-9a-f]+:\s+j[a-z]+ ", code) if where in name else ():
            if body.count(multiply) >= 12 and re.search("vp?broadcast(ss|d)", body):
                tail = body[body.index(multiply) : body.rindex(multiply)]
                assert not re.search(r"[yz]mm\d+,.*\(%rsp\)|\(%rsp\),%[yz]mm", tail), body[:2000]
                loops += 1
    assert loops >= 2
