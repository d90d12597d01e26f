# SPDX-License-Identifier: MIT
"""What the README and the docstrings show does what they say."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import fastattn
from fastattn import _core

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8") if README.exists() else ""
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)


def test_there_are_snippets():
    assert SNIPPETS


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(code):
    for name in re.findall(r"^import (\w+)", code, flags=re.M):
        pytest.importorskip(name)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("path", ["README.md", "src_c/README.md", "bench/README.md"])
def test_lines_are_not_too_long(path):
    """But for tables, tags, and the commands between markers, which are one line each."""
    if not (README.parent / path).exists():
        pytest.skip("needs the source tree")
    text = (README.parent / path).read_text(encoding="utf-8")
    text = re.sub(r"<!-- (\w+-command):begin -->.*?<!-- \1:end -->", "", text, flags=re.S)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "<"))]
    assert [line for line in lines if len(line) > 100] == []


def test_names_are_attributes():
    """Every name behind ``fastattn.`` is there after ``import fastattn``."""
    named = set(re.findall(r"\bfastattn\.(\w+)", TEXT)) - {"h", "capi"}  # those of C and Cython
    assert named <= set(dir(fastattn))


@pytest.mark.parametrize(
    "name",
    [
        "attention",
        "caches.dense",
        "caches.paged",
        "layers.positions",
        "layers.rotary",
        "quantize",
    ],
)
def test_docstrings(name):
    # A function may hide the module of its name from an import statement.
    module = importlib.import_module(f"fastattn.{name}")
    examples = [each for each in doctest.DocTestFinder().find(module) if each.examples]
    runner = doctest.DocTestRunner()
    assert examples and not any(runner.run(each).failed for each in examples)


def test_kernel_table_is_complete():
    listed = set(re.findall(r"^\| `(\w+)`.*\| yes \| yes \|", TEXT, flags=re.M))
    assert set(_core.isa_table()) <= listed


def test_option_table_is_complete():
    options = inspect.signature(fastattn.attention).parameters
    section = TEXT[TEXT.index("## Options of") : TEXT.index("## Kernels")]
    missing = [name for name in options if not re.search(rf"\b{name}\b", section)]
    assert missing == []
