"""What a worker offers for a prompt, and what it remembers of prompts."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdlink_vllm import params, wire
from pdlink_vllm.wire import Mode


@dataclass(frozen=True)
class Offer:
    """What the worker has: fields of BEGIN."""

    transfer: bytes
    prompt_tokens: int
    first_token: int
    mode: Mode
    dtype: wire.DType
    row_bytes: int
    budget: float = params.WAIT_BUDGET  # seconds that the engine may be made to wait for this request, all in all

    def begin(self, handle: int, layout: int) -> wire.Begin:
        """Return the message that offers it. layout is the one whose places we have, 0 for none."""
        return wire.Begin(
            handle=handle,
            transfer=self.transfer,
            prompt_tokens=self.prompt_tokens,
            first_token=self.first_token,
            mode=self.mode,
            dtype=self.dtype,
            row_bytes=self.row_bytes,
            layout=layout,
        )


@dataclass
class Times:
    """What a request cost the engine's thread so far, in nanoseconds: copying rows, or asking a device to; waiting."""

    capture: int = 0
    wait: int = 0


@dataclass
class Layouts:
    """Places of arrays by the sidecar's name for a layout, so that they travel once. Guarded by the link's lock."""

    known: dict[int, dict[tuple[int, int], wire.Array]] = field(default_factory=dict)
    latest: int = 0

    def keep(self, layout: int, places: dict[tuple[int, int], wire.Array]) -> None:
        """Remember the places of the latest layout; the oldest ones are forgotten."""
        self.known[layout], self.latest = places, layout
        while len(self.known) > params.LAYOUTS:
            self.known.pop(next(iter(self.known)))
