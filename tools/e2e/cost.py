"""What a bridged request costs beyond the engine's own time, with real engines and on a shaped link (see README.md)."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cost_cable import tail
from cost_numbers import high, spread
from house import Checks, House
from procs import KEY, MODEL, SERVED, Decoder, Engine, Pdlink, pair

HERE = Path(__file__).parent
WARM_UP = 2  # rounds that are not counted


def first_token(base: str, prompt: str) -> tuple[float, Any, int | None]:
    """Ask for a streamed completion: seconds to its first text, the answer's headers, and its cached tokens."""
    how = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True}
    body = json.dumps({**how, "stream_options": {"include_usage": True}}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    began, first, cached = time.monotonic(), 0.0, None
    with urllib.request.urlopen(urllib.request.Request(f"{base}/v1/completions", body, headers), timeout=300) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if not first and any(c.get("text") for c in event.get("choices", ())):
                first = time.monotonic() - began
            cached = ((event.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens", cached)
        return first, answer.headers, cached


def answer_of(base: str, prompt: str) -> tuple[str, int | None]:
    """The text of 16 greedy tokens, and the cached tokens."""
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{base}/v1/completions", body, headers), timeout=300) as answer:
        said = json.loads(answer.read())
    return said["choices"][0]["text"], (said["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")


def golden(house: CostHouse) -> None:
    """What is brought beyond whole blocks is right: the golden prompt's tokens are those of a decoder by itself."""
    alone = house.start_decoder("alone", {})
    try:
        alone.wait(alone.ready)
        want, _ = answer_of(alone.url, house.golden)
    finally:
        alone.stop()
    covered = house.covered(house.ids(house.golden))
    house.checks.want("golden: tokens as native, cached", answer_of(house.front, house.golden), (want, covered))


def engine_only(engine: Engine, ids: list[int]) -> float:
    """Seconds that the engine takes for a prompt's ids, asked as pdlink asks."""
    body = json.dumps({"model": SERVED, "prompt": ids, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{engine.url}/v1/completions", body, {"Content-Type": "application/json"})
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()
    return time.monotonic() - began


class CostHouse(House):
    """A house whose engine forgets every prompt and notes its commits, and whose decoder has clocks in it."""

    def start(self) -> None:
        """See House."""
        a = self.args
        self.commits = self.work / "commits"
        mac, spark = self.work / "keys-mac", self.work / "keys-spark"
        pair(a.pdlink, mac, spark)
        config = {
            "kv_connector": "PDLinkConnector",
            "kv_connector_module_path": "cost_connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"socket": str(self.sock)},
        }
        more = ["--no-enable-prefix-caching", "--kv-transfer-config", json.dumps(config)]
        env = {"PYTHONPATH": str(HERE), "PDLINK_COST_LOG": str(self.commits)}
        engine = Engine(a.vllm, a.connector, self.model, self.sock, self.work, self.dtype, arguments=more, env=env)
        self.engine = self.keep(engine)
        self.decoder = self.keep(self.start_decoder("decoder", {}))
        self.decoder.wait(self.decoder.ready)
        self.decode = self.keep(self.start_decode(mac))
        self.decode.wait(lambda: self.decode.saw(event="listening"))
        listening = self.decode.events()[0]
        self.front, self.to = f"http://{listening['front']}", listening["listen"]
        self.prefill = self.keep(self.start_prefill(spark))
        self.prefill.wait(lambda: self.prefill.saw(event="ready"))
        self.decode.wait(lambda: "reads prompts for" in self.decode.text())

    def start_decode(self, keys: Path) -> Pdlink:
        """See House."""
        arguments = ["--listen", "tcp://127.0.0.1:0", "--keys", str(keys), "--decoder", self.decoder.url]
        arguments += ["--front", "127.0.0.1:0", "--min-tokens", "300", "--min-tail", "200"]
        return Pdlink(self.args.pdlink, "decode", [*arguments, *(["--tail"] if self.args.tail else [])], self.work)

    def covered(self, ids: list[int]) -> int:
        """Tokens of a prompt that are brought to the decoder."""
        return len(ids) - 1 if self.args.tail else (len(ids) - 1) // self.block * self.block

    def start_decoder(self, name: str, env: dict[str, str]) -> Decoder:
        """A decoder with clocks."""
        serve = (str(HERE / "cost_serve.py"),)
        store = self.work / f"store-{name}"
        return Decoder(self.args.decoder, self.models, store, self.work, name, command=serve, env=env)

    def prompt(self, name: str) -> str:
        """A text as long as the golden prompt, that begins like no other."""
        return f"{name}. {self.golden}"

    def last_commit(self) -> float:
        """When the engine's worker committed its last slot, in seconds since the epoch."""
        return float(self.commits.read_text().split()[-1])

    def clocks(self, step: str, decoder: Decoder) -> list[dict[str, Any]]:
        """What a decoder's clocks said of a step."""
        lines = [line[6:] for line in decoder.text().splitlines() if line.startswith("@cost ")]
        return [e for e in map(json.loads, lines) if e["step"] == step]


def epoch(text: str) -> float:
    """Seconds since the epoch of a time with nanoseconds, as Go writes it."""
    found = re.fullmatch(r"(\d+-\d+-\d+T\d+:\d+:\d+)(\.\d+)?(Z|[+-]\d+:\d+)", text)
    if found is None:
        raise ValueError(text)
    zone = "+00:00" if found[3] == "Z" else found[3]
    return datetime.fromisoformat(found[1] + zone).astimezone(timezone.utc).timestamp() + float(found[2] or 0)


def native_warm(house: CostHouse, name: str) -> float:
    """Seconds to the first token of a prompt that the decoder has read and stored itself."""
    base, prompt = house.decoder.url, house.prompt(name)
    first_token(base, prompt)
    whole = (len(house.ids(prompt)) - 1) // house.block * house.block
    end = time.monotonic() + 30
    while True:
        seconds, _, cached = first_token(base, prompt)
        if cached == whole or time.monotonic() > end:
            house.checks.want(f"{name}: cached natively", cached, whole)
            return seconds
        time.sleep(0.1)


def overhead(house: CostHouse, rounds: int) -> None:
    """Time to first token through the front, against the engine alone and the decoder's own warm prompts, in turn."""
    checks = house.checks
    ms: dict[str, list[float]] = {}
    for i in range(-WARM_UP, rounds):
        prompt = house.prompt(f"round {i}")
        ids = house.ids(prompt)
        whole = house.covered(ids)
        # In turn, beginning with another one each time.
        found: dict[str, float] = {}
        for what in [("front", "engine", "native")[(k + i) % 3] for k in range(3)]:
            if what == "engine":
                found[what] = engine_only(house.engine, ids[:whole])
            elif what == "native":
                found[what] = native_warm(house, f"native {i}")
            else:
                found[what], headers, cached = first_token(house.front, prompt)
                record = house.record(headers["X-PDLink"])
                checks.want(f"round {i}: cached", (record["outcome"], cached), ("complete", whole))
                bridged = epoch(record["time"]) + record["plan_seconds"] + record["bridge_seconds"]
                found["tail"] = bridged - house.last_commit()
                found["plan"], found["bridge"], found["adopt"] = (
                    record.get(k, 0.0) for k in ("plan_seconds", "bridge_seconds", "adopt_seconds")
                )
        found["again"], _, _ = first_token(house.front, prompt)
        if i >= 0:
            for k, v in found.items():
                ms.setdefault(k, []).append(v * 1e3)
    print(f"overhead, {MODEL}, {len(ids)} tokens, {whole} of them brought, in blocks of {house.block}")
    for k, text in {
        "front": "TTFT through the front, cold",
        "engine": "the engine alone, same ids",
        "native": "TTFT of a prompt that the decoder stored itself",
        "again": "TTFT through the front, warm",
        "plan": "plan",
        "bridge": "bridge",
        "adopt": "from the last block in the store to its adoption",
    }.items():
        spread(text, ms[k])
    beyond = [f - e for f, e in zip(ms["front"], ms["engine"], strict=True)]
    spread("TTFT minus engine", beyond)
    over = spread("and minus native warm", [b - n for b, n in zip(beyond, ms["native"], strict=True)])
    checks.true("overhead beyond native warm", over <= 100, f"{over:.1f} ms, wanted 100 at most")
    tail = spread("tail: last commit to last block adopted", ms["tail"])
    print(f"  tail p50 {tail:.1f} ms, p99 {high(ms['tail'], 0.99):.1f} ms", flush=True)


def first_tokens(house: CostHouse, rounds: int) -> None:
    """Where the time to the first token after adoption goes, in a decoder of its own."""
    decoder = house.keep(house.start_decoder("split", {"PDLINK_COST_SPLIT": "1"}))
    decoder.wait(decoder.ready)
    steps = ("look up", "read and rebuild", "tail prefill", "step")
    ms: dict[str, list[float]] = {s: [] for s in (*steps, "TTFT")}
    for i in range(-WARM_UP, rounds):
        prompt = house.prompt(f"split {i}")
        first_token(decoder.url, prompt)
        time.sleep(0.5)
        before = {s: len(house.clocks(s, decoder)) for s in steps}
        seconds, _, cached = first_token(decoder.url, prompt)
        if i >= 0 and cached:
            for s in steps:
                new = house.clocks(s, decoder)[before[s] :]
                ms[s].append(new[0]["ms"] if new else 0.0)
            ms["TTFT"].append(seconds * 1e3)
    print(f"first token after adoption, {MODEL}; the first step has the tail's prefill in it")
    for name, values in ms.items():
        spread(name, values)
    decoder.stop()


def main() -> int:
    """Run the parts that were asked for; the exit status is 1 when any check failed."""
    parser = argparse.ArgumentParser()
    for name in ("pdlink", "work", "decoder", "vllm", "connector", "model", "case"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--parts", default="overhead,first,tail,flood")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tail", action="store_true", help="bring what lies behind the last whole block too")
    parser.add_argument("--link", default="10gbit", help="a rate of tools/pdperf/peers/netns.sh")
    parser.add_argument("--tokens", type=int, default=81_000)
    parser.add_argument("--rate", type=int, default=10_000, help="tokens a second of the engine that is played")
    args = parser.parse_args()
    parts = args.parts.split(",")
    checks = Checks()
    if {"overhead", "first"} & set(parts):
        house = CostHouse(args, checks, args.work / "house", args.model, "bfloat16")
        try:
            house.start()
            golden(house)
            if "overhead" in parts:
                overhead(house, args.rounds)
            if "first" in parts:
                first_tokens(house, args.rounds)
        finally:
            house.stop()
    if "tail" in parts:
        tail(args, checks, args.tokens, args.rate)
    if "flood" in parts:
        tail(args, checks, args.tokens, 0)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
