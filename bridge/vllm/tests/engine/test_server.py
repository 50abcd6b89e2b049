"""A real vLLM server with two tensor-parallel ranks: heads join, clients vanish, sidecars die, vLLM goes on."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import pytest
import sidecar
from conftest import Place
from engines import Prompt, ids
from pdlink_vllm.wire import DType
from run_engine import transfer_config
from test_plain import BLOCK, HEADS, LAYERS, TOLERANCE, WIDTH, worst

pytestmark = pytest.mark.engine


class Server:
    """vLLM's own HTTP server."""

    def __init__(self, socket_path: Path, folder: Path, *arguments: str) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        config = json.dumps(transfer_config(str(socket_path), wait_ms=30000))
        command = [
            "nice",
            "-n",
            "10",
            str(engines.python("0.32.0")),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(engines.QWEN3),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--served-model-name",
            "tiny",
            "--dtype",
            "float32",
            "--max-model-len",
            "8192",
            "--max-num-batched-tokens",
            "64",
            "--enforce-eager",
            "--kv-transfer-config",
            config,
            *arguments,
        ]
        env = engines.environment()
        env.update(VLLM_CPU_OMP_THREADS_BIND="0|1", OMP_NUM_THREADS="1")
        self.log = (folder / "server.log").open("w")
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log, start_new_session=True)
        deadline = time.monotonic() + engines.LIMIT
        while not self.healthy():
            assert self.process.poll() is None, Path(self.log.name).read_text()[-4000:]
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(1)

    def healthy(self) -> bool:
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = c.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data else None
        finally:
            c.close()

    def prefill(self, p: Prompt) -> dict[str, Any]:
        body = {
            "model": "tiny",
            "prompt": p.ids,
            "max_tokens": 1,
            "temperature": 0,
            "kv_transfer_params": {"pdlink": p.request["ask"]},
        }
        status, answer = self.ask("POST", "/v1/completions", body)
        assert status == 200, answer
        result: dict[str, Any] = answer["kv_transfer_params"]["pdlink"]
        return result

    def vanish(self, p: Prompt, computed: Callable[[], None]) -> None:
        """Ask, and hang up before the answer, once the prompt is being computed."""
        c = http.client.HTTPConnection("127.0.0.1", self.port)
        body = {"model": "tiny", "prompt": p.ids, "max_tokens": 1, "kv_transfer_params": {"pdlink": p.request["ask"]}}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        computed()
        c.close()

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


@pytest.fixture
def server(place: Place, tmp_path: Path) -> Iterator[Server]:
    s = Server(place.path, tmp_path, "--tensor-parallel-size", "2")
    yield s
    s.close()


def test_server(place: Place, server: Server, tmp_path: Path) -> None:
    options = sidecar.Options(slots=32, slot_size=64 << 10, local=2)
    whole, long, after, restarted = (
        Prompt(n, ids(i, c))
        for i, (n, c) in enumerate([("whole", 1300), ("long", 7000), ("after", 700), ("restarted", 6000)], 30)
    )
    want = engines.reference(engines.QWEN3, {p.name: p.ids for p in (whole, after, restarted)}, tmp_path)

    def plan(s: sidecar.Sidecar, p: Prompt) -> sidecar.Transfer:
        return s.plan(p.transfer, sidecar.kv_plan(LAYERS, HEADS, WIDTH, DType.F32, BLOCK, len(p.ids) // BLOCK))

    # Nobody listens yet: the engine answers all the same.
    assert server.prefill(Prompt("nobody", ids(29, 300)))["rows"] == 300

    first = place.sidecar(options)
    connected(first, 2)
    assert sorted((h.tp_rank, h.head_first, h.head_end) for h in first.hellos) == [(0, 0, 1), (1, 1, 2)]
    assert {h.local_workers for h in first.hellos} == {2}
    plan(first, whole)
    assert server.prefill(whole)["rows"] == 1300
    assert worst(first.wait(whole.transfer), want["whole"]) < TOLERANCE

    # A client hangs up in the middle: both ranks say so, and the next prompt is as good as any.
    t = plan(first, long)
    server.vanish(long, lambda: first.until(lambda: t.commits > 0))
    first.wait(long.transfer, 120)
    assert len(t.aborted) == 2, t.ended
    plan(first, after)
    server.prefill(after)
    assert worst(first.wait(after.transfer), want["after"]) < TOLERANCE

    # The sidecar dies in the middle and another takes over its ring: nothing is lost.
    t = plan(first, restarted)
    answer: list[dict[str, Any]] = []
    ask = threading.Thread(target=lambda: answer.append(server.prefill(restarted)))
    ask.start()
    first.until(lambda: t.commits >= 10)
    first.kill()
    second = place.sidecar(options, after=first)
    ask.join(300)
    assert answer
    assert answer[0]["rows"] == 6000
    assert worst(second.wait(restarted.transfer, 60), want["restarted"]) < TOLERANCE
    assert len(t.begins) > 2, "the sidecar was not killed in the middle: the test tests less than it says"
    assert server.healthy()


def connected(s: sidecar.Sidecar, workers: int) -> None:
    """Wait until all workers said who they are."""
    s.until(lambda: len(s.hellos) >= workers)
