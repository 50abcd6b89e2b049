"""The endpoints, on the decoder's own app and behind its own key. API.md is the specification."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from array import array
from collections import OrderedDict
from typing import Any

from . import __version__, adopt, dryrun, facts, jsontext, params, plan, rules, seam
from .adopt import Outcome
from .canary import Canaries, Native
from .errors import Refusal
from .space import Ledger, limit_of
from .tail import Tails

API = 1


class Endpoints:
    """The endpoints of one server. All methods run on the server's event loop."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._canaries = Canaries()
        self._facts = facts.Book()
        self._ledgers: dict[str, Ledger] = {}
        self._ours: OrderedDict[bytes, None] = OrderedDict()
        self._tails = Tails()
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begin to make the canaries of models as they are loaded, unless that has begun on this event loop."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            for model in self._loaded():
                with contextlib.suppress(Exception):  # whoever asks for the model is told
                    await self._learn(self._live(model))
            await asyncio.sleep(params.WATCH_SECONDS)  # nothing here keeps a model alive meanwhile

    async def _learn(self, live: seam.Live) -> facts.Facts:
        """What the model is; its canary is made on the way."""
        return await self._facts.get(live, await self._canaries.get(live))

    def _loaded(self) -> list[str]:
        with contextlib.suppress(Refusal):
            return [k for k, e in seam.entries(self._server).items() if getattr(e, "engine", None) is not None]
        return []

    def _live(self, model: str) -> seam.Live:
        engine = getattr(seam.entries(self._server).get(model), "engine", None)
        if engine is None:
            raise Refusal("bad-request", f"model {model[:200]!r} is not loaded, or there is none of this id")
        return seam.live_of(engine, model)

    async def info(self, request: Any) -> dict[str, Any]:
        """What the decoder is and, for a loaded model, what its blocks look like."""
        found = seam.entries(self._server)
        out: dict[str, Any] = {
            "api": API,
            "plugin": __version__,
            "decoder": _versions(),
            "plans": self._plannable(),
            "starting": "",
            "models": [{"id": k, "loaded": getattr(e, "engine", None) is not None} for k, e in sorted(found.items())],
        }
        model = request.query_params.get("model")
        if model is not None:
            live = self._live(model)
            native = await self._canaries.get(live)
            out["model"] = self._model(live, native)
            out["model"]["facts"] = (await self._facts.get(live, native)).document
        out["starting"] = self._starting()
        return out

    def _starting(self) -> str:
        """What the decoder does before it can plan, for people; empty where there is nothing to wait for."""
        loading = [k for k, e in sorted(seam.entries(self._server).items()) if getattr(e, "is_loading", False) is True]
        for what, models in (
            ("is being loaded", loading),
            ("makes a block to compare with", self._canaries.pending()),
            ("is looked at", self._facts.pending()),
        ):
            if models:
                return f"model {models[0][:200]} {what}"
        return ""

    async def plan(self, request: Any) -> dict[str, Any]:
        """The blocks of a request's prompt."""
        path = request.query_params.get("path", "")
        body = await _body(request, params.MAX_BODY)
        tails = self._tails if request.query_params.get("tail") == "1" else None
        out = await plan.plan(self._server, self._canaries, self._ledger, path, body, request, tails)
        out["facts"] = (await self._learn(self._live(out["model"]))).name
        return out

    async def adopt(self, request: Any) -> dict[str, Any]:
        """Index blocks that lie in the store."""
        call = _object(await _body(request, params.MAX_CALL))
        chain, first, tail = _hashes(call), _first(call), call.get("tail")
        last = _hash(tail) if tail is not None else None
        live = await seam.load(self._server, _text(call, "model"))
        native = await self._canaries.get(live)
        out = await adopt.adopt(live, native, chain, first)
        await self._account(live, out)
        if chain:
            self._ledger(live).release(chain[-1].hex())
        for digest in out.adopted:
            self._ours[digest] = None
            self._ours.move_to_end(digest)
        while len(self._ours) > params.MAX_OURS:
            self._ours.popitem(last=False)
        answer = {
            "blocks": out.blocks,
            "reason": out.reason,
            "adopted": [d.hex() for d in out.adopted],
            "known": [d.hex() for d in out.known],
            "refused": {d.hex(): why for d, why in out.refused.items()},
        }
        if last is not None and out.blocks == first + len(chain):
            answer["tail"], why = await asyncio.to_thread(self._tails.load, live, native, last)
            if why:
                answer["reason"] = f"the tail of {live.block_tokens} tokens at most: {why}"
            else:
                await asyncio.to_thread(self._ledger(live).wrote, rules.size(native, out.blocks))
        return answer

    async def _account(self, live: seam.Live, out: Outcome) -> None:
        """Count the bytes of adopted blocks: they were reserved, and now they are there."""
        if out.adopted:
            ledger = self._ledger(live)
            ledger.came(out.adopted, out.size)
            await asyncio.to_thread(ledger.wrote, out.size)

    async def evict(self, request: Any) -> dict[str, Any]:
        """Give blocks of ours back."""
        call = _object(await _body(request, params.MAX_CALL))
        digests = _hashes(call)
        live = await seam.load(self._server, _text(call, "model"))
        loop = asyncio.get_running_loop()
        gone, refused = await loop.run_in_executor(live.executor, adopt.evict, live, digests, self._ours)
        for digest in gone:
            self._ours.pop(digest, None)
        return {"evicted": [d.hex() for d in gone], "refused": {d.hex(): why for d, why in refused.items()}}

    def _ledger(self, live: seam.Live) -> Ledger:
        key = str(live.store)
        if key not in self._ledgers:
            self._ledgers[key] = Ledger(live.store, daily_limit(os.environ.get(params.ENV_DAILY, "")))
        return self._ledgers[key]

    def _plannable(self) -> dict[str, str]:
        """For each path that takes prompts: empty, or why it cannot be planned with this decoder."""
        out = {}
        for path in dryrun.PATHS:
            try:
                dryrun.handler_of(self._server, path)
                out[path] = ""
            except Refusal as err:
                out[path] = err.message
        return out

    def _model(self, live: seam.Live, native: Native) -> dict[str, Any]:
        stat = os.stat(live.store)
        meta = native.header.meta
        judge = callable(getattr(live.manager, "_is_compatible_block", None))
        expected = getattr(live.manager, "_expected_cache_signature", None)
        return {
            "id": live.model_id,
            "hash_model": live.hash_model,
            "block_tokens": live.block_tokens,
            "format": meta.get("omlx_cache_format_version", ""),
            "payload_layout": meta.get("payload_layout", ""),
            "signature": meta.get("cache_signature", ""),
            "reader": {"judges": judge, "expects": str(expected()) if callable(expected) else ""},
            "store": {
                "path": str(live.store),
                "uid": stat.st_uid,
                "gid": stat.st_gid,
                "mode": stat.st_mode & 0o7777,
                "limit": limit_of(live),
                "bridged_today": self._ledger(live).written,
            },
            "block_bytes": native.header.size,
            "layout": native.layout,
            "native": {
                "header": native.header.text,
                "data_bytes": native.header.size - native.header.data,
                "hash": native.digest.hex(),
                "ids": plan.packed(array("I", native.ids)),
            },
        }


def daily_limit(text: str) -> int:
    """The day's limit in bytes from its setting: a number, or one with K, M, G or T (powers of 1024) behind it."""
    text = text.strip().upper().removesuffix("B").removesuffix("I")
    if not text:
        return 0
    unit = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1], 0)
    digits = text[:-1].strip() if unit else text
    if not digits.isdigit():
        raise Refusal("unsupported", f"{params.ENV_DAILY} is {text!r}: give a number of bytes, or 500G")
    return int(digits) << unit


def _versions() -> dict[str, str]:
    """Versions, for people: nothing is decided by them."""
    out = {}
    for name, module in (("omlx", "omlx._version"), ("mlx", "mlx.core"), ("mlx_lm", "mlx_lm")):
        try:
            out[name] = str(importlib.import_module(module).__version__)
        except Exception:  # a broken module must not take the answer with it
            out[name] = "unknown"
    return out


async def _body(request: Any, limit: int) -> bytes:
    """The request's body, of at most so many bytes."""
    out = bytearray()
    async for part in request.stream():
        out += part
        if len(out) > limit:
            raise Refusal("too-large", f"the body has more than {limit} bytes")
    return bytes(out)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = jsontext.parse(body)
    except ValueError as err:
        raise Refusal("bad-request", "the body is no JSON") from err
    if not isinstance(found, dict):
        raise Refusal("bad-request", "the body is no object")
    return found


def _text(call: dict[str, Any], name: str) -> str:
    found = call.get(name)
    if not isinstance(found, str) or not found:
        raise Refusal("bad-request", f"{name} is no text")
    return found


def _hashes(call: dict[str, Any]) -> list[bytes]:
    found = call.get("hashes")
    if not isinstance(found, list) or len(found) > params.MAX_HASHES:
        raise Refusal("bad-request", f"hashes are no list of at most {params.MAX_HASHES}")
    out = [_hash(text) for text in found]
    if len(set(out)) != len(out):
        raise Refusal("bad-request", "a hash comes twice")
    return out


def _first(call: dict[str, Any]) -> int:
    found = call.get("first", 0)
    if type(found) is not int or not 0 <= found <= params.MAX_HASHES:
        raise Refusal("bad-request", f"first is no number of a block up to {params.MAX_HASHES}")
    return found


def _hash(text: Any) -> bytes:
    if isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return bytes.fromhex(text)
    raise Refusal("bad-request", "a hash is 64 lower-case hexadecimal digits")
