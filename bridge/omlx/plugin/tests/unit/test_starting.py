"""What info says of a decoder that cannot plan yet."""

from __future__ import annotations

import asyncio
import gc
import threading
import types
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import fakes
import pytest
from pdlink_omlx import api, canary, facts
from pdlink_omlx.api import Endpoints
from test_endpoints import held


def entry(server: fakes.Server) -> Any:
    return server._server_state.engine_pool._entries[fakes.MODEL]


async def said(endpoints: Endpoints) -> str:
    """What a caller hears that asks for no model."""
    return str((await endpoints.info(fakes.Request()))["starting"])


def during(endpoints: Endpoints, run: Callable[[], Awaitable[Any]], came: threading.Event, go: threading.Event) -> str:
    """What is said while a call waits for the decoder; the answer to that call, and what is said then, is empty."""

    async def all_of_it() -> str:
        call = asyncio.ensure_future(run())
        try:
            assert await asyncio.to_thread(came.wait, 60)
            found = await said(endpoints)
        finally:
            go.set()
        await call
        assert await said(endpoints) == ""
        return found

    return asyncio.run(all_of_it())


def test_loading(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_versions", lambda: {"omlx": "0.0.1", "mlx": "0.0.2", "mlx_lm": "0.0.3"})
    assert asyncio.run(said(endpoints)) == "", "a decoder whose entries do not say"
    entry(server).engine, entry(server).is_loading = None, True
    server._server_state.engine_pool._entries["other"] = types.SimpleNamespace(engine=None, is_loading=False)
    got = asyncio.run(endpoints.info(fakes.Request()))
    held("starting.json", got)
    assert got["starting"] == "model tiny is being loaded" and not any(m["loaded"] for m in got["models"])
    entry(server).is_loading = lambda: True  # another decoder's, which means something else
    assert asyncio.run(said(endpoints)) == ""


@pytest.mark.parametrize("what", ["plan", "info"])
def test_canary(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    came, go, real = threading.Event(), threading.Event(), fakes.Prefix.store_cache

    def store_cache(*args: Any, **more: Any) -> None:
        came.set()
        assert go.wait(60)
        real(*args, **more)

    monkeypatch.setattr(fakes.Prefix, "store_cache", store_cache)
    body = b'{"model":"tiny","prompt":"a prompt of a few blocks"}'

    async def run() -> None:
        if what == "plan":
            await endpoints.plan(fakes.Request(body, path="/v1/completions"))
        else:
            assert (await endpoints.info(fakes.Request(model=fakes.MODEL)))["starting"] == ""

    assert during(endpoints, run, came, go) == "model tiny makes a block to compare with"


def test_facts(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    came, go, real = threading.Event(), threading.Event(), facts.of

    def of(*args: Any) -> Any:
        came.set()
        assert go.wait(60)
        return real(*args)

    monkeypatch.setattr(facts, "of", of)
    found = during(endpoints, lambda: endpoints.info(fakes.Request(model=fakes.MODEL)), came, go)
    assert found == "model tiny is looked at"


def test_a_canary_that_fails(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to wait for: a plan says why."""
    monkeypatch.setattr(fakes.Prefix, "fail", "no memory")

    async def run() -> None:
        endpoints.watch()
        for _ in range(3000):
            await asyncio.sleep(0.01)
            if endpoints._canaries._made and not endpoints._canaries.pending():
                break
        assert await said(endpoints) == ""
        assert endpoints._canaries._made, "it was made"

    asyncio.run(run())


def test_a_model_that_goes_meanwhile(server: fakes.Server, endpoints: Endpoints) -> None:
    """One that is unloaded before its canary was made is not waited for."""

    async def run() -> None:
        never = asyncio.get_running_loop().create_future()
        scheduler = fakes.Scheduler(server.engine._engine.engine.scheduler.paged_ssd_cache_manager._cache_dir, 1)
        endpoints._canaries._made[1] = canary._Made("other", weakref.ref(scheduler), never, 0.0)
        assert await said(endpoints) == "model other makes a block to compare with"
        del scheduler
        gc.collect()
        assert await said(endpoints) == ""

    asyncio.run(run())
