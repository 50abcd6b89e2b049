"""What the connector does beside the engine's scheduler: which prompts take part, and which of their rows a step
computes.

Nothing here imports the engine. Its objects are Any; what is read of them is named once, here and in `engine`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# The key of kv_transfer_params that is ours, in requests and in answers.
KEY = "pdlink"


@dataclass(frozen=True)
class Chunk:
    """Rows of one prompt that a step computes, or has in its cache.

    Tokens [first, first + tokens) of a prompt of prompt_tokens. places holds for each KV cache group the block ids that
    these tokens lie in, and the tokens of the first block that come before them. sealed: rows between what was sent and
    first are gone, so first is where the prompt's part ends, and nothing is to be sent.
    """

    req_id: str
    transfer: bytes
    prompt_tokens: int
    begin: int  # first token of the prompt that can be had at all
    first: int
    tokens: int
    places: tuple[tuple[tuple[int, ...], int], ...]
    sealed: bool = False

    @property
    def last(self) -> bool:
        """Whether the prompt is complete with these rows."""
        return self.sealed or self.first + self.tokens >= self.prompt_tokens


@dataclass
class Step:
    """What the workers are told of one step: chunks in any order, and requests that ended before their prompt was
    computed.
    """

    chunks: list[Chunk] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class ParamsError(ValueError):
    """kv_transfer_params ask for what cannot be. The text is for the client."""


@dataclass(frozen=True)
class Ask:
    """What a request's kv_transfer_params say: {"pdlink": {"transfer": 32 hex digits, "ids_sha256": 64 hex digits}}.

    ids_sha256 is optional: of the prompt's ids as 32-bit little-endian numbers. Where it is given, a prompt that the
    engine understands otherwise than the plan is refused instead of being computed into wrong blocks.
    """

    transfer: bytes
    ids_sha256: bytes = b""

    @classmethod
    def of(cls, given: Any) -> Ask | None:
        """Return what is asked for, None when nothing is. Raises ParamsError."""
        ours = given.get(KEY) if isinstance(given, dict) else None
        if ours is None:
            return None
        if not isinstance(ours, dict) or not set(ours) <= {"transfer", "ids_sha256"}:
            raise ParamsError(f"kv_transfer_params.{KEY} wants transfer, and may have ids_sha256")
        return cls(_hex(ours, "transfer", 16), _hex(ours, "ids_sha256", 32) if "ids_sha256" in ours else b"")


def _hex(of: dict[Any, Any], key: str, size: int) -> bytes:
    value = of.get(key)
    try:
        data = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        data = b""
    if len(data) != size:
        raise ParamsError(f"kv_transfer_params.{KEY}.{key} is not {2 * size} hex digits")
    return data


def digest(ids: Sequence[int]) -> bytes:
    """Return the sha256 of a prompt's ids as 32-bit little-endian numbers."""
    return hashlib.sha256(np.asarray(ids, dtype="<u4").tobytes()).digest()


@dataclass(frozen=True)
class Options:
    """How to follow prompts. block_sizes: tokens of a block, for each KV cache group.

    gathers: rows that an earlier request left in the cache can be read, so a prefix hit loses nothing. Otherwise
    requests that take part compute every row themselves.
    """

    block_sizes: tuple[int, ...]
    gathers: bool


@dataclass
class _Followed:
    """A prompt that takes part."""

    ask: Ask
    prompt: int
    hit: int = 0
    begin: int | None = None
    sent: int = 0
    steps: int = 0
    resumed: int = 0
    done: bool = False
    asked_again: bool = False
    blocks: tuple[list[int], ...] = ()


class Tracker:
    """Follows the requests that take part. The scheduler's thread only."""

    def __init__(self, options: Options) -> None:
        """Follow nothing yet."""
        self._options = options
        self._followed: dict[str, _Followed] = {}
        self._declined: dict[str, str] = {}
        self._gone: list[str] = []

    def add(self, request: Any) -> None:
        """See a request for the first time, or again. One that takes part is told to compute every row, where that is
        needed.

        A request that cannot take part is an ordinary one; the answer's kv_transfer_params say why.
        """
        rid = request.request_id
        if rid in self._followed or rid in self._declined:
            return
        try:
            ask = Ask.of(request.kv_transfer_params)
            if ask is None:
                return
            ids = request.prompt_token_ids
            if not ids:
                raise ParamsError("the prompt has no token ids")
            if ask.ids_sha256 and ask.ids_sha256 != digest(ids):
                raise ParamsError("the engine's token ids are not those of the plan: send ids, and the decoder's own")
            if any(f.ask.transfer == ask.transfer for f in self._followed.values()):
                raise ParamsError("another request computes this transfer")
        except ParamsError as e:
            self._declined[rid] = str(e)
            return
        self._followed[rid] = _Followed(ask, len(ids))
        if not self._options.gathers and hasattr(request, "skip_reading_prefix_cache"):
            request.skip_reading_prefix_cache = True

    def matched(self, request: Any, computed: int) -> bool:
        """Hear of the engine's own prefix hit, in tokens. False: it is in the way, and the engine must ask again.

        Engines before 0.28 tell of a request only here, when its hit is known; the second time there is none.
        """
        self.add(request)
        f = self._followed.get(request.request_id)
        if f is None or f.steps:
            return True
        again = computed > 0 and not self._options.gathers and not f.asked_again
        f.asked_again = f.asked_again or again
        f.hit = 0 if again else computed
        return not again

    def step(self, output: Any) -> Step:
        """Read what the scheduler decided for one step."""
        step = Step(gone=self._gone)
        self._gone = []
        for rid, start in self._scheduled(output):
            chunk = self._chunk(rid, self._followed[rid], start, output.num_scheduled_tokens[rid])
            if chunk is not None:
                step.chunks.append(chunk)
        return step

    def finished(self, request: Any) -> dict[str, Any] | None:
        """Forget a request, and return what its answer's kv_transfer_params say; None for one that never took part."""
        rid = request.request_id
        reason = self._declined.pop(rid, None)
        if reason is not None:
            return {KEY: {"declined": reason}}
        f = self._followed.pop(rid, None)
        if f is None:
            return None
        if not f.done:
            self._gone.append(rid)
        return {
            KEY: {
                "transfer": f.ask.transfer.hex(),
                "rows": f.sent,
                "prompt": f.prompt,
                "hit": f.hit,
                "steps": f.steps,
                "resumed": f.resumed,
            }
        }

    def _scheduled(self, output: Any) -> Iterator[tuple[str, int]]:
        """Yield the requests of a step that take part, with the position of the first row that it computes; keep their
        blocks.
        """
        for new in output.scheduled_new_reqs:
            f = self._followed.get(new.req_id)
            if f is not None:
                f.resumed += f.steps > 0  # newer engines send a preempted request as a new one
                f.blocks = tuple(list(ids) for ids in new.block_ids)
                yield new.req_id, new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, rid in enumerate(cached.req_ids):
            f = self._followed.get(rid)
            if f is None:
                continue
            resumed, more = rid in cached.resumed_req_ids, cached.new_block_ids[i]
            if resumed:
                f.resumed += 1
                f.blocks = tuple(list(ids) for ids in more or ())
            elif more is not None:
                for have, ids in zip(f.blocks, more, strict=False):
                    have.extend(ids)
            yield rid, cached.num_computed_tokens[i]

    def _chunk(self, rid: str, f: _Followed, start: int, scheduled: int) -> Chunk | None:
        """Clip to rows of the prompt that were not sent; rows computed again after a preemption were."""
        end = min(start + scheduled, f.prompt)
        if f.done or end <= f.sent:
            return None
        f.steps += 1
        if f.begin is None:
            f.begin = f.sent = 0 if self._options.gathers else start
        gap = start > f.sent and not self._options.gathers
        first = f.sent
        if gap:  # a hit after a preemption: rows that this engine never showed
            f.done = True
            return Chunk(rid, f.ask.transfer, f.prompt, f.begin, first, 0, (), sealed=True)
        f.sent, f.done = end, end >= f.prompt
        return Chunk(rid, f.ask.transfer, f.prompt, f.begin, first, end - first, self._places(f, first, end))

    def _places(self, f: _Followed, first: int, end: int) -> tuple[tuple[tuple[int, ...], int], ...]:
        return tuple(
            (tuple(ids[first // size : -(-end // size)]), first % size)
            for ids, size in zip(f.blocks, self._options.block_sizes, strict=False)
        )
