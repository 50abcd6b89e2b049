"""`pdlink bench` with real engines: what it reports has to be what happened (see README.md)."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from house import Checks, House
from procs import KEY, MODEL, SERVED, Decoder, Engine, pair

LIMIT = 300  # seconds for a run of bench
ARMS = ["native", "bridged", "engine", "warm"]


class BenchHouse(House):
    """A house whose engine tells how much of a prompt it had in its cache."""

    def start(self) -> None:
        """See House."""
        a = self.args
        mac, spark = self.work / "keys-mac", self.work / "keys-spark"
        pair(a.pdlink, mac, spark)
        more = ["--enable-prompt-tokens-details", "--enable-prefix-caching"]
        engine = Engine(a.vllm, a.connector, self.model, self.sock, self.work, self.dtype, arguments=more)
        self.engine = self.keep(engine)
        self.decoder = self.keep(Decoder(a.decoder, self.models, self.store, self.work))
        self.decoder.wait(self.decoder.ready)
        self.decoder.load(MODEL)
        self.decode = self.keep(self.start_decode(mac))
        self.decode.wait(lambda: self.decode.saw(event="listening"))
        listening = self.decode.events()[0]
        self.front, self.to = f"http://{listening['front']}", listening["listen"]
        self.prefill = self.keep(self.start_prefill(spark))
        self.prefill.wait(lambda: self.prefill.saw(event="ready"))
        self.decode.wait(lambda: "reads prompts for" in self.decode.text())


def command(house: House, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command line of bench and its environment."""
    return [str(house.args.pdlink), "bench", *arguments], {**os.environ, "PDLINK_DECODER_KEY": KEY}


def bench(house: House, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run it with --json; returns its status, its events and what it said to people."""
    line, env = command(house, *arguments, "--json")
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL, env=env)
    return done.returncode, [json.loads(text) for text in done.stdout.splitlines()], done.stderr


def rows(report: dict[str, Any], arm: str) -> list[dict[str, Any]]:
    """The rows of an arm that count."""
    return [r for r in report["rows"] if r["arm"] == arm and r["counted"]]


def judged(checks: Checks, name: str, report: dict[str, Any], allowed: set[str]) -> None:
    """No check of a report fails but for those that say something of this machine's speed."""
    failed = [c for c in report["checks"] if c["level"] == "fail" and c["check"] not in allowed]
    checks.want(f"{name}: failed checks", failed, [])


def whole(house: House, runs: int, tokens: list[int]) -> None:
    """All four arms: the front's verdicts, the decoder's cache, the engine's ids, and how they hang together."""
    checks = house.checks
    out = house.work / "report.json"
    where = ["--front", house.front, "--native", house.decoder.url, "--engine", house.engine.url]
    where += ["--model", f"{MODEL}={SERVED}", "--runs", str(runs), "--tokens", ",".join(map(str, tokens))]
    where += ["--answer", "48"]
    where += ["--report", str(out), "--markdown", str(out.with_suffix(".md"))]
    status, events, said = bench(house, *where)
    if not events or events[-1].get("event") != "summary":
        checks.want("bench: a report", (status, events[-1:], said), "a summary")
        return
    report = events[-1]
    print(out.with_suffix(".md").read_text(), flush=True)
    judged(checks, "bench", report, {"decode rate"})
    checks.true("bench: status", status in (0, 1) and report["ok"] == (status == 0), f"{status}, {said}")
    checks.want("bench: rows of each arm", [len(rows(report, a)) for a in ARMS], [runs * len(tokens)] * 4)
    checks.want("bench: ids of", report["ids_of"], "plug-in")
    lengths = [(r["tokens"], r["want_tokens"]) for r in rows(report, "native")]
    # With a vocabulary of 768 a word has 1 to 8 tokens.
    near = all(abs(got - want) <= 0.1 * want for got, want in lengths)
    checks.true("bench: prompts are as long as they should be", near, str(lengths))
    for b, e, w in zip(rows(report, "bridged"), rows(report, "engine"), rows(report, "warm"), strict=True):
        name = f"bench: {b['want_tokens']} tokens, run {b['run']}"
        covered = (b["tokens"] - 1) // house.block * house.block
        found = (b["outcome"], b["promised_tokens"], b["cached_tokens"], e["tokens"], w["cached_tokens"], b["sealed"])
        wanted = ("complete", covered, covered, covered, covered, True)
        checks.want(f"{name}: verdict, promised, cached, read, warm, sealed", found, wanted)
        over = b["ttft_seconds"] - e["total_seconds"]
        checks.true(f"{name}: overhead", abs(b["overhead_seconds"] - over) < 1e-6, f"{over * 1e3:.1f} ms")
        record = house.record(b["verdict"])
        same = (record.get("tokens"), record.get("bridge_seconds"), record.get("check"))
        checks.want(f"{name}: the front's record", same, (b["tokens"], b["bridge_seconds"], "equal"))
    unfit = [(r["arm"], r["unfit"]) for a in ARMS for r in rows(report, a) if "unfit" in r]
    checks.want("bench: rows in no median", unfit, [])
    cached = [r["cached_tokens"] for r in rows(report, "native")]
    checks.true("bench: native is cold", not any(cached), str(cached))
    # The engine caches prefixes, and it has read these ids for the bridge a moment before.
    cached = [r["cached_tokens"] for r in rows(report, "engine")]
    checks.want("bench: the engine is cold", cached, [0] * len(cached))
    seeds = [r["seed"] for r in report["rows"] if r["arm"] in ("native", "bridged")]
    checks.want("bench: prompts with the same seed", len(seeds) - len(set(seeds)), 0)
    same_report = json.loads(out.read_text()) == {k: v for k, v in report.items() if k != "event"}
    checks.true("bench: the file is the summary", same_report, "yes" if same_report else "no")


def parts(house: House) -> None:
    """One URL at a time, and what is then said to be missing."""
    checks = house.checks
    few = ["--tokens", "700", "--runs", "1", "--warm-up", "0", "--answer", "24"]
    status, events, _ = bench(house, "--native", house.decoder.url, *few)
    report = events[-1]
    checks.want("bench --native: arms", (status, [r["arm"] for r in report["rows"]]), (0, ["native", "warm"]))
    lacks = any("bridged" in m for m in report["missing"])
    checks.true("bench --native: what is missing", lacks, str(report["missing"]))
    status, events, _ = bench(house, "--engine", house.engine.url, *few)
    report = events[-1]
    found = (status, [r["arm"] for r in report["rows"]], report.get("ids_of"))
    checks.want("bench --engine: arms, ids of", found, (0, ["engine"], "engine"))
    # vLLM speaks the OpenAI API too: any endpoint will do.
    status, events, _ = bench(house, "--native", house.engine.url, "--api", "completions", *few)
    report = events[-1]
    timed = [(r["arm"], r.get("ttft_seconds", 0) > 0, r.get("error")) for r in report["rows"]]
    checks.want("bench --native of another server", timed, [("native", True, None), ("warm", True, None)])
    cached = [r["cached_tokens"] or 0 for r in report["rows"]]
    checks.true("bench --native of another server: cached", cached[0] == 0 < cached[-1], str(cached))
    status, events, _ = bench(house, "--native", house.front, *few)
    failed = [c["check"] for c in events[-1]["checks"] if c["level"] == "fail"]
    checks.want("bench: a front in the decoder's place", (status, "native" in failed), (1, True))


def people(house: House) -> None:
    """Lines for people, and an interrupt in the middle."""
    checks = house.checks
    where = ["--front", house.front, "--native", house.decoder.url, "--engine", house.engine.url]
    where += ["--tokens", "1000", "--runs", "50", "--warm-up", "0", "--answer", "24"]
    line, env = command(house, *where)
    log = house.work / "people.txt"
    with log.open("w") as out:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)
    end = time.monotonic() + LIMIT
    while "run 1 of 50" not in log.read_text() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    status = process.wait(LIMIT)
    text = log.read_text()
    print(text, flush=True)
    checks.want("bench: interrupted, status", status, 130)
    for what in ("the engine took", "were added", "native would take", "interrupted: this is what was measured"):
        checks.true(f"bench: it says {what!r}", what in text, text[-300:] if what not in text else "yes")


def main() -> int:
    """Run all; the exit status is 1 when any check failed."""
    parser = argparse.ArgumentParser()
    for name in ("pdlink", "work", "decoder", "vllm", "connector", "model", "case"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", default="700,1500")
    args = parser.parse_args()
    checks = Checks()
    house = BenchHouse(args, checks, args.work / "house", args.model, "bfloat16")
    try:
        house.start()
        whole(house, args.runs, [int(n) for n in args.tokens.split(",")])
        parts(house)
        people(house)
    finally:
        house.stop()
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
