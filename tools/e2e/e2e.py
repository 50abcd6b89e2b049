"""Requests through all of pdlink, with real engines (see README.md)."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepseek
import openai
from house import STEPS, Checks, House, Said, bridged, chat, completion, details, message
from places import TESTDECODER
from procs import KEY, MODEL, Decoder, Liar, Meanwhile, get

WRONG = "a prompt that the engine reads wrong"
MEASURE_LIMIT = 600  # seconds; some ten on an idle machine

# What distances to native prefill mean. Measured for bf16: mean KL 4e-3; for float32: largest difference 4e-4.
BF16_KL, WRONG_KL, F32_LOGIT = 2e-2, 1.0, 2e-3


def native(house: House) -> str:
    """What the decoder answers by itself to the golden prompt, with a store of its own."""
    a = house.args
    decoder = Decoder(a.decoder, house.models, house.work / "store-native", house.work, "native")
    try:
        decoder.wait(decoder.ready)
        with openai.OpenAI(base_url=f"{decoder.url}/v1", api_key=KEY, max_retries=0, timeout=300) as c:
            answer = c.completions.create(model=MODEL, prompt=house.golden, max_tokens=STEPS, temperature=0)
            house.checks.want("native: cached tokens", details(answer.usage)[1] or 0, 0)
            return answer.choices[0].text
    finally:
        decoder.stop()


def wrong(house: House) -> None:
    """An engine that reads another prompt: its blocks are adopted just as well. How wrong they are `numbers` says."""
    spark = house.work / "keys-spark"
    house.prefill.stop()
    liar = Liar(house.engine)
    before = house.decode.text().count("reads prompts for")
    house.prefill = house.keep(house.start_prefill(spark, liar.url))
    house.decode.wait(lambda: house.decode.text().count("reads prompts for") > before)
    bridged(house, "wrong prompt", completion(house, house.story(WRONG), False))
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


def covered(house: House) -> None:
    """A prompt of whole blocks and nothing more: the last block is the decoder's, which needs a token to compute."""
    prompt, tokens = house.whole("covered", 3), 3 * house.block
    said = completion(house, prompt, False)
    house.checks.want("covered: tokens of the prompt", said.prompt, tokens)
    bridged(house, "covered", said)
    end = time.monotonic() + 30
    while True:  # the decoder stores its own block soon after the answer
        again = completion(house, prompt, False)
        if again.cached == tokens - 1 or time.monotonic() > end:
            break
        time.sleep(0.2)
    house.checks.want("covered again: verdict", again.verdict.split(" ")[0].rstrip(";"), "bypass")
    house.checks.want("covered again: why", "warm" in again.verdict, True)
    house.checks.want("covered again: cached tokens, all but one", again.cached, tokens - 1)
    house.checks.want("covered again: text", again.text, said.text)


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
    at_once(house)


def at_once(house: House) -> None:
    """Equal prompts at the same time share a transfer, if the second was planned before the first one's blocks were
    there: this engine reads faster than some machines start threads, so it gets more than one prompt.
    """
    checks, shared = house.checks, False

    def ask(prompt: str) -> Meanwhile:
        return Meanwhile(lambda: completion(house, prompt, False))

    for attempt in range(8):
        same, other = house.story(f"the same twice {attempt}"), house.story(f"another {attempt}")
        answers = [job.get() for job in [ask(same), ask(same), ask(other)]]
        records = [house.record(a.verdict) for a in answers]
        checks.want("at once: texts of equal prompts", answers[0].text, answers[1].text)
        checks.want("at once: checks", {r.get("check") for r in records}, {"equal"})
        checks.want("at once: cached tokens", all((a.cached or 0) > 0 for a in answers), True)
        transfers = {r["transfer"] for r in records[:2] if r.get("transfer")}
        checks.want("at once: transfers of equal prompts", len(transfers), 1)
        shared = all(r.get("transfer") for r in records[:2])
        if shared:
            break
    checks.want("at once: equal prompts share a transfer", shared, True)


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


def numbers(house: House, prompts: dict[str, list[int]]) -> dict[str, Any]:
    """How far the decoder's logits after bridged prompts are from those after its own prefill (measure.py)."""
    arms = {name: {"store": str(house.store), "ids": ids} for name, ids in prompts.items()}
    job, out = house.work / "measure.json", house.work / "measured.json"
    job.write_text(json.dumps({"model": str(house.model), "block": house.block, "steps": STEPS, "arms": arms}))
    env = {**os.environ, "PYTHONPATH": str(TESTDECODER)}
    command = [str(house.args.decoder), str(Path(__file__).parent / "measure.py"), str(job), str(out)]
    subprocess.run(command, env=env, timeout=MEASURE_LIMIT, check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    for name, d in found.items():
        print(f"         {house.dtype}, {name}: {d}", flush=True)
        want = (whole(house, prompts[name]), True)
        house.checks.want(f"{name}: restored tokens, finite", (d["covered"], d["finite"]), want)
    return found


def whole(house: House, ids: list[int]) -> int:
    """Tokens of a prompt's whole blocks that leave one."""
    return (len(ids) - 1) // house.block * house.block


def bf16(args: argparse.Namespace, checks: Checks) -> None:
    """All that a house does, in the dtype that people use, and how far its answers are from native ones."""
    house = House(args, checks, args.work / "bf16", args.model, "bfloat16")
    try:
        checks.part("bf16: the decoder's own answer")
        want = native(house)
        checks.part("bf16: start vLLM, oMLX, pdlink decode, pdlink prefill")
        house.start()
        for part in (lambda h: golden(h, want), covered, paths, others, faults, wrong, metrics):
            part(house)
    finally:
        finish(house)
    checks.part("bf16: logits after bridged prompts against native prefill")
    found = numbers(house, {"golden": house.golden_ids, "wrong prompt": house.ids(house.story(WRONG))})
    d, bad = found["golden"], found["wrong prompt"]
    checks.true("bf16: mean KL", d["kl"] <= BF16_KL, f"{d['kl']:.2e}, at most {BF16_KL:.0e}")
    checks.want("bf16: greedy tokens equal", d["tokens"], STEPS)
    checks.true("wrong prompt: mean KL", bad["kl"] >= WRONG_KL, f"{bad['kl']:.2f}, at least {WRONG_KL:.0f}")


def strict(args: argparse.Namespace, checks: Checks) -> None:
    """The same weights as float32 in both engines: then the logits must be the native ones."""
    model = args.work / "model-f32"
    widen(args.model, model)
    house = House(args, checks, args.work / "f32", model, "float32")
    try:
        checks.part("float32: start vLLM, oMLX, pdlink decode, pdlink prefill")
        house.start()
        bridged(house, "float32", completion(house, house.golden, False))
    finally:
        finish(house)
    checks.part("float32: logits after a bridged prompt against native prefill")
    d = numbers(house, {"golden": house.golden_ids})["golden"]
    # No difference at all would mean that the blocks are the decoder's own.
    good = 0 < d["largest"] <= F32_LOGIT
    checks.true("float32: largest logit difference", good, f"{d['largest']:.2e}, at most {F32_LOGIT:.0e}, not 0")
    checks.want("float32: equal arg max", d["agree"], d["positions"])
    checks.want("float32: greedy tokens equal", d["tokens"], STEPS)


def widen(model: Path, out: Path) -> None:
    """Write a bf16 model as float32, which holds the same values."""
    out.mkdir()
    for f in model.iterdir():
        if f.suffix != ".safetensors":
            (out / f.name).write_bytes(f.read_bytes())
    config = json.loads((model / "config.json").read_text())
    config.pop("torch_dtype", None)
    (out / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=1))
    raw = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    head, narrow, wide = json.loads(raw[8 : 8 + length]), raw[8 + length :], bytearray(2 * (len(raw) - 8 - length))
    wide[2::4], wide[3::4] = narrow[0::2], narrow[1::2]
    for name, t in head.items():
        if name != "__metadata__":
            if t["dtype"] != "BF16":
                raise ValueError(f"{name} is {t['dtype']}")
            t["dtype"], t["data_offsets"] = "F32", [2 * at for at in t["data_offsets"]]
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (out / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + wide)


def finish(house: House) -> None:
    """End all, and show what they said where a check failed."""
    house.stop()
    if house.checks.failed:
        for process in {p.log: p for p in house.running}.values():
            print(f"---- {process.name}\n{process.text()[-2500:]}", flush=True)


Part = Callable[[argparse.Namespace, Checks], None]
PARTS: dict[str, Part] = {"bf16": bf16, "float32": strict, "deepseek": deepseek.run}


def end(*_: Any) -> None:
    """Told to end: end what was started, too. It is said more than once, by `make` as well, and heard once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit("told to end")


def main() -> int:
    """Run all parts; the exit status is 1 when any check failed."""
    parser = argparse.ArgumentParser()
    for name in ("pdlink", "work", "decoder", "vllm", "connector", "model", "case", "v4"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them to run")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, end)
    checks = Checks()
    for name in args.parts.split(","):
        try:
            PARTS[name](args, checks)
        except Exception:
            traceback.print_exc()
            checks.want(f"{name}: no exception", "one", "none")
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
