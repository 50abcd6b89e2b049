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
