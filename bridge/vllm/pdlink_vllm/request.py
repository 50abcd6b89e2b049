"""One prompt's way into slots: asks for leases, fills them in order, commits them, and ends."""

from __future__ import annotations

import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pdlink_vllm import params, wire
from pdlink_vllm.filling import At, Fill, Later, Make, Open, Part
from pdlink_vllm.link import Given, Link, Slot, poll_until
from pdlink_vllm.offer import Layouts, Offer, Times
from pdlink_vllm.packing import Cutter, Place, Space
from pdlink_vllm.projection.abi import ProjectionError
from pdlink_vllm.wire import ArrayId, Code, Kind, Message, Mode


class State(enum.Enum):
    """Life of a request."""

    BEGINNING = 1  # BEGIN was said
    LIVE = 2  # BEGUN came
    ENDED = 3  # we said END
    OVER = 4  # nothing more will come of it, whoever decided that


class Request:
    """A prompt at the sidecar. The engine's thread calls begin to end; the link calls the rest. Nothing raises because
    of the sidecar: a request that cannot go on is OVER, its reason in `why`, and takes everything that is put into it
    for nothing.
    """

    def __init__(self, link: Link, layouts: Layouts, offer: Offer, later: Later | None, log: logging.Logger) -> None:
        """later is None where copies are complete when a Fill returns."""
        self._link, self._layouts, self.offer, self._later, self._log = link, layouts, offer, later, log
        self.transfer, self.handle = offer.transfer, 0
        self.state, self.why = State.BEGINNING, ""
        self.begun = wire.Begun()
        self.sealed = wire.NOT_SEALED
        self.times = Times()
        self.ended_at = 0.0
        self._arrays: dict[tuple[int, int], wire.Array] = {}
        self._wanted_arrays = 0
        self._free: deque[Slot] = deque()
        self._asked: dict[int, int] = {}  # seq of a LEASE without an answer, and its block
        self._open: Open | None = None
        self._step: tuple[int, int, tuple[int, ...], int] = (0, 0, (), 0)  # see expect
        self._put_bytes = 0  # of the step
        self._full: list[Open] = []  # slots that take no more, and are not handed over yet
        self._filling: list[Slot] = []  # slots that a device still fills
        self._reclaimed: list[Given] = []  # slots that wait for BEGUN after a restart
        self._end: wire.End | None = None
        self._budget = offer.budget

    # The engine's thread.

    def begin(self) -> None:
        """Say BEGIN. The answer is waited for when it is first needed."""
        with self._link.changed:
            self.handle = self._link.enter(self)
            if not self._begin():
                self._over(f"no sidecar: {self._link.refused or 'not connected yet'}")

    @property
    def live(self) -> bool:
        """Wait for BEGUN if need be and return whether rows are wanted at all."""
        if self.state is State.BEGINNING:
            self._wait(lambda: self.state is not State.BEGINNING, "the sidecar did not answer BEGIN in time")
        return self.state is State.LIVE

    def span(self, first: int, tokens: int, layer: int) -> tuple[int, int]:
        """Return the part [a, b) of the prompt's tokens [first, first + tokens) whose rows of a layer are wanted."""
        a, e = first, min(first + tokens, self.reach(layer))
        a = max(a, self.begun.from_token)
        return (a, e) if a < e else (0, 0)

    def reach(self, layer: int) -> int:
        """Return the token up to which rows of a layer are wanted; 0 where none are."""
        live, b = self.live, self.begun
        if not live or not b.layer_first <= layer < b.layer_end:
            return 0
        end = min(b.blocks, self.sealed) * b.block_tokens
        return end if b.from_token < end else 0

    def place(self, layer: int, array: ArrayId, run: int, first_head: int) -> Place | None:
        """Return where a layer's keys or values lie in a block; None, and the request over, if that does not fit."""
        a = self._arrays.get((layer, array))
        if a is None or a.row_bytes != run or a.dtype != self.offer.dtype:
            self.abort(f"layer {layer}: the plan's array does not fit what the engine has")
            return None
        return Place(a.offset, run, self.begun.block_tokens, first_head)

    def expect(self, first: int, tokens: int, layers: Iterable[int], token_bytes: int) -> None:
        """Say what the coming step has: token_bytes of each token and layer. Slots are asked for ahead only for what is
        sure to be put: one that does not come seals the transfer.
        """
        self._step = (first, tokens, tuple(layers), token_bytes)
        self._put_bytes = 0

    def put(self, cutter: Cutter, fill: Fill) -> None:
        """Cut rows into slots and have them filled. Waits for slots, all in all no longer than the request's budget."""
        begin, waited = time.perf_counter_ns(), self.times.wait
        try:
            self._put(cutter, fill)
        finally:
            self.times.capture += time.perf_counter_ns() - begin - (self.times.wait - waited)

    def _put(self, cutter: Cutter, fill: Fill) -> None:
        while (block := cutter.block) is not None and block < self.sealed and self.live:
            opened = self._room(block)
            if opened is None:
                return
            room = opened.slot.room
            cut = cutter.next(Space(room - opened.used, params.MAX_ENTRIES - len(opened.entries), room))
            if cut is None:
                if not opened.entries:
                    self.abort(f"a slot of {room} bytes is too small for one row")
                    return
                self.flush()
                continue
            done = fill(opened.slot.ring, opened.slot.ring.data_at(opened.slot.index) + opened.used, cut)
            if done is not None:
                opened.dones.append(done)
            opened.used += cut.bytes
            opened.entries.extend(cut.entries)
            self._put_bytes += cut.bytes
            if opened.used == room or len(opened.entries) == params.MAX_ENTRIES:
                self.flush()

    @property
    def arrays(self) -> Mapping[tuple[int, int], wire.Array]:
        """The plan's places of arrays, by layer and array; of a live request in mode pieces."""
        return self._arrays

    def put_parts(self, parts: Sequence[Part], make: Make) -> None:
        """Have parts of blocks made, in order, in as few calls of make as there are slots for: each is given the places
        of the parts that come next. A part lies in one slot. Waits as put does. What make raises ends in slots that are
        not committed; they are given back once nothing that it began writes to them.
        """
        begin, waited = time.perf_counter_ns(), self.times.wait
        try:
            at = 0
            while at < len(parts) and self.live:
                at += self._make_some(parts[at:], make)
        finally:
            self.times.capture += time.perf_counter_ns() - begin - (self.times.wait - waited)

    def _make_some(self, parts: Sequence[Part], make: Make) -> int:
        """Find places for the first parts, as many as slots are there for, and have those made. Returns how many."""
        places: list[At] = []
        touched: list[Open] = []
        for part in parts:
            opened = self._place_of(part, wait=not touched)
            if opened is None and touched and self._wanted(part):
                break  # the slots at hand go out first: some may be all that we can have
            if opened is None:
                places.append(None)
                continue
            places.append((opened.slot.ring, opened.slot.ring.data_at(opened.slot.index) + opened.used))
            opened.used += part.bytes
            opened.entries.extend(part.entries)
            self._put_bytes += part.bytes
            if not touched or touched[-1] is not opened:
                touched.append(opened)
        done = None
        try:
            done = make(places)
        except BaseException as e:
            for opened in touched:
                opened.entries.clear()  # nothing there counts, but it may still be written to
            done = e.pending if isinstance(e, ProjectionError) else None
            raise
        finally:
            for opened in touched:
                if done is not None:
                    opened.dones.append(done)
                if opened is not self._open:
                    self._hand_over(opened)
        return len(places)

    def _wanted(self, part: Part) -> bool:
        return bool(part.entries) and part.block < self.sealed and self.live

    def _place_of(self, part: Part, wait: bool) -> Open | None:
        """Return the open slot with room for a part, another one if need be; None where there is none, or no need."""
        if not self._wanted(part):
            return None
        opened = self._open
        if opened is not None:
            room, entries = opened.slot.room - opened.used, params.MAX_ENTRIES - len(opened.entries)
            if part.bytes <= room and len(part.entries) <= entries:
                return opened
            if not wait and not self._free:
                return None
            if wait:
                self.flush()
            else:
                self._close()
        elif not wait and not self._free:
            return None
        opened = self._room(part.block)
        if opened is not None and part.bytes > opened.slot.room:
            self.abort(f"a slot of {opened.slot.room} bytes is too small for a block's {part.bytes} of one layer")
            return None
        return opened

    def flush(self) -> None:
        """Commit what lies in the open slot. At the end of a step at the latest, so that nothing waits for the next."""
        opened = self._close()
        if opened is not None:
            self._hand_over(opened)

    def _close(self) -> Open | None:
        """Put nothing more into the open slot. It stays the request's until it is handed over."""
        with self._link.changed:
            opened, self._open = self._open, None
            if opened is not None:
                self._full.append(opened)
            return opened

    def _hand_over(self, opened: Open) -> None:
        with self._link.changed:
            self._full = [o for o in self._full if o is not opened]
            counts = self.state in (State.BEGINNING, State.LIVE) and bool(opened.entries)
            if not counts and (self._later is None or not opened.dones):
                self._link.give_back(opened.slot, self.handle)
                return
            if counts:
                opened.slot.ring.list_entries(opened.slot.index, opened.entries)
            if self._later is None or not opened.dones:
                self._commit(opened)
                return
            self._filling.append(opened.slot)
        self._later(lambda: self._commit_later(opened))

    def end(self, tokens: int) -> None:
        """Say that the prompt's first tokens were handed over, as far as they were wanted, and nothing will follow."""
        if not self.live:
            return
        self.flush()
        with self._link.changed:
            if self.state is not State.LIVE:
                return
            if self.sealed != wire.NOT_SEALED:
                tokens = min(tokens, self.sealed * self.begun.block_tokens)
            self._end = wire.End(tokens=tokens, capture_ns=self.times.capture, wait_ns=self.times.wait)
            self.ended_at = time.monotonic()
            self._say_end()

    def abort(self, why: str) -> None:
        """End the request early. What was committed stays."""
        self._give_up(why)
        self.flush()

    def expired(self) -> bool:
        """Whether the request can be forgotten: nobody will ask for it again."""
        if self._end is not None and self.state is not State.OVER:
            return time.monotonic() - self.ended_at > params.END_MEMORY
        return self.state is State.OVER and self._open is None and not self._filling

    def forget(self) -> None:
        """Take the request out of the link's books."""
        with self._link.changed:
            self._link.leave(self.handle)

    # Inside.

    def _begin(self) -> bool:
        layout = self._layouts.latest if self.offer.mode is Mode.PIECES else 0
        return self._link.send(self.offer.begin(self.handle, layout))

    def _give_up(self, why: str) -> None:
        """End the request early, from any thread."""
        with self._link.changed:
            if self.state not in (State.ENDED, State.OVER):
                self._link.send(wire.Abort(0, self.handle, why))
                self._over(why)

    def _say_end(self) -> None:
        """Say END if it is time: all is committed, and the sidecar listens. The lock is held."""
        if self._end is None or self._filling or self.state is not State.LIVE:
            return
        self._release()
        self.state = State.ENDED
        self._link.send(replace(self._end, handle=self.handle))

    def _commit(self, opened: Open) -> None:
        """The lock is held. Between BEGIN and BEGUN of a restarted sidecar the slot is only kept: BEGUN sends it."""
        self._link.commit(opened.slot, self.handle, len(opened.entries), opened.used, now=self.state is State.LIVE)

    def _wait(self, ready: Callable[[], bool], why: str) -> bool:
        """Wait within the budget. When it is spent the request is over."""
        ok, took = poll_until(self._link, ready, self._budget)
        self._budget -= took
        self.times.wait += int(took * 1e9)
        if not ok and self.state in (State.BEGINNING, State.LIVE):
            self.abort(why)
        return ok

    def _room(self, block: int) -> Open | None:
        """Return the open slot, or open one; None when data of this block is to be dropped."""
        while self._open is None:
            with self._link.changed:
                if self.state not in (State.BEGINNING, State.LIVE) or block >= self.sealed:
                    return None
                if self._free:
                    self._open = Open(self._free.popleft())
                self._ask(least=self._open is None)
                if self._open is not None:
                    break
            if not self._wait(lambda: self._answered(block), "no slot came in time"):
                return None
        return self._open

    def _answered(self, block: int) -> bool:
        """Whether _room has something to do. The lock is held."""
        if self._free or block >= self.sealed or self.state not in (State.BEGINNING, State.LIVE):
            return True
        return self.state is State.LIVE and self._link.up and not self._asked and self._spare() > 0

    def _spare(self) -> int:
        """How many slots more may be asked for: one that a device fills is still held. The lock is held."""
        held = len(self._free) + len(self._asked) + len(self._full) + len(self._filling) + (self._open is not None)
        return max(1, self.begun.max_leases) - held

    def _ask(self, least: int = 0) -> None:
        """Ask for as many slots as the step will surely fill, and for one where there is none; for no fewer than least,
        which are there or under way already. The lock is held.

        A later layer brings the step's first block again: that is the block to ask for, and where the transfer is
        sealed if a slot does not come. No later block can become whole then anyway.
        """
        ring = self._link.ring
        if ring is None or self.state is not State.LIVE:
            return
        most = min(params.LEASES_AHEAD, max(1, self.begun.max_leases))
        first, tokens, layers, token_bytes = self._step
        spans = [self.span(first, tokens, layer) for layer in layers]
        left = sum(end - start for start, end in spans) * token_bytes - self._put_bytes
        room = ring.geometry.room
        if self._open is not None:
            left -= self._open.slot.room - self._open.used
        need = max(left // room, 0 if self._open is not None or left <= 0 else 1, least)
        have = len(self._free) + len(self._asked)
        block = max(first, self.begun.from_token) // self.begun.block_tokens
        wait_ms = int(params.LEASE_WAIT * 1000)
        for _ in range(min(min(most - (self._open is not None), need) - have, self._spare())):
            seq = self._link.next_seq()
            if not self._link.send(wire.Lease(handle=self.handle, seq=seq, block=block, wait_ms=wait_ms)):
                return
            self._asked[seq] = block

    def _commit_later(self, opened: Open) -> None:
        """Runs beside the engine's thread."""
        try:
            good = not [d for d in opened.dones if not d.wait(params.DEVICE_WAIT)]  # all: none may still write
        finally:
            opened.dones.clear()  # what they keep is free, though whoever runs this may remember it
        with self._link.changed:
            self._filling.remove(opened.slot)
            self._link.changed.notify_all()  # who waits for a slot may ask for one now
            if good and opened.entries and self.state in (State.BEGINNING, State.LIVE):
                self._commit(opened)
                self._say_end()
                return
            self._link.give_back(opened.slot, self.handle)
        if not good:
            self._give_up("the device did not deliver the rows that were asked for")

    def _release(self) -> None:
        """Return leases that were not filled. The lock is held."""
        while self._free:
            self._link.give_back(self._free.popleft(), self.handle)
        self._asked.clear()

    def _over(self, why: str) -> None:
        """The lock is held. The open slot is the engine's thread's: its next flush returns it."""
        if self.state is State.OVER:
            return
        self.state, self.why = State.OVER, why
        self._release()
        self._link.leave(self.handle)
        self._link.changed.notify_all()
        level = logging.WARNING if self._end is None else logging.DEBUG
        self._log.log(level, "pdlink: transfer %s is over: %s", self.transfer.hex(), why)

    # The link, with its lock held.

    def received(self, m: Message) -> None:
        """See Peer."""
        if isinstance(m, wire.Begun):
            self._begun(m)
        elif isinstance(m, wire.Array):
            self._array(m)
        elif isinstance(m, wire.Leased):
            self._leased(m)
        elif isinstance(m, wire.Sealed):
            self.sealed = min(self.sealed, m.sealed)
        elif isinstance(m, wire.Abort) and self.state is not State.ENDED:
            self._over(f"the sidecar: {m.text or Code(m.code).meaning}")

    def _begun(self, m: wire.Begun) -> None:
        if self.state is not State.BEGINNING:
            return
        if m.code != Code.OK:
            self._over(Code(m.code).meaning)
            return
        if self.offer.mode is Mode.ROWS:
            m = replace(m, layout=0, arrays=0)
        if not (
            1 <= m.blocks <= params.MAX_BLOCKS
            and m.block_tokens >= 1
            and m.arrays <= params.MAX_ARRAYS
            and m.kind in tuple(Kind)
        ):
            self._give_up("the sidecar wants what cannot be")
            return
        self.begun, self._wanted_arrays = m, m.arrays
        if m.arrays:
            self._arrays = {}
        elif self.offer.mode is Mode.PIECES:
            self._arrays = self._layouts.known.get(m.layout, {})
        self._go_live()

    def _array(self, m: wire.Array) -> None:
        if self.state is not State.BEGINNING or self._wanted_arrays == 0:
            return
        self._arrays[m.layer, m.array] = m
        self._wanted_arrays -= 1
        if self._wanted_arrays == 0:
            self._layouts.keep(self.begun.layout, self._arrays)
            self._go_live()

    def _go_live(self) -> None:
        """The request goes on once all places are known."""
        if self._wanted_arrays:
            return
        self.state = State.LIVE
        for given in self._reclaimed:
            self._commit_again(given)
        self._reclaimed = []
        self._ask()
        self._say_end()
        self._link.changed.notify_all()

    def _leased(self, m: wire.Leased) -> None:
        asked = self._asked.pop(m.seq, None)
        if m.code != Code.OK:
            if m.sealed == wire.NOT_SEALED and asked is not None:
                self.sealed = min(self.sealed, asked)  # no word of where: then from what was asked for on
            self.sealed = min(self.sealed, m.sealed)
            return
        slot = self._link.granted(m, self.transfer)
        if slot is None:
            return
        if asked is None or self.state is not State.LIVE:
            self._link.give_back(slot, self.handle)
        else:
            self._free.append(slot)

    def lost(self, why: str) -> None:
        """See Peer."""
        if self.state in (State.BEGINNING, State.LIVE):
            self._free.clear()
            self._asked.clear()
            self._over(why)

    def again(self) -> bool:
        """See Peer."""
        if self.state is State.OVER or self.expired():
            return False
        self.state = State.BEGINNING
        self._free.clear()
        self._asked.clear()
        self._reclaimed = []
        self.handle = self._link.enter(self)
        self._begin()  # where that fails, the next connection calls again
        return True

    def reclaimed(self, given: Given) -> None:
        """See Peer. BEGUN has not come yet, or has."""
        if self.state is State.BEGINNING:
            self._reclaimed.append(given)
        else:
            self._commit_again(given)

    def _commit_again(self, given: Given) -> None:
        c = given.committed
        if c is not None:
            self._link.commit(given.slot, self.handle, c.entries, c.payload)
        elif not self._fills(given.slot):
            self._link.give_back(given.slot, self.handle)

    def _fills(self, slot: Slot) -> bool:
        """Whether a slot is being filled, or will be handed over."""
        return slot in self._filling or any(slot is o.slot for o in (*self._full, self._open) if o is not None)
