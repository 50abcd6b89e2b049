"""How far a decoder's answers from a store are from its own: measure.py JOB.json OUT.json, by its interpreter.

JOB: {"model": directory, "block": tokens, "steps": greedy tokens, "arms": {NAME: {"store": directory, "ids": prompt}}};
an arm may have "carry" (see put_back). Each arm's prompt is restored from a copy of its store by the decoder's own
classes and compared with one plain pass of the same model, teacher forced over the rest of the prompt and the model's
own greedy tokens. OUT: for each arm `Distance` as an object.
`decoder` is the module of bridge/omlx/testdecoder.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

import decoder

OVERLAP = 4  # the ratio of pools whose windows overlap, in DeepSeek-V4


@dataclasses.dataclass(frozen=True)
class Distance:
    """Logits after a restored prefix against those after a plain pass. KL is KL(plain || restored) in nats."""

    covered: int  # tokens that were restored
    positions: int  # compared
    finite: bool
    kl: float  # mean
    kl_median: float
    largest: float  # difference of two logits
    agree: int  # positions with the same arg max
    tokens: int  # greedy tokens that are equal from the first on


def distance(ours: mx.array, theirs: mx.array, covered: int, forced: Sequence[int]) -> Distance:
    """Compare float32 logits [positions, vocabulary]; the last len(forced) rows decide about forced."""
    a, b = np.array(ours, np.float64), np.array(theirs, np.float64)
    la, lb = a - a.max(-1, keepdims=True), b - b.max(-1, keepdims=True)
    la -= np.log(np.exp(la).sum(-1, keepdims=True))
    lb -= np.log(np.exp(lb).sum(-1, keepdims=True))
    kl = (np.exp(lb) * (lb - la)).sum(-1)
    picked = a.argmax(-1)
    equal = picked[-len(forced) :] == np.array(forced)
    return Distance(
        covered=covered,
        positions=len(kl),
        finite=bool(np.isfinite(a).all()),
        kl=float(kl.mean()),
        kl_median=float(np.median(kl)),
        largest=float(np.abs(a - b).max()),
        agree=int((picked == b.argmax(-1)).sum()),
        tokens=int(np.cumprod(equal).sum()),
    )


def plain(model: Any, prompt: Sequence[int], block: int) -> list[Any]:
    """Caches of a prompt by the model alone, read in pieces of a block as the engine does."""
    caches: list[Any] = make_prompt_cache(model)
    for at in range(0, len(prompt), block):
        mx.eval(model(mx.array([list(prompt[at : at + block])]), cache=caches))
    return caches


def greedy(model: Any, prompt: Sequence[int], block: int, steps: int) -> list[int]:
    """The model's own tokens after a prompt."""
    caches = plain(model, prompt[:-1], block)
    token, out = prompt[-1], []
    for _ in range(steps):
        token = int(mx.argmax(decoder.logits(model, [token], caches)[-1]).item())
        out.append(token)
    return out


def model_name(store: Path) -> str:
    """The model id that a store's blocks carry; one of them is enough."""
    path = next(iter(sorted(p for p in store.rglob("*.safetensors") if len(p.stem) == 64)))
    with path.open("rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        return str(json.loads(f.read(length))["__metadata__"]["model_name"])


@dataclasses.dataclass(frozen=True)
class Native:
    """What the model itself makes of a prompt."""

    forced: list[int]  # its greedy tokens
    logits: mx.array  # float32 [positions, vocabulary], behind what an arm covers
    carry: dict[tuple[int, int], tuple[mx.array, mx.array]]  # by layer and pool: raw rows of the last whole window


def pools(caches: Sequence[Any]) -> dict[tuple[int, int], Any]:
    """The overlapping pools of caches, by layer and place."""
    found = {}
    for i, cache in enumerate(caches):
        for j, part in enumerate(getattr(cache, "caches", ())):
            if getattr(part, "ratio", 0) == OVERLAP:
                found[i, j] = part
    return found


def own(model: Any, ids: Sequence[int], covered: int, block: int, steps: int) -> Native:
    """Read a prompt with the model alone."""
    forced = greedy(model, ids, block, steps)
    caches = plain(model, ids[:covered], block)
    carry = {at: (p.prev_win_kv, p.prev_win_gate) for at, p in pools(caches).items() if hasattr(p, "prev_win_kv")}
    logits = decoder.logits(model, [*ids[covered:], *forced[:-1]], caches)
    mx.eval(logits)
    return Native(forced, logits, carry)


def put_back(caches: Sequence[Any], source: str, native: Native) -> None:
    """Give restored pools the carry that their store has lost: the plain pass's, or that in a file of twin.py's."""
    arrays = None if source == "plain" else np.load(source)
    for (i, j), pool in pools(caches).items():
        if arrays is None:
            pool.prev_win_kv, pool.prev_win_gate = native.carry[i, j]
            continue
        name = f"layer_{i}.{'idx_' if j == 2 else ''}prev_"
        end = max(int(k.partition("@")[2]) for k in arrays if k.startswith(f"{name}kv@"))
        kv, gate = (mx.array(arrays[f"{name}{what}@{end}"]).view(mx.bfloat16) for what in ("kv", "gate"))
        pool.prev_win_kv, pool.prev_win_gate = kv, gate


async def measure(job: dict[str, Any], arm: dict[str, Any], known: dict[str, Native]) -> Distance:
    """Measure one store. known keeps what the model itself makes of a prompt."""
    ids, store, block = [int(i) for i in arm["ids"]], Path(arm["store"]), int(job["block"])
    with tempfile.TemporaryDirectory() as d:
        copy = Path(d) / "store"  # the decoder may delete or add files
        shutil.copytree(store, copy)
        engine = decoder.Decoder(Path(job["model"]), model_name(store), copy, block)
        await engine.start()
        try:
            caches, covered = engine.restore(ids)
            if not covered:
                raise RuntimeError(f"nothing in {store} covers the prompt")
            key = json.dumps([ids, covered])
            if key not in known:
                known[key] = own(engine.model, ids, covered, engine.block_size, int(job["steps"]))
            native = known[key]
            if "carry" in arm:
                put_back(caches, arm["carry"], native)
            ours = decoder.logits(engine.model, [*ids[covered:], *native.forced[:-1]], caches)
            return distance(ours, native.logits, covered, native.forced)
        finally:
            await engine.stop()


async def run(job: dict[str, Any]) -> dict[str, Any]:
    """Measure all arms."""
    known: dict[str, Native] = {}
    return {name: dataclasses.asdict(await measure(job, arm, known)) for name, arm in job["arms"].items()}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    decoder.widen_gather_mm()
    args.out.write_text(json.dumps(asyncio.run(run(json.loads(args.job.read_text())))))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the decoder's worker threads do not end by themselves
