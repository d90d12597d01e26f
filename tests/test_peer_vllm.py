# SPDX-License-Identifier: MIT
"""Which of vLLM's libraries and kernels the peer takes on which CPU, as vLLM itself chooses."""

import platform
import sys

import pytest

from fastattn.measure import peer_vllm
from fastattn.measure.problems import Problem

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.forces_isa

OF_X86 = ("_C", "_C_AVX2", "_C_AVX512")


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Return a function that makes a package vllm with these libraries, on such a machine."""

    def make(machine, libraries, flags=()):
        monkeypatch.setattr(platform, "machine", lambda: machine)
        for flag in ("avx512", "avx512_bf16", "amx_tile"):
            monkeypatch.setattr(torch.cpu, f"_is_{flag}_supported", lambda flag=flag: flag in flags)
        folder = tmp_path / "vllm"
        folder.mkdir()
        for name in ("__init__.py", *(f"{library}.abi3.so" for library in libraries)):
            (folder / name).touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "vllm", raising=False)

    return make


@pytest.mark.parametrize(
    ("machine", "libraries", "flags", "library", "kernel"),
    [
        ("x86_64", OF_X86, (), "_C_AVX2", "vec"),
        ("AMD64", OF_X86, ("avx512",), "_C_AVX512", "vec"),
        ("x86_64", OF_X86, ("avx512", "avx512_bf16"), "_C", "vec"),
        ("x86_64", OF_X86, ("avx512", "avx512_bf16", "amx_tile"), "_C", "amx"),
        ("aarch64", ("_C",), (), "_C", "neon"),
        ("arm64", ("_C",), (), "_C", "neon"),
        ("riscv64", ("_C",), (), "_C", "vec"),
    ],
)
def test_the_library_is_that_of_the_cpu(
    machine, libraries, flags, library, kernel, installed, monkeypatch
):
    installed(machine, libraries, flags)
    loaded = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    peer_vllm.operators.__wrapped__()
    assert [path.name for path in loaded] == [f"{library}.abi3.so"]
    assert peer_vllm.VLLM.available()
    assert peer_vllm._isa(Problem(D=64), torch.bfloat16) == kernel
    assert peer_vllm._isa(Problem(D=80), torch.bfloat16) == "vec16"


@pytest.mark.parametrize(
    ("machine", "libraries"), [("x86_64", ("_C",)), ("x86_64", ()), ("aarch64", ())]
)
def test_a_wheel_for_other_devices_is_none(machine, libraries, installed):
    installed(machine, libraries)
    assert not peer_vllm.VLLM.available()
