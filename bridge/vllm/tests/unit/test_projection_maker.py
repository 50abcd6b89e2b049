"""The maker where something fails: what stops it, what does not, and that nothing of the device is left behind."""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import fakeproj
import pytest
from failing import LIMIT, Failing, begin, ended, log, project, said
from pdlink_vllm import params
from pdlink_vllm.projection import abi, maker
from pdlink_vllm.projection.abi import ProjectionError
from pdlink_vllm.projection.handle import Carry, Handle, Weights
from pdlink_vllm.projection.maker import Maker, Options, State
from pdlink_vllm.projection.shape import Key

STOPPED = "nothing is projected here"


def fail(what: str, carry: Carry) -> None:
    """Make the call of a prompt that is to fail."""
    if what == "seed":
        carry.skip(0, 256, 0)
    else:
        project(carry)


def test_calls_that_cannot_be_prepared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are made without, it is said once, and nothing leaks."""
    lib = Failing(prepare=abi.CUDA)
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    assert project(carry) == 1
    carry.close()  # type: ignore[union-attr]
    assert (said(caplog, "prepare cannot"), m.failed) == (1, "")
    m.close()
    assert (lib.created, lib.destroyed) == (1, 1)


def test_memory_that_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The number is for the log only."""
    caplog.set_level(logging.INFO)
    lib = Failing(used=abi.CUDA)
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    project(m.open())
    m.close()
    assert m.failed == ""
    assert any("used cannot" in r.getMessage() for r in caplog.records)


def test_an_error_of_ours_while_it_is_made_leaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(self: Maker, handle: object) -> str:
        raise ValueError("a bug")

    monkeypatch.setattr(Maker, "_taken", taken)
    lib = Failing()
    m = begin(tmp_path, lib)
    assert not m.wait(LIMIT)
    assert (m.failed, m.open()) == ("ValueError: a bug", None)
    assert ended(m)
    assert (lib.created, lib.destroyed) == (1, 1)
    m.close()


def test_a_prompt_that_cannot_begin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One does not stop the maker, nor is that said; it follows the decoder as before."""
    lib = Failing(request_create=abi.CUDA)
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    assert m.open() is None
    assert (m.failed, said(caplog, STOPPED), said(caplog, "rows of one prompt")) == ("", 0, 1)
    lib.codes = {}
    carry = m.open()
    assert carry is not None
    carry.close()
    assert not m.learn(512, 0, 4)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    assert carry.handle.shape.key == Key(512, 0, 4)
    carry.close()
    m.close()
    assert (lib.created, lib.destroyed) == (2, 2)


@pytest.mark.parametrize("what", ["request_create", "project", "seed"])
@pytest.mark.parametrize("code", [1, abi.CUDA, abi.STATE, abi.LOST])
def test_failures_stop_it(tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, code: int) -> None:
    """At once where another prompt would have the same, after a few in a row where not; the memory is freed."""
    lib = Failing(**{what: code})
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    most = maker.FAILURES if code in maker.PASSING else 1
    for i in range(most):
        assert m._state is State.READY, i
        carry = m.open()
        if what != "request_create":
            assert carry is not None
            for _ in range(5):  # of one prompt the first counts
                with pytest.raises(ProjectionError, match=f"{what} cannot"):
                    fail(what, carry)
            carry.close()
    assert f"{what} cannot" in m.failed
    assert said(caplog, STOPPED) == 1
    lib.codes = {}
    assert m.open() is None
    assert not m.fits(1 << 20)
    assert m.learn(512, 0, 4), "nothing is made any more"
    assert ended(m), "the memory is not freed before the end"
    assert (lib.created, lib.destroyed, lib.open) == (1, 1, 0)
    m.close()
    assert said(caplog, "still in use") == 0


def test_good_prompts_between(tmp_path: Path) -> None:
    """Failures count in a row; what a failing prompt had done before it failed does not make it good."""
    lib = Failing()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)

    def prompt(good: bool) -> None:
        carry = m.open()
        project(carry)
        lib.codes = {} if good else {"project": abi.CUDA}
        if not good:
            with pytest.raises(ProjectionError):
                project(carry, 64)
        lib.codes = {}
        carry.close()  # type: ignore[union-attr]

    for good in ([False] * (maker.FAILURES - 1) + [True]) * 2 + [False] * (maker.FAILURES - 1):
        prompt(good)
        assert m.failed == ""
    prompt(good=False)
    assert m._state is State.STOPPED
    m.close()
    assert (lib.created, lib.destroyed) == (1, 1)


@pytest.mark.parametrize("closed", [True, False])
def test_a_refused_copy_is_its_prompts_failure(tmp_path: Path, closed: bool) -> None:
    """A call's bytes are asked for beside the engine, often when the prompt is over: the prompt failed all the same,
    once for all its slots, and the next ones are projected until as many fail in a row as may. One that arrived counts
    as good only when it has.
    """
    lib, place = Failing(), (ctypes.c_uint8 * 64)()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)

    def prompt(good: bool) -> None:
        carry = m.open()
        assert carry is not None
        tickets = [project(carry, at, ctypes.addressof(place)) for at in (0, 64)]
        if closed:
            carry.close()
        lib.codes = {} if good else {"wait": abi.CUDA}
        assert [carry.wait(t) for t in (*tickets, *tickets)] == [good] * 4
        lib.codes = {}
        carry.close()

    for good in ([False] * (maker.FAILURES - 1) + [True]) * 2 + [False] * (maker.FAILURES - 1):
        prompt(good)
        assert (m.failed, m._state) == ("", State.READY)
    if closed:
        carry = m.open()
        project(carry, 0, ctypes.addressof(place))
        carry.close()  # type: ignore[union-attr]
        assert m._failures == maker.FAILURES - 1, "nobody knows yet that it went well"
    prompt(good=False)
    assert "wait cannot" in m.failed
    assert (m.open(), ended(m)) == (None, True)
    assert (lib.destroyed, lib.open) == (1, 0)
    m.close()


def test_a_prompt_under_way_keeps_the_memory(tmp_path: Path) -> None:
    """Where another would fail the same way, none begins; the one that is under way ends before the handle does."""
    lib, place = Failing(), (ctypes.c_uint8 * 64)()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    ticket = project(carry, 0, ctypes.addressof(place))
    lib.codes = {"wait": 1}
    assert not carry.wait(ticket)
    assert "wait cannot" in m.failed
    assert m.open() is None
    assert lib.destroyed == 0
    carry.close()
    assert ended(m)
    assert lib.destroyed == 1
    m.close()


def test_quiet_waits_for_a_handle_that_is_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another is wanted, the one before may still write to the ring."""
    retiring, retire = threading.Event(), Handle.retire

    def seen(self: Handle, seconds: float) -> bool:
        retiring.set()
        return retire(self, seconds)

    monkeypatch.setattr(Handle, "retire", seen)
    lib = Failing()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    project(carry)
    assert not m.learn(512, 0, 4)
    assert retiring.wait(LIMIT)
    m.quiet()
    assert lib.waited == [1]
    carry.close()  # type: ignore[union-attr]
    assert m.wait(LIMIT)
    m.close()


def test_a_prompt_that_takes_long_holds_up_the_next_handle_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows go to the sidecar until it ends, however long that is; then what is wanted by that time is made."""
    monkeypatch.setattr(params, "DEVICE_WAIT", 0.01)
    tried, retire = threading.Semaphore(0), Handle.retire

    def seen(self: Handle, seconds: float) -> bool:
        done = retire(self, seconds)
        tried.release()
        return done

    monkeypatch.setattr(Handle, "retire", seen)
    lib = Failing()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    for want in (Key(512, 0, 4), Key(512, 1, 3)):
        assert not m.learn(want.block, want.first, want.end)
        while tried.acquire(blocking=False):
            pass  # tries for what was wanted before
        for _ in range(5):  # of these the first may have begun before, too
            assert tried.acquire(timeout=LIMIT)
        assert (m.open(), m.failed, lib.created) == (None, "", 1)
    assert said(caplog, "rows go to the sidecar until they end") == 2
    project(carry)
    carry.close()
    assert m.wait(LIMIT)
    second = m.open()
    assert second is not None
    assert second.handle.shape.key == Key(512, 1, 3)
    second.close()
    m.close()
    assert ended(m)
    assert (m.failed, lib.created, lib.destroyed) == ("", 2, 2)


def test_something_else_is_wanted_while_the_last_one_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made for what nobody wants any more."""
    learnt: list[bool] = []
    retire = Handle.retire

    def meanwhile(self: Handle, seconds: float) -> bool:
        done = retire(self, seconds)
        if done and not learnt:
            learnt.append(m.learn(512, 1, 3))
        return done

    monkeypatch.setattr(Handle, "retire", meanwhile)
    lib = Failing()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    assert not m.learn(512, 0, 4)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    assert carry.handle.shape.key == Key(512, 1, 3)
    assert (learnt, lib.created, lib.destroyed) == ([False], 2, 1)
    carry.close()
    m.close()
    assert ended(m)


def test_who_has_to_ask_keeps_the_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's last bytes are asked for when it is over, and by then another handle may be wanted."""
    monkeypatch.setattr(params, "DEVICE_WAIT", 0.01)
    tried, retire = threading.Semaphore(0), Handle.retire

    def seen(self: Handle, seconds: float) -> bool:
        done = retire(self, seconds)
        tried.release()
        return done

    monkeypatch.setattr(Handle, "retire", seen)
    lib, place = Failing(), (ctypes.c_uint8 * 64)()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    ticket = project(carry, 0, ctypes.addressof(place))
    waiters = [lambda: carry.wait(ticket), lambda: carry.wait(ticket)]
    for waiter in waiters:
        carry.handle.used_by(waiter)
    del waiter
    carry.close()
    assert not m.learn(512, 0, 4)
    while waiters:
        for _ in range(3):
            assert tried.acquire(timeout=LIMIT)
        assert (lib.created, lib.destroyed) == (1, 0)
        assert waiters.pop()()
    assert m.wait(LIMIT)
    assert (lib.created, lib.destroyed) == (2, 1)
    m.close()
    assert ended(m)


def test_closed_while_a_prompt_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ends all the same."""
    monkeypatch.setattr(params, "DEVICE_WAIT", 0.01)
    lib = Failing()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    assert not m.learn(512, 0, 4)
    m.close()
    assert ended(m)
    assert (lib.created, lib.destroyed, m.failed) == (1, 0, "")


def test_the_device_is_the_threads_before_anything_else(tmp_path: Path) -> None:
    """Else CUDA takes memory of device 0 for it. Where it cannot be, that is said."""
    done: list[tuple[str, int]] = []

    class Seen(Failing):
        """Notes who creates."""

        def pdproj_create(self, *a: Any) -> int:
            """See the class."""
            done.append(("create", threading.get_ident()))
            return super().pdproj_create(*a)

    path, digest = fakeproj.weights(tmp_path)
    o = Options(tmp_path / "lib", path, digest, 1, 256, (0, 4), 0, 1, 64, 512)
    m = Maker(o, log, Seen(), lambda: done.append(("enter", threading.get_ident())))
    assert m.wait(LIMIT)
    assert done == [("enter", m._thread.ident), ("create", m._thread.ident)]
    m.close()

    def gone() -> None:
        raise RuntimeError("no device 1")

    m = Maker(o, log, Seen(), gone)
    assert not m.wait(LIMIT)
    assert "no device 1" in m.failed
    m.close()


def test_weights_are_memorys_only_while_they_are_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read again for another handle, and what is not what was pinned by then is refused."""
    alive: list[weakref.ref[Weights]] = []

    class Seen(Weights):
        """Notes itself."""

        def __init__(self, path: Path, sha256: str) -> None:
            super().__init__(path, sha256)
            alive.append(weakref.ref(self))

    monkeypatch.setattr(maker, "Weights", Seen)
    lib = Failing()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    assert not m.learn(512, 0, 4)
    assert m.wait(LIMIT)
    assert m.learn(512, 0, 4)
    assert (len(alive), m.failed) == (2, "")
    assert alive[0]() is None
    path = tmp_path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert not m.learn(256, 0, 4)
    assert not m.wait(LIMIT)
    assert "sha256" in m.failed
    assert (lib.created, lib.destroyed) == (2, 2)
    m.close()


def test_weights_are_dropped_though_something_else_is_wanted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were uploaded: what they are used for next may have other ones in the file by then."""
    read: list[Path] = []
    keep = Maker._keep

    class Seen(Weights):
        """Counts."""

        def __init__(self, path: Path, sha256: str) -> None:
            super().__init__(path, sha256)
            read.append(path)

    def at_once(self: Maker, handle: Handle, key: Key) -> bool:
        with self._changed:
            kept = keep(self, handle, key)
            if len(read) == 1 and key.block == 256:
                assert not self.learn(512, 0, 4)
            return kept

    monkeypatch.setattr(maker, "Weights", Seen)
    monkeypatch.setattr(Maker, "_keep", at_once)
    lib = Failing()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    assert carry.handle.shape.key == Key(512, 0, 4)
    assert (len(read), lib.created, m.failed) == (2, 2, "")
    carry.close()
    m.close()
    assert ended(m)


def test_closed_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handle that comes late is destroyed."""
    monkeypatch.setattr(params, "DEVICE_WAIT", 0.05)
    lib = Failing()
    lib.creates.clear()
    m = begin(tmp_path, lib)
    assert lib.creating.wait(LIMIT)
    m.close()
    assert said(caplog, "still in use") == 1
    lib.creates.set()
    assert ended(m)
    assert (lib.created, lib.destroyed, m.open()) == (1, 1, None)
    assert m.learn(512, 0, 4)


def test_something_else_is_wanted_while_it_is_made(tmp_path: Path) -> None:
    """What was made for nothing is destroyed, never used."""
    lib = Failing()
    lib.creates.clear()
    m = begin(tmp_path, lib)
    assert lib.creating.wait(LIMIT)
    assert not m.learn(512, 1, 3)
    lib.creates.set()
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    assert carry.handle.shape.key == Key(512, 1, 3)
    carry.close()
    m.close()
    assert (lib.created, lib.destroyed) == (2, 2)


def test_waiting_for_a_handle_that_is_being_freed(tmp_path: Path) -> None:
    """The library waits for its copies while it frees a handle: nobody may take them for done before."""
    held: list[bool] = []

    class Slow(Failing):
        """Frees while somebody waits for a call."""

        def pdproj_destroy(self, h: Any) -> None:
            """See whether that wait ends."""
            waiter.start()
            waiter.join(0.2)
            held.append(waiter.is_alive())
            super().pdproj_destroy(h)

    lib = Slow()
    m = begin(tmp_path, lib)
    assert m.wait(LIMIT)
    carry = m.open()
    assert carry is not None
    ticket, handle = project(carry), carry.handle
    waiter = threading.Thread(target=handle.wait, args=(ticket,))
    carry.close()
    m.close()
    waiter.join(LIMIT)
    assert (held, waiter.is_alive()) == ([True], False)
