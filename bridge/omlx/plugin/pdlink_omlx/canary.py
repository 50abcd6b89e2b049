"""One block of the decoder's own making, from a scratch store: what every block must look like.

The decoder reads a block's worth of tokens with its own model, extracts the state and stores it with its own classes,
set up as the live ones are. The file's header is the answer to all questions of layout: it is compared with ours before
anything is written (the caller of `info` does that), and with every file before it is adopted (rules.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import inspect
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import blockfile, params, seam
from .errors import Refusal


@dataclass(frozen=True)
class Native:
    """The decoder's block 0 of a made-up prompt. `layout` names the header but for the time in it."""

    header: blockfile.Header
    digest: bytes
    ids: list[int]
    layout: str


@dataclass(frozen=True)
class Failure:
    """Why there is no native block. Not an exception: one would keep the model alive, whose memory is wanted back."""

    code: str
    message: str


@dataclass(frozen=True)
class _Made:
    model: str
    scheduler: weakref.ref[Any]
    result: asyncio.Future[Native | Failure]
    began: float


class Canaries:
    """The native blocks of the loaded models, made once each; for one event loop. No model is kept alive."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}

    async def get(self, live: seam.Live) -> Native:
        """The model's native block; made when it is not there. A Refusal says why there is none."""
        made = self._made.get(id(live.scheduler))
        if made is None or made.scheduler() is not live.scheduler or _stale(made):
            self._made = {k: v for k, v in self._made.items() if v.scheduler() is not None}
            loop = asyncio.get_running_loop()
            result = asyncio.ensure_future(loop.run_in_executor(live.executor, make, live))
            made = _Made(live.model_id, weakref.ref(live.scheduler), result, time.monotonic())
            self._made[id(live.scheduler)] = made
        found = await asyncio.shield(made.result)
        if isinstance(found, Failure):
            raise Refusal(found.code, found.message)
        return found

    def pending(self) -> list[str]:
        """The loaded models whose native block is being made."""
        return [m.model for m in self._made.values() if m.scheduler() is not None and not m.result.done()]


def _stale(made: _Made) -> bool:
    """Whether a canary has failed and may be tried again."""
    if not made.result.done():
        return False
    lost = made.result.cancelled() or made.result.exception() is not None
    failed = lost or isinstance(made.result.result(), Failure)
    return failed and time.monotonic() - made.began >= params.CANARY_RETRY


def layout_of(header: blockfile.Header) -> str:
    """A name for what blocks look like: 64 hexadecimal digits over the header without hash and time."""
    meta = {k: v for k, v in header.meta.items() if k not in ("block_hash", "created_at")}
    parts = [(name, t.dtype, t.shape, t.begin) for name, t in header.tensors.items()]
    return hashlib.sha256(repr((parts, sorted(meta.items()))).encode()).hexdigest()


def make(live: seam.Live) -> Native | Failure:
    """Have the decoder make a block. For the decoder's executor."""
    try:
        return _make(live)
    except Refusal as err:
        return Failure(err.code, err.message)
    except Exception as err:
        return Failure("canary", f"the decoder made no block to compare with: {type(err).__name__}: {err}")


def _make(live: seam.Live) -> Native:
    ids = [(37 * i + 11) % params.CANARY_VOCABULARY for i in range(live.block_tokens)]
    with tempfile.TemporaryDirectory(prefix="pdlink-canary-") as scratch:
        store = _scratch_store(live, Path(scratch))
        try:
            _store(live, store, ids)
        finally:
            seam.need_call(store, "close", "end the canary")()  # ends its writer and with it the writing
        files = sorted(Path(scratch).rglob("*.safetensors"))
        files = [f for f in files if f.parent.parent == Path(scratch)]
        if len(files) != 1:
            raise Refusal("canary", f"the decoder stored {len(files)} blocks of one block's tokens")
        header = blockfile.read(files[0])
    digest = seam.chain(live, ids, 1)[0]
    if header.meta.get("block_hash") != digest.hex() or files[0].name != digest.hex() + ".safetensors":
        raise Refusal("canary", "the decoder stored its block under another hash than its hash function gives")
    return Native(header, digest, ids, layout_of(header))


def _twin(live: Any, what: str, **given: Any) -> Any:
    """A new object of a live one's class, with the settings that the live one keeps under the parameters' names."""
    kind = type(live)
    accepted = inspect.signature(kind.__init__).parameters
    missing = [name for name in given if name not in accepted]
    if missing:
        raise Refusal("moved", f"{what}: this decoder's {kind.__name__} takes no {missing[0]}")
    settings = {}
    for name in accepted:
        if name in given or name == "self" or name.startswith("hot_cache"):
            continue
        for attribute in ("_" + name, name):
            if attribute in vars(live):
                settings[name] = vars(live)[attribute]
                break
    return kind(**{**settings, **given})


def _scratch_store(live: seam.Live, scratch: Path) -> Any:
    """A store manager as the live one, over an empty directory."""
    store = _twin(live.manager, "make a scratch store", cache_dir=scratch, max_size_bytes=params.SCRATCH_BYTES)
    for name, value in vars(live.manager).items():
        if name.startswith("_expected"):  # what the live one learned after it was made
            setattr(store, name, value)
    return store


def _store(live: seam.Live, store: Any, ids: list[int]) -> None:
    """Read the tokens with the model and store the block, as the scheduler does at the end of a request."""
    what = "make the canary"
    extract = seam.need_call(live.scheduler, "_extract_cache_states", what)
    paged = _twin(live.paged, what, block_size=live.block_tokens, model_name=live.hash_model)
    seam.need_call(paged, "set_paged_ssd_cache_manager", what)(store)
    model = seam.need(live.scheduler, "model", what)
    prefix = _twin(live.prefix, what, model=model, paged_cache_manager=paged, paged_ssd_cache_manager=store)
    with stream(live):
        caches = _prefill(model, ids)
        extracted, config = extract(caches)
        if not extracted:
            raise Refusal("canary", "the decoder extracted no state from its caches")
        extracted = _compacted(extracted, live.block_tokens)
        more: dict[str, Any] = {}
        if _needs_boundary(live, caches):
            more["boundary_snapshots"] = {live.block_tokens: extracted}
        seam.need_call(prefix, "store_cache", what)("pdlink-canary", ids, extracted, model_cache_config=config, **more)


@contextlib.contextmanager
def stream(live: seam.Live) -> Iterator[None]:
    """The stream that the scheduler's own work runs on, where it has one."""
    mx = importlib.import_module("mlx.core")
    stream = getattr(live.scheduler, "_stream", None)
    if stream is None:
        yield
        return
    with mx.stream(stream):
        yield


def _prefill(model: Any, ids: list[int]) -> list[Any]:
    """The model's caches after one pass over the tokens."""
    mx = importlib.import_module("mlx.core")
    caches: list[Any] = list(importlib.import_module("mlx_lm.models.cache").make_prompt_cache(model))
    mx.eval(model(mx.array([ids]), cache=caches))
    mx.eval([c.state for c in caches])
    return caches


def _compacted(extracted: list[Any], tokens: int) -> list[Any]:
    """The state with pools as this block's rows, by decoders that store them so."""
    try:
        module = importlib.import_module("omlx.cache.pooling_delta")
    except ImportError:
        return extracted
    compact: Callable[..., list[Any]] = seam.need_call(module, "compact_pooling_cache_snapshot", "make the canary")
    return compact(extracted, tokens, tokens)


def _needs_boundary(live: seam.Live, caches: list[Any]) -> bool:
    """Whether blocks of this model are stored from snapshots at block boundaries."""
    asked = getattr(live.scheduler, "_cache_list_needs_boundary_snapshot", None)
    if callable(asked):
        return bool(asked(caches))
    return any(type(c).__name__ != "KVCache" for c in caches)
