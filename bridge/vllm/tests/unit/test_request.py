"""Requests over a real socket and a real memfd against the test sidecar: the good case, and what can go wrong."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sidecar
from conftest import Place as Where
from pdlink_vllm import params, wire
from pdlink_vllm.link import Link
from pdlink_vllm.offer import Layouts, Offer
from pdlink_vllm.packing import Cut, PieceCutter, RowCutter
from pdlink_vllm.request import Request, State
from pdlink_vllm.ring import Ring
from pdlink_vllm.wire import ArrayId, DType, Mode, What

log = logging.getLogger("test")

LAYERS, HEADS, WIDTH, BLOCK = 3, 2, 16, 32
RUN = WIDTH * 2


class Rig:
    """A link and what a worker does with it, with numpy rows in the place of tensors."""

    def __init__(self, path: Path, hello: wire.Hello | None = None) -> None:
        self.link = Link(str(path), hello or wire.Hello(layer_end=LAYERS, head_end=HEADS), log)
        self.layouts = Layouts()
        self.link.start()

    def close(self) -> None:
        self.link.close()

    def request(
        self, transfer: bytes, tokens: int, mode: Mode = Mode.PIECES, row: int = 0, budget: float = 3.0
    ) -> Request:
        offer = Offer(transfer, tokens, 0, mode, DType.BF16, row, budget)
        r = Request(self.link, self.layouts, offer, None, log)
        r.begin()
        return r


@pytest.fixture
def rig(place: Where) -> Rig:  # type: ignore[misc]
    r = Rig(place.path)
    yield r
    r.close()


def rows_of(layer: int, what: int, tokens: int, heads: int = HEADS, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, layer, what])
    return rng.integers(0, 1 << 16, (tokens, heads, WIDTH), dtype=np.uint16)


def filler(rows: np.ndarray, first: int) -> Callable[[Ring, int, Cut], None]:
    def fill(ring: Ring, at: int, cut: Cut) -> None:
        part = rows[cut.first - first : cut.first - first + cut.tokens, cut.head : cut.head + cut.heads]
        part = part.reshape(cut.blocks, -1, *part.shape[1:]).swapaxes(1, 2) if cut.blocks else part.swapaxes(0, 1)
        data = part.tobytes()
        ring.memory[at : at + len(data)] = data

    return fill


def step(
    r: Request, first: int, tokens: int, total: int, heads: tuple[int, int] = (0, HEADS), layers: int = LAYERS
) -> None:
    """Put one chunk of all layers, as a forward pass does."""
    own = heads[1] - heads[0]
    r.expect(first, tokens, range(layers), 2 * own * RUN)
    for layer in range(layers):
        a, e = r.span(first, tokens, layer)
        if a >= e:
            continue
        for what in (0, 1):
            place = r.place(layer, ArrayId(what), RUN, heads[0])
            if place is not None:
                rows = rows_of(layer, what, total)[a:e, heads[0] : heads[1]]
                r.put(PieceCutter(place, own, a, e - a), filler(rows, a))
    r.flush()


def run(r: Request, total: int, chunk: int, heads: tuple[int, int] = (0, HEADS)) -> None:
    for first in range(0, total, chunk):
        step(r, first, min(chunk, total - first), total, heads)
    r.end(total)


def check(t: sidecar.Transfer, blocks: int | None = None) -> None:
    """Every byte of the first blocks is there, and right."""
    n = t.plan.blocks if blocks is None else blocks
    assert [g for g in t.missing() if g[0] < n] == []
    total = t.plan.blocks * BLOCK
    for b in range(t.plan.from_token // BLOCK, n):
        data = np.frombuffer(bytes(t.blocks[b]), np.uint16).reshape(LAYERS, 2, HEADS, BLOCK, WIDTH)
        for layer in range(LAYERS):
            for what in (0, 1):
                want = rows_of(layer, what, total + 7)[b * BLOCK : (b + 1) * BLOCK].swapaxes(0, 1)
                assert np.array_equal(data[layer, what], want), (b, layer, what)


def plan(blocks: int, from_token: int = 0) -> sidecar.Plan:
    return sidecar.kv_plan(LAYERS, HEADS, WIDTH, DType.BF16, BLOCK, blocks, from_token)


T = bytes(range(16))


@pytest.mark.parametrize("chunk", [1, 7, 32, 64, 100, 1000])
@pytest.mark.parametrize("slot_size", [8192, 256 << 10])
def test_blocks_arrive(place: Where, rig: Rig, chunk: int, slot_size: int) -> None:
    s = place.sidecar(sidecar.Options(slot_size=slot_size))
    s.plan(T, plan(5))
    assert rig.link.wait_up(5)
    run(rig.request(T, 5 * BLOCK + 7), 5 * BLOCK + 7, chunk)
    t = s.wait(T, 10)
    check(t)
    assert t.ended[0].tokens == 5 * BLOCK + 7
    assert t.ended[0].capture_ns > 0
    s.kill()
    assert all(s.memory.state(i)[0] != sidecar.LEASED for i in range(s.memory.slots))  # nothing is kept


def test_the_layout_travels_once(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    assert rig.link.wait_up(5)
    for i in range(3):
        s.plan(bytes([i]) * 16, plan(2))
        run(rig.request(bytes([i]) * 16, 2 * BLOCK), 2 * BLOCK, 50)
        check(s.wait(bytes([i]) * 16, 10))
    assert [s.transfers[bytes([i]) * 16].begins[0].layout for i in range(3)] == [0, 7, 7]


def test_what_the_decoder_has_is_not_sent(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(4, from_token=2 * BLOCK))
    assert rig.link.wait_up(5)
    run(rig.request(T, 4 * BLOCK), 4 * BLOCK, 48)
    t = s.wait(T, 10)
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
    assert all(r.link.wait_up(5) for r in rigs)
    threads = [
        threading.Thread(target=run, args=(r.request(T, 4 * BLOCK), 4 * BLOCK, 40, (i, i + 1)))
        for i, r in enumerate(rigs)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(s.wait(T, 10))
    assert sorted(h.tp_rank for h in s.hellos) == [0, 1]
    assert s.hellos[0].instance != s.hellos[1].instance
    for r in rigs:
        r.close()


def test_stages_make_one_block(place: Where) -> None:
    """Pipeline stages: a worker is told which layers are wanted of it, and sends no others."""
    s = place.sidecar(sidecar.Options(local=2))
    s.plan(T, plan(3))
    for first, end in ((0, 2), (2, 3)):
        r = Rig(place.path, wire.Hello(local_workers=2, layer_first=first, layer_end=end, head_end=HEADS))
        assert r.link.wait_up(5)
        run(r.request(T, 3 * BLOCK), 3 * BLOCK, 33)
        time.sleep(0.1)
        r.close()
    check(s.wait(T, 10))


def test_several_requests_at_once(place: Where, rig: Rig) -> None:
    s = place.sidecar(sidecar.Options(slots=16))
    ids = [bytes([i]) * 16 for i in range(4)]
    for i in ids:
        s.plan(i, plan(3))
    assert rig.link.wait_up(5)
    requests = [rig.request(i, 3 * BLOCK) for i in ids]
    for first in range(0, 3 * BLOCK, 24):
        for r in requests:
            step(r, first, 24, 3 * BLOCK)
    for r, i in zip(requests, ids, strict=True):
        r.end(3 * BLOCK)
        check(s.wait(i, 10))


def test_rows_mode(place: Where, rig: Rig) -> None:
    s = place.sidecar(sidecar.Options(slot_size=16384))
    s.plan(T, sidecar.Plan(wire.Kind.DSV4, 3, BLOCK, 1000, (1, 3)))
    assert rig.link.wait_up(5)
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
    t = s.wait(T, 10)
    assert sorted(t.rows) == [(1, 2), (2, 2)]  # of layer 0 nothing was wanted
    for layer in (1, 2):
        first, data = t.layer_rows(layer, What.X)
        assert first == 0
        assert data == x[layer, : 3 * BLOCK].tobytes()


def test_no_sidecar_costs_nothing(place: Where, rig: Rig) -> None:
    begin = time.monotonic()
    r = rig.request(T, 100)
    run(r, 100, 10)
    assert r.state is State.OVER
    assert "no sidecar" in r.why
    assert time.monotonic() - begin < 0.5
    assert r.expired()


def test_a_transfer_that_nobody_knows(place: Where, rig: Rig) -> None:
    place.sidecar()
    assert rig.link.wait_up(5)
    r = rig.request(T, 100)
    run(r, 100, 10)
    assert r.state is State.OVER
    assert "no such transfer" in r.why


def test_rows_that_do_not_fit_the_plan(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, sidecar.kv_plan(LAYERS, HEADS, WIDTH, DType.F32, BLOCK, 2))
    assert rig.link.wait_up(5)
    r = rig.request(T, 2 * BLOCK)
    run(r, 2 * BLOCK, 64)
    assert r.state is State.OVER
    assert "plan" in r.why


def test_a_stuck_link_blocks_for_a_bound_only(place: Where, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No slot comes back: the request waits once, is sealed at its last whole prefix, and the rest costs nothing."""
    monkeypatch.setattr(params, "LEASE_WAIT", 0.2)
    s = place.sidecar(sidecar.Options(slot_size=8192, give_slots=20))
    s.plan(T, plan(8))
    assert rig.link.wait_up(5)
    r = rig.request(T, 8 * BLOCK)
    begin = time.monotonic()
    run(r, 8 * BLOCK, BLOCK)
    took = time.monotonic() - begin
    t = s.wait(T, 10)
    assert 0.1 < took < 1.5
    whole = t.ended[0].tokens // BLOCK
    assert 0 < whole < 8
    check(t, whole)
    assert t.ended[0].wait_ns >= 0.1e9


def test_a_mute_sidecar_blocks_for_a_bound_only(place: Where, rig: Rig) -> None:
    s = place.sidecar(sidecar.Options(mute=True))
    s.plan(T, plan(4))
    assert rig.link.wait_up(5)
    begin = time.monotonic()
    r = rig.request(T, 4 * BLOCK, budget=0.3)
    run(r, 4 * BLOCK, 10)
    assert 0.25 < time.monotonic() - begin < 0.8
    assert r.state is State.OVER


def test_the_sidecar_seals(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(6))
    assert rig.link.wait_up(5)
    r = rig.request(T, 6 * BLOCK)
    step(r, 0, 2 * BLOCK, 6 * BLOCK)
    s.seal(T, 3)
    deadline = time.monotonic() + 5
    while r.sealed != 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    step(r, 2 * BLOCK, 4 * BLOCK, 6 * BLOCK)
    r.end(6 * BLOCK)
    t = s.wait(T, 10)
    check(t, 3)
    assert t.ended[0].tokens == 3 * BLOCK
    assert sorted(t.blocks) == [0, 1, 2]


def test_the_engine_gives_up(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(6))
    assert rig.link.wait_up(5)
    r = rig.request(T, 6 * BLOCK)
    step(r, 0, 2 * BLOCK, 6 * BLOCK)
    r.abort("the client went away")
    t = s.wait(T, 10)
    assert t.aborted == ["the client went away"]
    check(t, 2)
    time.sleep(0.2)
    s.kill()
    assert all(s.memory.state(i)[0] != sidecar.LEASED for i in range(s.memory.slots))


def test_the_sidecar_gives_up(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    s.plan(T, plan(6))
    assert rig.link.wait_up(5)
    r = rig.request(T, 6 * BLOCK)
    step(r, 0, BLOCK, 6 * BLOCK)
    for c in s._conns:
        for handle, q in c.requests.items():
            c.send(wire.Abort(int(wire.Code.OVER), handle, ""))
            q.over = True
    deadline = time.monotonic() + 5
    while r.state is State.LIVE and time.monotonic() < deadline:
        time.sleep(0.01)
    step(r, BLOCK, 5 * BLOCK, 6 * BLOCK)
    r.end(6 * BLOCK)
    assert r.state is State.OVER
    assert "ended or was cancelled" in r.why
    time.sleep(0.2)
    assert all(s.memory.state(i)[0] != sidecar.LEASED for i in range(s.memory.slots))


def test_a_restarted_sidecar_gets_what_it_missed(place: Where, rig: Rig) -> None:
    """The sidecar dies with slots leased, committed and not read; the next one makes the transfer whole."""
    first = place.sidecar(sidecar.Options(slot_size=8192, slots=32))
    t = first.plan(T, plan(8))
    assert rig.link.wait_up(5)
    r = rig.request(T, 8 * BLOCK)
    step(r, 0, 3 * BLOCK, 8 * BLOCK)
    time.sleep(0.1)
    first.options.mute = True  # it reads no more: what is committed now is found by the next
    worker = threading.Thread(target=lambda: step(r, 3 * BLOCK, 20, 8 * BLOCK))
    worker.start()
    time.sleep(0.3)
    first.kill()
    second = place.sidecar(sidecar.Options(), after=first)
    worker.join(10)
    assert not worker.is_alive()
    step(r, 3 * BLOCK + 20, 5 * BLOCK - 20, 8 * BLOCK)
    r.end(8 * BLOCK)
    check(second.wait(T, 10))
    assert len(t.begins) == 2
    assert second.hellos[0].code == wire.HELLO_RING
    time.sleep(0.2)
    assert all(second.memory.state(i)[0] != sidecar.LEASED for i in range(second.memory.slots))


def test_an_end_that_got_lost_is_said_again(place: Where, rig: Rig) -> None:
    first = place.sidecar()
    t = first.plan(T, plan(2))
    assert rig.link.wait_up(5)
    r = rig.request(T, 2 * BLOCK)
    step(r, 0, BLOCK, 2 * BLOCK)
    time.sleep(0.1)
    step(r, BLOCK, BLOCK - 1, 2 * BLOCK)
    time.sleep(0.1)
    first.options.deaf = True
    step(r, 2 * BLOCK - 1, 1, 2 * BLOCK)
    r.end(2 * BLOCK)
    time.sleep(0.1)
    first.kill()
    second = place.sidecar(sidecar.Options(), after=first)
    check(second.wait(T, 10))
    assert t.ended[0].tokens == 2 * BLOCK


def test_another_ring_ends_what_was_open(place: Where, rig: Rig) -> None:
    first = place.sidecar()
    first.plan(T, plan(4))
    assert rig.link.wait_up(5)
    r = rig.request(T, 4 * BLOCK)
    step(r, 0, BLOCK, 4 * BLOCK)
    first.kill()
    second = place.sidecar()
    second.plan(T, plan(4))
    deadline = time.monotonic() + 5
    while r.state is not State.OVER and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "another ring" in r.why
    run(rig.request(T, 4 * BLOCK), 4 * BLOCK, 64)  # the next prompt is as good as any
    check(second.wait(T, 10))


def test_descriptors_do_not_pile_up(place: Where, rig: Rig) -> None:
    s = place.sidecar()
    assert rig.link.wait_up(5)
    before = None
    for _ in range(6):
        s.kill()
        s = place.sidecar(after=s)
        assert rig.link.wait_up(5)
        deadline = time.monotonic() + 5
        while not s.hellos and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1)
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
    deadline = time.monotonic() + 5
    words = {
        "unsealed": "not sealed",
        "wrong size": "cannot be",
        "refuse": "full",
        "silence": "closed",
        "nonsense": "packet",
    }[what]
    while words not in rig.link.refused and time.monotonic() < deadline:
        time.sleep(0.02)
    assert words in rig.link.refused
    r = rig.request(T, 10)
    assert not r.live


def test_slots_come_back_from_a_request_that_ended_without_a_sidecar(place: Where, rig: Rig) -> None:
    """Leases held while the sidecar was away are returned to the one that has the ring then."""
    first = place.sidecar(sidecar.Options(slots=4, slot_size=8192))
    first.plan(T, plan(8))
    assert rig.link.wait_up(5)
    r = rig.request(T, 8 * BLOCK)
    step(r, 0, BLOCK, 8 * BLOCK)
    r.expect(BLOCK, 4 * BLOCK, range(LAYERS), 2 * HEADS * RUN)
    a, e = r.span(BLOCK, 4 * BLOCK, 0)
    p = r.place(0, ArrayId.K, RUN, 0)
    assert p is not None
    r.put(PieceCutter(p, HEADS, a, e - a), filler(rows_of(0, 0, 8 * BLOCK)[a:e], a))
    time.sleep(0.1)
    first.kill()
    leased = [i for i in range(4) if first.memory.state(i)[0] == sidecar.LEASED]
    assert leased, "no lease was held: the test tests less than it says"
    r.abort("the engine's request ended early")
    memory, deadline = place.sidecar(after=first).memory, time.monotonic() + 5
    while (left := sum(memory.state(i)[0] == sidecar.LEASED for i in range(4))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == 0


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
    assert rig.link.wait_up(5)
    r = rig.request(T, 4 * BLOCK)
    run(r, 4 * BLOCK, 64)
    assert r.state is State.OVER
    assert s.wait(T, 5).aborted == t.aborted == ["the sidecar wants what cannot be"]
