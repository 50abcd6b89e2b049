"""A whole pdlink with real engines, whose parts are taken away and put back while requests run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from full_model import OTHER, TOOLS, widen
from house import MIN_TAIL, MIN_TOKENS, STEPS, Checks, details
from procs import KEY, MODEL, SERVED, Decoder, Engine, Meanwhile, Pdlink, free_port, get, pair
from tokenizers import Tokenizer

LIMIT = 120  # seconds that anything but the start of an engine may take
GOES, STANDS = 0.02, 0.05  # seconds that a frozen engine goes on for, and stands then: a step of it takes some 10 ms
STORY, LONG = 1400, 3900  # tokens of a prompt; long: some hundred steps of the slow engine

Body = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A way to run the engine. workers take part in a prompt; socket is where they look for the sidecar."""

    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workers: int = 1
    extra: dict[str, Any] = field(default_factory=dict)


# The slow engine reads 64 tokens a step, 32 of a prompt where there are several, so that a long one takes it more than
# a second; it holds 4,512 tokens in all, and lets some requests go first. Two ranks on two cores get one each.
ENGINES = {
    "plain": Kind(),
    "slow": Kind(
        (
            *("--max-num-batched-tokens", "64", "--max-num-seqs", "16", "--max-model-len", "4096"),
            *("--block-size", "32", "--num-gpu-blocks-override", "142"),
            *("--scheduling-policy", "priority", "--long-prefill-token-threshold", "32"),
        ),
        extra={"wait_ms": 30000},
    ),
    "tp2": Kind(
        ("--tensor-parallel-size", "2"), {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "OMP_NUM_THREADS": "1"}, workers=2
    ),
}


@dataclass(frozen=True)
class Answer:
    """What a client got. verdict is the header's; empty: there was none."""

    verdict: str
    cached: int | None
    text: str

    @property
    def short(self) -> str:
        """The verdict without its id."""
        return self.verdict.split(" id=")[0]


def ask(url: str, body: Body, retries: int = 0) -> Answer:
    """Ask for a few greedy tokens by the SDK that people use."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=retries, timeout=300) as c:
        made: Any = c.chat.completions if "messages" in body else c.completions
        raw = made.with_raw_response.create(model=MODEL, max_tokens=STEPS, temperature=0, **body)
        answer = raw.parse()
        return Answer(raw.headers.get("X-PDLink", ""), details(answer.usage)[1], _text(answer.choices[0]))


def _text(choice: Any) -> str:
    if not hasattr(choice, "message"):
        return str(choice.text)
    calls = [c.function.model_dump() for c in choice.message.tool_calls or []]
    return str(choice.message.content) + (json.dumps(calls) if calls else "")


class Stage:
    """All parts, and the clients. Parts are found again at the addresses that they had."""

    def __init__(self, args: argparse.Namespace, checks: Checks) -> None:
        self.args, self.checks, self.work = args, checks, args.work
        self.models, self.engine_model = self.work / "models", self.work / "engine-model"
        self.models.mkdir()
        widen(args.model, self.models / MODEL, TOOLS)
        widen(args.model, self.engine_model, OTHER)
        self.tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
        about = json.loads((args.case / "case.json").read_text())
        self.block, self.golden = int(about["block_size"]), [int(i) for i in about["tokens"]]
        self.keys = {name: self.work / f"keys-{name}" for name in ("mac", "spark")}
        pair(args.pdlink, self.keys["mac"], self.keys["spark"])
        self.sock = self.work / "engine.sock"
        self.listen = "127.0.0.1"  # the address of `pdlink decode`
        self.ports = {name: free_port() for name in ("decoder", "decode", "front", "engine", "link")}
        self.parts: dict[str, Any] = {}  # that run, by their role
        self.kind = ""  # of the engine
        self._made: dict[str, int] = {}
        self._native: dict[str, str] = {}
        self.store = self.work / self.name("store")

    # Parts.

    @property
    def front(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.ports['front']}"

    @property
    def decoder_url(self) -> str:
        """Where the decoder is."""
        return f"http://127.0.0.1:{self.ports['decoder']}"

    @property
    def engine_url(self) -> str:
        """Where the engine is."""
        return f"http://127.0.0.1:{self.ports['engine']}"

    @property
    def to(self) -> str:
        """Where `pdlink decode` listens."""
        return f"tcp://{self.listen}:{self.ports['decode']}"

    def part(self, role: str, process: Any) -> Any:
        """Keep a part."""
        self.parts[role] = process
        return process

    def name(self, role: str) -> str:
        """A name for the log of another process of a role."""
        self._made[role] = self._made.get(role, 0) + 1
        return role if self._made[role] == 1 else f"{role}-{self._made[role]}"

    def start_decoder(self, store: Path | None = None, python: Path | None = None) -> None:
        """Start the decoder over a store, by default the one that it had, and wait for it."""
        self.store = store or self.store
        port = self.ports["decoder"]
        made = Decoder(python or self.args.decoder, self.models, self.store, self.work, port=port)
        self.part("decoder", made).wait(made.ready)

    def new_store(self) -> None:
        """Let the decoder have a store in which nothing is."""
        self.end("decode")
        self.again("decoder", lambda: self.start_decoder(self.work / self.name("store")))
        self.start_decode()
        if "prefill" in self.parts:
            self.ready()

    def start_decode(self, decoder: str = "") -> None:
        """Start `pdlink decode` with its front door, and wait for it."""
        arguments = ["--listen", self.to, "--keys", str(self.keys["mac"]), "--decoder", decoder or self.decoder_url]
        arguments += ["--front", f"127.0.0.1:{self.ports['front']}"]
        arguments += ["--min-tokens", str(MIN_TOKENS), "--min-tail", str(MIN_TAIL)]
        made = self.part("decode", Pdlink(self.args.pdlink, self.name("decode"), arguments, self.work))
        made.wait(lambda: made.saw(event="listening"))

    def start_engine(self, kind: str, model: Path | None = None) -> None:
        """Start the engine. It takes a while to answer; whoever needs it waits."""
        how = ENGINES[kind]
        made = Engine(
            *(self.args.vllm, self.args.connector, model or self.engine_model, self.sock, self.work, "float32"),
            name=self.name("vllm"),
            port=self.ports["engine"],
            arguments=how.arguments,
            env=dict(how.env),
            extra=dict(how.extra),
        )
        self.part("engine", made)
        self.kind = kind

    def start_prefill(self, engine: str = "", to: str = "", models: Sequence[str] = (f"{MODEL}={SERVED}",)) -> None:
        """Start `pdlink prefill`, for the engine or what stands before it."""
        arguments = ["--to", to or self.to, "--keys", str(self.keys["spark"]), "--peer", "mac", "--name", "spark"]
        arguments += ["--engine", engine or self.engine_url, "--socket", str(self.sock), "--mem-floor", "-1"]
        for m in models:
            arguments += ["--model", m]
        made = self.part("prefill", Pdlink(self.args.pdlink, self.name("prefill"), arguments, self.work))
        made.wait(lambda: made.saw(event="started"))

    def end(self, role: str, how: int = signal.SIGTERM) -> None:
        """End a part, if it runs."""
        process = self.parts.pop(role, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.process.pid, signal.SIGCONT)  # it may stand still
            process.stop(how)
        if role == "engine":
            self.kind = ""

    def kill(self, role: str) -> None:
        """End a part and what it started as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.parts[role].process.pid, signal.SIGKILL)
        self.end(role, signal.SIGKILL)

    def freeze(self, role: str) -> None:
        """Let a part stand still."""
        os.killpg(self.parts[role].process.pid, signal.SIGSTOP)

    def thaw(self, role: str) -> None:
        """Let it go on."""
        os.killpg(self.parts[role].process.pid, signal.SIGCONT)

    def use(self, kind: str) -> None:
        """Have an engine of a kind and everything else run as it should, whatever an arm before has left."""
        for role, start in (("decoder", self.start_decoder), ("decode", self.start_decode)):
            if role not in self.parts:
                start()
        if not kind:
            return  # the arm brings its own
        if self.kind != kind:
            self.end("prefill")
            self.end("engine")
            self.start_engine(kind)
        if "prefill" not in self.parts:
            self.start_prefill()
        self.ready()

    def again(self, role: str, start: Callable[[], None]) -> None:
        """End a part in order and start it otherwise."""
        self.end(role)
        start()

    def ready(self) -> None:
        """Wait until prompts can be read."""
        engine, prefill = self.parts["engine"], self.parts["prefill"]
        prefill.wait(lambda: prefill.saw(event="ready") or engine.process.poll() is not None)
        if engine.process.poll() is not None:
            raise RuntimeError(f"the engine has ended:\n{engine.text()[-3000:]}")
        self.until("a prefill host at the front", lambda: self.hosts() == 1)

    def hosts(self) -> int:
        """Prefill hosts that the front has now."""
        lines = [x for x in self.parts["decode"].text().splitlines() if x.startswith("prefill host ")]
        return sum("reads prompts for" in x for x in lines) - sum("takes no prompts any more" in x for x in lines)

    def until(self, what: str, true: Callable[[], Any], limit: float = LIMIT) -> None:
        """Wait for something that must come."""
        end = time.monotonic() + limit
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {limit:.0f} s")
            time.sleep(0.005)

    def stop(self) -> None:
        """End all, the last that was started first."""
        for role in reversed(list(self.parts)):
            self.end(role)

    # Prompts and what comes of them.

    def text(self, name: str, tokens: int = STORY) -> str:
        """A text of about so many tokens that begins like no other."""
        ids = (self.golden * (tokens // len(self.golden) + 1))[:tokens]
        return f"{name}. " + str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def story(self, name: str, tokens: int = STORY) -> Body:
        """A completions request with such a text."""
        return {"prompt": self.text(name, tokens)}

    def ask(self, body: Body, retries: int = 0) -> Answer:
        """Ask at the front door."""
        return ask(self.front, body, retries)

    def meanwhile(self, body: Body, retries: int = 0) -> Meanwhile:
        """Ask in a thread."""
        return Meanwhile(lambda: self.ask(body, retries))

    def native(self, body: Body) -> str:
        """What the decoder answers by itself, with a store of its own."""
        key = json.dumps(body, sort_keys=True)
        if key not in self._native:
            if "native" not in self.parts:
                store = self.work / "store-native"
                made = Decoder(self.args.decoder, self.models, store, self.work, "native")
                self.part("native", made).wait(made.ready)
            self._native[key] = ask(self.parts["native"].url, body).text
        return self._native[key]

    def record(self, said: Answer) -> dict[str, Any]:
        """The record that a verdict names, once its answer has ended."""
        name = said.verdict.rpartition("id=")[2].split(";")[0]
        found: list[Any] = []

        def there() -> bool:
            status, answer = get(f"{self.front}/pdlink/transfers/{name}")
            found[:] = [answer]
            return status == 200

        self.until(f"the record of {said.verdict!r}", there)
        record: dict[str, Any] = found[0]
        return record

    def newest(self) -> dict[str, Any]:
        """The record of the request that ended last."""
        _, listed = get(f"{self.front}/pdlink/transfers")
        record: dict[str, Any] = listed["transfers"][0] if listed["transfers"] else {}
        return record

    def calls(self) -> list[dict[str, Any]]:
        """What `pdlink prefill` said of prompts."""
        return [e for e in self.parts["prefill"].events() if e["event"] == "call"]

    def blocks(self) -> int:
        """Blocks in the decoder's store."""
        return sum(1 for _ in self.store.rglob("*.safetensors"))

    def block_came(self, before: int, more: int) -> None:
        """Wait until the store has more blocks than before."""
        self.until(f"{more} new blocks", lambda: self.blocks() >= before + more)

    def being_read(self, name: str, body: Body, retries: int = 0) -> Meanwhile:
        """Have a long prompt read, and let the engine stand still in the middle of it."""
        with self.halfway():
            call = self.meanwhile(body, retries)
        self.checks.want(f"{name}: the prompt is being read", call.is_alive(), True)
        return call

    @contextlib.contextmanager
    def halfway(self) -> Iterator[None]:
        """Let the engine stand still once two blocks of a prompt that is asked for within are there. Until then it goes
        by fits and starts, so that what it has read is in the store before it reads on.
        """
        before = self.blocks()
        self.freeze("engine")
        yield

        def came() -> bool:
            self.thaw("engine")
            time.sleep(GOES)
            self.freeze("engine")
            time.sleep(STANDS)
            return self.blocks() >= before + 2

        self.until("two new blocks", came)

    # What is demanded of answers.

    def right(self, name: str, said: Answer, body: Body) -> None:
        """Demand the tokens that the decoder gives by itself."""
        self.checks.want(f"{name}: the {STEPS} greedy tokens of the decoder alone", said.text, self.native(body))

    def complete(self, name: str, said: Answer, body: Body, **more: Any) -> dict[str, Any]:
        """Demand that every whole block that leaves a token came and was used, and the right tokens. more is what the
        record must have besides.
        """
        record = self.record(said)
        tokens = int(record.get("tokens", 0))
        whole = (tokens - 1) // self.block * self.block
        self.checks.want(f"{name}: verdict", said.verdict.split(";")[0], f"complete {whole}/{tokens} tokens")
        want = {"cached_tokens": whole, "check": "equal", "engine": "spark", "sealed": True, **more}
        self.checks.want(f"{name}: record", {k: record.get(k) for k in want}, want)
        self.checks.want(f"{name}: cached tokens in the answer", (said.cached, whole > 0), (whole, True))
        self.right(name, said, body)
        return record

    def partial(self, name: str, said: Answer, body: Body, why: str) -> dict[str, Any]:
        """Demand that some blocks came and were used, the reason, a pattern, and the right tokens."""
        record = self.record(said)
        promised, tokens = int(record.get("promised", 0)), int(record.get("tokens", 0))
        whole = (tokens - 1) // self.block * self.block
        self.checks.want(f"{name}: verdict", said.verdict.split(";")[0], f"partial {promised}/{tokens} tokens")
        self.checks.true(f"{name}: some blocks, not all", 0 < promised < whole, f"{promised} of {whole} tokens")
        self.checks.true(f"{name}: reason has {why!r}", re.search(why, said.verdict) is not None, said.short)
        found = {k: record.get(k) for k in ("cached_tokens", "check", "status")}
        self.checks.want(f"{name}: record", found, {"cached_tokens": promised, "check": "equal", "status": 200})
        self.checks.want(f"{name}: cached tokens in the answer", said.cached, promised)
        self.right(name, said, body)
        return record

    def declined(self, name: str, said: Answer, body: Body, why: str, outcome: str = "declined") -> None:
        """Demand that no block came, the reason, and the right tokens."""
        self.checks.true(
            f"{name}: verdict {outcome!r}, reason has {why!r}",
            said.verdict.startswith(outcome) and why in said.verdict,
            said.short,
        )
        self.checks.want(f"{name}: cached tokens in the answer", said.cached or 0, 0)
        self.right(name, said, body)

    def first(self, name: str) -> None:
        """Demand that the first request after something was put back succeeds."""
        self.bridges(f"{name}: first request after it")

    def bridges(self, name: str) -> None:
        """Demand that an ordinary prompt is bridged."""
        body = self.story(name)
        self.complete(name, self.ask(body), body)
