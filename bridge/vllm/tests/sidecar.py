"""A sidecar for tests: speaks the engine socket as its specification says, keeps what comes, fails when it is told to.

Strict where the real one is: what the specification calls a breach is an error here, and ends the test that caused it.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pdlink_vllm import params, wire
from pdlink_vllm.ring import F_ADD_SEALS, F_GET_SEALS, F_SEAL_WRITE, FREE, LEASED, SEALS, TAKEN
from pdlink_vllm.wire import Code, Mode
from plans import Plan as Plan
from plans import Transfer as Transfer
from plans import kv_plan as kv_plan

PAGE = wire.PAGE

# Longest that anything is waited for, in seconds: what comes at all comes in milliseconds on an idle machine.
LIMIT = 60.0


@dataclass
class Options:
    """How the sidecar behaves. Slots beyond give_slots are never granted; of COMMITs, as many as most_commits are
    heard, and nothing that comes after.
    """

    slots: int = 8
    slot_size: int = 256 << 10
    max_leases: int = 4
    give_slots: int | None = None
    hold: bool = False  # keep committed slots: the link is stuck
    most_commits: int | None = None
    hold_begins: bool = False  # BEGIN is not answered before let_begin
    mute: bool = False  # answers HELLO and nothing more
    deaf: bool = False  # hears no COMMIT and no END
    facts: bool = True  # wants to know what model was loaded
    local: int = 1


class Memory:
    """The ring as the sidecar sees it; outlives a Sidecar, so that another one can find it again."""

    def __init__(self, slots: int, slot_size: int, seal: bool = True) -> None:
        """Make a sealed memfd and write its header."""
        self.slots, self.slot_size = slots, slot_size
        self.first = -(-(PAGE + slots * wire.RECORD) // PAGE) * PAGE
        self.size = -(-(self.first + slots * slot_size) // PAGE) * PAGE
        self.ring = os.urandom(16)
        self.fd = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        self.map = mmap.mmap(self.fd, self.size)
        struct.pack_into(
            "<4sB3xII16sQQ", self.map, 0, wire.RING_MAGIC, 1, slots, slot_size, self.ring, self.first, self.size
        )
        if seal:
            fcntl.fcntl(self.fd, F_ADD_SEALS, SEALS)

    def state(self, slot: int) -> tuple[int, int]:
        """State and generation of a slot."""
        a, b = struct.unpack_from("<II", self.map, PAGE + slot * wire.RECORD)
        return a, b

    def set_state(self, slot: int, state: int, generation: int, transfer: bytes | None = None) -> None:
        """Write both, and whose it is."""
        struct.pack_into("<II", self.map, PAGE + slot * wire.RECORD, state, generation)
        if transfer is not None:
            struct.pack_into("16s", self.map, PAGE + slot * wire.RECORD + 16, transfer)

    def transfer(self, slot: int) -> bytes:
        """Whose a slot is."""
        at = PAGE + slot * wire.RECORD + 16
        return bytes(self.map[at : at + 16])


class Breach(AssertionError):
    """The worker broke the protocol."""


@dataclass
class _Request:
    transfer: bytes
    begin: wire.Begin
    leases: dict[int, int] = field(default_factory=dict)  # slot → generation
    floors: dict[int, int] = field(default_factory=dict)  # slot → block that was asked for
    over: bool = False


class _Conn:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.hello = wire.Hello()
        self.requests: dict[int, _Request] = {}
        self.reclaimed: dict[int, int] = {}
        self.begun_once: set[int] = set()

    def send(self, m: wire.Message) -> None:
        self.sock.send(m.encode())


class Sidecar:
    """A listening sidecar with a thread. Transfers are planned before they are asked for, and keep what came."""

    def __init__(
        self,
        path: Path,
        options: Options | None = None,
        memory: Memory | None = None,
        transfers: dict[bytes, Transfer] | None = None,
    ) -> None:
        """Listen at path. memory is an earlier sidecar's ring, transfers are what it knew."""
        self.options = options or Options()
        self.memory = memory or Memory(self.options.slots, self.options.slot_size)
        self.path, self.changed = path, threading.Condition()
        self.transfers: dict[bytes, Transfer] = dict(transfers or {})
        self.hellos: list[wire.Hello] = []
        self.facts: list[bytes] = []  # documents that workers told
        self.breaches: list[str] = []
        self.given = 0
        self.unheard: list[wire.Message] = []  # what came and was not taken note of
        self._held: list[tuple[_Conn, wire.Begin]] = []
        self.waiting: deque[tuple[_Conn, wire.Lease, float]] = deque()  # and when it was asked for
        self._conns: list[_Conn] = []
        self._stop = threading.Event()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._free = deque(i for i in range(self.memory.slots) if self.memory.state(i)[0] != LEASED)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def plan(self, transfer: bytes, plan: Plan) -> Transfer:
        """Make a transfer known, or go on with one that an earlier sidecar had."""
        with self.changed:
            return self.transfers.setdefault(transfer, Transfer(plan, local=self.options.local))

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so that messages of workers make so."""
        with self.changed:
            assert self.changed.wait_for(lambda: ready() or bool(self.breaches), LIMIT), "it did not come"
            assert not self.breaches, self.breaches

    def leased(self) -> list[int]:
        """The slots that somebody has."""
        return [i for i in range(self.memory.slots) if self.memory.state(i)[0] == LEASED]

    def let_begin(self) -> None:
        """Answer what BEGINs were held, and hold no more."""
        with self.changed:
            self.options.hold_begins = False
            for c, m in self._held:
                self._answer(c, m, self.transfers[m.transfer])
            self._held = []

    def wait(self, transfer: bytes, seconds: float = LIMIT) -> Transfer:
        """Wait until a transfer is over and return it."""
        with self.changed:
            t = self.transfers[transfer]
            ok = self.changed.wait_for(lambda: t.over or bool(self.breaches), seconds)
        if self.breaches:
            raise Breach(self.breaches[0])
        if not ok:
            raise TimeoutError(f"transfer {transfer.hex()} is not over: {t.commits} commits, {len(t.begins)} begins")
        return t

    def kill(self) -> None:
        """Go away without a word, as a process that dies."""
        self._stop.set()
        self._thread.join()
        self._listener.close()
        for c in self._conns:
            c.sock.close()
        self._conns = []

    def seal(self, transfer: bytes, block: int) -> None:
        """Say SEALED for a transfer."""
        for c in self._conns:
            for handle, r in c.requests.items():
                if r.transfer == transfer and not r.over:
                    c.send(wire.Sealed(0, handle, block))

    def release(self) -> None:
        """Give back the slots that were held."""
        self.options.hold = False

    def _run(self) -> None:
        while not self._stop.is_set():
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            by_fd = {c.sock.fileno(): c for c in self._conns}
            for fd in by_fd:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(20):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._packet(by_fd[fd])
            self._serve_waiting()

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        self._conns.append(_Conn(sock))

    def _packet(self, c: _Conn) -> None:
        try:
            packet, fds, _, _ = socket.recv_fds(c.sock, 128, 2)
        except ConnectionResetError:
            packet, fds = b"", []
        attached = fds[0] if fds else -1
        if not packet:
            with self.changed:
                self._conns.remove(c)
                c.sock.close()
                self.changed.notify_all()
            return
        with self.changed:
            try:
                self._message(c, wire.decode(packet), attached)
            except (Breach, wire.WireError) as e:
                self.breaches.append(str(e))
                c.send(wire.Refuse(Code.INVALID, 0, str(e)))
                self._conns.remove(c)
                c.sock.close()
            except OSError:
                self._conns.remove(c)
            finally:
                for fd in fds:
                    os.close(fd)
            self.changed.notify_all()

    def _message(self, c: _Conn, m: wire.Message, fd: int) -> None:
        if isinstance(m, wire.Hello):
            self._hello(c, m, fd)
        elif isinstance(m, wire.Facts):
            self._facts(m, fd)
        elif not self._hears(m):
            self.unheard.append(m)
        elif isinstance(m, wire.Begin):
            self._begin(c, m)
        elif isinstance(m, wire.Lease):
            self._lease(c, m)
        elif isinstance(m, wire.Commit):
            self._commit(c, m)
        elif isinstance(m, wire.Return):
            self._return(c, m)
        elif isinstance(m, wire.End | wire.Abort):
            self._end(c, m)
        elif isinstance(m, wire.Reclaim):
            self._reclaim(c, m)
        else:
            raise Breach(f"a worker said {type(m).__name__}")

    def _hears(self, m: wire.Message) -> bool:
        if isinstance(m, wire.Commit) and self.options.most_commits is not None:
            self.options.mute = self.options.mute or self.options.most_commits == 0
            self.options.most_commits -= 1
        return not (self.options.mute or (self.options.deaf and isinstance(m, wire.Commit | wire.End)))

    def _hello(self, c: _Conn, m: wire.Hello, fd: int) -> None:
        c.hello = m
        self.hellos.append(m)
        mem = self.memory
        same = fd >= 0 and os.pread(fd, 32, 0)[16:32] == mem.ring
        flags = int(same) | (wire.WELCOME_FACTS if self.options.facts else 0)
        w = wire.Welcome(flags, 0, mem.ring, mem.size, mem.slots, mem.slot_size, mem.first, wire.RECORD, 1000)
        socket.send_fds(c.sock, [w.encode()], [mem.fd])

    def _facts(self, m: wire.Facts, fd: int) -> None:
        if not self.options.facts:
            raise Breach("FACTS that nobody asked for")
        data = os.pread(fd, params.MAX_FACTS + 1, 0) if fd >= 0 else b""
        every = SEALS | F_SEAL_WRITE
        sealed = fd >= 0 and fcntl.fcntl(fd, F_GET_SEALS) & every == every
        if len(data) != m.size or hashlib.sha256(data).digest() != m.sha256 or not sealed or m.size > params.MAX_FACTS:
            raise Breach(f"FACTS of {m.size} bytes, with {len(data)} attached, sealed {sealed}")
        self.facts.append(data)

    def _begin(self, c: _Conn, m: wire.Begin) -> None:
        if m.handle == 0 or m.handle in c.begun_once:
            raise Breach(f"handle {m.handle} was used before")
        c.begun_once.add(m.handle)
        t = self.transfers.get(m.transfer)
        if t is None:
            c.send(wire.Begun(Code.UNKNOWN, m.handle))
            return
        t.begins.append(m)
        if self.options.hold_begins:
            self._held.append((c, m))
            return
        self._answer(c, m, t)

    def _answer(self, c: _Conn, m: wire.Begin, t: Transfer) -> None:
        p = t.plan
        if m.dtype != p.dtype or m.first_token > p.from_token:
            c.send(wire.Begun(Code.PLAN, m.handle))
            t.aborted.append("plan")
            return
        c.requests[m.handle] = _Request(m.transfer, m)
        pieces = m.mode == Mode.PIECES
        first, end = max(p.layers[0], c.hello.layer_first), min(p.layers[1], c.hello.layer_end)
        arrays = (
            [(k, v) for k, v in sorted(p.arrays.items()) if first <= k[0] < end]
            if pieces and m.layout != p.layout
            else []
        )
        c.send(
            wire.Begun(
                handle=m.handle,
                kind=p.kind,
                blocks=p.blocks,
                block_tokens=p.block_tokens,
                from_token=p.from_token,
                block_bytes=p.block_bytes,
                layer_first=first,
                layer_end=end,
                layout=p.layout if pieces else 0,
                arrays=len(arrays),
                max_leases=self.options.max_leases,
            )
        )
        for i, ((layer, array), (off, size, row, rows)) in enumerate(arrays):
            c.send(wire.Array(0, m.handle, layer, array, off, size, row, rows, p.dtype, i))

    def _live(self, c: _Conn, handle: int) -> _Request | None:
        r = c.requests.get(handle)
        if r is None and handle not in c.begun_once:
            raise Breach(f"handle {handle} was never begun")
        return None if r is None or r.over else r

    def _lease(self, c: _Conn, m: wire.Lease) -> None:
        r = self._live(c, m.handle)
        if r is None:
            return
        asked = sum(1 for w in self.waiting if w[0] is c and w[1].handle == m.handle)
        if len(r.leases) + asked >= self.options.max_leases:
            raise Breach(f"more than {self.options.max_leases} leases")
        self.waiting.append((c, m, time.monotonic()))

    def _serve_waiting(self) -> None:
        with self.changed:
            for _ in range(len(self.waiting)):
                c, m, begin = self.waiting.popleft()
                r = c.requests.get(m.handle)
                if c not in self._conns or r is None or r.over:
                    continue
                late = time.monotonic() > begin + m.wait_ms / 1000
                if self._free and (self.options.give_slots is None or self.given < self.options.give_slots):
                    self._grant(c, r, m)
                elif late:
                    c.send(wire.Leased(Code.LATE, m.handle, m.seq, 0, 0, 0, m.block))
                else:
                    self.waiting.append((c, m, begin))

    def _grant(self, c: _Conn, r: _Request, m: wire.Lease) -> None:
        slot = self._free.popleft()
        self.given += 1
        generation = self.memory.state(slot)[1] + 1
        self.memory.set_state(slot, LEASED, generation, r.transfer)
        r.leases[slot] = generation
        r.floors[slot] = m.block
        c.send(
            wire.Leased(0, m.handle, m.seq, slot, generation, self.memory.slot_size - wire.HEADER_ROOM, wire.NOT_SEALED)
        )

    def _commit(self, c: _Conn, m: wire.Commit) -> None:
        r = self._live(c, m.handle)
        if r is None:  # it crossed with the end
            self._return(c, wire.Return(0, m.handle, m.slot, m.generation))
            return
        own = r.leases.pop(m.slot, None) or c.reclaimed.pop(m.slot, None)
        if own != m.generation:
            raise Breach(f"slot {m.slot} of generation {m.generation} was not leased to the request")
        if not 1 <= m.entries <= params.MAX_ENTRIES:
            raise Breach(f"{m.entries} entries")
        t = self.transfers[r.transfer]
        at = PAGE + m.slot * wire.RECORD + wire.ENTRIES_AT
        data = self.memory.first + m.slot * self.memory.slot_size + wire.HEADER_ROOM
        total = 0
        for i in range(m.entries):
            e = wire.decode_entry(self.memory.map[at + i * 32 : at + i * 32 + 32], Mode(r.begin.mode))
            total += e.length
            if (e.block if isinstance(e, wire.Piece) else e.first // t.plan.block_tokens) < r.floors.get(m.slot, 0):
                raise Breach(f"a slot for blocks from {r.floors[m.slot]} on holds an earlier one")
            self._entry(t, r, e, self.memory.map[data : data + e.length])
            data += e.length
        if total != m.payload or total > self.memory.slot_size - wire.HEADER_ROOM:
            raise Breach(f"payload of {m.payload} bytes, entries of {total}")
        t.commits += 1
        if self.options.hold:
            return
        self.memory.set_state(m.slot, TAKEN, m.generation)
        self._free.append(m.slot)

    def _entry(self, t: Transfer, r: _Request, e: wire.Entry, data: bytes) -> None:
        p = t.plan
        if isinstance(e, wire.Piece):
            if e.block >= p.blocks or e.block * p.block_tokens < p.from_token // p.block_tokens * p.block_tokens:
                raise Breach(f"a piece of block {e.block} is not wanted")
            if e.offset + e.length > p.block_bytes or e.length == 0:
                raise Breach(f"a piece of {e.length} bytes at {e.offset}")
            block = t.blocks.setdefault(e.block, bytearray(p.block_bytes))
            for first, end in t.covered.get(e.block, []):
                lo, hi = max(first, e.offset), min(end, e.offset + e.length)
                if lo < hi and block[lo:hi] != data[lo - e.offset : hi - e.offset]:
                    raise Breach("bytes came twice, and differ")
            block[e.offset : e.offset + e.length] = data
            t.covered.setdefault(e.block, []).append((e.offset, e.offset + e.length))
            return
        if (
            e.length != e.tokens * r.begin.row_bytes
            or e.first < p.from_token
            or e.first + e.tokens > p.blocks * p.block_tokens
        ):
            raise Breach(f"rows {e.first}+{e.tokens} of {e.length} bytes")
        if not p.layers[0] <= e.layer < p.layers[1]:
            raise Breach(f"rows of layer {e.layer}")
        parts = t.rows.setdefault((e.layer, e.what), {})
        record = struct.pack("<II", e.tokens, r.begin.row_bytes) + data
        if parts.setdefault(e.first, record) != record:
            raise Breach("rows came twice, and differ")

    def _return(self, c: _Conn, m: wire.Return) -> None:
        r = c.requests.get(m.handle)
        own = r.leases.pop(m.slot, None) if r is not None else None
        own = own if own is not None else c.reclaimed.pop(m.slot, None)
        if own is None:
            return
        if own != m.generation:
            raise Breach(f"slot {m.slot} returned with generation {m.generation}")
        self.memory.set_state(m.slot, FREE, m.generation)
        self._free.append(m.slot)

    def _end(self, c: _Conn, m: wire.End | wire.Abort) -> None:
        r = self._live(c, m.handle)
        if r is None:
            return
        t = self.transfers[r.transfer]
        if isinstance(m, wire.End):
            if r.leases:
                raise Breach(f"END with {len(r.leases)} leases")
            t.ended.append(m)
            r.over = True
        else:
            t.aborted.append(m.text)
            r.over = True

    def _reclaim(self, c: _Conn, m: wire.Reclaim) -> None:
        state, generation = self.memory.state(m.slot)
        if (state, generation, self.memory.transfer(m.slot)) != (LEASED, m.generation, m.transfer):
            c.send(wire.Leased(Code.STALE, 0, m.seq))
            return
        c.reclaimed[m.slot] = generation
        c.send(wire.Leased(0, 0, m.seq, m.slot, generation, self.memory.slot_size - wire.HEADER_ROOM, wire.NOT_SEALED))
