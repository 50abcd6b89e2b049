"""A decoder of DeepSeek-V4-Flash's shapes without its model: cost_decoder.py JOB.json, by the decoder's interpreter.

The plug-in is the real one, with the decoder's own store manager, index and reader of block files; what is played is
the model, whose answers are nothing, and the block that it would make after it was loaded. JOB: {"store", "port",
"block": a block file of the model, "fakes": the folder of the plug-in's unit tests}. Prompts are read a byte a token.

Each adoption is a line {"adopted": blocks, "at": seconds, "ms": its own time} on standard output; the clock is the
host's monotonic one.
"""

from __future__ import annotations

import json
import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from omlx.cache import paged_ssd_cache
from pdlink_omlx import adopt, blockfile, canary, install
from pydantic import BaseModel

job = json.loads(Path(sys.argv[1]).read_text())
sys.path.insert(0, job["fakes"])

import fakes  # noqa: E402

# The fork knows format 3 only; the header is all that its reader looks at.
paged_ssd_cache._READABLE_CACHE_FORMAT_VERSIONS = frozenset({"3", "5"})


def native() -> canary.Native:
    """The model's block of made-up tokens, as another block of its says."""
    header = blockfile.read(Path(job["block"]))
    size, model = int(header.meta["token_count"]), header.meta["model_name"]
    ids = [(37 * i + 11) % 61 for i in range(size)]
    digest = fakes.compute_block_hash(None, ids, model_name=model)
    text = header.text.replace(header.meta["block_hash"], digest.hex())
    parsed = blockfile.parse(text, json.loads(text), header.data, header.size)
    return canary.Native(parsed, digest, ids, canary.layout_of(parsed))


NATIVE = native()
SIZE, HASH_MODEL = int(NATIVE.header.meta["token_count"]), NATIVE.header.meta["model_name"]


class Completion(BaseModel):
    """A request."""

    model: str
    prompt: str
    stream: bool = False


class Core(fakes.Core):
    """Answers with the number of tokens that it would find."""

    async def generate(self, prompt: Any, **_: Any) -> Any:
        """See the class."""
        scheduler, found, parent = self.engine.scheduler, 0, None
        for k in range((len(prompt) - 1) // SIZE):
            parent = fakes.compute_block_hash(parent, prompt[k * SIZE : (k + 1) * SIZE], model_name=HASH_MODEL)
            if not scheduler.paged_ssd_cache_manager.has_block(parent):
                break
            found += SIZE
        return {"usage": {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": found}}}


def engine() -> fakes.Engine:
    """The model's engine."""
    store = Path(job["store"])
    out = fakes.Engine(store, 1 << 40)
    out._engine = Core(out._engine.engine.scheduler)
    scheduler = out._engine.engine.scheduler
    scheduler.paged_ssd_cache_manager = paged_ssd_cache.PagedSSDCacheManager(store, 1 << 40)
    scheduler.paged_cache_manager = fakes.Paged(SIZE, model_name=HASH_MODEL)
    return out


app = FastAPI()
ENGINE = engine()


async def get_engine_for_model(model: str) -> fakes.Engine:
    """The one that there is."""
    return ENGINE


@app.post("/v1/completions")
async def completions(request: Completion, http_request: Request) -> Any:
    """Answer as a decoder does, without a word."""
    found = await get_engine_for_model(request.model)
    return await found.generate(found.tokenizer.encode(request.prompt))


def main() -> None:
    """Serve until the end."""
    canary.make = lambda _: NATIVE
    adopting = adopt.adopt

    async def noting(*args: Any, **kwargs: Any) -> adopt.Outcome:
        began = time.monotonic()
        out = await adopting(*args, **kwargs)
        end = time.monotonic()
        print(json.dumps({"adopted": out.blocks, "at": end, "ms": round((end - began) * 1e3, 3)}), flush=True)
        return out

    adopt.adopt = noting
    pool = types.SimpleNamespace(_entries={"v4": types.SimpleNamespace(engine=ENGINE)})
    install.install(
        types.SimpleNamespace(
            app=app,
            verify_api_key=lambda: None,
            get_engine_for_model=get_engine_for_model,
            _server_state=types.SimpleNamespace(engine_pool=pool),
        )
    )
    listening = socket.create_server(("127.0.0.1", job["port"]))
    print(json.dumps({"listening": job["port"]}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
