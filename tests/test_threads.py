# SPDX-License-Identifier: MIT
"""The same bits whatever runs beside; safe from several threads, after fork, when interrupted."""

import ctypes
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cases
import numpy as np
import programs
import pytest

import fastattn
from fastattn import reference

VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (40, 3)},
    "mask": {"attn_mask": np.random.default_rng(3).random((150, 260)) < 0.4},
    "sinks": {"sinks": np.arange(6.0), "causal": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_bits_do_not_depend_on_threads_or_batch(isa, dtype, name, rng):
    options = VARIANTS[name]
    q, k, v = cases.tensors(
        rng, dtype, batch=3, q_heads=6, kv_heads=2, queries=150, keys=260, depth=20
    )
    with fastattn.use_isa(isa):
        expected = fastattn.attention(q, k, v, return_lse=True, num_threads=1, **options)
        for threads in (1, 2, 3, 7):
            got = fastattn.attention(q, k, v, return_lse=True, num_threads=threads, **options)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, b)
        for batch in range(3):
            one = [x[batch : batch + 1] for x in (q, k, v)]
            got = fastattn.attention(*one, return_lse=True, **options)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a[0], b[batch])


def test_long_keys_give_the_same_bits(isa, rng):
    q, k, v = cases.tensors(rng, "float32", q_heads=1, queries=400, keys=3000)
    with fastattn.use_isa(isa):
        results = [fastattn.attention(q, k, v, num_threads=n, causal=True) for n in (1, 2, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_heads_that_lie_together(isa, rng):
    """Enough chunks of long caches for threads to take all heads of one in a row."""
    lengths = [1300, *rng.integers(0, 40, 100), 700]
    cuts = cases.starts_of(lengths)
    q = rng.standard_normal((len(lengths), 6, 16)).astype(np.float32)
    k, v = (rng.standard_normal((cuts[-1], 3, 16)).astype(np.float32) for _ in range(2))
    starts = np.arange(len(lengths) + 1)
    with fastattn.use_isa(isa):
        first = fastattn.attention_varlen(q, k, v, starts, cuts, num_threads=1)
        for threads in (2, 3):
            again = fastattn.attention_varlen(q, k, v, starts, cuts, num_threads=threads)
            np.testing.assert_array_equal(again, first)
    expected = reference.attention_varlen(q, k, v, starts, cuts)
    np.testing.assert_allclose(first, expected, rtol=0, atol=2e-6)


def test_many_python_threads(rng):
    problems = [cases.tensors(rng, "float32", queries=70, keys=n) for n in (50, 130, 300)]
    expected = [fastattn.attention(*p) for p in problems]

    def work(n):
        isa = fastattn.isas()[n % len(fastattn.isas())]
        with fastattn.use_isa(isa), fastattn.num_threads(1 + n % 3):
            time.sleep(0.001)
            assert fastattn.isa() == isa and fastattn.get_num_threads() == 1 + n % 3
            return n % 3, isa, fastattn.attention(*problems[n % 3])

    with ThreadPoolExecutor(8) as pool:
        for index, isa, out in pool.map(work, range(120)):
            with fastattn.use_isa(isa):
                exact = fastattn.attention(*problems[index])
            np.testing.assert_array_equal(out, exact)
            np.testing.assert_allclose(out, expected[index], atol=2e-6)


def test_gil_is_released(rng):
    q, k, v = cases.tensors(rng, "float32", q_heads=4, queries=1500, keys=1500, depth=64)
    running, ticks = threading.Event(), 0
    thread = threading.Thread(
        target=lambda: (running.set(), fastattn.attention(q, k, v, num_threads=1))
    )
    thread.start()
    running.wait()
    while thread.is_alive():
        ticks += 1
        time.sleep(0.0005)
    assert ticks > 3


def test_settings():
    default = fastattn.get_num_threads()
    assert 1 <= default <= os.cpu_count()
    fastattn.set_num_threads(3)
    try:
        assert fastattn.get_num_threads() == 3
        with fastattn.num_threads(2):
            assert fastattn.get_num_threads() == 2
            with fastattn.num_threads(5):
                assert fastattn.get_num_threads() == 5
            assert fastattn.get_num_threads() == 2
        assert fastattn.get_num_threads() == 3
    finally:
        fastattn.set_num_threads(None)
    assert fastattn.get_num_threads() == default


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (2**31, ValueError),
        (1.5, TypeError),
        (True, TypeError),
        ("2", TypeError),
    ],
)
def test_wrong_settings(value, error):
    for function in (fastattn.set_num_threads, fastattn.num_threads):
        with pytest.raises(error, match="n: expected"):
            function(value)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of threads")
def test_a_call_wakes_no_more_helpers_than_it_has_seats_for():
    """After one call of many threads each one of two would wake them all."""
    result = programs.run("""
        import os, time
        import numpy as np
        import fastattn

        def sleeps():
            total = 0
            for task in set(os.listdir("/proc/self/task")) - before:
                with open(f"/proc/self/task/{task}/status") as file:
                    total += int(file.read().split("voluntary_ctxt_switches:")[1].split()[0])
            return total

        x = np.ones((1, 8, 64, 64), np.float32)
        before = set(os.listdir("/proc/self/task"))
        fastattn.attention(x.repeat(8, 1), x.repeat(8, 1), x.repeat(8, 1), num_threads=33)
        time.sleep(0.2)
        first = sleeps()
        for _ in range(20):
            fastattn.attention(x, x, x, num_threads=2)
            time.sleep(0.005)
        time.sleep(0.2)
        print(len(os.listdir("/proc/self/task")) - len(before), sleeps() - first)
    """)
    helpers, woken = map(int, result.stdout.split())
    assert helpers == 32
    assert woken <= 20 * 4, result.stderr  # each waits once more, or for the lock


@pytest.mark.skipif(
    sys.platform != "linux" or fastattn.get_num_threads() == 1, reason="needs two CPUs of Linux"
)
def test_default_is_not_that_of_the_thread_that_asks_first():
    result = programs.run("""
        import os, threading
        import fastattn

        def pinned():
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            fastattn.get_num_threads()

        thread = threading.Thread(target=pinned)
        thread.start()
        thread.join()
        print(fastattn.get_num_threads())
    """)
    assert int(result.stdout) == fastattn.get_num_threads(), result.stderr


def test_environment():
    show = "import fastattn; print(fastattn.get_num_threads())"
    for value in "1", "3", "2147483647":
        assert programs.run(show, FASTATTN_NUM_THREADS=value).stdout.strip() == value
    assert programs.run(show, OMP_NUM_THREADS="1").stdout.strip() == "1"
    assert programs.run(show, OMP_NUM_THREADS="4096").stdout == programs.run(show).stdout
    again = "import fastattn; fastattn.set_num_threads(5); fastattn.set_num_threads(None); "
    assert programs.run(again + show, FASTATTN_NUM_THREADS="3").stdout.strip() == "3"
    for value in ("many", "0", "²", "2147483648", "4294967297", "9" * 5000):
        wrong = programs.run(show, FASTATTN_NUM_THREADS=value)
        expected = "ImportError: FASTATTN_NUM_THREADS: expected an integer from 1 to 2147483647, "
        assert wrong.returncode and wrong.stderr.splitlines()[-1].startswith(expected)


def test_cgroup_quota(tmp_path):
    from fastattn import threads

    group = tmp_path / "v2" / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "v2" / "a" / "cpu.max").write_text("150000 100000\n")
    (group / "cpu.max").write_text("max 100000\n")
    member = tmp_path / "cgroup"
    member.write_text("0::/a/b\n")
    assert threads._cgroup_quota(tmp_path / "v2", member) == 1
    (group.parent / "cpu.max").write_text("400000 100000\n")
    assert threads._cgroup_quota(tmp_path / "v2", member) == 4
    (group / "cpu.max").write_text("300000 100000\n")
    assert threads._cgroup_quota(tmp_path / "v2", member) == 3  # each of them binds
    (group / "cpu.max").write_text("50000 100000\n")
    assert threads._cgroup_quota(tmp_path / "v2", member) == 1  # half a CPU
    v1 = tmp_path / "v1" / "cpu"
    v1.mkdir(parents=True)
    (v1 / "cpu.cfs_quota_us").write_text("200000\n")
    (v1 / "cpu.cfs_period_us").write_text("100000\n")
    member.write_text("3:cpu,cpuacct:/\n4:cpuset:/\n")
    assert threads._cgroup_quota(tmp_path / "v1", member) == 2
    member.write_text("4:cpuset:/\n")
    assert threads._cgroup_quota(tmp_path / "v1", member) is None
    member.write_text("3:cpu,cpuacct:/\n")
    (v1 / "cpu.cfs_quota_us").write_text("-1\n")
    assert threads._cgroup_quota(tmp_path / "v1", member) is None


def test_the_quota_binds_the_default(monkeypatch):
    from fastattn import threads

    for name in "_setting", "_environment", "_limit", "_quota":
        monkeypatch.setattr(threads, name, None)
    monkeypatch.delenv("FASTATTN_NUM_THREADS", raising=False)
    most = threads._core.max_threads()
    for quota, expected in (1, 1), (most, most), (most + 1, most), (None, most):
        monkeypatch.setattr(threads, "_cgroup_quota", lambda quota=quota: quota)
        threads._initialise()
        assert fastattn.get_num_threads() == expected


@pytest.mark.skipif(sys.platform == "win32", reason="needs names of files of any bytes")
def test_cgroup_quota_that_cannot_be_read_is_none(tmp_path):
    from fastattn import threads

    member, quota = tmp_path / "cgroup", tmp_path / "cpu.max"
    quota.write_text("200000 100000\n")
    for odd in b"0::/\xff\n", b"odd\n\n0::/\n", b"0::/\xe2\x80\xa8\n", b"\xff:\n0::/:\n", b"0::/\0":
        member.write_bytes(odd)
        assert threads._cgroup_quota(tmp_path, member) == 2, odd
    for odd in b"\xff", b"0:/", b"":
        member.write_bytes(odd)
        assert threads._cgroup_quota(tmp_path, member) is None, odd
    member.write_bytes(b"0::/\n")
    for text in "² 100000", "200000 0", "\udcff 100000", f"{'9' * 5000} 100000", "200000":
        quota.write_text(text, "utf-8", "surrogateescape")
        assert threads._cgroup_quota(tmp_path, member) is None, text


@pytest.mark.no_sanitizer
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_interrupt_leaves_everything_usable():
    result = programs.run(
        """
        import os, signal, threading, numpy as np, fastattn
        q = np.random.default_rng(0).standard_normal((1, 8, 3000, 64)).astype(np.float32)
        expected = fastattn.attention(q[:, :, :100], q, q)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may ignore it
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            for _ in range(100):
                fastattn.attention(q, q, q)
            raise SystemExit("was not interrupted")
        except KeyboardInterrupt:
            pass
        assert np.array_equal(fastattn.attention(q[:, :, :100], q, q), expected)
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of threads")
def test_helpers_take_the_signals_that_are_their_own():
    result = programs.run(
        """
        import os, signal, time, numpy as np, fastattn
        def blocked(thread):
            status = open(f"/proc/self/task/{thread}/status").read()
            bits = int(status.split("SigBlk:")[1].split()[0], 16)
            return {number for number in range(1, 32) if bits >> (number - 1) & 1}
        own = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
        before = set(os.listdir("/proc/self/task"))
        q = np.ones((1, 8, 200, 64), np.float32)
        fastattn.attention(q, q, q, num_threads=3)
        helpers = set(os.listdir("/proc/self/task")) - before
        assert len(helpers) == 2, helpers
        deadline = time.monotonic() + 10  # a thread that has not begun yet blocks all
        while any(own & blocked(helper) for helper in helpers):
            assert time.monotonic() < deadline, [blocked(helper) for helper in helpers]
            time.sleep(0.01)
        for helper in helpers:
            assert blocked(helper) >= {signal.SIGINT, signal.SIGTERM, signal.SIGALRM}
        """
    )
    assert result.returncode == 0, result.stderr


def test_threadpoolctl_sees_and_limits():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    ctypes.CDLL(fastattn.get_library())  # another entry, as where a program in C has loaded it
    fastattn.set_num_threads(5)
    try:
        own = [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "fastattn"]
        assert own and {each["num_threads"] for each in own} == {5}
        assert {each["version"] for each in own} == {fastattn.__version__}
        # A context's number is not set for all when a limit of others ends inside of it.
        with fastattn.num_threads(1), threadpoolctl.threadpool_limits(1, user_api="blas"):
            pass
        assert fastattn.get_num_threads() == 5
        with threadpoolctl.threadpool_limits({"fastattn": 3}):
            assert fastattn.get_num_threads() == 3
        assert fastattn.get_num_threads() == 5
        with threadpoolctl.threadpool_limits(2):
            fastattn.set_num_threads(9)  # which holds once the limit is gone, without a trace of it
            assert fastattn.get_num_threads() == 2
        assert fastattn.get_num_threads() == 9
    finally:
        fastattn.set_num_threads(None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs C's fesetround by name")
def test_rounding_of_the_caller_makes_no_difference():
    """Helpers that came before it was changed, or after, have an environment of their own.

    Arguments are rounded before: the default scale of float64, and scales of int8. Half of these
    calls leave it to `_check`.
    """
    result = programs.run("""
        import ctypes, platform
        import numpy as np
        import fastattn
        from fastattn import attention, attention_varlen

        c = ctypes.CDLL(None)
        modes = {"x86_64": (0x800, 0x400), "aarch64": (0x400000, 0x800000)}[platform.machine()]
        x = np.random.default_rng(0).standard_normal((2, 8, 200, 72), dtype=np.float32)
        few, i8 = x[:, :, :3], np.rint(x[:, :, :9] * 40).astype(np.int8)
        wide = few.astype(float)
        heads = np.linspace(0.01, 0.02, 8)

        def results(*threads):
            yield from (attention(x, x, x, num_threads=n) for n in threads)
            yield attention(wide, wide, wide)
            yield attention(wide[0], wide[0], wide[0])
            yield attention_varlen(wide[0], wide[0], wide[0], [0, 5, 8])
            yield attention_varlen(wide[0], wide[0], wide[0], [0, 5, np.int64(8)])
            yield fastattn.attention_weights(wide, wide)
            for scale in 0.0123, heads:
                yield attention(few, i8, i8, k_scale=scale, v_scale=scale)
                yield attention(few[0], i8[0], i8[0], k_scale=scale, v_scale=scale)

        before = [*results(1, 3)]
        for mode in modes:
            assert c.fesetround(mode) == 0
            after = [*results(1, 3), *results(6)]
            assert c.fegetround() == mode
            equal = map(np.array_equal, after, [*before, *before[1:]])
            print(*(n for n, same in enumerate(equal) if not same), "differ")
    """)
    assert result.stdout.split() == ["differ"] * 2, result.stdout + result.stderr
