"""A decoder's engine, given attention inputs or blocks: given.py JOB.json OUT.json, with the decoder's interpreter.

JOB: {"model": directory, "name": model id of the blocks, "store": directory, "ids": prompt, "block": its tokens,
"steps": n} and either "inputs" or "expect". "inputs": NPZ with x<layer>, patterns [rows, hidden], or null: every
attention module is given those rows in place of its own, and the engine writes into the store what it then caches.
"expect": NPZ of arrays (twin.py), which are compared with what the engine restores from a copy of the store. OUT: what
came of it. `decoder` is the module of bridge/omlx/testdecoder.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import decoder

ATTENTION = ("LocalAttention", "CompressedAttention", "SparseCompressedAttention")


def give(inputs: dict[str, Any]) -> dict[int, int]:
    """Have all attention modules read these rows, as far as they go. Returns the rows given so far, by layer."""
    classes = importlib.import_module("mlx_lm.models.deepseek_v4")
    given: dict[int, int] = {}

    def instead(inner: Any) -> Any:
        def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
            layer = int(self.layer_idx)
            rows, at = inputs[f"x{layer}"], given.get(layer, 0)
            n = min(x.shape[1], len(rows) - at)
            if n > 0:
                own = mx.array(np.ascontiguousarray(rows[at : at + n])).view(mx.bfloat16)[None].astype(x.dtype)
                x = mx.concatenate([own, x[:, n:]], axis=1)
                given[layer] = at + n
            return inner(self, x, *args, **kwargs)

        return call

    for name in ATTENTION:
        kind = getattr(classes, name)
        kind.__call__ = instead(kind.__call__)
    return given


def restored(caches: list[Any], covered: int) -> tuple[dict[str, Any], list[bool]]:
    """What restored caches hold, named as twin.py names it, and for each overlapping pool whether it has its carry."""
    out: dict[str, Any] = {}
    carried = []
    for i, cache in enumerate(caches):
        window, *pools = getattr(cache, "caches", None) or (cache,)
        keys = window._temporal_order(window.keys)[..., -window.max_size :, :]
        out[f"layer_{i}.win@{covered}"] = keys
        for tag, pool in zip(("", "idx_"), pools, strict=False):
            out[f"layer_{i}.{tag}pooled"] = pool.pooled
            if pool.ratio == 4:
                carried.append(getattr(pool, "prev_win_kv", None) is not None)
            if pool.ratio == 4 and carried[-1]:
                out[f"layer_{i}.{tag}prev_kv@{covered}"] = pool.prev_win_kv
                out[f"layer_{i}.{tag}prev_gate@{covered}"] = pool.prev_win_gate
    return out, carried


def different(found: dict[str, Any], expect: Any) -> list[str]:
    """Names of arrays that are not, bit for bit, what is expected."""
    bad = []
    for name, a in found.items():
        ours = np.array(a.view(mx.uint16)) if a.dtype == mx.bfloat16 else None
        theirs = expect[name]
        if ours is None or ours.reshape(-1).shape != theirs.reshape(-1).shape or (ours.ravel() != theirs.ravel()).any():
            bad.append(name)
    return bad


async def write(job: dict[str, Any]) -> dict[str, Any]:
    """Let the engine write what it caches of given inputs."""
    engine = decoder.Decoder(Path(job["model"]), job["name"], Path(job["store"]), job["block"])
    given = give(np.load(job["inputs"])) if job["inputs"] else {}
    await engine.start()
    answer = await engine.generate(job["ids"], job["steps"])
    await engine.stop()
    return {"cached": answer.cached, "given": given}


async def read(job: dict[str, Any]) -> dict[str, Any]:
    """Let the engine use blocks, and look at what it restores."""
    ids = job["ids"]
    with tempfile.TemporaryDirectory() as d:
        copy = Path(d) / "store"  # the decoder may delete or add files
        shutil.copytree(job["store"], copy)
        engine = decoder.Decoder(Path(job["model"]), job["name"], copy, job["block"])
        await engine.start()
        answer = await engine.generate(ids, job["steps"])
        caches, covered = engine.restore(ids)
        found, carried = restored(caches, covered) if covered else ({}, [])
        bad = different(found, np.load(job["expect"]))
        finite = bool(covered) and bool(mx.all(mx.isfinite(decoder.logits(engine.model, ids[covered:], caches))).item())
        await engine.stop()
    out = {"cached": answer.cached, "tokens": len(answer.tokens), "covered": covered, "arrays": len(found)}
    return out | {"different": bad, "finite": finite, "carried": carried}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    job = json.loads(args.job.read_text())
    decoder.widen_gather_mm()
    args.out.write_text(json.dumps(asyncio.run(read(job) if "expect" in job else write(job))))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the decoder's worker threads do not end by themselves
