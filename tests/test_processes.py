# SPDX-License-Identifier: MIT
"""What a process has of helpers: how many, on which CPUs, and after fork or at its end."""

import os
import sys

import programs
import pytest

pytestmark = pytest.mark.no_sanitizer
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
needs_two_cpus = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs of Linux"
)


@needs_fork
def test_fork():
    """A child of a process that has computed in parallel computes too, and never hangs."""
    result = programs.run(
        """
        import os, sys, numpy as np, fastattn
        q = np.random.default_rng(0).standard_normal((2, 8, 200, 64)).astype(np.float32)
        expected = fastattn.attention(q, q, q, num_threads=2)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                same = np.array_equal(fastattn.attention(q, q, q, num_threads=2), expected)
                os._exit(0 if same else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert np.array_equal(fastattn.attention(q, q, q, num_threads=2), expected)
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_fork_in_the_middle_of_calls():
    """A child does not take the calls of threads that it does not have for its own.

    There are more of them than the pool takes at once, so it has to have forgotten all.
    """
    result = programs.run(
        """
        import os, signal, threading, time, numpy as np, fastattn
        q = np.random.default_rng(0).standard_normal((1, 8, 16000, 64)).astype(np.float32)
        few = q[:, :, :200]
        expected = fastattn.attention(few, few, few, num_threads=1)
        begun = threading.Semaphore(0)
        def call():
            begun.release()
            fastattn.attention(q, q, q, num_threads=2)
            os._exit(2)  # too soon
        for _ in range(20):
            threading.Thread(target=call).start()
        for _ in range(20):
            begun.acquire()
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            same = np.array_equal(fastattn.attention(few, few, few, num_threads=3), expected)
            os._exit(0 if same and len(os.listdir("/proc/self/task")) == 3 else 1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert result.returncode == 0, (result.returncode, result.stderr)


def test_end_in_the_middle_of_calls():
    """Threads that the interpreter does not wait for compute on while it goes away."""
    result = programs.run(
        """
        import threading, numpy as np, fastattn
        q = np.ones((1, 8, 500, 64), np.float32)
        begun = threading.Semaphore(0)
        def work():
            while True:
                fastattn.attention(q, q, q, num_threads=3)
                begun.release()
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(3):
            begun.acquire()
        print("done")
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of threads")
def test_there_is_an_end_of_helpers():
    """A call may ask for any number, and have as many tasks."""
    result = programs.run(
        """
        import os, numpy as np, fastattn
        q = np.random.default_rng(0).standard_normal((1, 600, 40, 64)).astype(np.float32)
        expected = fastattn.attention(q, q, q, num_threads=1)
        before = len(os.listdir("/proc/self/task"))
        for threads in 254, 255, 256, 2**31 - 1:
            assert np.array_equal(fastattn.attention(q, q, q, num_threads=threads), expected)
        print(len(os.listdir("/proc/self/task")) - before)
        """
    )
    assert 0 < int(result.stdout or 0) < 255, result.stderr


@needs_two_cpus
def test_helpers_stay_where_the_thread_that_made_them_may_run():
    """Also once they have slept."""
    result = programs.run(
        """
        import os, threading, time, numpy as np, fastattn
        cpu = max(os.sched_getaffinity(0))
        q = np.ones((1, 8, 200, 64), np.float32)
        def call():
            os.sched_setaffinity(0, {cpu})
            before = set(os.listdir("/proc/self/task"))
            fastattn.attention(q, q, q, num_threads=3)
            helpers = set(os.listdir("/proc/self/task")) - before
            time.sleep(0.1)
            masks.extend(os.sched_getaffinity(int(helper)) for helper in helpers)
        masks = []
        thread = threading.Thread(target=call)
        thread.start(), thread.join()
        assert masks == [{cpu}] * 2, masks
        """
    )
    assert result.returncode == 0, result.stderr


@needs_two_cpus
def test_helpers_that_sleep_keep_off_the_cpu_of_the_last_call():
    """Those that it wakes, and those that it does not."""
    result = programs.run(
        """
        import os, threading, time, numpy as np, fastattn
        q = np.ones((1, 8, 200, 64), np.float32)
        allowed = os.sched_getaffinity(0)
        def wait_for(masks):
            deadline = time.monotonic() + 10
            while [os.sched_getaffinity(helper) for helper in helpers] != [masks] * 3:
                assert time.monotonic() < deadline, masks
                time.sleep(0.01)
        def calls():
            before = set(os.listdir("/proc/self/task"))
            fastattn.attention(q, q, q, num_threads=4)
            helpers.extend(map(int, set(os.listdir("/proc/self/task")) - before))
            time.sleep(0.1)
            for cpu in [*allowed][:2] * 2:
                os.sched_setaffinity(0, {cpu})
                fastattn.attention(q, q, q, num_threads=2)
                wait_for(allowed - {cpu})
        helpers = []
        thread = threading.Thread(target=calls)
        thread.start(), thread.join()
        assert len(helpers) == 3
        print("done")
        """
    )
    assert (result.stdout, result.stderr) == ("done\n", "")
