"""A prefill engine without a model: cost_engine.py JOB.json. Its worker commits made-up bytes at a real one's pace.

The worker is pdlink-vllm's own, from the lease of a slot to its commit; what is played is the forward pass: chunk by
chunk, in each chunk layer by layer, and an answer some time after the last layer. JOB: {"socket", "port", "layers",
"chunk": tokens, "rate": tokens a second, 0 is as fast as it goes, "answer": seconds}.

Each prompt is a line {"transfer", "committed": when the last slot was, "waited": seconds for slots} on standard output;
the clock is the host's monotonic one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pdlink_vllm.link import Link
from pdlink_vllm.offer import Layouts, Offer
from pdlink_vllm.packing import Cut, Space
from pdlink_vllm.request import Request
from pdlink_vllm.ring import Ring
from pdlink_vllm.wire import DType, Hello, Mode, Piece

BF16_ONE = b"\x80\x3f"
DATA = BF16_ONE * (2 << 20)


class Cutter:
    """Cuts the bytes of one layer, [offset, offset + size) of some blocks, into slots."""

    def __init__(self, offset: int, size: int, blocks: Iterable[int]) -> None:
        self._offset, self._size, self._blocks, self._done = offset, size, list(blocks), 0

    @property
    def block(self) -> int | None:
        """The block that comes next; None when all is cut."""
        return self._blocks[0] if self._blocks else None

    def next(self, space: Space) -> Cut | None:
        """Return the next cut; None when the slot should be sent first."""
        left = self._size - self._done
        fit = min(left, space.bytes)
        if space.entries == 0 or fit == 0 or (fit < left and space.bytes < space.empty // 64):
            return None
        entry = Piece(self._blocks[0], self._offset + self._done, fit)
        self._done += fit
        if self._done == self._size:
            self._blocks.pop(0)
            self._done = 0
        return Cut(0, 0, 0, 0, 0, (entry,), fit)


def fill(ring: Ring, at: int, cut: Cut) -> None:
    """Put a cut's bytes into a slot."""
    ring.memory[at : at + cut.bytes] = DATA[: cut.bytes]


class Engine:
    """Reads prompts, one at a time."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self._lock = job, threading.Lock()
        self._log = logging.getLogger("cost")
        hello = Hello(tp_size=1, local_workers=1, layer_end=job["layers"])
        self._link, self._layouts = Link(job["socket"], hello, self._log), Layouts()
        self._link.start()

    def prefill(self, transfer: bytes, tokens: int) -> None:
        """Read a prompt."""
        with self._lock:
            offer = Offer(transfer, tokens, 0, Mode.PIECES, DType.BF16, 0, 60.0)
            r = Request(self._link, self._layouts, offer, None, self._log)
            r.begin()
            if r.live:
                self._read(r, tokens)
            r.forget()

    def _read(self, r: Request, tokens: int) -> None:
        job, block = self._job, r.begun.block_tokens
        ranges = [self._range(r, layer) for layer in range(job["layers"])]
        due = time.monotonic()
        for first in range(0, tokens, job["chunk"]):
            count = min(job["chunk"], tokens - first)
            blocks = range(first // block, (first + count) // block)
            layers = range(len(ranges))
            r.expect(first, count, layers, sum(size for _, size in ranges) // len(ranges) // block)
            for offset, size in ranges:
                if job["rate"]:
                    due += count / job["rate"] / len(ranges)
                    time.sleep(max(0.0, due - time.monotonic()))
                r.put(Cutter(offset, size, blocks), fill)  # type: ignore[arg-type]
            r.flush()
        at = time.monotonic()
        r.end(tokens)
        line = {"transfer": r.transfer.hex(), "committed": at, "waited": r.times.wait / 1e9, "why": r.why}
        print(json.dumps(line), flush=True)
        time.sleep(job["answer"])

    def _range(self, r: Request, layer: int) -> tuple[int, int]:
        found = [a for (i, _), a in r._arrays.items() if i == layer]
        begin = min(a.offset for a in found)
        return begin, max(a.offset + a.size for a in found) - begin


class Call(BaseHTTPRequestHandler):
    """One call of the engine's API."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """The models."""
        self._say({"data": [{"id": "v4"}]})

    def do_POST(self) -> None:
        """A prompt."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["kv_transfer_params"]["pdlink"]
        self.server.engine.prefill(bytes.fromhex(asked["transfer"]), len(body["prompt"]))  # type: ignore[attr-defined]
        self._say({"kv_transfer_params": {"pdlink": {"transfer": asked["transfer"]}}})

    def _say(self, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the sidecar needs no answer once all blocks are there


def main() -> None:
    """Serve until the end."""
    job = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(stream=sys.stderr)
    server = ThreadingHTTPServer(("127.0.0.1", job["port"]), Call)
    server.engine = Engine(job)  # type: ignore[attr-defined]
    server.serve_forever()


if __name__ == "__main__":
    main()
    os._exit(0)
