"""What lies behind the last whole block: planned, taken from its file, appended to a request's cache, or left alone."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from pdlink_omlx import params, seam, tail
from pdlink_omlx.api import Endpoints

TEXT = "a prompt of a few blocks"  # 24 tokens: five blocks of four, three tokens, and the last one
IDS = list(TEXT.encode())
CHAIN = fakes.chain(IDS, 5)
DIGEST = fakes.compute_block_hash(CHAIN[4], IDS[20:23], extra_keys=("omlx-tail-v1",), model_name=fakes.MODEL)


class KVCache:
    """A layer's cache of five blocks."""

    def __init__(self, tokens: int = 20, width: int = 2) -> None:
        self.keys = self.values = np.ones((1, 1, tokens, width), np.float32)
        self.offset = tokens

    def update_and_fetch(self, keys: Any, values: Any) -> None:
        """Append rows."""
        self.keys, self.values = (np.concatenate([a, b], 2) for a, b in ((self.keys, keys), (self.values, values)))
        self.offset += keys.shape[2]


@dataclasses.dataclass
class Request:
    """The decoder's request."""

    prompt_token_ids: list[int]
    prompt_cache: list[Any] | None = None
    cached_tokens: int = 0
    remaining_tokens: list[int] | None = None
    vlm_inputs_embeds: Any = None


class Scheduler(fakes.Scheduler):
    """The scheduler, which finds five blocks of every prompt."""

    def add_request(self, request: Request) -> str:
        """Put a request's cache together."""
        request.prompt_cache = [KVCache() for _ in range(fakes.LAYERS)]
        request.cached_tokens, request.remaining_tokens = 20, request.prompt_token_ids[20:]
        return "added"


def load(path: str) -> dict[str, Any]:
    raw = Path(path).read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8 : 8 + n])
    head.pop("__metadata__")
    at = {name: raw[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]] for name, t in head.items()}
    return {name: np.frombuffer(at[name], "<f4").reshape(t["shape"]) for name, t in head.items()}


@pytest.fixture(autouse=True)
def mlx_of_tails(mlx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    core = sys.modules["mlx.core"]
    monkeypatch.setattr(core, "load", load, raising=False)
    monkeypatch.setattr(core, "contiguous", np.ascontiguousarray, raising=False)
    monkeypatch.setattr(sys.modules["mlx_lm.models.cache"], "KVCache", KVCache, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> fakes.Server:
    """A server whose scheduler takes requests."""
    out = fakes.server(tmp_path / "store")
    out.engine._engine.engine.scheduler.__class__ = Scheduler
    return out


def scheduler(server: fakes.Server) -> Any:
    return server.engine._engine.engine.scheduler


def plan(endpoints: Endpoints, text: str = TEXT, **query: str) -> dict[str, Any]:
    body = json.dumps({"model": fakes.MODEL, "prompt": text}).encode()
    return asyncio.run(endpoints.plan(fakes.Request(body, path="/v1/completions", **query)))


def adopt(endpoints: Endpoints, digest: bytes = DIGEST, blocks: int = 5) -> dict[str, Any]:
    call = {"model": fakes.MODEL, "hashes": [d.hex() for d in CHAIN[:blocks]], "tail": digest.hex()}
    return asyncio.run(endpoints.adopt(fakes.Request(json.dumps(call).encode())))


def put(server: fakes.Server, digest: bytes = DIGEST) -> Path:
    store = scheduler(server).paged_ssd_cache_manager
    for d in CHAIN:
        store.put(d, fakes.block(d))
    path: Path = store.put(digest, fakes.block(digest, seed=5))
    return path


def ask(server: fakes.Server, ids: list[int] = IDS, **more: Any) -> Request:
    request = Request(list(ids), **more)
    assert scheduler(server).add_request(request) == "added"
    return request


def untouched(request: Request) -> bool:
    assert request.prompt_cache is not None
    return request.cached_tokens == 20 and all(c.offset == 20 for c in request.prompt_cache)


def test_a_tail(server: fakes.Server, endpoints: Endpoints) -> None:
    assert "tail" not in plan(endpoints), "only where it is asked for"
    got = plan(endpoints, tail="1")
    assert got["tail"] == {"tokens": 3, "hash": DIGEST.hex()}
    assert got["bytes"] == 6 * len(fakes.block(DIGEST))
    assert untouched(ask(server)), "its rows have not come"
    path = put(server)
    rows = load(str(path))
    got = adopt(endpoints)
    assert (got["blocks"], got["tail"], got["reason"]) == (5, 3, "")
    assert not path.exists() and not scheduler(server).paged_ssd_cache_manager.has_block(DIGEST)
    for _ in range(2):  # equal prompts come with the same blocks
        request = ask(server)
        assert (request.cached_tokens, request.remaining_tokens) == (23, IDS[23:])
        assert request.prompt_cache is not None
        for i, cache in enumerate(request.prompt_cache):
            assert cache.offset == 23
            for k, have in enumerate((cache.keys, cache.values)):
                assert np.array_equal(have[:, :, 20:], rows[f"layer_{i}_state_{k}"][:, :, :3])
                assert np.array_equal(have[:, :, :20], np.ones((1, 1, 20, 2)))
    assert untouched(ask(server, [*IDS[:22], 9, IDS[23]])), "another prompt of the same length"
    assert untouched(ask(server, [*IDS, 9])), "a longer one"
    assert untouched(ask(server, vlm_inputs_embeds=[1])), "one with more than text"
    again = adopt(endpoints)
    assert (again["blocks"], again["tail"]) == (5, 3), "it is here already"


def test_prompts_without_a_tail(server: fakes.Server, endpoints: Endpoints) -> None:
    assert "tail" not in plan(endpoints, TEXT[:21], tail="1"), "five blocks and one token"
    assert "tail" not in plan(endpoints, TEXT[:4], tail="1"), "no whole block"
    put(server)
    assert plan(endpoints, tail="1")["present"] == 5
    assert "tail" not in plan(endpoints, tail="1"), "nothing is brought"


def test_files_that_are_no_tails(server: fakes.Server, endpoints: Endpoints) -> None:
    plan(endpoints, tail="1")
    path = put(server)
    other = fakes.compute_block_hash(None, [1])
    got = adopt(endpoints, other)
    assert (got["blocks"], got["tail"]) == (5, 0) and "no plan" in got["reason"]
    path.write_bytes(fakes.block(other))
    got = adopt(endpoints)
    assert (got["blocks"], got["tail"]) == (5, 0) and "it holds block" in got["reason"]
    path.unlink()
    assert "no such file" in adopt(endpoints)["reason"]
    assert untouched(ask(server))
    scheduler(server).paged_ssd_cache_manager.delete_block(CHAIN[4])
    path.write_bytes(fakes.block(DIGEST))
    got = adopt(endpoints)
    assert got["blocks"] == 4 and "tail" not in got, "not without the blocks before it"


@pytest.mark.parametrize(
    "change", ["class", "offset", "width", "dtype", "layers", "raises", "forgets", "empty", "flat"]
)
def test_a_cache_that_moved(
    server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The request goes on as it was, and no tail is planned any more."""
    plan(endpoints, tail="1")
    put(server)
    adopt(endpoints)
    caches = [KVCache() for _ in range(fakes.LAYERS)]
    last = caches[-1]
    if change == "class":
        caches[-1] = type("OtherCache", (KVCache,), {})()
    elif change == "offset":
        last.offset = 19
    elif change == "width":
        caches[-1] = KVCache(width=4)
    elif change == "dtype":
        last.keys = last.keys.astype(np.float16)
    elif change == "layers":
        caches.pop()
    elif change == "raises":
        last.update_and_fetch = None  # type: ignore[assignment,method-assign]
    elif change == "empty":
        last.keys = last.values = None
    elif change == "flat":
        last.keys = last.values = np.ones((20, 2), np.float32)
    else:
        last.update_and_fetch = lambda *_: None  # type: ignore[assignment,method-assign]
    before = [c.offset for c in caches]
    request = Request(list(IDS), caches, 20, IDS[20:])
    live = seam.live_of(server.engine, fakes.MODEL)
    assert not endpoints._tails.complete(live, request)
    assert (request.cached_tokens, request.remaining_tokens) == (20, IDS[20:])
    assert [c.offset for c in caches] == before
    assert endpoints._tails.off
    scheduler(server).paged_ssd_cache_manager.delete_block(CHAIN[0])
    assert "tail" not in plan(endpoints, tail="1")


class Stubborn(Request):
    """A request that does not take what is left of it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "remaining_tokens" and value == IDS[23:]:
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_request_that_moved(
    server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on as it was, one line is logged, and no tail is planned any more."""
    plan(endpoints, tail="1")
    put(server)
    live = seam.live_of(server.engine, fakes.MODEL)

    def caches() -> list[Any]:
        return [KVCache() for _ in range(fakes.LAYERS)]

    nameless = types.SimpleNamespace(prompt_token_ids=list(IDS), cached_tokens=20)
    for request in (
        Stubborn(list(IDS), caches(), 20, IDS[20:]),
        Request(list(IDS), caches(), 20, 4),  # type: ignore[arg-type]
        Request([*IDS[:-2], "x", 1], caches(), 20, IDS[20:]),  # type: ignore[list-item]
        nameless,
    ):
        caplog.clear()
        endpoints._tails._off = ""
        plan(endpoints, tail="1")
        put(server)
        assert adopt(endpoints)["tail"] == 3
        before = dict(vars(request))
        assert not endpoints._tails.complete(live, request)
        assert endpoints._tails.off and len(caplog.records) == 1 and caplog.records[0].exc_info is None
        assert vars(request) == before and all(c.offset == 20 for c in before.get("prompt_cache", []))
        for digest in CHAIN:
            scheduler(server).paged_ssd_cache_manager.delete_block(digest)
        assert "tail" not in plan(endpoints, tail="1")


@pytest.mark.parametrize("gone", ["offset", "keys", "values", "update_and_fetch", "made"])
def test_a_kind_of_cache_that_moved(
    server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """It is seen before any tail is asked for."""
    names = [n for n in ("offset", "keys", "values", "update_and_fetch") if n != gone]
    kind = type("KVCache", (), dict.fromkeys(names, 0))
    if gone == "made":
        kind.__init__ = lambda self, size: None  # type: ignore[method-assign,misc,assignment]
    monkeypatch.setattr(sys.modules["mlx_lm.models.cache"], "KVCache", kind, raising=False)
    assert "tail" not in plan(endpoints, tail="1")
    assert gone in endpoints._tails.off


def test_a_tail_that_two_take(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is read once; the second caller has the rows too. A plan meanwhile does not lose them."""
    got = plan(endpoints, tail="1")
    put(server)
    live = seam.live_of(server.engine, fakes.MODEL)
    native = asyncio.run(endpoints._canaries.get(live))
    tails, looked, reads, real = endpoints._tails, threading.Event(), [], tail._rows
    monkeypatch.setattr(scheduler(server).paged_ssd_cache_manager, "has_block", lambda _: False)

    def rows(*args: Any) -> Any:
        reads.append(1)
        looked.set()
        again = tails.plan(live, native, list(IDS), CHAIN)
        assert again is not None and again.digest == DIGEST
        looks.wait(0.2)
        return real(*args)

    looks = threading.Event()
    fault = tail.rules.fault

    def counted(*args: Any) -> Any:
        if looked.is_set():
            looks.set()
        return fault(*args)

    monkeypatch.setattr(tail, "_rows", rows)
    monkeypatch.setattr(tail.rules, "fault", counted)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(tails.load, live, native, DIGEST)
        assert looked.wait(60)
        second = pool.submit(tails.load, live, native, DIGEST)
        assert first.result(60) == second.result(60) == (3, "")
    assert reads == [1] and not looks.is_set() and got["tail"]["tokens"] == 3
    request = ask(server)
    assert (request.cached_tokens, request.remaining_tokens) == (23, IDS[23:])


def test_a_tail_that_is_forgotten_while_it_is_read(
    server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is promised of it."""
    plan(endpoints, tail="1")
    put(server)
    real = tail._rows

    def rows(*args: Any) -> Any:
        endpoints._tails._switch_off("another request was odd")
        return real(*args)

    monkeypatch.setattr(tail, "_rows", rows)
    got = adopt(endpoints)
    assert (got["blocks"], got["tail"]) == (5, 0) and "another request was odd" in got["reason"]


def test_what_has_to_be_there(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "FIELDS", ("prompt_cache", "prompt_place"))
    assert "tail" not in plan(endpoints, tail="1") and "prompt_place" in endpoints._tails.off
    monkeypatch.undo()


def test_a_scheduler_that_moved(tmp_path: Path) -> None:
    endpoints = Endpoints(fakes.server(tmp_path / "store"))
    got = plan(endpoints, tail="1")
    assert got["blocks"] == 5 and "tail" not in got and endpoints._tails.off


def test_tails_are_forgotten(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(endpoints, tail="1")
    put(server)
    adopt(endpoints)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + params.TAIL_SECONDS + 1)
    assert untouched(ask(server))
    monkeypatch.undo()
    for i in range(params.MAX_TAILS + 3):
        plan(endpoints, f"{i:2d}" + TEXT[2:], tail="1")
    assert len(endpoints._tails._kept) == params.MAX_TAILS
