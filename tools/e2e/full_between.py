"""A server that stands before another one, passes everything on, and lets an arm look at a call or act in between."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

DROP = ("connection", "content-length", "transfer-encoding", "keep-alive", "host")


class Between(ThreadingHTTPServer):
    """Stands before the server at a URL. before(path, body) may act, and returns the body that goes on; sent(path)
    comes once it has gone; after(path, answer) hears an answer before its client does. gone are paths whose client left
    before the answer; the call goes on all the same if stays is set. answers are the parsed ones.
    """

    daemon_threads = True

    def __init__(
        self,
        to: str,
        before: Callable[[str, bytes], bytes] | None = None,
        sent: Callable[[str], None] | None = None,
        after: Callable[[str, bytes], None] | None = None,
        stays: bool = False,
    ) -> None:
        """Start it, on loopback."""
        self.stays = stays
        self.to = urlsplit(to)
        self.before, self.after = before or (lambda _, body: body), after or (lambda *_: None)
        self.sent = sent or (lambda _: None)
        self.gone: list[str] = []
        self.answers: list[tuple[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Call)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handed_over(self) -> list[dict[str, Any]]:
        """What the connector said in the engine's answers."""
        params = [a.get("kv_transfer_params") for _, a in self.answers if isinstance(a, dict)]
        return [p["pdlink"] for p in params if p and "pdlink" in p]


class _Call(BaseHTTPRequestHandler):
    """One call of a Between."""

    protocol_version = "HTTP/1.1"
    server: Between

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Pass on."""
        self._pass()

    def do_POST(self) -> None:
        """Pass on."""
        self._pass()

    def _pass(self) -> None:
        self.close_connection = True
        path = self.path.partition("?")[0]
        body = self.server.before(path, self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in DROP}
        there = http.client.HTTPConnection(str(self.server.to.hostname), self.server.to.port, timeout=600)
        try:
            there.request(self.command, self.path, body if self.command == "POST" else None, headers)
            self.server.sent(path)
            if not self._answered(there):
                self.server.gone.append(path)
                if not self.server.stays:
                    return
            answer = there.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            return  # the client sees its connection end, as it would without us
        finally:
            there.close()
        self.server.after(path, data)
        if data[:1] == b"{":
            self.server.answers.append((path, json.loads(data)))
        with contextlib.suppress(ConnectionError):
            self._answer(answer, data)

    def _answer(self, answer: http.client.HTTPResponse, data: bytes) -> None:
        self.send_response(answer.status)
        for k, v in answer.getheaders():
            if k.lower() not in DROP:
                self.send_header(k, v)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answered(self, there: http.client.HTTPConnection) -> bool:
        """Wait for the answer; False when the client has gone before it."""
        assert there.sock is not None
        while True:
            ready, _, _ = select.select([self.connection, there.sock], [], [])
            if there.sock in ready:
                return True
            if not self.connection.recv(1, socket.MSG_PEEK):
                return False
