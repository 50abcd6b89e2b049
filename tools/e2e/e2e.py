"""Requests through all of pdlink, with real engines (see README.md)."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
from procs import KEY, MODEL, SERVED, Decoder, Engine, Liar, Meanwhile, Pdlink, get, pair
from tokenizers import Tokenizer

STEPS = 16  # greedy tokens compared
MIN_TOKENS, MIN_TAIL = 300, 200
WRONG = "a prompt that the engine reads wrong"


class Checks:
    """Counts and prints checks, one line each."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self._began = time.monotonic()

    def want(self, name: str, got: Any, wanted: Any) -> None:
        """Pass when both are equal."""
        good = got == wanted
        self.passed += good
        self.failed += not good
        shown = str(got)[:200] if good else f"{str(got)[:600]}, wanted {str(wanted)[:600]}"
        print(f"{time.monotonic() - self._began:7.1f}  {'ok  ' if good else 'FAIL'} {name}: {shown}", flush=True)

    def part(self, name: str) -> None:
        """Say what comes."""
        print(f"{time.monotonic() - self._began:7.1f}  == {name}", flush=True)


class House:
    """Everything that runs, and the clients that talk to it."""

    def __init__(self, args: argparse.Namespace, checks: Checks) -> None:
        self.args, self.checks, self.work = args, checks, args.work
        self.models = self.work / "models"
        self.models.mkdir()
        shutil.copytree(args.model, self.models / MODEL)
        self.sock = self.work / "engine.sock"
        about = json.loads((args.case / "case.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
        self.block = int(about["block_size"])
        self.golden: str = self.tokenizer.decode(about["tokens"], skip_special_tokens=False)
        self.running: list[Any] = []

    def start(self) -> None:
        """Start all, the slow ones at the same time, and wait until a prompt could be read."""
        a = self.args
        mac, spark = self.work / "keys-mac", self.work / "keys-spark"
        pair(a.pdlink, mac, spark)
        self.engine = self.keep(Engine(a.vllm, a.connector, a.model, self.sock, self.work, "bfloat16"))
        self.decoder = self.keep(Decoder(a.decoder, self.models, self.work / "store", self.work))
        self.decoder.wait(self.decoder.ready)
        self.decode = self.keep(self.start_decode(mac))
        self.decode.wait(lambda: self.decode.saw(event="listening"))
        listening = self.decode.events()[0]
        self.front = f"http://{listening['front']}"
        self.to = listening["listen"]
        self.prefill = self.keep(self.start_prefill(spark))
        self.prefill.wait(lambda: self.prefill.saw(event="ready"))
        self.decode.wait(lambda: "reads prompts for" in self.decode.text())

    def start_decode(self, keys: Path) -> Pdlink:
        """`pdlink decode` with a front door."""
        return Pdlink(
            self.args.pdlink,
            "decode",
            [
                *(
                    "--listen",
                    "tcp://127.0.0.1:0",
                    "--keys",
                    str(keys),
                    "--decoder",
                    self.decoder.url,
                    "--front",
                    "127.0.0.1:0",
                ),
                *("--min-tokens", str(MIN_TOKENS), "--min-tail", str(MIN_TAIL)),
            ],
            self.work,
        )

    def start_prefill(self, keys: Path, engine: str = "") -> Pdlink:
        """`pdlink prefill`, for the engine or one that stands before it."""
        return Pdlink(
            self.args.pdlink,
            "prefill",
            [
                *(
                    "--to",
                    self.to,
                    "--keys",
                    str(keys),
                    "--peer",
                    "mac",
                    "--name",
                    "spark",
                    "--engine",
                    engine or self.engine.url,
                ),
                *("--socket", str(self.sock), "--model", f"{MODEL}={SERVED}", "--mem-floor", "-1"),
            ],
            self.work,
        )

    def keep(self, process: Any) -> Any:
        """End a process with the house."""
        self.running.append(process)
        return process

    def stop(self) -> None:
        """End all, the last that was started first."""
        for process in reversed(self.running):
            process.stop()

    def client(self, **options: Any) -> openai.OpenAI:
        """The SDK that people use, at the front door. It must not hide a failure by trying again."""
        return openai.OpenAI(base_url=f"{self.front}/v1", api_key=KEY, max_retries=0, timeout=300, **options)

    def story(self, name: str) -> str:
        """A text of some 700 tokens that begins like no other."""
        return f"{name}. " + self.golden[: len(self.golden) // 2]

    def record(self, verdict: str) -> dict[str, Any]:
        """The record that a verdict names, once its answer has ended."""
        name = verdict.rpartition("id=")[2]
        end = time.monotonic() + 20
        while True:
            status, found = get(f"{self.front}/pdlink/transfers/{name}")
            if status == 200 or time.monotonic() > end:
                return found if status == 200 else {}
            time.sleep(0.05)


class Said:
    """An answer: its verdict, usage and text."""

    def __init__(self, verdict: str, prompt: int, cached: int | None, text: str) -> None:
        self.verdict, self.prompt, self.cached, self.text = verdict, prompt, cached, text


def details(usage: Any) -> tuple[int, int | None]:
    """Prompt and cached tokens of an OpenAI usage."""
    found = usage.prompt_tokens_details
    return usage.prompt_tokens, None if found is None else found.cached_tokens


def completion(house: House, prompt: str, stream: bool) -> Said:
    """POST /v1/completions by the SDK."""
    with house.client() as c:
        how = {"model": MODEL, "prompt": prompt, "max_tokens": STEPS, "temperature": 0}
        if not stream:
            raw = c.completions.with_raw_response.create(**how)
            answer = raw.parse()
            return Said(raw.headers["X-PDLink"], *details(answer.usage), answer.choices[0].text)
        text, usage = "", None
        with c.completions.with_streaming_response.create(
            **how, stream=True, stream_options={"include_usage": True}
        ) as raw:
            for chunk in raw.parse():
                text += "".join(x.text for x in chunk.choices)
                usage = chunk.usage or usage
            return Said(raw.headers["X-PDLink"], *details(usage), text)


def chat(house: House, prompt: str, stream: bool) -> Said:
    """POST /v1/chat/completions by the SDK."""
    with house.client() as c:
        messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": prompt}]
        how: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": STEPS, "temperature": 0}
        if not stream:
            raw = c.chat.completions.with_raw_response.create(**how)
            answer = raw.parse()
            return Said(raw.headers["X-PDLink"], *details(answer.usage), str(answer.choices[0].message.content))
        text, usage = "", None
        with c.chat.completions.with_streaming_response.create(
            **how, stream=True, stream_options={"include_usage": True}
        ) as raw:
            for chunk in raw.parse():
                text += "".join(x.delta.content or "" for x in chunk.choices)
                usage = chunk.usage or usage
            return Said(raw.headers["X-PDLink"], *details(usage), text)


def message(house: House, prompt: str, stream: bool) -> Said:
    """POST /v1/messages by the other SDK."""
    with anthropic.Anthropic(base_url=house.front, api_key=KEY, max_retries=0, timeout=300) as c:
        how: dict[str, Any] = {"model": MODEL, "max_tokens": STEPS, "messages": [{"role": "user", "content": prompt}]}
        if not stream:
            raw = c.messages.with_raw_response.create(**how)
            answer = raw.parse()
            cached = answer.usage.cache_read_input_tokens
            return Said(raw.headers["X-PDLink"], answer.usage.input_tokens, cached, str(answer.content))
        with c.messages.stream(**how) as s:
            text = "".join(s.text_stream)
            usage = s.get_final_message().usage
            return Said(s.response.headers["X-PDLink"], usage.input_tokens, usage.cache_read_input_tokens, text)


def bridged(house: House, name: str, said: Said) -> None:
    """Demand that a prompt was read by the engine and its blocks were used: all whole ones that leave a token."""
    checks = house.checks
    record = house.record(said.verdict)
    tokens = int(record.get("tokens", 0))
    whole = (tokens - 1) // house.block * house.block
    checks.want(f"{name}: verdict", said.verdict.split(";")[0], f"complete {whole}/{tokens} tokens")
    found = {k: record.get(k) for k in ("cached_tokens", "check", "engine", "sealed", "shared")}
    checks.want(
        f"{name}: record",
        found,
        {"cached_tokens": whole, "check": "equal", "engine": "spark", "sealed": True, "shared": None},
    )
    checks.want(f"{name}: cached tokens in the answer", (said.cached, whole > 0), (whole, True))


def native(house: House) -> list[str]:
    """What the decoder answers by itself to two prompts, with a store of its own."""
    a = house.args
    decoder = Decoder(a.decoder, house.models, house.work / "store-native", house.work, "native")
    try:
        decoder.wait(decoder.ready)
        with openai.OpenAI(base_url=f"{decoder.url}/v1", api_key=KEY, max_retries=0, timeout=300) as c:
            texts = []
            for prompt in (house.golden, house.story(WRONG)):
                answer = c.completions.create(model=MODEL, prompt=prompt, max_tokens=STEPS, temperature=0)
                house.checks.want("native: cached tokens", details(answer.usage)[1] or 0, 0)
                texts.append(answer.choices[0].text)
            return texts
    finally:
        decoder.stop()


def wrong(house: House, right: str) -> None:
    """An engine that reads another prompt: its blocks are adopted just as well, and the answer shows it. So equal
    tokens prove that the blocks of the other parts are right, which adoption and cached tokens do not.
    """
    checks, spark = house.checks, house.work / "keys-spark"
    house.prefill.stop()
    liar = Liar(house.engine)
    before = house.decode.text().count("reads prompts for")
    house.prefill = house.keep(house.start_prefill(spark, liar.url))
    house.decode.wait(lambda: house.decode.text().count("reads prompts for") > before)
    said = completion(house, house.story(WRONG), False)
    bridged(house, "wrong prompt", said)
    checks.want("wrong prompt: 16 greedy tokens differ from native", said.text != right, True)
    liar.shutdown()


def golden(house: House, want: str) -> None:
    """The golden prompt: the same 16 greedy tokens as the decoder's own, and again from its cache."""
    said = completion(house, house.golden, False)
    bridged(house, "golden", said)
    house.checks.want("golden: 16 greedy tokens as native", said.text, want)
    again = completion(house, house.golden, False)
    house.checks.want("golden again: verdict", again.verdict.split(":")[0].split(" ")[0], "bypass")
    house.checks.want("golden again: why", "warm" in again.verdict, True)
    house.checks.want("golden again: tokens", (again.text, again.cached), (want, said.cached))


def paths(house: House) -> None:
    """Every API, streaming and not."""
    apis: dict[str, Callable[[House, str, bool], Said]] = {"completions": completion, "chat": chat, "messages": message}
    for api, call in apis.items():
        for stream in (False, True):
            name = f"{api}, {'streaming' if stream else 'whole'}"
            bridged(house, name, call(house, house.story(name), stream))


def others(house: House) -> None:
    """What is not bridged, and what runs at the same time."""
    checks = house.checks
    short = completion(house, "A short one.", False)
    checks.want("short: verdict", short.verdict.startswith("bypass; short"), True)
    with house.client() as c:
        checks.want("models pass through", [m.id for m in c.models.list()], [MODEL])
    with openai.OpenAI(base_url=f"{house.front}/v1", api_key="wrong", max_retries=0, timeout=60) as c:
        try:
            c.completions.create(model=MODEL, prompt=house.story("no key"), max_tokens=1)
            checks.want("wrong key", "answered", "refused")
        except openai.AuthenticationError as err:
            checks.want("wrong key", err.status_code, 401)
    checks.want("the plug-in's endpoints are not there", get(f"{house.front}/pdlink/v1/info", KEY)[0], 404)
    same, other = house.story("the same twice"), house.story("another")
    jobs = [Meanwhile(lambda p=p: completion(house, p, False)) for p in (same, same, other)]
    answers = [j.get() for j in jobs]
    checks.want("at once: texts of equal prompts", answers[0].text, answers[1].text)
    records = [house.record(a.verdict) for a in answers]
    checks.want("at once: checks", {r.get("check") for r in records}, {"equal"})
    checks.want("at once: equal prompts share a transfer", records[0].get("transfer"), records[1].get("transfer"))
    checks.want("at once: cached tokens", all((a.cached or 0) > 0 for a in answers), True)


def faults(house: House) -> None:
    """What is left when a part is gone, and that it comes back."""
    checks, spark = house.checks, house.work / "keys-spark"
    checks.want("prefill ends in order", house.prefill.stop(), 0)
    house.decode.wait(lambda: "takes no prompts any more" in house.decode.text())
    alone = completion(house, house.story("alone"), False)
    checks.want(
        "without a prefill host: verdict", alone.verdict.split(" id=")[0], "bypass; no prefill host is connected;"
    )
    before = house.decode.text().count("reads prompts for")
    house.prefill = house.keep(house.start_prefill(spark))
    house.decode.wait(lambda: house.decode.text().count("reads prompts for") > before)
    bridged(house, "after a restart of prefill", completion(house, house.story("restarted"), False))


def metrics(house: House) -> None:
    """Sums, and the ends."""
    checks = house.checks
    _, text = get(f"{house.front}/pdlink/metrics")
    checks.want("metrics: answers with less than promised", "pdlink_cached_less_total 0" in text, True)
    _, listed = get(f"{house.front}/pdlink/transfers")
    slow = [r["bridge_seconds"] for r in listed["transfers"] if r["outcome"] == "complete"]
    print(f"         bridge seconds of {len(slow)} requests: {sorted(round(s, 2) for s in slow)}", flush=True)
    checks.want(
        "declined requests", [r for r in listed["transfers"] if r["outcome"] == "declined" and r["status"] == 200], []
    )
    checks.want("prefill ends in order", house.prefill.stop(), 0)
    checks.want("decode ends in order", house.decode.stop(), 0)


def main() -> int:
    """Run all parts; the exit status is 1 when any check failed."""
    parser = argparse.ArgumentParser()
    for name in ("pdlink", "work", "decoder", "vllm", "connector", "model", "case"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    checks = Checks()
    house = House(args, checks)
    try:
        checks.part("the decoder's own answer")
        want, right = native(house)
        checks.part("start: vLLM, oMLX, pdlink decode, pdlink prefill")
        house.start()
        for part in (lambda h: golden(h, want), paths, others, faults, lambda h: wrong(h, right), metrics):
            part(house)
    except Exception:
        traceback.print_exc()
        checks.want("no exception", "one", "none")
    finally:
        house.stop()
    if checks.failed:
        for process in house.running:
            print(f"---- {process.name}\n{process.text()[-2500:]}", flush=True)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
