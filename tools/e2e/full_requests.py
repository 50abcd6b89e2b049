"""Arms with odd requests: several at once, with tools, cut into chunks, preempted, cancelled, too short, half there."""

from __future__ import annotations

import http.client
import json
import re
from functools import partial
from typing import Any

from full_between import Between
from full_stage import LONG, Body, Stage, ask
from procs import KEY, MODEL, SERVED, Meanwhile, get


def golden(stage: Stage) -> None:
    """The golden prompt, as text, and again."""
    stage.new_store()
    golden_prompt(stage, "golden prompt")


def golden_prompt(stage: Stage, name: str, **more: Any) -> dict[str, Any]:
    """Demand that the golden prompt is bridged once. more is what its record must have besides."""
    body = {"prompt": stage.tokenizer.decode(stage.golden, skip_special_tokens=False)}
    record = stage.complete(name, stage.ask(body), body, **more)
    again = stage.ask(body)
    warm = again.verdict.startswith("bypass") and "; warm" in again.verdict
    stage.checks.true(f"{name} again: bypassed as warm", warm, again.short)
    stage.right(f"{name} again", again, body)
    return record


def tensor_parallel(stage: Stage) -> None:
    """Two ranks on one host, each with its heads, through one sidecar."""
    ready = [e for e in stage.parts["prefill"].events() if e["event"] == "ready"]
    stage.checks.want("TP=2: workers at the sidecar", ready[-1]["workers"], 2)
    stage.new_store()
    golden_prompt(stage, "TP=2, golden prompt")
    workers = stage.calls()[-1]["workers"]
    stage.checks.want(
        "TP=2: ranks and their tokens", [(w["rank"], w["tokens"]) for w in workers], [(0, 1280), (1, 1280)]
    )
    body = chat(stage, "TP=2, chat")
    stage.complete("TP=2, chat", stage.ask(body), body)
    several(stage, "TP=2, two at once", 2)


def chat(stage: Stage, name: str) -> Body:
    """A chat request with a system message."""
    system = {"role": "system", "content": "You are terse."}
    return {"messages": [system, {"role": "user", "content": stage.text(name)}]}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def conversation(stage: Stage) -> None:
    """Tools, a system message, and turns: the second turn needs only what is new."""
    messages: list[Any] = [
        {"role": "system", "content": "You are terse, and know the weather."},
        {"role": "user", "content": stage.text("a conversation", 700)},
    ]
    body: Body = {"messages": messages, "tools": [WEATHER]}
    said = stage.ask(body)
    record = stage.complete("tools, system, first turn", said, body, present=None)
    plain = stage.ask({"messages": messages})
    stage.checks.true(
        "the tools are in the prompt",
        int(stage.record(plain)["tokens"]) < int(record["tokens"]),
        f"{record['tokens']} tokens with them, {stage.record(plain)['tokens']} without",
    )
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Oslo"}'}}
    turns = [
        *messages,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "assistant", "content": said.text},
        {"role": "user", "content": stage.text("the second turn", 900)},
    ]
    body = {"messages": turns, "tools": [WEATHER]}
    whole = (int(record["tokens"]) - 1) // stage.block * stage.block
    stage.complete("tools, second turn with a call and its result", stage.ask(body), body, present=whole)


def several(stage: Stage, name: str, count: int) -> None:
    """Different prompts at once."""
    bodies = [stage.story(f"{name}, number {i}", 900 + 150 * i) for i in range(count)]
    calls = [stage.meanwhile(body) for body in bodies]
    answers = [c.get() for c in calls]
    for i, (body, said) in enumerate(zip(bodies, answers, strict=True)):
        stage.complete(f"{name}: number {i}", said, body)
    transfers = {stage.record(a)["transfer"] for a in answers}
    stage.checks.want(f"{name}: transfers", len(transfers), count)


def four(stage: Stage) -> None:
    """Four requests at once."""
    several(stage, "four at once", 4)


def chunks(stage: Stage) -> None:
    """A prompt that the engine reads in chunks of 512 tokens."""
    between = before_engine(stage, stays=True)  # the sidecar hangs up once all blocks are there
    body = stage.story("chunks of 512")
    record = stage.complete("chunks of 512", stage.ask(body), body)
    rows = int(record["promised"])
    stage.until("the engine's answer", between.handed_over)
    said = {k: between.handed_over()[-1].get(k) for k in ("rows", "prompt", "hit", "steps")}
    want = {"rows": rows, "prompt": rows, "hit": 0, "steps": -(-rows // 512)}
    stage.checks.want("chunks of 512: what the engine computed", said, want)
    directly(stage, between)


def before_engine(stage: Stage, **how: Any) -> Between:
    """Put a server between sidecar and engine."""
    between = Between(stage.engine_url, **how)
    stage.again("prefill", lambda: stage.start_prefill(engine=between.url))
    stage.ready()
    return between


def directly(stage: Stage, between: Between) -> None:
    """Take it away."""
    stage.again("prefill", stage.start_prefill)
    stage.ready()
    between.shutdown()


def short(stage: Stage) -> None:
    """Prompts that are not worth it."""
    body: Body = {"prompt": "A short one."}
    said = stage.ask(body)
    stage.declined("too few bytes", said, body, "short", "bypass")
    body = stage.story("too few tokens", 250)
    said = stage.ask(body)
    stage.declined("too few tokens", said, body, "short: ", "bypass")
    stage.checks.want("too few tokens: no transfer", stage.record(said).get("transfer"), None)


def half(stage: Stage) -> None:
    """A prompt of whose blocks the decoder has made the first half itself."""
    body = stage.story("half present", 1400)
    ids = stage.tokenizer.encode(body["prompt"]).ids
    before = stage.blocks()
    begin = stage.tokenizer.decode(ids[: 2 * stage.block + 40], skip_special_tokens=False)
    own = {"prompt": begin}
    stage.checks.true("half present: the prompts begin alike", body["prompt"].startswith(begin), repr(begin[-20:]))
    ask(stage.decoder_url, own)
    stage.block_came(before, 2)
    said = stage.ask(body)
    record = stage.complete("half present", said, body, present=2 * stage.block)
    blocks = int(record["promised"]) // stage.block
    size = stage.block * 3 * 2 * 2 * 64 * 4  # layers, keys and values, heads, width, float32
    stage.checks.want("half present: bytes that travelled", record["bytes"], (blocks - 2) * size)


def metric(stage: Stage, name: str) -> float:
    """A sum of the engine's metrics."""
    _, text = get(f"{stage.engine_url}/metrics")
    values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", text, re.MULTILINE)
    return sum(float(v) for v in values)


# Requests that fill the engine's cache while it reads a prompt. Of its 141 blocks of 32 tokens the prompt needs 112,
# and is begun only where they are free: while seven others have no more than four each, for 96 steps after they have
# come. It takes 112 steps itself, at whose end each of the others has five at least: too many.
HOGS, HOG_PROMPT, HOG_ANSWER = 7, 32, 250
CHANCES = 3  # for an engine that takes longer than these 96 steps to see the prompt


def hog(stage: Stage, number: int, sent: list[int]) -> None:
    """A request at the engine itself that counts more than all others, and grows."""
    ids = [3 + (i * 37 + number * 101 + i * i * 7) % 750 for i in range(HOG_PROMPT)]
    body = {"model": SERVED, "prompt": ids, "max_tokens": HOG_ANSWER, "temperature": 0, "ignore_eos": True}
    c = http.client.HTTPConnection("127.0.0.1", stage.ports["engine"], timeout=300)
    c.request("POST", "/v1/completions", json.dumps({**body, "priority": -1}), {"Content-Type": "application/json"})
    sent.append(number)
    answer = c.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"the engine answers {answer.status}: {answer.read()[:300]!r}")
    answer.read()
    c.close()


class Crowd:
    """Others that come to the engine just before a prompt does: it stands still until all of them are at its door."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.others: list[Meanwhile] = []

    def before(self, path: str, body: bytes) -> bytes:
        """For a Between."""
        if path == "/v1/completions" and not self.others:
            self.stage.freeze("engine")
            sent: list[int] = []
            self.others += [Meanwhile(partial(hog, self.stage, i, sent)) for i in range(HOGS)]
            self.stage.until("their requests", lambda: len(sent) == HOGS)
        return body

    def sent(self, path: str) -> None:
        """For a Between."""
        if path == "/v1/completions":
            self.stage.thaw("engine")


def preempted(stage: Stage) -> None:
    """Others fill the engine's cache while it reads a prompt: it drops the prompt's rows and computes them again."""
    stage.bridges("preempted, before it")  # the front knows then how long to wait
    for chance in range(CHANCES):
        was = metric(stage, "vllm:num_preemptions_total")
        crowd = Crowd(stage)
        between = before_engine(stage, stays=True, before=crowd.before, sent=crowd.sent)
        body = stage.story(f"preempted {chance}", 3700)
        said = stage.ask(body)
        for other in crowd.others:
            other.get()
        stage.until("the engine's answer", between.handed_over)
        handed = between.handed_over()[-1]
        record = stage.complete("preempted", said, body)
        stage.checks.want("preempted: rows handed over once", handed["rows"], record["promised"])
        directly(stage, between)
        if handed["resumed"]:
            break
    count = metric(stage, "vllm:num_preemptions_total") - was
    stage.checks.true("preempted: the engine's own count", count >= 1, f"{count:.0f} preemptions")
    stage.checks.true("preempted: it was this prompt", handed["resumed"] >= 1, f"resumed {handed['resumed']} times")


def hang_up(stage: Stage, body: Body) -> http.client.HTTPConnection:
    """Ask at the front door without waiting for the answer."""
    c = http.client.HTTPConnection("127.0.0.1", stage.ports["front"], timeout=300)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    how = {"model": MODEL, "max_tokens": 16, "temperature": 0, **body}
    c.request("POST", "/v1/completions", json.dumps(how), headers)
    return c


def cancelled(stage: Stage) -> None:
    """A client hangs up while its prompt is read: the engine stops reading, and what came is kept."""
    between = before_engine(stage)
    body = stage.story("cancelled", LONG)
    was = metric(stage, "vllm:generation_tokens_total")
    with stage.halfway():
        client = hang_up(stage, body)
    client.close()
    stage.until("the engine's call ends", lambda: between.gone == ["/v1/completions"])
    stage.thaw("engine")
    stage.until("the engine is idle", lambda: metric(stage, "vllm:num_requests_running") == 0)
    stage.checks.want("cancelled: the engine's prompt was not read to its end", between.handed_over(), [])
    stage.until("the front's record", lambda: "went away" in stage.newest().get("reason", ""))
    record = stage.newest()
    stage.checks.want("cancelled: record", (record["outcome"], record["reason"]), ("bypass", "the client went away"))
    made = metric(stage, "vllm:generation_tokens_total") - was
    stage.checks.want("cancelled: tokens that the engine made", made, 0)
    said = stage.ask(body)
    kept = int(stage.record(said).get("present", 0))
    stage.checks.true("cancelled, asked again: what came is there", 0 < kept < LONG - 512, f"{kept} tokens")
    stage.complete("cancelled, asked again", said, body, present=kept)
    directly(stage, between)
