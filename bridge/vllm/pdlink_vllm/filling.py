"""What fills slots, and what is filled: the words that requests and devices share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pdlink_vllm.link import Slot
from pdlink_vllm.packing import Cut
from pdlink_vllm.ring import Ring
from pdlink_vllm.wire import Entry


class Done(Protocol):
    """A copy that a device makes while the engine goes on."""

    def wait(self, seconds: float) -> bool:
        """Wait until the bytes are in memory and known to be the right ones. False: they are not, or not in time."""


# Writes one cut's bytes into a ring from an offset on. Returns None when they are there, or what to wait for.
Fill = Callable[[Ring, int, Cut], Done | None]

# Where bytes go: a ring and an offset in it; None drops them.
At = tuple[Ring, int] | None

# Has the next parts of a call written, each without gaps from its place on; as Fill.
Make = Callable[[list[At]], Done | None]

# Hands a slot over once everything in it is done; runs where waiting does not hold up the engine.
Later = Callable[[Callable[[], None]], None]


class Part(Protocol):
    """Bytes of one block that are made at once: entries in the order in which they lie."""

    @property
    def block(self) -> int:
        """The block."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What lies where in it; none where nothing is complete."""

    @property
    def bytes(self) -> int:
        """The sum of their lengths."""


@dataclass
class Open:
    """A slot that is being filled."""

    slot: Slot
    used: int = 0
    entries: list[Entry] = field(default_factory=list)
    dones: list[Done] = field(default_factory=list)
