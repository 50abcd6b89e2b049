"""Requests over a real socket and a real memfd against the test sidecar: the good case, and what can go wrong."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import sidecar
from conftest import Place as Where
from pdlink_vllm import params, request, wire
from pdlink_vllm.link import Link, poll_until
from pdlink_vllm.offer import Layouts
from pdlink_vllm.packing import Cut, PieceCutter, RowCutter
from pdlink_vllm.request import State
from pdlink_vllm.ring import Ring
from pdlink_vllm.wire import ArrayId, DType, Mode, What
from rig import BLOCK, HEADS, LAYERS, RUN, WIDTH, Rig, check, filler, plan, rows_of, run, step

Waits = queue.SimpleQueue[float]

T = bytes(range(16))


@pytest.fixture
def rig(place: Where) -> Rig:  # type: ignore[misc]
    r = Rig(place.path)
    yield r
    r.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """The seconds that requests may wait, each as its wait begins."""
    seen: queue.SimpleQueue[float] = queue.SimpleQueue()

    def seen_wait(link: Link, ready: Callable[[], bool], seconds: float) -> tuple[bool, float]:
        seen.put(seconds)
        return poll_until(link, ready, seconds)

    monkeypatch.setattr(request, "poll_until", seen_wait)
    return seen


@pytest.mark.parametrize("chunk", [1, 7, 32, 64, 100, 1000])
@pytest.mark.parametrize("slot_size", [8192, 256 << 10])
def test_blocks_arrive(place: Where, rig: Rig, chunk: int, slot_size: int) -> None:
    s = place.sidecar(sidecar.Options(slot_size=slot_size))
    s.plan(T, plan(5))
    assert rig.link.wait_up(sidecar.LIMIT)
    run(rig.request(T, 5 * BLOCK + 7), 5 * BLOCK + 7, chunk)
    t = s.wait(T)
    check(t)
    assert t.ended[0].tokens == 5 * BLOCK + 7
    assert t.ended[0].capture_ns > 0
    s.kill()
    assert s.leased() == []  # nothing is kept


def test_the_layout_travels_once(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    assert rig.link.wait_up(sidecar.LIMIT)
    for i in range(3):
        s.plan(bytes([i]) * 16, plan(2))
        run(rig.request(bytes([i]) * 16, 2 * BLOCK), 2 * BLOCK, 50)
        check(s.wait(bytes([i]) * 16))
    assert [s.transfers[bytes([i]) * 16].begins[0].layout for i in range(3)] == [0, 7, 7]


def test_few_layouts_are_remembered() -> None:
    """A sidecar that names a new one each time takes no memory; the latest is always among them."""
    kept = Layouts()
    for i in range(3 * params.LAYOUTS):
        kept.keep(i, {})
        assert kept.latest == i
        assert i in kept.known
    assert sorted(kept.known) == list(range(2 * params.LAYOUTS, 3 * params.LAYOUTS))


def test_what_the_decoder_has_is_not_sent(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(4, from_token=2 * BLOCK))
    assert rig.link.wait_up(sidecar.LIMIT)
    run(rig.request(T, 4 * BLOCK), 4 * BLOCK, 48)
    t = s.wait(T)
    check(t)
    assert sorted(t.blocks) == [2, 3]


def test_ranks_make_one_block(place: Where) -> None:
    """Two workers with a head each, at the same time."""
    s = place.sidecar(sidecar.Options(local=2))
    s.plan(T, plan(4))
    rigs = [
        Rig(
            place.path,
            wire.Hello(tp_rank=i, tp_size=2, local_workers=2, layer_end=LAYERS, head_first=i, head_end=i + 1),
        )
        for i in (0, 1)
    ]
    assert all(r.link.wait_up(sidecar.LIMIT) for r in rigs)
    threads = [
        threading.Thread(target=run, args=(r.request(T, 4 * BLOCK), 4 * BLOCK, 40, (i, i + 1)))
        for i, r in enumerate(rigs)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(s.wait(T))
    assert sorted(h.tp_rank for h in s.hellos) == [0, 1]
    assert s.hellos[0].instance != s.hellos[1].instance
    for r in rigs:
        r.close()


def test_stages_make_one_block(place: Where) -> None:
    """Pipeline stages: a worker is told which layers are wanted of it, and sends no others."""
    s = place.sidecar(sidecar.Options(local=2))
    t = s.plan(T, plan(3))
    for first, end in ((0, 2), (2, 3)):
        r = Rig(place.path, wire.Hello(local_workers=2, layer_first=first, layer_end=end, head_end=HEADS))
        assert r.link.wait_up(sidecar.LIMIT)
        run(r.request(T, 3 * BLOCK), 3 * BLOCK, 33)
        s.until(lambda end=end: len(t.ended) == (1 if end < LAYERS else 2))  # type: ignore[misc]
        r.close()
    check(s.wait(T))


def test_several_requests_at_once(place: Where, rig: Rig) -> None:
    s = place.sidecar(sidecar.Options(slots=16))
    ids = [bytes([i]) * 16 for i in range(4)]
    for i in ids:
        s.plan(i, plan(3))
    assert rig.link.wait_up(sidecar.LIMIT)
    requests = [rig.request(i, 3 * BLOCK) for i in ids]
    for first in range(0, 3 * BLOCK, 24):
        for r in requests:
            step(r, first, 24, 3 * BLOCK)
    for r, i in zip(requests, ids, strict=True):
        r.end(3 * BLOCK)
        check(s.wait(i))


def test_rows_mode(place: Where, rig: Rig) -> None:
    s = place.sidecar(sidecar.Options(slot_size=16384))
    s.plan(T, sidecar.Plan(wire.Kind.DSV4, 3, BLOCK, 1000, (1, 3)))
    assert rig.link.wait_up(sidecar.LIMIT)
    total = 3 * BLOCK + 5
    x = np.random.default_rng(1).integers(0, 1 << 16, (LAYERS, total, 64), dtype=np.uint16)
    r = rig.request(T, total, mode=Mode.ROWS, row=128)
    for first in range(0, total, 41):
        count = min(41, total - first)
        r.expect(first, count, range(LAYERS), 128)
        for layer in range(LAYERS):
            a, e = r.span(first, count, layer)
            if a < e:

                def fill(ring: Ring, at: int, cut: Cut, layer: int = layer) -> None:
                    data = x[layer, cut.first : cut.first + cut.tokens].tobytes()
                    ring.memory[at : at + len(data)] = data

                r.put(RowCutter(layer, What.X, 128, BLOCK, a, e - a, (0, 0)), fill)
        r.flush()
    r.end(total)
    t = s.wait(T)
    assert sorted(t.rows) == [(1, 2), (2, 2)]  # of layer 0 nothing was wanted
    for layer in (1, 2):
        first, data = t.layer_rows(layer, What.X)
        assert first == 0
        assert data == x[layer, : 3 * BLOCK].tobytes()


def test_no_sidecar_costs_nothing(place: Where, rig: Rig, waits: Waits) -> None:
    r = rig.request(T, 100)
    run(r, 100, 10)
    assert r.state is State.OVER
    assert "no sidecar" in r.why
    assert waits.empty()
    assert r.expired()


def test_a_transfer_that_nobody_knows(place: Where, rig: Rig) -> None:
    place.sidecar()
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 100)
    run(r, 100, 10)
    assert r.state is State.OVER
    assert "no such transfer" in r.why


def test_rows_that_do_not_fit_the_plan(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, sidecar.kv_plan(LAYERS, HEADS, WIDTH, DType.F32, BLOCK, 2))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 2 * BLOCK)
    run(r, 2 * BLOCK, 64)
    assert r.state is State.OVER
    assert "plan" in r.why


def test_a_stuck_link_blocks_for_a_bound_only(place: Where, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No slot comes back: the request waits once, is sealed at its last whole prefix, and the rest costs nothing."""
    monkeypatch.setattr(params, "LEASE_WAIT", 0.2)
    s = place.sidecar(sidecar.Options(slot_size=8192, give_slots=20))
    s.plan(T, plan(8))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 8 * BLOCK)
    run(r, 8 * BLOCK, BLOCK)
    t = s.wait(T)
    whole = t.ended[0].tokens // BLOCK
    assert 0 < whole < 8
    check(t, whole)
    assert 0.1e9 <= t.ended[0].wait_ns < sidecar.LIMIT * 1e9 / 2, "the wait for a slot was not the budget's"


def test_a_mute_sidecar_blocks_for_a_bound_only(place: Where, rig: Rig, waits: Waits) -> None:
    s = place.sidecar(sidecar.Options(mute=True))
    s.plan(T, plan(4))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 4 * BLOCK, budget=0.3)
    run(r, 4 * BLOCK, 10)
    assert (waits.get(timeout=0), waits.empty()) == (0.3, True), "it waits once, and for the budget"
    assert r.times.wait >= 0.25e9
    assert r.state is State.OVER


@pytest.mark.parametrize("tokens", [4 * BLOCK, 4 * BLOCK + 7, 5])
def test_a_late_begun_loses_nothing(place: Where, rig: Rig, waits: Waits, tokens: int) -> None:
    """The engine is at layer 0 of the first chunk, which is the whole prompt, before the sidecar has answered BEGIN."""
    s = place.sidecar(sidecar.Options(hold_begins=True, slots=32))
    t = s.plan(T, plan(tokens // BLOCK or 1))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, tokens)
    engine = threading.Thread(target=run, args=(r, tokens, tokens))
    engine.start()
    assert waits.get(timeout=sidecar.LIMIT) > 0  # layer 0 waits
    s.until(lambda: len(t.begins) == 1)
    assert r.state is State.BEGINNING
    assert engine.is_alive()
    s.let_begin()
    engine.join(sidecar.LIMIT)
    assert not engine.is_alive()
    s.wait(T)
    assert t.ended[0].tokens == tokens
    assert t.ended[0].wait_ns > 0
    if tokens >= BLOCK:
        check(t)
    else:  # a block that the prompt does not fill: its rows came, of every layer
        assert sum(end - first for first, end in t.covered[0]) == LAYERS * 2 * HEADS * tokens * RUN


def test_the_sidecar_seals(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(6))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 6 * BLOCK)
    step(r, 0, 2 * BLOCK, 6 * BLOCK)
    s.seal(T, 3)
    rig.until(lambda: r.sealed == 3)
    step(r, 2 * BLOCK, 4 * BLOCK, 6 * BLOCK)
    r.end(6 * BLOCK)
    t = s.wait(T)
    check(t, 3)
    assert t.ended[0].tokens == 3 * BLOCK
    assert sorted(t.blocks) == [0, 1, 2]


def test_the_engine_gives_up(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(6))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 6 * BLOCK)
    step(r, 0, 2 * BLOCK, 6 * BLOCK)
    r.abort("the client went away")
    t = s.wait(T)
    assert t.aborted == ["the client went away"]
    check(t, 2)
    s.until(lambda: not s.leased())


def test_the_sidecar_gives_up(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(6))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 6 * BLOCK)
    step(r, 0, BLOCK, 6 * BLOCK)
    with s.changed:
        for c in s._conns:
            for handle, q in c.requests.items():
                c.send(wire.Abort(int(wire.Code.OVER), handle, ""))
                q.over = True
    rig.until(lambda: r.state is not State.LIVE)
    step(r, BLOCK, 5 * BLOCK, 6 * BLOCK)
    r.end(6 * BLOCK)
    assert r.state is State.OVER
    assert "ended or was cancelled" in r.why
    s.until(lambda: not s.leased())


def test_a_restarted_sidecar_gets_what_it_missed(place: Where, rig: Rig) -> None:
    """The sidecar dies with slots leased, committed and not read; the next one makes the transfer whole."""
    first = place.sidecar(sidecar.Options(slot_size=8192, slots=32))
    t = first.plan(T, plan(8))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 8 * BLOCK)
    step(r, 0, 3 * BLOCK, 8 * BLOCK)
    rig.heard(first)
    first.options.most_commits = 0  # it reads no more: what is committed now is found by the next
    worker = threading.Thread(target=lambda: step(r, 3 * BLOCK, 20, 8 * BLOCK))
    worker.start()
    first.until(lambda: any(isinstance(m, wire.Commit) for m in first.unheard))
    first.kill()
    assert first.leased()
    second = place.sidecar(sidecar.Options(), after=first)
    worker.join(sidecar.LIMIT)
    assert not worker.is_alive()
    step(r, 3 * BLOCK + 20, 5 * BLOCK - 20, 8 * BLOCK)
    r.end(8 * BLOCK)
    check(second.wait(T))
    assert len(t.begins) == 2
    assert second.hellos[0].code == wire.HELLO_RING
    second.until(lambda: not second.leased())


def test_an_end_that_got_lost_is_said_again(place: Where, rig: Rig) -> None:
    first = place.sidecar()
    t = first.plan(T, plan(2))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 2 * BLOCK)
    step(r, 0, BLOCK, 2 * BLOCK)
    rig.heard(first)
    step(r, BLOCK, BLOCK - 1, 2 * BLOCK)
    rig.heard(first)
    first.options.deaf = True
    step(r, 2 * BLOCK - 1, 1, 2 * BLOCK)
    r.end(2 * BLOCK)
    first.until(lambda: any(isinstance(m, wire.End) for m in first.unheard))
    first.kill()
    second = place.sidecar(sidecar.Options(), after=first)
    check(second.wait(T))
    assert t.ended[0].tokens == 2 * BLOCK


def test_another_ring_ends_what_was_open(place: Where, rig: Rig) -> None:
    first = place.sidecar()
    first.plan(T, plan(4))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 4 * BLOCK)
    step(r, 0, BLOCK, 4 * BLOCK)
    first.kill()
    second = place.sidecar()
    second.plan(T, plan(4))
    rig.until(lambda: r.state is State.OVER)
    assert "another ring" in r.why
    run(rig.request(T, 4 * BLOCK), 4 * BLOCK, 64)  # the next prompt is as good as any
    check(second.wait(T))


def test_descriptors_do_not_pile_up(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    assert rig.link.wait_up(sidecar.LIMIT)
    before = None
    for _ in range(6):
        s.kill()
        s = place.sidecar(after=s)
        s.until(lambda s=s: bool(s.hellos))  # type: ignore[misc]
        assert rig.link.wait_up(sidecar.LIMIT)  # of that connection: the one before was closed by then
        count = len(os.listdir("/proc/self/fd"))
        before = before or count
        assert count <= before


@pytest.mark.parametrize("what", ["unsealed", "wrong size", "refuse", "silence", "nonsense"])
def test_a_sidecar_that_cannot_be_one(place: Where, rig: Rig, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = sidecar.Memory(4, 8192, seal=what != "unsealed")
    if what == "wrong size":
        memory.size += 4096

    def hello(self: sidecar.Sidecar, c: object, m: wire.Hello, fd: int) -> None:
        if what == "refuse":
            c.send(wire.Refuse(4, 0, "full"))  # type: ignore[attr-defined]
        elif what == "nonsense":
            c.sock.send(b"hello")  # type: ignore[attr-defined]
        elif what == "silence":
            c.sock.close()  # type: ignore[attr-defined]
            self._conns.remove(c)  # type: ignore[arg-type]
        else:
            original(self, c, m, fd)  # type: ignore[arg-type]

    original = sidecar.Sidecar._hello
    monkeypatch.setattr(sidecar.Sidecar, "_hello", hello)
    place.sidecar(memory=memory)
    words = {
        "unsealed": "not sealed",
        "wrong size": "cannot be",
        "refuse": "full",
        "silence": "closed",
        "nonsense": "packet",
    }[what]
    rig.until(lambda: words in rig.link.refused)
    r = rig.request(T, 10)
    assert not r.live


def test_slots_come_back_from_a_request_that_ended_without_a_sidecar(place: Where, rig: Rig) -> None:
    """Leases held while the sidecar was away are returned to the one that has the ring then."""
    first = place.sidecar(sidecar.Options(slots=4, slot_size=8192))
    first.plan(T, plan(8))
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 8 * BLOCK)
    step(r, 0, BLOCK, 8 * BLOCK)
    r.expect(BLOCK, 4 * BLOCK, range(LAYERS), 2 * HEADS * RUN)
    a, e = r.span(BLOCK, 4 * BLOCK, 0)
    p = r.place(0, ArrayId.K, RUN, 0)
    assert p is not None
    r.put(PieceCutter(p, HEADS, a, e - a), filler(rows_of(0, 0, 8 * BLOCK)[a:e], a))
    rig.until(lambda: len(r._free) > 0)
    first.kill()
    assert first.leased(), "no lease was held: the test tests less than it says"
    r.abort("the engine's request ended early")
    second = place.sidecar(after=first)
    second.until(lambda: not second.leased())


@pytest.mark.parametrize(
    "change", [{"blocks": 0}, {"blocks": 1 << 20}, {"block_tokens": 0}, {"arrays": 1 << 20}, {"kind": 9}]
)
def test_a_plan_that_cannot_be(place: Where, rig: Rig, change: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    s = place.sidecar()
    t = s.plan(T, plan(4))
    inner = sidecar._Conn.send

    def send(self: object, m: wire.Message) -> None:
        inner(self, replace(m, **change) if isinstance(m, wire.Begun) else m)  # type: ignore[arg-type]

    monkeypatch.setattr(sidecar._Conn, "send", send)
    assert rig.link.wait_up(sidecar.LIMIT)
    r = rig.request(T, 4 * BLOCK)
    run(r, 4 * BLOCK, 64)
    assert r.state is State.OVER
    assert s.wait(T).aborted == t.aborted == ["the sidecar wants what cannot be"]
