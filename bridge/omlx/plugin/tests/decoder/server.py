"""A real decoder in a process of its own, with the plug-in, and how it is asked."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

KEY = "sesam"
START_LIMIT = 180  # seconds; ten on an idle machine
CALL_LIMIT = 180
# The two ways to start, as the command behind the interpreter. In the first, the decoder's own, the hook does its work.
HOOK = ("-m", "omlx.cli", "serve")
LAUNCHER = ("-m", "pdlink_omlx", "serve")


class Server:
    """One server process; use as a context."""

    def __init__(self, way: tuple[str, ...], models: Path, store: Path, base: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._log = base.with_suffix(".log")
        arguments = ["--model-dir", str(models), "--paged-ssd-cache-dir", str(store), "--base-path", str(base)]
        arguments += ["--port", str(self.port), "--api-key", KEY]
        # The launcher has to do without the hook.
        environment = {**os.environ, **({"PDLINK_OMLX_DISABLE": "1"} if way is LAUNCHER else {})}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["nice", "-n", "10", sys.executable, *way, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def __enter__(self) -> Server:
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self.kill()
                    raise RuntimeError(f"the server does not start: {self._log.read_text()[-2000:]}") from None
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def call(self, path: str, body: Any = None, key: str | None = KEY) -> tuple[int, Any]:
        """Ask; returns the status and the parsed answer."""
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=CALL_LIMIT) as answer:
                return int(answer.status), json.loads(answer.read())
        except urllib.error.HTTPError as err:
            text = err.read()
            return int(err.code), json.loads(text) if text[:1] == b"{" else text.decode()

    def plan(self, path: str, body: Any) -> tuple[int, Any]:
        """Ask for a plan of a request."""
        return self.call(f"/pdlink/v1/plan?path={path}", body)
