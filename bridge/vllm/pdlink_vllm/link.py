"""The worker's end of the engine socket: keeps the connection, the ring, and who holds which slot.

One thread of its own, the keeper, connects, reads every packet and connects again when the sidecar goes away; the
engine's thread only sends, and waits on `Link.changed` within a bound. All state is guarded by that one condition's
lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pdlink_vllm import params, wire
from pdlink_vllm.ring import LEASED, Geometry, Ring, sealed_file
from pdlink_vllm.wire import Code, Hello, Leased, Message, WireError


@dataclass(frozen=True)
class Slot:
    """A lease that we hold: the ring it is of, which slot, its generation, and the bytes of data that it takes."""

    ring: Ring
    index: int
    generation: int
    room: int


@dataclass
class Given:
    """What we know of a slot from LEASED on until it is somebody else's: enough to take it up again after a restart."""

    slot: Slot
    transfer: bytes
    committed: wire.Commit | None = None
    unwanted: bool = False  # to be returned as soon as it is ours again


class Peer(Protocol):
    """What the link tells a request. Everything is called with the link's lock held, and must not block."""

    transfer: bytes
    handle: int

    def received(self, m: Message) -> None:
        """A message with the request's handle came."""

    def lost(self, why: str) -> None:
        """The ring is another one, or the sidecar is gone for good: the request is over."""

    def again(self) -> bool:
        """The connection is a new one with the same ring. Returns whether the request goes on (and has said BEGIN)."""

    def reclaimed(self, given: Given) -> None:
        """A slot of the request is ours again after a restart."""


class Link:
    """A connection that outlives sidecars. Any thread may call it; nothing raises because of the sidecar."""

    def __init__(self, path: str, hello: Hello, log: logging.Logger, facts: bytes = b"") -> None:
        """Make a link to the socket at path; start begins to use it. hello says who we are, without its flags; facts
        what model we have loaded, empty where that is not told.
        """
        self.changed = threading.Condition(threading.RLock())
        self._path, self._log, self._facts = path, log, facts
        self._hello = replace(hello, instance=os.urandom(16), pid=os.getpid())
        self._sock: socket.socket | None = None
        self.ring: Ring | None = None
        self.max_wait = 0.0  # seconds that the sidecar lets a lease wait at most
        self.refused = ""  # why there is no connection, for people
        self._requests: dict[int, Peer] = {}
        self._given: dict[int, Given] = {}
        self._reclaims: dict[int, Given] = {}
        self._handle, self._seq = 0, 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="pdlink-link", daemon=True)

    def start(self) -> None:
        """Begin to connect. Once."""
        self._thread.start()

    def close(self) -> None:
        """End the connection and the thread. Idempotent; requests that are open are over."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self.changed:
            self._drop("the engine ends")
            self._lose_all("the engine ends")
            if self.ring is not None:
                self.ring.close()
                self.ring = None
            self.changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(params.HELLO_WAIT + 2 * params.RECONNECT_PAUSE)

    @property
    def up(self) -> bool:
        """Whether a sidecar is there now."""
        return self._sock is not None

    def wait_up(self, seconds: float) -> bool:
        """Wait until a sidecar is there; for start-up and tests, not for a forward pass."""
        with self.changed:
            return self.changed.wait_for(lambda: self.up, seconds)

    def enter(self, request: Peer) -> int:
        """Give a request a handle of its own; messages with it go to the request until leave. The caller holds the
        lock.
        """
        self._handle += 1
        self._requests[self._handle] = request
        return self._handle

    def leave(self, handle: int) -> None:
        """Forget a handle. The caller holds the lock."""
        self._requests.pop(handle, None)

    def next_seq(self) -> int:
        """Draw a number for a lease that is asked for. The caller holds the lock."""
        self._seq += 1
        return self._seq

    def send(self, m: Message) -> bool:
        """Send a message. False when there is no connection, or none any more; the keeper sees to the rest."""
        with self.changed:
            if self._sock is None:
                return False
            try:
                self._sock.send(m.encode())
            except BlockingIOError:  # the sidecar does not read: as good as gone
                self._drop("the sidecar reads no messages")
            except OSError as e:
                self._drop(f"send: {e}")
            else:
                return True
            return False

    def commit(self, slot: Slot, handle: int, entries: int, payload: int, now: bool = True) -> None:
        """Hand a filled slot over. Without a connection, or not now, it is kept for the next one with the same ring."""
        with self.changed:
            given = self._given.get(slot.index)
            if given is None or given.slot is not slot:
                return  # of a ring that is gone
            given.committed = wire.Commit(
                handle=handle, slot=slot.index, generation=slot.generation, entries=entries, payload=payload
            )
            if now:
                self.send(given.committed)

    def give_back(self, slot: Slot, handle: int) -> None:
        """Return a slot whose contents do not count."""
        with self.changed:
            given = self._given.get(slot.index)
            if given is None or given.slot is not slot:
                return
            if self.send(wire.Return(handle=handle, slot=slot.index, generation=slot.generation)):
                del self._given[slot.index]
            else:
                given.committed, given.unwanted = None, True

    def granted(self, m: Leased, transfer: bytes) -> Slot | None:
        """Take up a slot that LEASED granted. The caller holds the lock. None for a slot that cannot be: a breach."""
        ring = self.ring
        if ring is None or m.slot >= ring.geometry.slots or m.room < 1 or m.room > ring.geometry.room:
            self._drop(f"the sidecar leased slot {m.slot} with room for {m.room} bytes, which the ring has not")
            return None
        slot = Slot(ring, m.slot, m.generation, m.room)
        self._given[m.slot] = Given(slot, transfer)
        return slot

    # The keeper's thread.

    def _keep(self) -> None:
        while not self._closed.is_set():
            try:
                sock = self._sock
                if sock is None:
                    self._connect()
                else:
                    self._read(sock)
                    if sock is not self._sock:
                        sock.close()  # here only: nobody else may close what this thread waits on
            except Exception:
                # Nothing above can be told; without the thread the connector would be deaf for ever.
                self._log.exception("pdlink: the link failed, connecting again")
                with self.changed:
                    self._drop("internal error")
            if self._sock is None:
                self._closed.wait(params.RECONNECT_PAUSE)

    def _read(self, sock: socket.socket) -> None:
        """Wait for a packet and take it."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.poll()  # _drop wakes it up by a shutdown
        try:
            packet = sock.recv(params.PACKET_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as e:
            packet, why = b"", f"receive: {e}"
        else:
            why = "the sidecar went away"
        with self.changed:
            if sock is not self._sock:
                return
            try:
                if not packet:
                    self._drop(why)
                else:
                    self._dispatch(wire.decode(packet))
            except WireError as e:
                self._drop(str(e))
            self.changed.notify_all()

    def _dispatch(self, m: Message) -> None:
        if isinstance(m, wire.Refuse):
            self._drop(f"the sidecar refused: {m.text or Code(m.code).meaning}")
            return
        if isinstance(m, Leased) and m.handle == 0:
            given = self._reclaims.pop(m.seq, None)
            if given is not None:
                self._reclaimed(given, m)
            return
        request = self._requests.get(m.handle)
        if request is not None:
            request.received(m)
        elif isinstance(m, Leased) and m.code == Code.OK:
            # Crossed with the end of its request.
            slot = self.granted(m, bytes(16))
            if slot is not None:
                self.give_back(slot, m.handle)

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(params.HELLO_WAIT)
            sock.connect(self._path)
            ring = self.ring
            hello = replace(self._hello, code=wire.HELLO_RING if ring is not None else 0)
            socket.send_fds(sock, [hello.encode()], [ring.fd] if ring is not None else [])
            packet, fds, _, _ = socket.recv_fds(sock, params.PACKET_READ, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as e:
            sock.close()
            self._down(f"{self._path}: {e}")
            return
        try:
            self._welcome(sock, packet, fds)
        except (WireError, OSError) as e:
            sock.close()
            self._down(str(e))

    def _welcome(self, sock: socket.socket, packet: bytes, fds: list[int]) -> None:
        """Take the sidecar's answer to HELLO. Owns fds."""
        try:
            if not packet:
                raise WireError(f"{self._path}: the sidecar closed the connection without a word")
            m = wire.decode(packet)
            if isinstance(m, wire.Refuse):
                raise WireError(f"the sidecar refused: {m.text or Code(m.code).meaning}")
            if not isinstance(m, wire.Welcome) or len(fds) != 1:
                raise WireError("the sidecar's first message is not its welcome")
            g = Geometry.of(m)
            old = self.ring
            same = bool(m.code & wire.WELCOME_SAME) and old is not None and old.geometry == g
            ring = old if same and old is not None else Ring(os.dup(fds[0]), g)
        finally:
            for fd in fds:
                os.close(fd)
        sock.setblocking(False)
        with self.changed:
            if self._closed.is_set():
                sock.close()
                return
            if not same:
                self._lose_all("the sidecar came back with another ring")
                if old is not None:
                    old.close()
            self.ring, self._sock, self.max_wait, self.refused = ring, sock, m.max_wait_ms / 1000, ""
            if m.code & wire.WELCOME_FACTS and self._facts:
                with contextlib.suppress(OSError):  # of a connection that is gone already, the reader hears
                    self._tell(sock)
            self._log.info(
                "pdlink: connected to %s, ring of %d slots of %d bytes%s",
                self._path,
                g.slots,
                g.slot_size,
                ", the same as before" if same else "",
            )
            if same:
                self._resume()
            self.changed.notify_all()

    def _tell(self, sock: socket.socket) -> None:
        """Say what model we have loaded (section 4). Without it nothing is lost but what the other end decides."""
        fd = sealed_file(self._facts)
        try:
            m = wire.Facts(size=len(self._facts), sha256=hashlib.sha256(self._facts).digest())
            socket.send_fds(sock, [m.encode()], [fd])
        finally:
            os.close(fd)

    def _ours(self, g: Given) -> bool:
        """Whether a slot's record still says that we hold it."""
        return g.slot.ring.state(g.slot.index) == (LEASED, g.slot.generation)

    def _resume(self) -> None:
        """Take up slots and requests at a sidecar that came back with the same ring (section 5)."""
        self._given = {i: g for i, g in self._given.items() if self._ours(g)}
        self._reclaims = {}
        for given in self._given.values():
            seq = self.next_seq()
            self._reclaims[seq] = given
            slot = given.slot
            self.send(wire.Reclaim(transfer=given.transfer, seq=seq, slot=slot.index, generation=slot.generation))
        for request in list(self._requests.values()):
            self.leave(request.handle)
            if not request.again():
                request.lost("the sidecar was restarted after the request had ended")

    def _reclaimed(self, given: Given, m: Leased) -> None:
        index = given.slot.index
        if m.code != Code.OK:
            self._given.pop(index, None)
            return
        owner = next((r for r in self._requests.values() if r.transfer == given.transfer), None)
        if owner is None or given.unwanted:
            self.give_back(given.slot, 0)
        else:
            owner.reclaimed(given)

    def _down(self, why: str) -> None:
        """Say why there is no connection, once for each reason."""
        with self.changed:
            if why != self.refused:
                self._log.warning("pdlink: no sidecar: %s", why)
            self.refused = why
            self.changed.notify_all()

    def _drop(self, why: str) -> None:
        """Close the connection. Slots and requests stay: the next sidecar may have the same ring."""
        if self._sock is None:
            return
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock = None
        if not self._closed.is_set():
            self._log.warning("pdlink: connection to the sidecar lost: %s", why)
        self.refused = why
        self.changed.notify_all()

    def _lose_all(self, why: str) -> None:
        self._given, self._reclaims = {}, {}
        requests, self._requests = list(self._requests.values()), {}
        for r in requests:
            r.lost(why)


def poll_until(link: Link, ready: Callable[[], bool], seconds: float) -> tuple[bool, float]:
    """Wait until ready says yes, at most so many seconds. Returns what it said last and the seconds that passed."""
    begin = time.monotonic()
    with link.changed:
        ok = link.changed.wait_for(ready, max(0.0, seconds))
    return ok, time.monotonic() - begin
