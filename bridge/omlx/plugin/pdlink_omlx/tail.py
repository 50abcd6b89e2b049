"""The tokens behind a prompt's last whole block, from a file beside the blocks into the request's own cache.

A decoder finds whole blocks only, and computes what lies behind them again: up to a block of tokens, seconds with a
large model. Their rows can come with the blocks, as one more, filled up with zeros, under a hash of its own. It is
never indexed: its rows are held in memory for a moment, and when the request comes they are appended to the cache that
the decoder has put together for it, by the cache's own method. Then one token is left to compute.

Plain keys and values only. Where the decoder's request or caches are not as they are known here, nothing is done, and
no more tails are asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import logging
import sys
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import adopt, params, rules, seam
from .canary import Native, stream

# What sets the hash of an unfinished block apart, as newer decoders have it.
SALT = ("omlx-tail-v1",)

# Fields of the decoder's request that are read and set.
FIELDS = ("prompt_token_ids", "prompt_cache", "cached_tokens", "remaining_tokens")

# Attributes of a layer's cache that are read, set and called.
CACHE = ("offset", "keys", "values", "update_and_fetch")

MARK = "_pdlink_tails"

log = logging.getLogger("pdlink_omlx")


@dataclass
class Tail:
    """The tokens [start, start + tokens) of a prompt that ends one token behind them."""

    digest: bytes
    model: str  # as hashes have it
    start: int
    tokens: int
    prompt: bytes  # sha256 of the ids before the prompt's last one
    until: float = 0.0
    rows: list[tuple[Any, Any]] = field(default_factory=list)  # by layer; empty while they have not come, set once
    reading: threading.Lock = field(default_factory=threading.Lock)  # held by whoever reads its file


class Tails:
    """Tails that are planned or here. It may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below, and `until` and `rows` of the tails; taken last
        self._kept: OrderedDict[bytes, Tail] = OrderedDict()
        self._off = ""

    @property
    def off(self) -> str:
        """Why there are no tails any more; empty while there may be."""
        with self._lock:
            return self._off

    def plan(self, live: seam.Live, native: Native, ids: list[int], chain: list[bytes]) -> Tail | None:
        """The tail of a prompt behind the blocks of its chain; None where it has none that can be handed over."""
        start = len(chain) * live.block_tokens
        tokens = len(ids) - 1 - start
        if not chain or not 0 < tokens < live.block_tokens or not self._can(live, native):
            return None
        digest = seam.hasher(live)(chain[-1], ids[start:-1], extra_keys=SALT, model_name=live.hash_model)
        tail = Tail(bytes(digest), live.hash_model, start, tokens, _name(ids[:-1]))
        with self._lock:
            tail = self._kept.setdefault(tail.digest, tail)  # one that is known may be being read
            self._fresh(tail.digest, params.RESERVATION_SECONDS)
        return tail

    def load(self, live: seam.Live, native: Native, digest: bytes) -> tuple[int, str]:
        """Take a tail's rows out of its file, which is removed: how many tokens they are, or why they are no use.

        For an ordinary thread; waits for the decoder's executor, and for another call that reads the same file.
        """
        with self._lock:
            tail = self._kept.get(digest)
        if tail is None:
            return 0, "the decoder was asked for no plan with this tail since its start, or long ago"
        with tail.reading:
            why = self._read(live, native, tail)
        if why is not None:
            return 0, why
        with self._lock:
            if self._kept.get(digest) is not tail:
                return 0, self._off or "too many other tails came meanwhile"
            self._fresh(digest, params.TAIL_SECONDS)
        return tail.tokens, ""

    def _read(self, live: seam.Live, native: Native, tail: Tail) -> str | None:
        """Read a tail's file unless its rows are here; why it is no use, or None. The tail's `reading` is held."""
        with self._lock:
            if tail.rows:
                return None
        path = live.path(tail.digest)
        why = rules.fault(native, path, tail.digest, tail.start // live.block_tokens)
        if why is not None:
            return why
        rows = live.executor.submit(_rows, live, path, tail.tokens).result()
        with self._lock:
            tail.rows = rows
        adopt.in_the_way(live, tail.digest, "it is no block")
        return None

    def complete(self, live: seam.Live, request: Any) -> bool:
        """Append a tail's rows to the cache of a request that was just added. For the decoder's executor."""
        tail = self._found(live, request)
        if tail is None:
            return False
        remaining, end = request.remaining_tokens, tail.start + tail.tokens
        try:
            with stream(live):
                for cache, (keys, values) in zip(request.prompt_cache, tail.rows, strict=True):
                    cache.update_and_fetch(keys, values)
                wrong = [c.offset for c in request.prompt_cache if c.offset != end]
            if not wrong:
                request.cached_tokens, request.remaining_tokens = end, request.prompt_token_ids[-1:]
        except Exception as err:
            wrong = [f"{type(err).__name__}: {err}"]
        if wrong:
            self._switch_off(f"rows could not be appended: {wrong[0]}")
            _as_before(request, tail, remaining)
            return False
        with self._lock:
            self._fresh(tail.digest, params.TAIL_SECONDS)
        return True

    def _found(self, live: seam.Live, request: Any) -> Tail | None:
        """The tail of a request to which it can be appended; where that is not so, there are no tails any more."""
        try:
            tail = self._of(live.hash_model, request)
            why = "" if tail is None else _unlike(request.prompt_cache, request, tail)
        except Exception as err:  # none of what is looked at has to be there
            why = f"a request cannot be looked at: {type(err).__name__}: {err}"
        if not why:
            return tail
        self._switch_off(why)
        return None

    def _of(self, model: str, request: Any) -> Tail | None:
        """The tail of a request whose blocks were found, if it is here."""
        with self._lock:
            here = [t for t in self._kept.values() if t.rows and t.model == model and t.until > time.monotonic()]
        ids = getattr(request, "prompt_token_ids", None)
        if not here or not isinstance(ids, list):
            return None
        here = [t for t in here if t.start + t.tokens + 1 == len(ids)]
        found = _name(ids[:-1]) if here else b""
        cached = getattr(request, "cached_tokens", None)
        if any(getattr(request, name, None) is not None for name in ("vlm_inputs_embeds", "specprefill_indices")):
            return None
        return next((t for t in here if t.prompt == found and t.start == cached), None)

    def _can(self, live: seam.Live, native: Native) -> bool:
        """Whether the decoder and the model are as they are known here; then requests are looked at from now on."""
        types = json.loads(native.header.meta.get("layer_cache_types", "[]"))
        if self.off or not types or any(t != "KVCache" for t in types):
            return False
        with self._lock:
            if getattr(live.scheduler, MARK, None) is self:
                return True
            why = _moved(live)
            if not why:
                why = _watch(live, self)
            self._off = why
        if why:
            log.info("pdlink-omlx: tails stay with the decoder: %s", why)
        return not why

    def _switch_off(self, why: str) -> None:
        with self._lock:
            self._off, self._kept = why, OrderedDict()
        log.warning("pdlink-omlx: tails stay with the decoder from now on: %s", why)

    def _fresh(self, digest: bytes, seconds: float) -> None:
        """Keep a tail for so long, and forget old ones. The lock is held."""
        now = time.monotonic()
        if digest in self._kept:
            self._kept[digest].until = now + seconds
            self._kept.move_to_end(digest)
        for old in [d for d, t in self._kept.items() if t.until <= now and d != digest]:
            del self._kept[old]
        while len(self._kept) > params.MAX_TAILS:
            self._kept.popitem(last=False)


def _name(ids: list[int]) -> bytes:
    return hashlib.sha256(array("q", ids).tobytes()).digest()


def _moved(live: seam.Live) -> str:
    """What of the decoder is not where it is looked for; empty where all is."""
    kind = getattr(sys.modules.get(type(live.scheduler).__module__), "Request", None)
    fields = {name for base in getattr(kind, "__mro__", ()) for name in getattr(base, "__annotations__", {})}
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        return f"the decoder's request has no {missing[0]}"
    if "extra_keys" not in inspect.signature(seam.hasher(live)).parameters:
        return "the decoder's hash takes no extra keys"
    try:
        one = importlib.import_module("mlx_lm.models.cache").KVCache()
        missing = [name for name in CACHE if not hasattr(one, name)]
    except Exception as err:
        return f"KVCache cannot be made: {type(err).__name__}: {err}"
    return f"KVCache has no {missing[0]}" if missing else ""


def _watch(live: seam.Live, tails: Tails) -> str:
    """Look at requests behind the scheduler's own look for blocks; why that cannot be, or nothing."""
    scheduler = live.scheduler
    add: Callable[..., Any] | None = getattr(scheduler, "add_request", None)
    if not callable(add):
        return "the decoder's scheduler has no add_request"

    def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
        out = add(request, *args, **kwargs)
        try:
            tails.complete(live, request)
        except Exception:  # the request goes on as if there were no tail
            log.exception("pdlink-omlx: a tail was not appended")
        return out

    try:
        scheduler.add_request = add_request
        setattr(scheduler, MARK, tails)
    except AttributeError:
        return "the decoder's scheduler takes no other add_request"
    return ""


def _unlike(caches: Any, request: Any, tail: Tail) -> str:
    """Why a request's caches are not those that rows can be appended to; empty when they are."""
    if not isinstance(caches, list) or len(caches) != len(tail.rows):
        return f"the request's cache has not {len(tail.rows)} layers"
    if len(request.remaining_tokens or ()) != tail.tokens + 1:
        return "the request's remaining tokens are not those behind its blocks"
    for cache, (keys, values) in zip(caches, tail.rows, strict=True):
        if type(cache).__name__ != "KVCache" or getattr(cache, "offset", None) != tail.start:
            return f"a layer's cache is {type(cache).__name__} at {getattr(cache, 'offset', None)}, not at {tail.start}"
        for have, come in ((cache.keys, keys), (cache.values, values)):
            shapes = [(*a.shape[:2], a.shape[3]) for a in (have, come)]
            if have.dtype != come.dtype or shapes[0] != shapes[1]:
                return f"a layer's cache has {have.dtype} {list(have.shape)}, the rows {come.dtype} {list(come.shape)}"
    return ""


def _as_before(request: Any, tail: Tail, remaining: Any) -> None:
    """Take back what was done to a request before its rows could not be appended."""
    for cache in request.prompt_cache:
        with contextlib.suppress(Exception):
            cache.offset = tail.start
    for name, value in (("cached_tokens", tail.start), ("remaining_tokens", remaining)):
        with contextlib.suppress(Exception):
            setattr(request, name, value)


def _rows(live: seam.Live, path: Any, tokens: int) -> list[tuple[Any, Any]]:
    """The first rows of a block file, by layer. For the decoder's executor."""
    mx = importlib.import_module("mlx.core")
    with stream(live):
        arrays = mx.load(str(path))
        layers = sum(name.endswith("_state_0") for name in arrays)
        first = {name: mx.contiguous(a[:, :, :tokens, :]) for name, a in arrays.items()}
        mx.eval(list(first.values()))
    return [(first[f"layer_{i}_state_0"], first[f"layer_{i}_state_1"]) for i in range(layers)]
