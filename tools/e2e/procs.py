"""The processes of a whole pdlink: a decoder, a prefill engine, and pdlink at both ends."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "sesam"  # the decoder's API key
MODEL = "tiny-qwen3"  # as the decoder calls it
SERVED = "Qwen/Tiny"  # as the engine does
START_LIMIT = 420  # seconds for an engine to start; half a minute on an idle machine


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


def get(url: str, key: str | None = None) -> tuple[int, Any]:
    """Ask; returns the status and the parsed answer, or its text."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
            return int(answer.status), json.loads(text) if text[:1] in ("{", "[") else text
    except urllib.error.HTTPError as err:
        return int(err.code), err.read().decode()


def post(url: str, body: Any, key: str | None, limit: float) -> tuple[int, Message, Any]:
    """Ask with a JSON body; returns the status, the headers and the parsed answer, or its text."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=limit) as answer:
            return int(answer.status), answer.headers, json.loads(answer.read())
    except urllib.error.HTTPError as err:
        return int(err.code), err.headers, err.read().decode()


class Process:
    """A program whose output lies in a file. It is ended with the last word."""

    def __init__(self, name: str, command: list[str], work: Path, env: dict[str, str] | None = None) -> None:
        """Start it."""
        self.name = name
        self.log = work / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def text(self) -> str:
        """What it has said."""
        return self.log.read_text(errors="replace")

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until it is ready."""
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                if ready():
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not start:\n{self.text()[-3000:]}")
            time.sleep(0.2)

    def stop(self, how: int = signal.SIGTERM, limit: float = 60) -> int:
        """End it and what it has started, and return its exit status."""
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
            try:
                self.process.wait(limit)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # children that outlived it
        return code


class Decoder(Process):
    """A real oMLX server with the plug-in, which its import hook adds."""

    def __init__(
        self,
        python: Path,
        models: Path,
        store: Path,
        work: Path,
        name: str = "decoder",
        *,
        command: Sequence[str] = ("-m", "omlx.cli"),
        port: int = 0,
        env: dict[str, str] | None = None,
    ) -> None:
        """Start it over a store. command is what the interpreter is given before `serve`."""
        self.port = port or free_port()
        arguments = ["--model-dir", str(models), "--paged-ssd-cache-dir", str(store), "--base-path", str(work / name)]
        arguments += ["--port", str(self.port), "--api-key", KEY]
        super().__init__(name, [str(python), *command, "serve", *arguments], work, env)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def ready(self) -> bool:
        """Whether it answers."""
        return get(self.url + "/health")[0] == 200

    def load(self, model: str) -> None:
        """Load a model, and wait until the plug-in knows its blocks. Else the first plan does it, in time or not."""
        status, _, answer = post(f"{self.url}/v1/models/{model}/load", {}, KEY, START_LIMIT)
        if status != 200:
            raise RuntimeError(f"{self.name} does not load {model}: {answer}")
        self.wait(lambda: get(f"{self.url}/pdlink/v1/info?model={model}", KEY)[0] == 200)


class Engine(Process):
    """A real vLLM server on the CPU, with the connector."""

    def __init__(
        self,
        python: Path,
        connector: Path,
        model: Path,
        sock: Path,
        work: Path,
        dtype: str,
        *,
        name: str = "vllm",
        served: str = SERVED,
        port: int = 0,
        arguments: Sequence[str] = (),
        extra: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        """Start it. extra is for the connector, arguments and env for the engine; they count more than what is here."""
        self.port = port or free_port()
        self.served = served
        config = {
            "kv_connector": "PDLinkConnector",
            "kv_connector_module_path": "pdlink_vllm.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"socket": str(sock), **(extra or {})},
        }
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", served, "--dtype", dtype]
        command += ["--max-model-len", "8192", "--max-num-batched-tokens", "512", "--enforce-eager"]
        command += ["--kv-transfer-config", json.dumps(config), *arguments]  # the last of two counts
        paths = [str(connector), *([env["PYTHONPATH"]] if env and "PYTHONPATH" in env else [])]
        settings = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2"}
        settings.update(env or {})
        settings["PYTHONPATH"] = os.pathsep.join(paths)
        super().__init__(name, command, work, settings)

    def stop(self, how: int = signal.SIGTERM, limit: float = 15) -> int:
        """End it. One that is still starting does not listen, and is ended with the last word."""
        return super().stop(how, limit)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"


class Pdlink(Process):
    """A pdlink command that prints its events as JSON."""

    def __init__(self, program: Path, name: str, arguments: list[str], work: Path) -> None:
        """Start it. What it says lies in NAME.log."""
        super().__init__(name, [str(program), name.split("-")[0], *arguments, "--json"], work)

    def events(self) -> list[dict[str, Any]]:
        """The events so far."""
        found = []
        for line in self.text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                found.append(json.loads(line))
        return found

    def saw(self, **fields: Any) -> bool:
        """Whether there was an event with these fields."""
        return any(all(e.get(k) == v for k, v in fields.items()) for e in self.events())


def pair(program: Path, a: Path, b: Path, name: str = "spark") -> None:
    """Make keys for two hosts, mac and one called name, where they have none, and let them know each other, as the help
    says: by pasting lines.
    """

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(program), "keys", *arguments], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    for host in (a, b):
        if not (host / "identity").exists():
            run("init", "--dir", str(host))
    for host, there, own in ((a, b, "mac"), (b, a, name)):
        line = run("show", "--dir", str(host), "--name", own).split()
        run(*line[2:], "--dir", str(there))


class Liar(ThreadingHTTPServer):
    """An engine that reads another prompt than it was given, of the same length, and says nothing of it."""

    def __init__(self, engine: Engine) -> None:
        """Stand before an engine."""
        self.engine = engine.url
        super().__init__(("127.0.0.1", 0), _Lie)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a caller that has gone."""

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Lie(BaseHTTPRequestHandler):
    """One call of a Liar."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Pass on."""
        self._pass(None)

    def do_POST(self) -> None:
        """Pass on with the ids in reverse, and their hash."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "kv_transfer_params" in body:  # other questions are answered as they are asked
            body["prompt"].reverse()
            packed = struct.pack(f"<{len(body['prompt'])}I", *body["prompt"])
            body["kv_transfer_params"]["pdlink"]["ids_sha256"] = hashlib.sha256(packed).hexdigest()
        self._pass(json.dumps(body).encode())

    def _pass(self, body: bytes | None) -> None:
        engine = self.server.engine  # type: ignore[attr-defined]
        request = urllib.request.Request(engine + self.path, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            data = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Meanwhile(threading.Thread):
    """A call in a thread, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        """Start it."""
        super().__init__(daemon=True)
        self._call = call
        self.result: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Call."""
        try:
            self.result = self._call()
        except Exception as err:
            self.error = err

    def get(self, limit: float = 300) -> Any:
        """What came of it."""
        self.join(limit)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise TimeoutError("a request got no answer")
        return self.result
