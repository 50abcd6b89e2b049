"""A decoder that is played, where the real one's blocks are not those that are asked about.

The fork of oMLX on PyPI keeps DeepSeek-V4's windows as long as its prefill chunks, and pdlink refuses it for that.
So that blocks can be made of a real engine's prefill nevertheless, in the layout of oMLX 0.5.3, this server answers the
front door as the plug-in would (bridge/omlx/plugin/API.md). Nothing that is claimed of a decoder is tested against it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CREATED = "1790000000.25"


@dataclass(frozen=True)
class Play:
    """What is played: a model, its blocks, and where they go.

    chain makes the hashes of all whole blocks of a prompt's ids, header the header of the first one as text without
    padding, with CREATED, and the length of the data behind it.
    """

    model: str
    block: int
    store: Path
    encode: Callable[[str], list[int]]
    chain: Callable[[list[int]], list[bytes]]
    header: Callable[[list[int]], tuple[str, int]]
    facts: dict[str, Any] = field(default_factory=dict)  # bridge/facts/FACTS.md


class Planner(ThreadingHTTPServer):
    """The server. Prompts are planned and adopted as long as their files are there."""

    def __init__(self, play: Play) -> None:
        """Listen, and answer until shutdown."""
        self.play = play
        ids = [11 + 37 * i % 700 for i in range(play.block)]
        header, size = play.header(ids)  # takes longer than a plan may
        self.native = {"header": header, "data_bytes": size, "hash": play.chain(ids)[0].hex(), "ids": packed(ids)}
        play.store.mkdir(parents=True, exist_ok=True)
        super().__init__(("127.0.0.1", 0), _Call)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def info(self, _: Any) -> dict[str, Any]:
        """GET /pdlink/v1/info."""
        p = self.play
        store = {"path": str(p.store), "uid": 0, "gid": 0, "mode": 0o755, "limit": None, "bridged_today": 0}
        model = {"id": p.model, "hash_model": p.model, "block_tokens": p.block, "format": "3", "payload_layout": ""}
        model |= {"signature": "", "reader": {"judges": True, "expects": ""}, "store": store, "native": self.native}
        model |= {"block_bytes": 0, "layout": self.layout(), "facts": p.facts}
        plans = {"/v1/completions": ""}
        return {"api": 1, "plugin": "played", "decoder": {}, "plans": plans, "models": self.models(), "model": model}

    def models(self) -> list[dict[str, Any]]:
        """The one model."""
        return [{"id": self.play.model, "loaded": True}]

    def layout(self) -> str:
        """A name for the layout."""
        return hashlib.sha256(f"played {self.play.model}".encode()).hexdigest()

    def plan(self, body: Any) -> dict[str, Any]:
        """POST /pdlink/v1/plan."""
        p = self.play
        ids = p.encode(body["prompt"])
        blocks = (len(ids) - 1) // p.block
        used, hashes = ids[: blocks * p.block], [h.hex() for h in p.chain(ids)[:blocks]]
        out = {"model": p.model, "hash_model": p.model, "layout": self.layout(), "block_tokens": p.block}
        return out | {
            "facts": "played",
            "tokens": len(ids),
            "blocks": blocks,
            "present": self.there(hashes),
            "bytes": 0,
            "hashes": hashes,
            "ids": packed(used),
        }

    def there(self, hashes: list[str]) -> int:
        """How many blocks, from the first on, lie in the store."""
        n = 0
        while n < len(hashes) and (self.play.store / hashes[n][0] / f"{hashes[n]}.safetensors").exists():
            n += 1
        return n

    def adopt(self, body: Any) -> dict[str, Any]:
        """POST /pdlink/v1/adopt."""
        hashes, first = body["hashes"], int(body.get("first", 0))
        n = self.there(hashes)
        reason = "" if n == len(hashes) else f"block {first + n} is not there"
        return {"blocks": first + n, "reason": reason, "adopted": hashes[:n], "known": [], "refused": {}}

    def answer(self, body: Any) -> dict[str, Any]:
        """POST /v1/completions."""
        plan = self.plan(body)
        usage = {"prompt_tokens": plan["tokens"], "completion_tokens": 0, "total_tokens": plan["tokens"]}
        cached = {"prompt_tokens_details": {"cached_tokens": plan["present"] * self.play.block}}
        choice = {"index": 0, "text": "", "finish_reason": "length"}
        return {"id": "played", "object": "text_completion", "choices": [choice], "usage": usage | cached}


def packed(ids: list[int]) -> str:
    """Ids as the API has them."""
    return base64.b64encode(struct.pack(f"<{len(ids)}I", *ids)).decode()


class _Call(BaseHTTPRequestHandler):
    """One call."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer."""
        self._answer(None)

    def do_POST(self) -> None:
        """Answer."""
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        planner: Planner = self.server  # type: ignore[assignment]
        calls = {
            "/pdlink/v1/info": planner.info,
            "/pdlink/v1/plan": planner.plan,
            "/pdlink/v1/adopt": planner.adopt,
            "/v1/completions": planner.answer,
        }
        call = calls.get(urllib.parse.urlsplit(self.path).path)
        data = json.dumps(call(body) if call else {"error": "not played"}).encode()
        self.send_response(200 if call else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
