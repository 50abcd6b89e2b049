"""DeepSeek-V4 between a real vLLM and a real oMLX 0.5.x, whose source tree OMLX_SRC names (see README.md)."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import twin
from deepseek import (
    BLOCK,
    LATE,
    MODEL,
    OURS,
    WRONG,
    Inputs,
    Setting,
    bridge,
    capture,
    chain,
    compare,
    expected,
    header_of,
    put,
    start,
)
from house import STEPS, Checks
from places import TESTDECODER
from procs import Decoder


def arm(stage: Any) -> None:
    """DeepSeek-V4 into a real oMLX: its own blocks of the same inputs, and how far its answers from ours are."""
    full(stage.args, stage.checks, Path(os.environ["OMLX_SRC"]))


def full(args: argparse.Namespace, checks: Checks, source: Path) -> None:
    """A prompt through all of pdlink into oMLX's store; what oMLX makes of the same inputs; how far answers are."""
    s = Setting(args, checks, args.work / "v4-omlx")
    try:
        checks.part(f"DeepSeek-V4: vLLM and the decoder of {source}")
        paths = os.pathsep.join((str(source), str(TESTDECODER)))
        command = (str(Path(__file__).parent / "serve_cpu.py"),)
        env = {"PYTHONPATH": paths}
        decoder = s.keep(Decoder(args.decoder, s.models, s.store, s.work, "omlx", command=command, env=env))
        decoder.wait(decoder.ready)
        decoder.load(MODEL)
        engine = s.keep(s.engine())
        inputs = capture(s, engine, {"own": s.ids, "other": s.other})
        front = start(s, engine, decoder.url)
        bridge(s, front, "v4, one block", "One block. " + s.prompt[: len(s.prompt) // 2])
        bridge(s, front, "v4", s.prompt)
        checks.want("v4: pdlink prefill ends in order", s.running.pop().stop(), 0)
    finally:
        s.stop()
    name = model_name(s)
    arrays = expected(s, inputs["own"])
    compare(s, arrays, s.store, name)
    identical(s, source, name, inputs["own"])
    distances(s, source, name, inputs, arrays)


def model_name(s: Setting) -> str:
    """The name under which the decoder hashes the model: its directory's name, or its path, which the fork takes."""
    for name in (MODEL, str(s.model)):
        digest = chain(s, s.ids, name)[0].hex()
        if (s.store / digest[0] / f"{digest}.safetensors").exists():
            return name
    raise ValueError(f"{s.store} has no block of the prompt")


def job(s: Setting, name: str, store: Path, **more: Any) -> dict[str, Any]:
    """A job of given.py."""
    out = {"model": str(s.model), "name": name, "store": str(store), "ids": s.ids, "block": BLOCK, "steps": STEPS}
    return out | more


def identical(s: Setting, source: Path, name: str, inputs: Inputs) -> None:
    """The blocks that oMLX writes when its attention is given vLLM's inputs are pdlink's, but for the time."""
    s.checks.part("DeepSeek-V4: oMLX's own blocks of vLLM's inputs")
    store, given = s.work / "store-given", s.work / "inputs.npz"
    np.savez(given, **{f"x{i}": x for i, x in enumerate(inputs)})  # type: ignore[arg-type]
    store.mkdir()
    found = s.script("give", job(s, name, store, inputs=str(given)), source)
    s.checks.want("oMLX: rows given to each layer", set(found["given"].values()), {s.blocks * BLOCK})
    for k, digest in enumerate(h.hex() for h in chain(s, s.ids, name)[: s.blocks]):
        path = Path(digest[0]) / f"{digest}.safetensors"
        (ours, a), (theirs, b) = (header_of((x / path).read_bytes()) for x in (s.store, store))
        for head in (ours, theirs):
            del head["__metadata__"]["created_at"]
        names = [list(head) + list(head["__metadata__"]) for head in (ours, theirs)]
        same = (ours == theirs, names[0] == names[1], a == b)
        s.checks.want(f"block {k}: header, its order, data are those that oMLX writes", same, (True, True, True))


def late(inputs: Inputs) -> Inputs:
    """Inputs of which every row is one token late."""
    return [np.concatenate([x[:1], x[:-1]]) for x in inputs]


def distances(s: Setting, source: Path, name: str, inputs: dict[str, Inputs], arrays: dict[str, twin.Bits]) -> None:
    """KL to oMLX's own prefill: pdlink's blocks, another prompt's, rows one token late; with and without the carry."""
    checks = s.checks
    checks.part("DeepSeek-V4: oMLX's answers from the blocks against its own")
    native = s.work / "store-native"
    native.mkdir()
    s.script("native", job(s, name, native, inputs=None), source)
    own = s.work / "arrays.npz"
    np.savez(own, **arrays)  # type: ignore[arg-type]
    stores = {"native": native, "ours": only(s, name, s.store, s.work / "store-ours")}
    like = header_of(next(stores["ours"].rglob("*.safetensors")).read_bytes())[0]["__metadata__"]
    stores["wrong"] = put(s, s.work / "store-wrong", expected(s, inputs["other"]), name, like)
    stores["late"] = put(s, s.work / "store-late", expected(s, late(inputs["own"])), name, like)
    arms: dict[str, Any] = {n: {"store": str(p), "ids": s.ids} for n, p in stores.items()}
    arms["native + carry"] = {**arms["native"], "carry": "plain"}
    arms["ours + carry"] = {**arms["ours"], "carry": str(own)}
    found = s.script("distance", {"model": str(s.model), "arms": arms, "block": BLOCK, "steps": STEPS}, source)
    for n, d in found.items():
        print(f"         {n:14s} {d}", flush=True)
    whole = s.blocks * BLOCK
    checks.want("v4: restored tokens, finite", {(d["covered"], d["finite"]) for d in found.values()}, {(whole, True)})
    kl = {n: d["kl"] for n, d in found.items()}
    checks.true("v4: mean KL of pdlink's blocks", kl["ours"] <= OURS, f"{kl['ours']:.2e}, at most {OURS:.0e}")
    checks.true("v4: mean KL of another prompt's", kl["wrong"] >= WRONG, f"{kl['wrong']:.2e}, at least {WRONG:.0e}")
    checks.true("v4: mean KL of rows one token late", kl["late"] >= LATE, f"{kl['late']:.2e}, at least {LATE:.0e}")
    same = [found["native + carry"][k] for k in ("kl", "largest")]
    checks.want("v4: own blocks with the carry put back: KL, largest difference", same, [0.0, 0.0])
    read = s.script("read", job(s, name, stores["ours"], expect=str(own)), source)
    checks.want("v4: restored arrays that differ from the twin's", read["different"], [])
    stored = int(like["layer_1_sub_1_state_count"]) >= 5
    checks.want("v4: the reader takes the carry, and it is restored", (stored, all(read["carried"])), (stored, stored))
    if stored:
        return
    print("         this decoder's pools have three elements: no carry travels; put back by hand it gives", flush=True)
    checks.true("v4: mean KL with the carry", kl["ours + carry"] <= kl["ours"], f"{kl['ours + carry']:.2e}")


def only(s: Setting, name: str, store: Path, out: Path) -> Path:
    """A store with nothing but the prompt's blocks that pdlink wrote."""
    for digest in (h.hex() for h in chain(s, s.ids, name)[: s.blocks]):
        path = Path(digest[0]) / f"{digest}.safetensors"
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(store / path, out / path)
    return out
