"""Slots of a projection's call that failed: they are the device's until it writes no more."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import sidecar
from conftest import Place
from pdlink_vllm.filling import At, Done
from pdlink_vllm.offer import Offer
from pdlink_vllm.projection.abi import ProjectionError
from pdlink_vllm.request import Request
from pdlink_vllm.wire import DType, Entry, Mode, Piece
from rig import BLOCK, Rig, log, plan

T = bytes(range(16))


@dataclass(frozen=True)
class Part:
    """See filling."""

    block: int
    entries: tuple[Entry, ...]
    bytes: int


class Wait:
    """Something to wait for, which ends as the test says."""

    def __init__(self, good: bool) -> None:
        """Nobody waited."""
        self.good, self.waited = good, 0

    def wait(self, seconds: float) -> bool:
        """Count."""
        self.waited += 1
        return self.good


@pytest.fixture
def rig(place: Place) -> Iterator[Rig]:
    """A link without a sidecar yet."""
    r = Rig(place.path)
    yield r
    r.close()


@pytest.mark.parametrize("good", [True, False])
def test_slots_of_a_failed_call_are_held(place: Place, rig: Rig, good: bool) -> None:
    """Also where an earlier call into the same slot ended badly."""
    s = place.sidecar(sidecar.Options())
    s.plan(T, plan(2))
    assert rig.link.wait_up(sidecar.LIMIT)
    jobs: list[Callable[[], None]] = []
    offer = Offer(T, 2 * BLOCK, 0, Mode.PIECES, DType.BF16, 0, sidecar.LIMIT)
    r = Request(rig.link, rig.layouts, offer, jobs.append, log)
    r.begin()
    earlier, pending = Wait(good), Wait(good)

    def works(places: list[At]) -> Done:
        return earlier

    def fails(places: list[At]) -> Done:
        e = ProjectionError("no")
        e.pending = pending
        raise e

    parts = [Part(0, (Piece(block=0, offset=0, length=64),), 64)]
    r.put_parts(parts, works)
    with pytest.raises(ProjectionError):
        r.put_parts(parts, fails)
    r.abort("the call failed")
    s.until(lambda: bool(s.transfers[T].aborted))
    assert s.leased(), "given back while it may be written to"
    assert (len(jobs), earlier.waited, pending.waited) == (1, 0, 0)
    jobs[0]()
    assert (earlier.waited, pending.waited) == (1, 1)
    s.until(lambda: not s.leased())
    assert s.transfers[T].blocks == {}


def test_nothing_is_kept_for_a_slot_that_was_waited_for(place: Place, rig: Rig) -> None:
    """What a slot waited for may keep a handle of the device, which goes with it; also if the job is remembered."""
    s = place.sidecar(sidecar.Options())
    s.plan(T, plan(2))
    assert rig.link.wait_up(sidecar.LIMIT)
    jobs: list[Callable[[], None]] = []
    offer = Offer(T, 2 * BLOCK, 0, Mode.PIECES, DType.BF16, 0, sidecar.LIMIT)
    r = Request(rig.link, rig.layouts, offer, jobs.append, log)
    r.begin()
    alive: list[weakref.ref[Wait]] = []

    def works(places: list[At]) -> Done:
        done = Wait(True)
        alive.append(weakref.ref(done))
        return done

    r.put_parts([Part(0, (Piece(block=0, offset=0, length=64),), 64)], works)
    r.flush()
    assert (len(jobs), len(alive)) == (1, 1)
    assert alive[0]() is not None
    jobs[0]()
    assert alive[0]() is None
    r.abort("enough")
