"""Room for blocks that are on their way, and how much may be written in a day."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import blockfile, jsontext, params, seam
from .errors import Refusal


@dataclass
class _Reservation:
    """Bytes of blocks that are to come, which ones, and until when they are waited for."""

    until: float
    size: int
    digests: set[bytes]


class Ledger:
    """Reservations and the day's writes of one store. It may be used by several threads."""

    def __init__(self, store: Path, daily: int) -> None:
        """`daily` is the most bytes that may be bridged into the store in a day (UTC); 0 is no limit."""
        self._file = store / "pdlink" / "writes.json"  # beside the decoder's folders: its scan looks into 0 to f only
        self._daily = daily
        self._lock = threading.Lock()  # guards the two below
        self._reserved: dict[str, _Reservation] = {}
        self._day, self._written = self._load()

    def reserve(self, live: seam.Live, key: str, need: int, chain: Sequence[bytes], present: int) -> None:
        """Find room for `need` bytes, which belong to what `key` names; the chain's present blocks stay.

        Room is made by the decoder's own rule, oldest blocks first. A Refusal says what is missing.
        """
        with self._lock:
            now = time.monotonic()
            self._reserved = {k: v for k, v in self._reserved.items() if v.until > now and k != key}
            self._roll()
            if self._daily and self._written + need > self._daily:
                raise Refusal(
                    "budget",
                    f"{self._written} of {self._daily} bytes a day are written, {need} are wanted ({params.ENV_DAILY})",
                )
            others = sum(v.size for v in self._reserved.values())
            limit = limit_of(live)
            keep = kept(live, chain[:present])
            if limit is not None and keep + others + need > limit:
                raise Refusal(
                    "space",
                    f"the store takes {limit} bytes; {need} are wanted, {keep} of the prompt are there, {others} come",
                )
            self._reserved[key] = _Reservation(now + params.RESERVATION_SECONDS, need, set(chain[present:]))
        touch(live, chain[:present])
        make_room(live, need + others)

    def came(self, digests: Sequence[bytes], size: int) -> None:
        """Take blocks that are there now out of the reservation that they belong to, which then lasts anew."""
        with self._lock:
            for found in self._reserved.values():
                if digests[0] in found.digests:
                    found.digests.difference_update(digests)
                    found.size = max(0, found.size - size)
                    found.until = time.monotonic() + params.RESERVATION_SECONDS
                    return

    def release(self, key: str) -> None:
        """Give a reservation back."""
        with self._lock:
            self._reserved.pop(key, None)

    def wrote(self, count: int) -> None:
        """Count bytes that have been written, and remember them across restarts as far as the store can be written."""
        with self._lock:
            self._roll()
            self._written += count
            if self._daily:
                with contextlib.suppress(OSError):
                    self._file.parent.mkdir(exist_ok=True)
                    temporary = self._file.with_suffix(f".{os.getpid()}.part")
                    temporary.unlink(missing_ok=True)
                    with temporary.open("x") as f:  # neither a pipe nor a link that somebody laid there
                        f.write(json.dumps({"day": self._day, "bytes": self._written}))
                    temporary.replace(self._file)

    @property
    def written(self) -> int:
        """Bytes bridged today."""
        with self._lock:
            self._roll()
            return self._written

    def _roll(self) -> None:
        today = _today()
        if today != self._day:
            self._day, self._written = today, 0

    def _load(self) -> tuple[str, int]:
        today = _today()
        try:
            with blockfile.opened(self._file) as fd:
                found = jsontext.parse(os.pread(fd, params.MAX_WRITES_FILE, 0))
            if found["day"] == today:
                return today, max(0, int(found["bytes"]))
        except (blockfile.Damaged, OSError, ValueError, TypeError, KeyError, OverflowError):
            pass
        return today, 0


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def limit_of(live: seam.Live) -> int | None:
    """How many bytes the store may hold now, by the decoder's settings and the disk; None where it does not say."""
    asked = getattr(live.manager, "_get_effective_max_size", None)
    if not callable(asked):
        return None
    return int(asked())


def kept(live: seam.Live, digests: Sequence[bytes]) -> int:
    """Bytes of blocks in the store."""
    total = 0
    for digest in digests:
        found = seam.need_call(live.manager, "get_block_metadata", "size a block")(digest)
        total += int(getattr(found, "file_size", 0) or 0)
    return total


def touch(live: seam.Live, digests: Sequence[bytes]) -> None:
    """Mark blocks as used now, so that they are the last to be evicted."""
    index = getattr(live.manager, "_index", None)
    mark = getattr(index, "touch", None)
    if callable(mark):
        for digest in digests:
            mark(digest)


def make_room(live: seam.Live, need: int) -> None:
    """Have the decoder evict what is in the way of `need` further bytes, where it can be told how many.

    Where it cannot, its own call for each block at adoption does it.
    """
    enforce = getattr(live.manager, "_enforce_size_limit_for_new_block", None)
    if not callable(enforce) or not _takes_size(enforce):
        return
    used = getattr(live.manager, "_tracked_ssd_size", None)
    before = None
    while callable(used):
        enforce(need)  # removes a bounded number of files a call
        now = int(used())
        if before is not None and now >= before:
            return
        before = now
        limit = limit_of(live)
        if limit is None or now + need <= limit:
            return


def admit(live: seam.Live, size: int) -> None:
    """The decoder's own step before a block is indexed."""
    enforce = getattr(live.manager, "_enforce_size_limit_for_new_block", None)
    if not callable(enforce):
        return
    if _takes_size(enforce):
        enforce(size)
    else:
        enforce()


def _takes_size(enforce: Any) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in kinds for p in inspect.signature(enforce).parameters.values())
