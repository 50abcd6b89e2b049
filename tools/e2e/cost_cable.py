"""The tail of a DeepSeek-V4-Flash prompt over a shaped cable between two namespaces, with engines that are played."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cost_numbers import high, spread
from house import Checks
from procs import Pdlink, Process, free_port, pair

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NETNS = ROOT / "tools" / "pdperf" / "peers" / "netns.sh"
LAYERS, BLOCK = 43, 2048  # of the model
CHUNK = 8192  # tokens that the engine reads at a time
ANSWER = 0.03  # seconds from an engine's last layer to its answer


class Inside(Pdlink):
    """A pdlink command in a network namespace."""

    def __init__(self, namespace: str, program: Path, name: str, arguments: list[str], work: Path) -> None:
        """See Pdlink."""
        command = ["ip", "netns", "exec", namespace, str(program), name, *arguments, "--json"]
        Process.__init__(self, name, command, work)


ASK = """
import json, sys, urllib.request
url, body = sys.argv[1], open(sys.argv[2], "rb").read() if sys.argv[2] else None
request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=600) as r:
    print(json.dumps({"verdict": r.headers.get("X-PDLink"), "answer": json.loads(r.read())}))
"""


class Cable:
    """Two namespaces with a shaped cable between them, and a whole pdlink whose two engines are played."""

    def __init__(self, args: argparse.Namespace, rate: str, tokens_a_second: int) -> None:
        """Start all."""
        self.args, self.name = args, f"pdc{os.getpid() % 10000}"
        self.work = args.work / f"cable-{tokens_a_second}"
        self.work.mkdir()
        self.env = {**os.environ, "PDPERF_NS": self.name}
        self.running: list[Process] = []
        self._net("up")
        self._net("shape", rate)
        a, b = f"{self.name}-a", f"{self.name}-b"
        mac, spark = self.work / "keys-mac", self.work / "keys-spark"
        pair(args.pdlink, mac, spark)
        self.port, engine_port = free_port(), free_port()
        block = self._block()
        job = {"store": str(self.work / "store"), "port": self.port, "block": str(block)}
        job["fakes"] = str(ROOT / "bridge" / "omlx" / "plugin" / "tests" / "unit")
        self.decoder = self._python("decoder", b, args.decoder, "cost_decoder.py", job, "")
        self.decoder.wait(lambda: bool(self.lines(self.decoder, "listening")))
        self.decode = self._keep(Inside(b, args.pdlink, "decode", self._decode(mac), self.work))
        self.decode.wait(lambda: self.decode.saw(event="listening"))
        self.front = f"http://{self.decode.events()[0]['front']}"
        sock = self.work / "engine.sock"
        to = ["--to", self.decode.events()[0]["listen"], "--keys", str(spark), "--peer", "mac", "--name", "spark"]
        to += ["--engine", f"http://127.0.0.1:{engine_port}", "--socket", str(sock), "--mem-floor", "-1"]
        if not tokens_a_second:  # then it is the disk that is waited for, not the engine
            to += ["--lease-wait", "5s"]
        self.prefill = self._keep(Inside(a, args.pdlink, "prefill", to, self.work))
        job = {"socket": str(sock), "port": engine_port, "layers": LAYERS, "chunk": CHUNK, "rate": tokens_a_second}
        job["answer"] = ANSWER
        self.engine = self._python("engine", a, args.vllm, "cost_engine.py", job, str(args.connector))
        self.prefill.wait(lambda: self.prefill.saw(event="ready"))
        self.decode.wait(lambda: "reads prompts for" in self.decode.text())

    def _decode(self, keys: Path) -> list[str]:
        arguments = ["--listen", "tcp://10.231.7.2:0", "--keys", str(keys), "--decoder", f"http://127.0.0.1:{self.port}"]
        # The engine has no model that could be compared with the decoder's.
        return [*arguments, "--front", "127.0.0.1:0", "--allow-unknown"]

    def _net(self, *arguments: str) -> None:
        subprocess.run(["bash", str(NETNS), *arguments], env=self.env, check=True, timeout=60)

    def _block(self) -> Path:
        """A first block of the model, by pdlink."""
        store = self.work / "example"
        command = [str(self.args.pdlink), "replay", "--synthetic", "deepseek-v4-flash", "--tokens", str(BLOCK + 1)]
        subprocess.run([*command, "--store", str(store)], check=True, capture_output=True, timeout=120)
        found: list[Path] = list(store.rglob("*.safetensors"))
        return found[0]

    def _keep(self, process: Any) -> Any:
        self.running.append(process)
        return process

    def _python(self, name: str, namespace: str, python: Path, script: str, job: dict[str, Any], path: str) -> Process:
        given = self.work / f"{name}.json"
        given.write_text(json.dumps(job))
        command = ["ip", "netns", "exec", namespace, str(python), str(HERE / script), str(given)]
        process: Process = self._keep(Process(name, command, self.work, {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}))
        return process

    def ask(self, path: str, body: Any = None) -> Any:
        """A client's request, on the decode host."""
        given = ""
        if body is not None:
            (self.work / "ask.json").write_text(json.dumps(body))
            given = str(self.work / "ask.json")
        command = ["ip", "netns", "exec", f"{self.name}-b", sys.executable, "-c", ASK, self.front + path, given]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=600).stdout)

    def lines(self, process: Process, key: str) -> list[dict[str, Any]]:
        """The lines of a played engine that have a key."""
        lines = [line for line in process.text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [e for e in map(json.loads, lines) if key in e]

    def stop(self) -> None:
        """End all."""
        for process in reversed(self.running):
            process.stop(signal.SIGTERM, 10)
        self._net("down")
        shutil.rmtree(self.work / "store", ignore_errors=True)


@contextlib.contextmanager
def cable(args: argparse.Namespace, tokens_a_second: int) -> Iterator[Cable]:
    """A Cable, which is ended."""
    found: Cable | None = None
    try:
        found = Cable(args, args.link, tokens_a_second)
        yield found
    finally:
        if found is not None:
            found.stop()
        else:
            env = {**os.environ, "PDPERF_NS": f"pdc{os.getpid() % 10000}"}
            subprocess.run(["bash", str(NETNS), "down"], env=env, check=False)


def tail(args: argparse.Namespace, checks: Checks, tokens: int, tokens_a_second: int) -> None:
    """From the last commit to the last adoption of a DeepSeek-V4-Flash prompt, over a shaped link."""
    ms: dict[str, list[float]] = {}
    blocks = (tokens - 1) // BLOCK
    with cable(args, tokens_a_second) as c:
        for i in range(-1, args.rounds):
            said = c.ask("/v1/completions", {"model": "v4", "prompt": f"{i:6d} ".ljust(tokens, "x")})
            cached = said["answer"]["usage"]["prompt_tokens_details"]["cached_tokens"]
            found = (said["verdict"].split(" ")[0], cached)
            checks.want(f"tail {i}: verdict, cached", found, ("complete", blocks * BLOCK))
            record = c.ask("/pdlink/transfers/" + said["verdict"].rpartition("id=")[2])["answer"]
            done = c.lines(c.engine, "committed")[-1]
            last = [e for e in c.lines(c.decoder, "adopted") if e["at"] > done["committed"] and e["adopted"] == blocks]
            if i >= 0 and last:
                ms.setdefault("tail", []).append((last[0]["at"] - done["committed"]) * 1e3)
                ms.setdefault("adopt", []).append(last[0]["ms"])
                ms.setdefault("waited", []).append(done["waited"] * 1e3)
                ms.setdefault("bridge", []).append(record["bridge_seconds"] * 1e3)
                ms.setdefault("record", []).append(record.get("adopt_seconds", 0) * 1e3)
            elif not last:
                print(f"  not whole: {record.get('reason')}", flush=True)
    if not ms:
        return
    pace = f"{tokens_a_second} tokens/s" if tokens_a_second else "as fast as the link takes it"
    print(f"tail, DeepSeek-V4-Flash, {tokens} tokens, {blocks} blocks, {args.link}, sealed, engine {pace}")
    spread("bridge", ms["bridge"])
    spread("engine waited for slots", ms["waited"])
    spread("the last adoption alone", ms["adopt"])
    spread("from the last block in the store to its adoption", ms["record"])
    middle = spread("tail: last commit to last block adopted", ms["tail"])
    print(f"  tail p50 {middle:.1f} ms, p99 {high(ms['tail'], 0.99):.1f} ms", flush=True)
    if tokens_a_second:
        checks.true("tail", middle <= 50, f"{middle:.1f} ms, wanted 50 at most")
