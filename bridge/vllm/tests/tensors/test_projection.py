"""A worker that projects: steps in, the decoder's blocks out, with a stand-in for libpdproj."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fakeproj
import numpy as np
import pytest
import sidecar
import torch
from conftest import Place
from held import Held
from pdlink_vllm import params, request, wire
from pdlink_vllm.capture import Active
from pdlink_vllm.device import Cpu
from pdlink_vllm.engine import Source
from pdlink_vllm.link import Link, poll_until
from pdlink_vllm.projection.maker import Maker, Options
from pdlink_vllm.projection.shape import Key, Shape
from pdlink_vllm.wire import Mode, What
from pdlink_vllm.worker import Worker
from steps import Prompts, model, planned, tid

log = logging.getLogger("test")


@pytest.fixture
def link(place: Place) -> Iterator[Link]:
    made = Link(str(place.path), wire.Hello(layer_end=5), log)  # of no model here there are more layers
    made.start()
    yield made
    made.close()


class Cpu4:
    """A worker of the stand-in's model, with a maker of it."""

    def __init__(
        self,
        folder: Path,
        link: Link,
        ready: bool = True,
        device: Cpu | None = None,
        budget: float = sidecar.LIMIT,
        **changes: Any,
    ) -> None:
        """Wait for the handle where ready."""
        self.lib = fakeproj.Library()
        path, digest = fakeproj.weights(folder)
        o = {"block_tokens": 256, "tokens": 300, "requests": 2, **changes}
        options = Options(folder / "lib", path, digest, 0, layers=(0, 4), rank=0, ranks=1, hidden=64, **o)
        self.maker = Maker(options, log, self.lib)
        assert not ready or self.maker.wait(30)
        self.worker = Worker(link, model(64, 4), Source.INPUT, device or Cpu(), log, budget, self.maker)
        self.prompts = Prompts(self.worker, "cpu")

    def prompt(self, name: str, tokens: int) -> np.ndarray:
        """Random input; returned as bf16 patterns [layers, tokens, hidden]."""
        x = [torch.randn(tokens, 64).to(torch.bfloat16) for _ in range(4)]
        self.prompts.prompt(name, x)
        return np.stack([t.view(torch.int16).numpy().view("<u2") for t in x])


SHAPE = Shape(fakeproj.GEOMETRY, Key(256, 0, 4))


def right(t: sidecar.Transfer, shape: Shape, x: np.ndarray) -> None:
    assert t.missing() == []
    places, _ = fakeproj.places(shape)
    for b, data in t.blocks.items():
        for layer in range(shape.key.first, shape.key.end):
            for array, want in fakeproj.block(shape, layer, b, x[layer]).items():
                p = places[layer, array]
                assert bytes(data[p.offset : p.offset + p.size]) == want, (b, layer, array)


STEPS = [
    [("a", 0, 200), ("x", 0, 30)],
    [("x", 30, 31), ("a", 200, 201), ("b", 0, 513)],
    [("a", 201, 900), ("x", 31, 32)],
    [("b", 513, 600), ("x", 32, 33), ("a", 900, 1100)],
]


@pytest.mark.parametrize("slots", [(64, 64 << 10), (4, 64 << 10), (8, 36 << 10)], ids=["many", "few", "small"])
def test_blocks_are_made_here(place: Place, link: Link, tmp_path: Path, slots: tuple[int, int]) -> None:
    """Whatever chunks and slots there are; few slots mean more calls, not other bytes."""
    s = place.sidecar(sidecar.Options(slots=slots[0], slot_size=slots[1], max_leases=2 if slots[0] == 4 else 4))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    a, b, _ = e.prompt("a", 1100), e.prompt("b", 600), e.prompt("x", 40)
    ta, tb = planned(s, "a", SHAPE, 4), planned(s, "b", SHAPE, 2)
    for parts in STEPS:
        e.prompts.step(parts, {"a", "b"})
    s.wait(tid("a"))
    s.wait(tid("b"))
    assert not ta.aborted + tb.aborted
    assert ta.begins[0].mode == Mode.PIECES
    assert ta.ended[0].tokens == 1100
    right(ta, SHAPE, a)
    right(tb, SHAPE, b)
    assert e.lib.open == 0
    e.worker.close()
    assert (e.lib.created, e.lib.destroyed) == (1, 1)


def test_a_late_begun_loses_no_row(place: Place, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 0 of the first chunk, which is the whole prompt, is at its hook before the sidecar has answered BEGIN."""
    waits = threading.Event()

    def waiting(*args: Any) -> tuple[bool, float]:
        waits.set()
        return poll_until(*args)

    monkeypatch.setattr(request, "poll_until", waiting)
    s = place.sidecar(sidecar.Options(hold_begins=True, slots=16, slot_size=64 << 10))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    x, t = e.prompt("a", 1100), planned(s, "a", SHAPE, 4)
    step = threading.Thread(target=e.prompts.step, args=([("a", 0, 1100)],))
    step.start()
    assert waits.wait(sidecar.LIMIT)
    s.until(lambda: len(t.begins) == 1)
    assert (t.commits, e.lib.rows, step.is_alive()) == (0, 0, True)
    s.let_begin()
    step.join(sidecar.LIMIT)
    s.wait(tid("a"))
    assert (t.begins[0].mode, t.ended[0].tokens, t.aborted) == (Mode.PIECES, 1100, [])
    right(t, SHAPE, x)
    e.worker.close()


WHOLE, ODD, TO_THE_ROW = [0, 1100], [0, 1, 254, 515, 700, 1023, 1100], [0, 252, 256, 508, 511, 512, 513, 768, 1100]


@pytest.mark.parametrize("held", [256, 512, 768])
@pytest.mark.parametrize("cuts", [WHOLE, ODD, TO_THE_ROW], ids=["whole", "odd", "to the row"])
def test_a_prefix_that_the_decoder_holds(place: Place, link: Link, tmp_path: Path, held: int, cuts: list[int]) -> None:
    """The engine computes a prompt from its start, the decoder wants blocks from a later one on: those are whole and
    right, no byte of an earlier one is sent, and of the prefix no more is projected than the first pooled row needs.
    """
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    x = e.prompt("a", 1100)
    t = planned(s, "a", SHAPE, 4, held=held)
    for at, end in itertools.pairwise(cuts):
        e.prompts.step([("a", at, end)])
    s.wait(tid("a"))
    assert t.aborted == []
    assert t.begins[0].mode == Mode.PIECES
    assert sorted(t.blocks) == list(range(held // 256, 4))
    right(t, SHAPE, x)
    assert e.lib.rows == 2 * (1024 - held) + 2 * (1024 - held + 256)
    e.worker.close()
    assert e.lib.open == 0


def test_all_that_the_decoder_holds(place: Place, link: Link, tmp_path: Path) -> None:
    """Nothing is wanted, nothing is projected, and the transfer ends as it should."""
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    e.prompt("a", 600)
    t = planned(s, "a", SHAPE, 2, held=512)
    for at, end in ((0, 512), (512, 600)):
        e.prompts.step([("a", at, end)])
    s.wait(tid("a"))
    assert (t.aborted, t.blocks, e.lib.rows) == ([], {}, 0)
    assert t.ended[0].tokens == 600
    e.worker.close()


def test_rows_that_were_wrong_once(place: Place, link: Link, tmp_path: Path) -> None:
    """On a device it shows late whether rows were the right ones: what is carried on from wrong ones never counts."""
    place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    e.prompt("a", 600)
    layer, device = e.worker.model.layers[1], SimpleNamespace(is_cuda=True)
    carry = e.maker.open()
    assert carry is not None
    found = []
    for at, end, wrong in ((0, 2, False), (2, 4, True), (4, 500, False)):
        chunk = e.prompts._chunk("a", at, end)
        mapping = e.prompts._slots("a", at, end) + wrong
        a = Active(chunk, cast("Any", None), carry=carry)
        index, check = e.worker.capture._trusted(a, carry, layer, device, mapping)
        assert len(index) == end - at
        assert e.worker.capture._trusted(a, carry, layer, device, mapping)[1] is check, "one for each step and group"
        found.append(bool(check))
    assert found == [True, False, False]
    carry.close()
    e.worker.close()


def test_slots_that_a_device_fills_are_held(place: Place, link: Link, tmp_path: Path) -> None:
    """Slots that are not committed yet count as leases: the sidecar takes more than it allows for a breach."""
    s = place.sidecar(sidecar.Options(slots=4, slot_size=36 << 10, max_leases=2))
    assert link.wait_up(sidecar.LIMIT)
    device = Held()
    e = Cpu4(tmp_path, link, device=device)
    a = e.prompt("a", 1024)
    t = planned(s, "a", SHAPE, 4)
    for at in (0, 300, 812):
        e.prompts.step([("a", at, min(1024, at + 512 if at else 300))])
    device.release()
    s.wait(tid("a"))
    assert t.aborted == []
    right(t, SHAPE, a)
    e.worker.close()


def test_slots_that_wait_keep_the_handle(place: Place, link: Link, tmp_path: Path) -> None:
    """A prompt is over for the engine before its last slots are waited for: they arrive all the same if something else
    is wanted by then.
    """
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(sidecar.LIMIT)
    device, jobs = Cpu(), []
    device.later = jobs.append
    e = Cpu4(tmp_path, link, device=device)
    a, handle = e.prompt("a", 256), e.maker._handle
    t = planned(s, "a", SHAPE, 1)
    e.prompts.step([("a", 0, 256)])
    assert jobs
    assert handle is not None
    assert handle._users > 0, "who waits for the slots does not count"
    assert not e.maker.learn(512, 0, 4)
    while jobs:
        jobs.pop(0)()
    s.wait(tid("a"))
    assert t.aborted == []
    right(t, SHAPE, a)
    assert e.maker.wait(30)
    assert (handle._users, e.lib.created, e.lib.destroyed) == (0, 2, 1)
    e.worker.close()


def test_more_prompts_than_places_stay_rows(place: Place, link: Link, tmp_path: Path) -> None:
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    names = ["a", "b", "c"]
    x = {n: e.prompt(n, 300) for n in names}
    t = {n: planned(s, n, SHAPE, 1) for n in names}
    e.prompts.step([(n, 0, 100) for n in names])
    e.prompts.step([(n, 100, 300) for n in names])
    modes = sorted(int(s.wait(tid(n)).begins[0].mode) for n in names)
    assert modes == [Mode.PIECES, Mode.PIECES, Mode.ROWS]
    for n in names:
        if t[n].begins[0].mode == Mode.PIECES:
            right(t[n], SHAPE, x[n])
        else:
            first, data = t[n].layer_rows(2, What.X)
            assert (first, data) == (0, x[n][2, :256].tobytes())
    e.prompt("d", 256)
    planned(s, "d", SHAPE, 1)
    e.prompts.step([("d", 0, 256)])
    assert s.wait(tid("d")).begins[0].mode == Mode.PIECES, "the places came free"
    e.worker.close()


def test_it_learns_what_the_decoder_has(place: Place, link: Link, tmp_path: Path) -> None:
    """Another block size, and blocks without the window before: one prompt each ends, the next is right."""
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    wanted = Shape(fakeproj.GEOMETRY, Key(512, 0, 4, False))
    for i, why in enumerate(("blocks of 512", "array 4 of layer 1", "")):
        name = f"a{i}"
        x = e.prompt(name, 512)
        t = planned(s, name, wanted, 1, layout=9)
        e.prompts.step([(name, 0, 512)])
        s.wait(tid(name))
        assert [why in text for text in t.aborted] == [True] * bool(why)
        assert e.maker.wait(30)
        if not why:
            right(t, wanted, x)
    e.worker.close()
    assert (e.lib.created, e.lib.destroyed) == (3, 3)


def test_a_slot_too_small_means_rows(place: Place, link: Link, tmp_path: Path) -> None:
    s = place.sidecar(sidecar.Options(slots=64, slot_size=8 << 10))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    e.prompt("a", 256)
    t = planned(s, "a", SHAPE, 1)
    e.prompts.step([("a", 0, 256)])
    assert s.wait(tid("a")).begins[0].mode == Mode.ROWS
    assert t.ended
    e.worker.close()


def test_a_library_that_fails_ends_one_prompt(place: Place, link: Link, tmp_path: Path) -> None:
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link)
    e.prompt("a", 600)
    t = planned(s, "a", SHAPE, 2)
    e.prompts.step([("a", 0, 200)])
    e.lib.fail = 5
    e.prompts.step([("a", 200, 400)])
    e.lib.fail = 0
    s.wait(tid("a"))
    assert "ProjectionError" in t.aborted[0]
    x = e.prompt("b", 256)
    tb = planned(s, "b", SHAPE, 1)
    e.prompts.step([("b", 0, 256)])
    s.wait(tid("b"))
    right(tb, SHAPE, x)
    e.worker.close()
    assert e.lib.open == 0


def test_a_sealed_transfer_and_a_lost_ring(
    place: Place, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(params, "LEASE_WAIT", 0.2)
    s = place.sidecar(sidecar.Options(slots=64, give_slots=1, slot_size=36 << 10))
    assert link.wait_up(sidecar.LIMIT)
    e = Cpu4(tmp_path, link, tokens=512)
    e.prompt("a", 1024)
    t = planned(s, "a", SHAPE, 4)
    for at in (0, 512):
        e.prompts.step([("a", at, at + 512)])
    s.wait(tid("a"))
    assert t.commits <= 1
    assert e.lib.open == 0
    e.worker.close()
