"""The decoder's own command, with a clock on what lies between an adopted block and a first token.

    cost_serve.py serve ...        the decoder's arguments

Each call of a step is a line "@cost {"step": NAME, "ms": N, ...}" on standard output. With PDLINK_COST_SPLIT set a
restored cache is computed when it has been put together, not when it is first used, so that reading and joining blocks
can be told from the tail's prefill.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import omlx.scheduler
from omlx.cache.prefix_cache import BlockAwarePrefixCache
from omlx.cli import main

SPLIT = bool(os.environ.get("PDLINK_COST_SPLIT"))


def say(step: str, seconds: float, **more: Any) -> None:
    """One line."""
    print("@cost " + json.dumps({"step": step, "ms": round(seconds * 1e3, 3), **more}), flush=True)


def clocked(owner: Any, name: str, step: str, after: Callable[..., dict[str, Any]]) -> None:
    """Put a clock on a method, where there is one."""
    method = getattr(owner, name, None)
    if method is None:
        say(f"{step}: this decoder has no {name}", 0)
        return

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        found = method(self, *args, **kwargs)
        more = after(found, *args)
        say(step, time.perf_counter() - began, **more)
        return found

    setattr(owner, name, run)


def restored(caches: Any, table: Any) -> dict[str, Any]:
    """What was put together."""
    if caches and SPLIT:
        mx.eval([c.state for c in caches])
    return {"tokens": getattr(table, "num_tokens", 0)}


def main_with_clocks() -> None:
    """Run the command."""
    clocked(BlockAwarePrefixCache, "fetch_cache", "look up", lambda *_: {})
    clocked(BlockAwarePrefixCache, "reconstruct_cache", "read and rebuild", restored)
    scheduler = omlx.scheduler.Scheduler
    clocked(scheduler, "_do_external_prefill", "tail prefill", lambda _, __, tokens, *___: {"tokens": len(tokens) - 1})
    clocked(scheduler, "add_request", "add", lambda *_: {})
    clocked(scheduler, "step", "step", lambda *_: {})
    sys.argv[0] = "omlx"
    main()


if __name__ == "__main__":
    main_with_clocks()
