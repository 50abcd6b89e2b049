"""The memory that the sidecar shares: slots to fill, and for each a record that says what is in it."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pdlink_vllm import params, wire
from pdlink_vllm.wire import ENTRIES_AT, ENTRY, HEADER_ROOM, PAGE, RECORD, Entry, Welcome, WireError

# fcntl commands and seals of Linux, by the names that they have there; Python's module knows them only where the C
# library did when it was built.
F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SEAL = 0x0001
F_SEAL_SHRINK = 0x0002
F_SEAL_GROW = 0x0004
F_SEAL_WRITE = 0x0008

# What keeps everybody from changing a ring's size (section 4): a mapping behind the end of its file would fault.
SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL

_HEADER = struct.Struct("<4sB3xII16sQQ")
_STATE = struct.Struct("<II")

# States of a slot (section 5); a taken one's COMMIT has had its effect.
FREE = 0
LEASED = 1
TAKEN = 2


@dataclass(frozen=True)
class Geometry:
    """Where things lie in a ring; sizes in bytes."""

    ring: bytes
    size: int
    slots: int
    slot_size: int
    first_slot: int

    @property
    def room(self) -> int:
        """Bytes of data that a slot takes."""
        return self.slot_size - HEADER_ROOM

    @classmethod
    def of(cls, w: Welcome) -> Geometry:
        """Take a ring's geometry from the sidecar's answer. Raises WireError for one that cannot be."""
        g = cls(w.ring_id, w.size, w.slots, w.slot_size, w.first_slot)
        end = g.first_slot + g.slots * g.slot_size
        good = (
            params.MIN_SLOT <= g.slot_size <= params.MAX_SLOT
            and g.slots >= 1
            and w.record_size == RECORD
            and g.first_slot % PAGE == 0
            and g.first_slot >= PAGE + g.slots * RECORD
            and g.size == -(-end // PAGE) * PAGE
            and g.size <= params.MAX_RING + g.first_slot
        )
        if not good:
            raise WireError(
                f"a ring of {g.slots} slots of {g.slot_size} bytes from {g.first_slot} on, {g.size} in all, cannot be"
            )
        return g


class Ring:
    """A mapped ring. The mapping stays as long as the object; the descriptor is kept to be handed to a restarted
    sidecar.

    Slots are written by whoever holds their lease, a slot by one thread at a time; nothing here is locked.
    """

    def __init__(self, fd: int, g: Geometry) -> None:
        """Map the ring behind fd, which belongs to the object from then on. Raises WireError, OSError."""
        self.fd, self.geometry = fd, g
        try:
            if fcntl.fcntl(fd, F_GET_SEALS) & SEALS != SEALS:
                raise WireError("the ring's size is not sealed")
            size = os.fstat(fd).st_size
            if size != g.size:
                raise WireError(f"the ring has {size} bytes, {g.size} were announced")
            self._map = mmap.mmap(fd, g.size, mmap.MAP_SHARED)
        except BaseException:
            os.close(fd)
            raise
        self._map.madvise(mmap.MADV_DONTFORK)
        self.memory = memoryview(self._map)
        want = (wire.RING_MAGIC, wire.VERSION, g.slots, g.slot_size, g.ring, g.first_slot, g.size)
        if _HEADER.unpack_from(self.memory) != want:
            self.close()
            raise WireError("the ring's header does not say what the sidecar said")

    def close(self) -> None:
        """Close the descriptor. The memory goes with the last view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def data_at(self, slot: int) -> int:
        """Return where a slot's data begins, in bytes from the start of the ring."""
        return self.geometry.first_slot + slot * self.geometry.slot_size + HEADER_ROOM

    def list_entries(self, slot: int, entries: Sequence[Entry]) -> None:
        """Write a slot's list into its record. The caller holds the lease and has at most MAX_ENTRIES."""
        text = b"".join(e.encode() for e in entries)
        at = PAGE + slot * RECORD + ENTRIES_AT
        self.memory[at : at + len(text)] = text

    def state(self, slot: int) -> tuple[int, int]:
        """Return state and generation of a slot's record."""
        state, generation = _STATE.unpack_from(self.memory, PAGE + slot * RECORD)
        return state, generation

    def entries(self, slot: int, count: int, mode: wire.Mode) -> list[Entry]:
        """Read the first entries of a slot's list."""
        at = PAGE + slot * RECORD + ENTRIES_AT
        return [
            wire.decode_entry(bytes(self.memory[at + i * ENTRY : at + (i + 1) * ENTRY]), mode) for i in range(count)
        ]


def sealed_file(data: bytes) -> int:
    """Return the descriptor of a file in memory that nobody can change any more; it is the caller's. Raises OSError."""
    fd = os.memfd_create("pdlink", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, data)
        fcntl.fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_WRITE)
    except BaseException:
        os.close(fd)
        raise
    return fd
