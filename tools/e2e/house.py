"""A whole pdlink with real engines, the requests that people's SDKs make of it, and what is demanded of them."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import anthropic
import openai
from procs import KEY, MODEL, SERVED, Decoder, Engine, Pdlink, get, pair
from tokenizers import Tokenizer

STEPS = 16  # greedy tokens compared
MIN_TOKENS, MIN_TAIL = 300, 200


class Checks:
    """Counts and prints checks, one line each."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self._began = time.monotonic()

    def want(self, name: str, got: Any, wanted: Any) -> None:
        """Pass when both are equal."""
        good = got == wanted
        self.true(name, good, str(got)[:200] if good else f"{str(got)[:600]}, wanted {str(wanted)[:600]}")

    def true(self, name: str, good: bool, shown: str) -> None:
        """Pass when good is true; what is shown is printed either way."""
        self.passed += good
        self.failed += not good
        print(f"{time.monotonic() - self._began:7.1f}  {'ok  ' if good else 'FAIL'} {name}: {shown}", flush=True)

    def part(self, name: str) -> None:
        """Say what comes."""
        print(f"{time.monotonic() - self._began:7.1f}  == {name}", flush=True)


class House:
    """Everything that runs, and the clients that talk to it. work is a new directory, model that of both engines."""

    def __init__(self, args: argparse.Namespace, checks: Checks, work: Path, model: Path, dtype: str) -> None:
        self.args, self.checks, self.work, self.model, self.dtype = args, checks, work, model, dtype
        self.work.mkdir(exist_ok=True)
        self.models = self.work / "models"
        self.models.mkdir()
        shutil.copytree(model, self.models / MODEL)
        self.store = self.work / "store"
        self.sock = self.work / "engine.sock"
        about = json.loads((args.case / "case.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
        self.block = int(about["block_size"])
        self.golden_ids: list[int] = about["tokens"]
        self.golden: str = self.tokenizer.decode(self.golden_ids, skip_special_tokens=False)
        self.running: list[Any] = []

    def start(self) -> None:
        """Start all, the slow ones at the same time, and wait until a prompt could be read."""
        a = self.args
        mac, spark = self.work / "keys-mac", self.work / "keys-spark"
        pair(a.pdlink, mac, spark)
        self.engine = self.keep(Engine(a.vllm, a.connector, self.model, self.sock, self.work, self.dtype))
        self.decoder = self.keep(Decoder(a.decoder, self.models, self.store, self.work))
        self.decoder.wait(self.decoder.ready)
        self.decoder.load(MODEL)
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
        arguments = ["--listen", "tcp://127.0.0.1:0", "--keys", str(keys), "--decoder", self.decoder.url]
        arguments += ["--front", "127.0.0.1:0", "--min-tokens", str(MIN_TOKENS), "--min-tail", str(MIN_TAIL)]
        return Pdlink(self.args.pdlink, "decode", arguments, self.work)

    def start_prefill(self, keys: Path, engine: str = "") -> Pdlink:
        """`pdlink prefill`, for the engine or one that stands before it."""
        arguments = ["--to", self.to, "--keys", str(keys), "--peer", "mac", "--name", "spark"]
        arguments += ["--engine", engine or self.engine.url, "--socket", str(self.sock)]
        arguments += ["--model", f"{MODEL}={SERVED}", "--mem-floor", "-1"]
        return Pdlink(self.args.pdlink, "prefill", arguments, self.work)

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

    def ids(self, text: str) -> list[int]:
        """The ids of a prompt, as the engines make them of it."""
        found: list[int] = self.tokenizer.encode(text).ids
        return found

    def whole(self, name: str, blocks: int) -> str:
        """A text of exactly so many blocks of tokens."""
        text = f"{name}. {self.golden}"
        want = blocks * self.block
        for end in range(want, len(text)):
            if len(self.ids(text[:end])) == want:
                return text[:end]
        raise ValueError(f"no beginning of the golden prompt has {want} tokens")

    def record(self, verdict: str) -> dict[str, Any]:
        """The record that a verdict names, once its answer has ended."""
        name = verdict.rpartition("id=")[2]
        end = time.monotonic() + 30
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
        how: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": STEPS, "temperature": 0}
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
