# SPDX-License-Identifier: MIT
"""tasks.c: how the work of a call is dealt to threads, on kernels that only have sizes."""

import subprocess
import sys
from pathlib import Path

import pytest
from programs import COMPILER

ROOT = Path(__file__).parent.parent
# What runs tasks, and what knows the machine.
OTHERS = {"cpu", "dispatch", "parallel", "profile", "xla_attention"}
SOURCES = [path for path in (ROOT / "src_c").glob("*.c") if path.stem not in OTHERS]
pytestmark = [
    pytest.mark.forces_isa,
    pytest.mark.no_sanitizer,
    pytest.mark.skipif(
        not SOURCES or sys.platform == "win32" or not COMPILER,
        reason="needs the source tree and a Unix C compiler",
    ),
]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """Return the program."""
    target = tmp_path_factory.mktemp("dealt") / "dealt"
    command = [COMPILER, "-std=c11", "-O1", f"-I{ROOT / 'src_c'}", ROOT / "tests" / "c" / "dealt.c"]
    subprocess.run([*command, *SOURCES, "-lm", "-o", target], check=True)
    return target


def test_all_is_dealt_once(dealt):
    """Every tile and chunk, and all memory for states; the longest tasks first."""
    result = subprocess.run([dealt], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.split() == ["0", "wrong"]


# Tiles have 24 rows, on the unit 32; thin ones 4, of up to 12 rows. Chunks have 512 keys. Asked for
# are 4 threads. What is planned: threads, tiles and heads of a task, chunks of a task or 0: it has
# all keys, and tasks.
PLANS = {
    "little work": ("queries=1 keys=700", (1, 1, 1, 0, 1)),
    "enough work": ("queries=1 keys=1000", (2, 1, 1, 1, 2)),
    "work of all heads": ("queries=1 keys=64 heads=10", (4, 1, 1, 0, 10)),
    "little work of all heads": ("queries=1 keys=64 heads=9", (1, 1, 1, 0, 9)),
    # Tiles: up to 12 where there are 16 tasks for each thread, as even as can be.
    "many tiles": ("queries=1000 keys=1000 heads=8 batch=8", (4, 11, 1, 0, 256)),
    "at most 12": ("queries=4000 keys=200 heads=5", (4, 12, 1, 0, 70)),
    "some tiles": ("queries=1000 keys=1000 heads=5", (4, 3, 1, 0, 70)),
    "one thread": ("queries=4000 keys=4000 threads=1", (1, 12, 1, 0, 14)),
    "second-level cache": ("queries=4000 keys=4000 depth=512 threads=1", (1, 5, 1, 0, 34)),
    # Up to half a vector of rows is a tile of its own.
    "rows apart": ("queries=20 keys=500 heads=8", (4, 1, 1, 0, 16)),
    "no rows apart": ("queries=21 keys=500 heads=8", (4, 1, 1, 0, 8)),
    "one tile is larger": ("queries=4000 keys=4000 depth=8000 threads=1", (1, 1, 1, 0, 167)),
    # Where keys are packed or widened 4 tasks for each thread, that end together.
    "widened": ("queries=1000 keys=400 heads=3 bfloat=1", (4, 7, 1, 0, 18)),
    "unit": ("queries=1000 keys=1000 heads=8 batch=8 bfloat=1 unit=1", (4, 32, 1, 0, 64)),
    "unit, many": ("queries=4000 keys=1000 depth=512 threads=1 bfloat=1 unit=1", (1, 9, 1, 0, 14)),
    "unit, some": ("queries=700 keys=200 heads=2 threads=5 bfloat=1 unit=1", (5, 2, 1, 0, 22)),
    "of the longest": ("queries=1300 keys=200 threads=1 batch=3 cuts=2 last=40", (1, 9, 1, 0, 7)),
    "even": ("queries=700 keys=1000 heads=3 bfloat=1 unit=1", (4, 3, 1, 0, 24)),
    "no less even": ("queries=700 keys=1000 heads=3 threads=3 bfloat=1 unit=1", (3, 4, 1, 0, 18)),
    "few, if even": ("queries=700 keys=64 heads=8 threads=10 bfloat=1 unit=1", (10, 4, 1, 0, 48)),
    # Thin tiles of a head stay together unless threads would have none.
    "thin, together": ("queries=12 keys=500 heads=4", (4, 3, 1, 0, 4)),
    "thin, apart": ("queries=12 keys=500 heads=2", (4, 1, 1, 0, 6)),
    "thin, chunks": ("queries=12 keys=3000", (4, 3, 1, 1, 6)),
    # Chunks: of few long tasks, and of thin ones that threads would wait for; not beyond 32 MB of
    # states, nor for weights.
    "one row": ("queries=1 keys=65536", (4, 1, 1, 2, 64)),
    "one row, longer": ("queries=1 keys=4194304", (4, 1, 1, 128, 64)),
    "one tile": ("queries=24 keys=2097152", (4, 1, 1, 64, 64)),
    "too many states": ("queries=24 keys=4194304", (1, 1, 1, 0, 1)),
    "many states": ("queries=1 keys=65536 heads=577 threads=64", (64, 1, 1, 72, 1154)),
    "too many of all heads": ("queries=1 keys=65536 heads=586 threads=64", (64, 1, 1, 0, 586)),
    "weights": ("queries=1 keys=65536 weights=1", (1, 1, 1, 0, 1)),
    "one chunk": ("queries=1 keys=512 heads=5 depth=128", (4, 1, 1, 0, 5)),
    "two chunks": ("queries=1 keys=513 heads=5 depth=128", (4, 1, 1, 1, 10)),
    "no threads wait": ("queries=1 keys=1000 heads=32 batch=2", (4, 1, 1, 0, 64)),
    "threads wait": ("queries=1 keys=1000 heads=33 batch=1", (4, 1, 1, 1, 66)),
    "threads hardly wait": ("queries=1 keys=1000 heads=47 batch=1", (4, 1, 1, 0, 47)),
    "wide tiles wait": ("queries=700 keys=2000 heads=12 threads=5", (5, 4, 1, 0, 96)),
    "the longest of two": ("queries=8 keys=700 depth=128 batch=2 cuts=1 last=1", (3, 2, 1, 1, 3)),
    # Heads that lie together: what is asked for ahead has 256 KB, or 8 KB of a key; in even groups.
    "heads": ("queries=1 keys=500 heads=64 threads=1 inside=1", (1, 1, 8, 0, 8)),
    "heads apart": ("queries=1 keys=500 heads=64 threads=1", (1, 1, 1, 0, 64)),
    "even heads": ("queries=1 keys=500 heads=12 threads=1 inside=1", (1, 1, 6, 0, 2)),
    "heads, bfloat16": ("queries=1 keys=500 heads=64 threads=1 inside=1 bfloat=1",
                        (1, 1, 16, 0, 4)),
    "heads in order": ("queries=1 keys=500 heads=64 threads=1 inside=1 in_order=1",
                       (1, 1, 32, 0, 2)),
    "long run": ("queries=1 keys=500 heads=64 threads=1 inside=1 in_order=1 depth=256",
                 (1, 1, 8, 0, 8)),
    "heads of tiles": ("queries=12 keys=500 heads=64 threads=1 inside=1 in_order=1",
                       (1, 3, 10, 0, 7)),
    "heads of the most tiles": (
        "queries=13 keys=500 batch=2 cuts=2 last=1 heads=64 threads=1 inside=1 in_order=1",
        (1, 3, 10, 0, 14)),
    "heads, weights": ("queries=1 keys=500 heads=64 threads=1 inside=1 weights=1",
                       (1, 1, 1, 0, 64)),
    "heads in short pages": ("queries=1 keys=5000 heads=33 threads=2 page=8", (2, 1, 7, 1, 50)),
    "longer pages": ("queries=1 keys=500 heads=5 batch=3 threads=1 page=16", (1, 1, 1, 0, 15)),
    "half the heads": ("queries=12 keys=700 heads=33 inside=1", (4, 3, 2, 1, 34)),
    "fewer heads": ("queries=1 keys=2000 heads=32 inside=1", (4, 1, 4, 1, 32)),
}  # fmt: skip


def ask(dealt, call):
    """Return the numbers, the words behind them, and how many rows come unasked."""
    planned, *unasked = subprocess.check_output([dealt, *call.split()], text=True).splitlines()
    *numbers, words = planned.split(" ", 5)
    return tuple(map(int, numbers)), words, tuple(map(int, "".join(unasked).split()))


@pytest.mark.parametrize("call, planned", PLANS.values(), ids=PLANS)
def test_plan(dealt, call, planned):
    assert ask(dealt, call)[0] == planned


@pytest.mark.parametrize(
    "call, words",
    [
        ("queries=1 keys=511", ""),
        ("queries=1 keys=512", "far"),
        ("queries=1 keys=255 heads=2", ""),
        ("queries=1 keys=256 heads=2", "far"),
        ("queries=1 keys=500 heads=8 threads=1 inside=1", "far"),
        ("queries=1 keys=500 heads=8 threads=1 inside=1 in_order=1", "far, in order"),
        ("queries=1 keys=500 heads=8 threads=1 page=8 in_order=1", "far"),
    ],
)
def test_what_is_asked_for_ahead(dealt, call, words):
    """More than 256 KB, and of heads that lie together key by key, not head by head."""
    assert ask(dealt, call)[1] == words


# Rows of q, k, v and out that kernels use before any has asked for them, where keys of 256 bytes
# are asked for 40 keys ahead if they are neighbours, else 64; and what is asked for in vain. Only
# the first task's first rows come unasked, and what there is no room for: a task's last keys ask
# for the next one's queries, and then for its keys.
UNASKED = {
    "one row": ("queries=1 keys=500 heads=8 threads=1", (1, 40 + 7, 40, 8, 0)),
    "chunks": ("queries=1 keys=3000 heads=2 threads=4", (1, 40 + 11, 40, 2, 0)),
    # However long keys are, and however short.
    "deep": ("queries=1 keys=50 heads=8 threads=1 depth=1000", (1, 8 + 7, 8, 8, 0)),
    "shallow": ("queries=1 keys=5000 heads=8 threads=1 depth=16", (1, 128 + 7, 128, 8, 0)),
    "window": ("queries=1 keys=704 heads=2 threads=1 window=128", (1, 40 + 1, 40, 2, 0)),
    "few keys": ("queries=1 keys=20 heads=8 batch=4 threads=1", (1, 20 + 31, 20, 32, 0)),
    "lengths": (
        "queries=1 keys=450 heads=30 batch=2 threads=1 cuts=1 last=10",
        (1, 40 + 29 + 29, 40, 60, 0),
    ),
    "rows": ("queries=3 keys=500 heads=8 threads=1", (3, 64 + 7 * 3, 64, 24, 0)),
    "a group": ("queries=1 keys=500 heads=8 group=3 threads=1", (3, 64 + 7 * 3, 64, 24, 0)),
    # Of 8 heads that take turns. Their last blocks have 52 keys.
    "heads": (
        "queries=1 keys=500 heads=16 batch=2 threads=1 inside=1",
        (8, 8 * 64 + 24 * 13, 8 * 64 + 24 * 12, 32, 0),
    ),
    "heads in order": (
        "queries=1 keys=512 heads=16 batch=2 threads=1 inside=1 in_order=1",
        (16, 16 * 64 + 16, 16 * 64, 32, 0),
    ),
    "rows of heads": (
        "queries=3 keys=500 heads=15 batch=2 threads=1 inside=1 in_order=1",
        (45, 15 * 64 + 15 * 15, 15 * 64 + 15 * 12, 90, 0),
    ),
    # Wide tiles ask for each other's queries, and for their output. Their loads are of 64 keys.
    "tile": ("queries=24 keys=460 heads=8", (24, 64 + 7 * 36, 64 + 7 * 12, 0, 0)),
    "copies": ("queries=24 keys=500 heads=8 bfloat=1", (24, 64 + 7 * 36, 64 + 7 * 12, 0, 0)),
    "some rows": (
        "queries=17 keys=70 batch=4 heads=3 threads=1",
        (17, 64 + 11 * 23, 64 + 11 * 6, 0, 0),
    ),
    "tiles": ("queries=700 keys=700 heads=2 threads=1", (24, 2 * 64, 2 * 64, 0, 0)),
    # On the diagonal no tile comes to the end of a block, nor to what is asked for there.
    "causal": ("queries=700 keys=700 heads=2 threads=1 causal=1", (152, 2 * 64, 2 * 64, 0, 0)),
    "packs": (
        "queries=50 keys=450 batch=4 cuts=2 last=10 heads=3 threads=1",
        (13, 341, 214, 30, 0),
    ),
}


@pytest.mark.parametrize("call, unasked", UNASKED.values(), ids=UNASKED)
def test_what_comes_unasked(dealt, call, unasked):
    assert ask(dealt, call)[2] == unasked
