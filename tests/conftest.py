# SPDX-License-Identifier: MIT
"""The test matrix is derived from the kernel table: what is in it is tested, on every ISA."""

import importlib
import os
from pathlib import Path

# Before NumPy is there. The oracle's products are small, and a thread of BLAS that has none to
# compute spins until the next, on a core that another process of tests needs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

import fastattn
from fastattn import _kernels

BENCH = Path(__file__).parent.parent / "bench"
SEED = int(os.environ.get("FASTATTN_TEST_SEED", "20261121"))


def pytest_report_header(config):
    return f"fastattn: isa {fastattn.isa()} of {fastattn.isas()}, FASTATTN_TEST_SEED={SEED}"


def pytest_generate_tests(metafunc):
    if {"kernel", "isa", "dtype"} <= set(metafunc.fixturenames):
        rows = _kernels.table()
        metafunc.parametrize(("kernel", "isa", "dtype"), rows, ids=["_".join(row) for row in rows])
    elif {"isa", "dtype"} <= set(metafunc.fixturenames):
        rows = list(dict.fromkeys((isa, dtype) for _, isa, dtype in _kernels.table()))
        metafunc.parametrize(("isa", "dtype"), rows, ids=["_".join(row) for row in rows])
    elif "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", fastattn.isas())


def pytest_collection_modifyitems(items):
    for item in items:
        if "isa" in item.fixturenames:
            item.add_marker("forces_isa")


@pytest.fixture
def rng(request):
    """Random numbers that depend on the seed and on the test, not on the order of tests."""
    return np.random.default_rng([SEED, *request.node.nodeid.encode()])


@pytest.fixture
def script(monkeypatch):
    """Return a function that imports a script of bench/, which finds the others beside it."""
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module


@pytest.fixture
def randn(rng):
    """Normal numbers as a tensor of torch, the same on every run."""
    torch = pytest.importorskip("torch")

    def make(*shape, dtype=torch.float32):
        return torch.from_numpy(rng.standard_normal(shape)).to(dtype)

    return make


@pytest.fixture
def one_torch_thread():
    """For many small calls: torch's idle threads spin, which they must not on a shared machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_patch_left():
    """What patch_sdpa changes in torch is as it was, after the test as well."""
    torch = pytest.importorskip("torch")
    before = torch.nn.functional.scaled_dot_product_attention
    yield
    assert torch.nn.functional.scaled_dot_product_attention is before
    assert torch.backends.mha.get_fastpath_enabled()
