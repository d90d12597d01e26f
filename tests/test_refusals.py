# SPDX-License-Identifier: MIT
"""The system refuses memory, threads or answers: an error or the same bits, and all goes on."""

import subprocess
import sys
import textwrap
from pathlib import Path

import programs
import pytest
from programs import COMPILER

MEMORY, THREADS, FORKS, MACHINE = 1, 2, 4, 8
ALWAYS = 1 << 30
pytestmark = [
    pytest.mark.no_sanitizer,
    pytest.mark.skipif(sys.platform != "linux" or not COMPILER, reason="preloads a C library"),
]

# A call of each kind, by name. Each asks for memory in its own way, and some share out chunks.
CALLS = """
    import ctypes, os
    import numpy as np
    import fastattn

    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8, 200, 72)).astype(np.float32)
    long = rng.standard_normal((1, 2, 3000, 64)).astype(np.float32)
    half, columns = x.astype(np.float16), np.asfortranarray(x).astype(np.float16)
    i8 = np.rint(long * 40).astype(np.int8)
    pack = x.reshape(-1, 8, 72)
    pages = pack.reshape(-1, 20, 8, 72)
    table = np.arange(20, dtype=np.int32).reshape(2, 10)[:, ::-1].copy()
    mask = rng.random((200, 200)) < 0.5
    packs = np.array([0, 0, 3, 130, 400])
    dense, varlen = fastattn.attention, fastattn.attention_varlen
    calls = {
        "tiny": lambda **o: dense(x[0, 0, :1], x[0, 0, :2], x[0, 0, :2], **o),
        "one tile": lambda **o: dense(x[:1, :1, :7], x[:1, :1], x[:1, :1], **o),
        "tiles": lambda **o: dense(x, x, x, causal=True, **o),
        "float64": lambda **o: dense(x.astype(float), x.astype(float), x.astype(float), **o),
        "decode": lambda **o: dense(long[:, :, :1], long, long, **o),
        "pages": lambda **o: dense(x[:, :, :1], pages.swapaxes(1, 2), pages.swapaxes(1, 2),
                                   block_table=table, **o),
        "varlen": lambda **o: varlen(pack, pack, pack, packs, **o),
        "copies": lambda **o: dense(half, columns, columns, **o),
        "bool mask": lambda **o: dense(x, x, x, attn_mask=mask, **o),
        "float mask": lambda **o: dense(x, x, x, attn_mask=x[..., :1, :1] * mask, **o),
        "int8": lambda **o: dense(long[:, :, :3], i8, i8, k_scale=0.02, v_scale=0.02, **o),
        "weights": lambda out=None, **o: fastattn.attention_weights(x, x, **o),
    }
    alone = {name: call(num_threads=1) for name, call in calls.items()}
    system = ctypes.CDLL(None)

    def helpers():
        return len(os.listdir("/proc/self/task")) - 1

    def check(name, **options):
        assert np.array_equal(calls[name](**options), alone[name]), (name, options)
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """Return what is preloaded to refuse."""
    made = tmp_path_factory.mktemp("refusals") / "refusals.so"
    source = Path(__file__).parent / "c" / "refusals.c"
    command = [COMPILER, "-std=gnu11", "-O1", "-shared", "-fPIC", source, "-ldl", "-o", made]
    subprocess.run(command, check=True)
    return str(made)


def run(code, refusals, **environment):
    result = programs.run(
        textwrap.dedent(CALLS) + textwrap.dedent(code), LD_PRELOAD=refusals, **environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_memory(refusals):
    """Whichever request is refused: MemoryError, nothing written, nothing kept."""
    code = f"""
        for name, call in calls.items():
            for threads in 1, 3:
                for n in range(100):
                    out = np.full_like(alone[name], 7)
                    system.refuse({MEMORY}, n, n + 1)
                    try:
                        call(out=out, num_threads=threads)
                        message = None
                    except MemoryError as error:
                        message = str(error)
                    asked = system.count_refused(), system.count_kept()
                    system.refuse(0, 0, 0)
                    assert asked == (message is not None, 0), (name, n, asked, message)
                    if message is None:
                        break
                    assert f"scratch of this call, with num_threads {{threads}} and " in message
                    assert (out == 7).all(), (name, n)
                    check(name, num_threads=threads)
                assert n == 2, (name, n)  # what there is to refuse: an entry a sequence, the rest
                check(name, num_threads=threads)
        print("done")
    """
    assert run(code, refusals) == ["done"]


def test_threads(refusals):
    """Fewer do the same, to the bit; a call that asks when there may be more gets them."""
    code = f"""
        for allowed in 0, 1, 2:
            system.refuse({THREADS}, allowed - helpers(), {ALWAYS})
            for name in calls:
                check(name, num_threads=5)
            print(helpers(), system.count_refused() > 0)
        system.refuse(0, 0, 0)
        check("tiles", num_threads=5)
        print(helpers())
    """
    assert run(code, refusals) == ["0", "True", "1", "True", "2", "True", "4"]


def test_no_helpers_where_forks_go_unnoticed(refusals):
    """A child would wait for the lock of a thread that it does not have."""
    code = """
        for name in calls:
            check(name, num_threads=3)
        print(helpers())
    """
    assert run(code, refusals, REFUSED=str(FORKS)) == ["0"]
    assert run(code, refusals) == ["2"]


def test_answers_about_the_machine(refusals):
    """Nobody tells which CPUs there are, nor where a thread runs: one thread, unless told."""
    code = f"""
        print(fastattn.get_num_threads(), "amx" in fastattn.isas())
        for name in calls:
            check(name, num_threads=3)
        print(helpers(), system.count_refused() > 0)
        system.refuse({MACHINE}, 1, {ALWAYS})
        check("tiles", num_threads=9)
        print(helpers())
    """
    environment = {"REFUSED": str(MACHINE), "OMP_NUM_THREADS": "64", "FASTATTN_NUM_THREADS": ""}
    expected = ["1", "False", "2", "True", "8"]
    assert run(code, refusals, **environment) == expected
