# SPDX-License-Identifier: MIT
"""patch_sdpa on and off: nested, over patches of others, and from several threads."""

import contextlib
import copy
import functools
import gc
import os
import pickle
import signal
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import fastattn.torch as ft  # noqa: E402
from fastattn.torch import _sdpa  # noqa: E402

TORCH = F.scaled_dot_product_attention
pytestmark = pytest.mark.usefixtures("no_patch_left")


def test_permanent():
    patch = ft.patch_sdpa()
    try:
        assert F.scaled_dot_product_attention is not TORCH
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        patch.undo()
    assert F.scaled_dot_product_attention is TORCH
    patch.undo()  # once is enough, twice does no harm


def test_patches_of_others(monkeypatch, randn):
    """What was there before comes back, and what came after stays, but no longer gets ours."""
    q, others = randn(1, 2, 3, 4), []

    def before(*args, **options):
        others.append("before")
        return TORCH(*args, **options)

    def after(*args, **options):
        return inner(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", before)
        with ft.patch_sdpa():
            inner = F.scaled_dot_product_attention
        assert F.scaled_dot_product_attention is before
        with ft.patch_sdpa():
            patch.setattr(F, "scaled_dot_product_attention", after)
        assert F.scaled_dot_product_attention is after
        F.scaled_dot_product_attention(q, q, q)
        assert others == ["before"]


def test_wrappers_that_are_patched_in_turn(monkeypatch, randn):
    """Each is called once for what is left to torch, and what it wraps does not call it again."""
    q, others = randn(1, 2, 3, 4), []

    def wrapper(inner, name):
        def wrapped(*args, **options):
            others.append(name)
            return inner(*args, **options)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", TORCH)  # what comes back in the end
        for name in "first", "second":
            with ft.patch_sdpa():
                wrapped = wrapper(F.scaled_dot_product_attention, name)
                patch.setattr(F, "scaled_dot_product_attention", wrapped)
        with ft.patch_sdpa():
            assert F.scaled_dot_product_attention(q, q, q, dropout_p=1.0).abs().max() == 0
            assert others == ["second", "first"]
            F.scaled_dot_product_attention(q, q, q)
        assert others == ["second", "first"]
        F.scaled_dot_product_attention(q, q, q)
        assert others == ["second", "first"] * 2


def test_compiled_over_patches_of_others(monkeypatch, randn):
    """What is left to one of them is not left to another, and nothing is compiled twice."""

    def other(factor):
        return lambda *args, **options: TORCH(*args, **options) * factor

    def backend(graph, _):
        graphs.append(graph)
        return graph

    @torch.compile(backend=backend, fullgraph=True)
    def attend(q):
        return F.scaled_dot_product_attention(q, q, q)

    q, graphs = randn(1, 2, 3, 4).requires_grad_(), []
    others = [(factor, other(factor)) for factor in (2, 3)] * 2
    for factor, function in others:
        monkeypatch.setattr(F, "scaled_dot_product_attention", function)
        with ft.patch_sdpa():
            torch.testing.assert_close(attend(q), TORCH(q, q, q) * factor)
    monkeypatch.undo()
    assert len(graphs) == 2


def test_pickled():
    with ft.patch_sdpa():
        function = F.scaled_dot_product_attention
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_patch_is_one_of_its_kind(again):
    """Of two that count as one, the second to be undone would leave fewer than none in force."""
    patch = ft.patch_sdpa()
    with patch, pytest.raises(TypeError, match="a Patch cannot be copied or pickled"):
        again(patch)
    assert _sdpa._patches == 0


def test_it_has_the_name_of_what_it_stands_for():
    with ft.patch_sdpa():
        ours = F.scaled_dot_product_attention
        assert ours is not TORCH
        assert ours.__name__ == TORCH.__name__ and "patch_sdpa" in ours.__doc__


def test_wrappers_are_not_kept(monkeypatch):
    def other(*args, **options):
        return TORCH(*args, **options)

    kept = weakref.ref(other)
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", other)
        with ft.patch_sdpa():
            pass
    del other
    gc.collect()
    assert kept() is None


class Slots:
    """A callable that nothing can be kept with."""

    __slots__ = ()

    def __call__(self, *args, **options):
        return TORCH(*args, **options)


@pytest.mark.parametrize("other", [lambda *args, **options: TORCH(*args, **options), Slots()])
def test_stand_in_is_kept_with_what_it_stands_for(monkeypatch, randn, other):
    """Whoever took it from there finds it again, where that is possible."""
    q, stand_ins = randn(1, 2, 3, 4), []
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", other)
        for _ in range(2):
            with ft.patch_sdpa():
                stand_ins.append(F.scaled_dot_product_attention)
            assert F.scaled_dot_product_attention is other
    assert (stand_ins[0] is stand_ins[1]) == (type(other) is not Slots)
    assert torch.equal(stand_ins[0](q, q, q), TORCH(q, q, q))


def test_wrapper_that_looks_like_what_it_wraps(monkeypatch, randn):
    """functools.wraps copies what a function knows of itself."""
    q, others = randn(1, 2, 3, 4), []
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", TORCH)  # what comes back in the end
        with ft.patch_sdpa():
            inner = F.scaled_dot_product_attention

            @functools.wraps(inner)
            def wrapped(*args, **options):
                others.append("wrapped")
                return inner(*args, **options)

            patch.setattr(F, "scaled_dot_product_attention", wrapped)
        with ft.patch_sdpa():
            F.scaled_dot_product_attention(q, q, q, dropout_p=1.0)
            assert others == ["wrapped"]


def test_fast_path_that_was_off_stays_off():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ft.patch_sdpa():
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_error_in_the_block():
    with contextlib.suppress(ZeroDivisionError), ft.patch_sdpa():
        _ = 1 / 0


# ---- meanwhile -----------------------------------------------------------------------------------


class Lock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, contended):
        self.lock, self.contended = threading.RLock(), contended

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.contended.set()
            self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()


def is_in_force():
    return F.scaled_dot_product_attention is not TORCH, torch.backends.mha.get_fastpath_enabled()


@pytest.fixture
def meanwhile(monkeypatch):
    """Have a function called once, amid patching or undoing, with torch's fast path off."""

    def arrange(switch, function):
        def set_fastpath_enabled(enabled):
            if enabled is switch and due:
                original(False)
                due.pop()()
            original(enabled)

        due, original = [function], torch.backends.mha.set_fastpath_enabled
        monkeypatch.setattr(torch.backends.mha, "set_fastpath_enabled", set_fastpath_enabled)

    return arrange


SWITCHES = pytest.mark.parametrize("switch", [False, True], ids=["patching", "undoing"])


@SWITCHES
def test_thread_that_patches_meanwhile(monkeypatch, meanwhile, switch):
    came, undone, found = threading.Event(), threading.Event(), []

    def other():
        with ft.patch_sdpa():
            came.set()
            undone.wait(10)
            found.append(is_in_force())

    def start():
        thread.start()
        came.wait(10)

    thread = threading.Thread(target=other, daemon=True)
    monkeypatch.setattr(_sdpa, "_lock", Lock(came))
    meanwhile(switch, start)
    with ft.patch_sdpa():
        pass
    undone.set()
    thread.join()
    assert found == [(True, False)]


def test_thread_that_undoes_the_same_patch(monkeypatch):
    came = threading.Event()

    class Patch(ft.Patch):
        """One whose state is looked at for so long that another thread comes."""

        @property
        def _in_force(self):
            seen = self.in_force
            if thread.ident is None:
                thread.start()
                came.wait(10)
            return seen

        @_in_force.setter
        def _in_force(self, value):
            self.in_force = value

    def other():
        patch.undo()
        came.set()

    thread = threading.Thread(target=other, daemon=True)
    monkeypatch.setattr(_sdpa, "_lock", Lock(came))
    with ft.patch_sdpa():
        patch = Patch()
        patch.undo()
        thread.join()
        assert is_in_force() == (True, False)


@SWITCHES
def test_signal_handler_that_patches(meanwhile, switch):
    """It runs in the thread that it interrupts, and cannot wait for it."""

    def handler():
        with ft.patch_sdpa():
            pass

    meanwhile(switch, handler)
    with ft.patch_sdpa():
        assert is_in_force() == (True, False)
    assert is_in_force() == (False, True)


@SWITCHES
def test_interrupt(meanwhile, switch):
    """Whatever it leaves of this patch, the next one patches, and is undone."""

    def interrupt():
        raise KeyboardInterrupt

    meanwhile(switch, interrupt)
    with contextlib.suppress(KeyboardInterrupt), ft.patch_sdpa():
        pass
    torch.backends.mha.set_fastpath_enabled(True)
    with ft.patch_sdpa():
        assert is_in_force() == (True, False)
    assert is_in_force() == (False, True)


@pytest.mark.no_sanitizer
@pytest.mark.filterwarnings("ignore:.*use of fork")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_while_a_thread_patches(meanwhile):
    """The child lacks the thread, but not what that would have let go of."""

    def other():
        with ft.patch_sdpa():
            pass

    def hold():
        held.set()
        time.sleep(0.05)  # a fork that waits for nobody happens within

    held, thread = threading.Event(), threading.Thread(target=other)
    meanwhile(False, hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(5)
            with ft.patch_sdpa():
                os._exit(is_in_force() != (True, False))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
