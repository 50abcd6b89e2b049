"""The checks of `make test-decoder`: pdlink writes blocks, a real decoder reads them (see README.md)."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

import decoder
import dsv4_case

HERE = Path(__file__).resolve().parent
QWEN3 = HERE / "testdata" / "tiny-qwen3"
STEPS = 16  # greedy tokens compared
REPLAY_LIMIT = 300  # seconds; a replay of these cases takes a few


class Checks:
    """Counts and prints checks, one line each."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def want(self, name: str, got: Any, wanted: Any) -> None:
        """Pass when both are equal."""
        self.true(name, got == wanted, f"{got}" if got == wanted else f"{got}, wanted {wanted}")

    def true(self, name: str, good: bool, detail: str) -> None:
        """Pass when good is true; the detail is printed either way."""
        self.passed += good
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)


def replay(pdlink: Path, case: Path, store: Path) -> dict[str, Any]:
    """Let pdlink write a case's blocks into a store; returns its JSON report."""
    command = [str(pdlink), "replay", str(case), "--store", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REPLAY_LIMIT, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"pdlink replay {case.name} exited with {done.returncode}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if not isinstance(report, dict):
        raise RuntimeError(f"pdlink replay {case.name} did not print a JSON object")
    return report


def check_replay(checks: Checks, name: str, report: dict[str, Any], blocks: int) -> None:
    """Check what replay reports: all blocks, and none different from what the decoder wrote where that is known."""
    checks.want(f"{name} replay verdict", report.get("verdict"), "complete")
    checks.want(f"{name} replay blocks", report.get("blocks"), blocks)
    wrong = (report.get("different") or 0, report.get("missing") or 0)
    checks.want(f"{name} replay different, missing", wrong, (0, 0))


async def native(model_dir: Path, model_id: str, store: Path, prompt: Sequence[int], block_size: int) -> decoder.Answer:
    """The decoder's own answer, from an empty store."""
    store.mkdir()
    engine = decoder.Decoder(model_dir, model_id, store, block_size)
    await engine.start()
    answer = await engine.generate(prompt, STEPS)
    await engine.stop()
    return answer


def compare_logits(
    checks: Checks, name: str, engine: decoder.Decoder, prompt: Sequence[int], forced: Sequence[int], whole: int
) -> None:
    """Restored caches against a plain forward pass, teacher forced with the rest and the decoded tokens."""
    restored, covered = engine.restore(prompt)
    checks.want(f"{name} restored tokens", covered, whole)
    if covered != whole:
        return
    plain = decoder.prefill(engine.model, prompt[:covered])
    checks.want(f"{name} restored caches, layers that differ", dsv4_case.differing(restored, plain), [])
    tail = [*prompt[covered:], *forced[:-1]]
    ours = decoder.logits(engine.model, tail, restored)
    theirs = decoder.logits(engine.model, tail, plain)
    checks.true(f"{name} logits finite", bool(mx.all(mx.isfinite(ours)).item()), f"{len(tail)} positions")
    checks.want(f"{name} largest logit difference", decoder.max_diff(ours, theirs), 0.0)


async def check_kv(checks: Checks, pdlink: Path, case: Path, work: Path) -> None:
    """Plain KV: whole prefix cached, the same tokens as native prefill, no difference in any logit."""
    name = case.name
    about = json.loads((case / "case.json").read_text())
    prompt, model_id, block_size = about["tokens"], about["model"], about["block_size"]
    whole = len(prompt) // block_size * block_size
    store = work / "store"
    check_replay(checks, name, replay(pdlink, case, store), whole // block_size)

    own = await native(QWEN3, model_id, work / "native", prompt, block_size)
    checks.want(f"{name} cached tokens, empty store", own.cached, 0)

    copy = work / "copy"  # the decoder may delete or add files
    shutil.copytree(store, copy)
    engine = decoder.Decoder(QWEN3, model_id, copy, block_size)
    await engine.start()
    adopted = await engine.generate(prompt, STEPS)
    checks.want(f"{name} cached tokens", adopted.cached, whole)
    checks.want(f"{name} greedy tokens", adopted.tokens, own.tokens)
    compare_logits(checks, name, engine, prompt, own.tokens, whole)
    await engine.stop()


async def check_dsv4(checks: Checks, pdlink: Path, prompt: Sequence[int], work: Path) -> None:
    """DeepSeek-V4 shape: a model made here, its attention inputs captured, blocks by pdlink, loaded by the decoder."""
    case, model_dir = work / dsv4_case.MODEL_ID, work / "model"
    name = case.name
    dsv4_case.make_model(model_dir, QWEN3)
    whole = len(prompt) // dsv4_case.BLOCK_SIZE * dsv4_case.BLOCK_SIZE
    dsv4_case.make_case(case, model_dir, prompt, whole)
    store = work / "store"
    check_replay(checks, name, replay(pdlink, case, store), whole // dsv4_case.BLOCK_SIZE)

    own = await native(model_dir, name, work / "native", prompt, dsv4_case.BLOCK_SIZE)
    checks.want(f"{name} cached tokens, empty store", own.cached, 0)

    copy = work / "copy"
    shutil.copytree(store, copy)
    engine = decoder.Decoder(model_dir, name, copy, dsv4_case.BLOCK_SIZE)
    await engine.start()
    checks.want(f"{name} block size", engine.block_size, dsv4_case.BLOCK_SIZE)
    adopted = await engine.generate(prompt, STEPS)
    checks.want(f"{name} cached tokens", adopted.cached, whole)
    checks.want(f"{name} decoded tokens", len(adopted.tokens), STEPS)
    compare_logits(checks, name, engine, prompt, own.tokens, whole)
    await engine.stop()


async def run(args: argparse.Namespace) -> Checks:
    """Run all checks; one that cannot run to its end counts as failed and does not stop the others."""
    checks = Checks()
    decoder.widen_gather_mm()
    prompt = json.loads((args.case / "case.json").read_text())["tokens"]
    parts = {
        "kv": lambda work: check_kv(checks, args.pdlink, args.case, work),
        "dsv4": lambda work: check_dsv4(checks, args.pdlink, prompt, work),
    }
    for name, part in parts.items():
        work = args.work / name
        work.mkdir()
        try:
            await part(work)
        except Exception as err:
            traceback.print_exc()
            checks.true(f"{name} ran to its end", False, f"{type(err).__name__}: {err}")
    return checks


def main() -> int:
    """Parse the command line, run, print the count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pdlink", type=Path, required=True, help="program under test")
    parser.add_argument("--case", type=Path, required=True, help="the kv-qwen3 case directory")
    parser.add_argument("--work", type=Path, required=True, help="empty directory for everything made")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    checks = asyncio.run(run(args))
    print(f"{checks.passed} passed, {checks.failed} failed", flush=True)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # the decoder's worker threads do not end by themselves
