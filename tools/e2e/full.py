"""Odd requests and faults through all of pdlink, with real engines (see README.md): full.py OPTIONS [ARM...]"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepseek_omlx
import full_faults as faults
import full_hosts as hosts
import full_refusals as refusals
import full_requests as requests
import full_weights as weights
from full_stage import Stage
from house import Checks


@dataclass(frozen=True)
class Arm:
    """A part that can be run alone. kind is the engine that it needs."""

    name: str
    kind: str
    run: Callable[[Stage], Any]


# By engine, since each takes half a minute to start.
ARMS = (
    Arm("other-model", "", refusals.other_model),
    Arm("golden", "plain", requests.golden),
    Arm("tools", "plain", requests.conversation),
    Arm("four", "plain", requests.four),
    Arm("chunks", "plain", requests.chunks),
    Arm("short", "plain", requests.short),
    Arm("half", "plain", requests.half),
    Arm("template", "plain", refusals.template),
    Arm("other-ids", "plain", refusals.other_ids),
    Arm("model-id", "plain", refusals.model_id),
    Arm("plugin-absent", "plain", refusals.plugin_absent),
    Arm("decoder-restarted", "plain", faults.decoder_restarted),
    Arm("store-full", "plain", faults.store_full),
    Arm("preempted", "slow", requests.preempted),
    Arm("cancelled", "slow", requests.cancelled),
    Arm("sidecar-killed", "slow", faults.sidecar_killed),
    Arm("receiver-killed", "slow", faults.receiver_killed),
    Arm("link-cut", "slow", faults.link_cut),
    Arm("link-away", "slow", faults.link_away),
    Arm("engine-killed", "slow", faults.engine_killed),
    Arm("tp2", "tp2", requests.tensor_parallel),
    Arm("two-hosts", "", hosts.two_hosts),
    Arm("other-weights", "", weights.other_weights),
    *([Arm("deepseek", "", deepseek_omlx.arm)] if os.environ.get("OMLX_SRC") else []),
)


def logs(stage: Stage) -> None:
    """Show what the parts said last."""
    for role, process in stage.parts.items():
        print(f"---- {role}\n{process.text()[-1500:]}", flush=True)


def run(arm: Arm, stage: Stage, checks: Checks) -> float:
    """Run one arm, and say how long it took. What it leaves broken is ended, so that the next one begins anew."""
    began, failed = time.monotonic(), checks.failed
    checks.part(f"{arm.name}: {arm.run.__doc__}")
    try:
        stage.use(arm.kind)
        arm.run(stage)
    except Exception:
        traceback.print_exc()
        checks.want(f"{arm.name}: no exception", "one", "none")
        logs(stage)
        for role in list(stage.parts):
            stage.kill(role)
    else:
        if checks.failed > failed:
            logs(stage)
    return time.monotonic() - began


def main() -> int:
    """Run all arms, or those that are named; the exit status is 1 when any check failed."""
    parser = argparse.ArgumentParser()
    for name in ("pdlink", "pdperf", "work", "decoder", "bare", "vllm", "connector", "model", "case", "v4"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("arms", nargs="*", metavar="ARM", help=", ".join(a.name for a in ARMS))
    args = parser.parse_args()
    unknown = set(args.arms) - {a.name for a in ARMS}
    if unknown:
        parser.error(f"no arm {', '.join(sorted(unknown))}: there are {', '.join(a.name for a in ARMS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    checks = Checks()
    stage = Stage(args, checks)
    times = {}
    try:
        for arm in ARMS:
            if not args.arms or arm.name in args.arms:
                times[arm.name] = run(arm, stage, checks)
    finally:
        stage.stop()
    print("seconds: " + ", ".join(f"{name} {took:.0f}" for name, took in times.items()))
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
