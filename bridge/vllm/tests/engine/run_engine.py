"""Runs a real vLLM, offline and in one process, with the connector: run_engine.py JOB.json OUT.json

JOB: {"model", "socket", "engine": {arguments of LLM}, "batches": [{"max_tokens", "requests": [{"ask", "ids"}, ...]},
...], "extra": {more of kv_connector_extra_config}, "without": true for no connector at all}. ask goes into
kv_transfer_params as it is. OUT: what each request's answer said, and times.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def transfer_config(socket: str, **extra: Any) -> dict[str, Any]:
    """The connector's part of the engine's configuration."""
    return {
        "kv_connector": "PDLinkConnector",
        "kv_connector_module_path": "pdlink_vllm.connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"socket": socket, **extra},
    }


def generate(llm: Any, batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one batch and say what came of it."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            max_tokens=batch.get("max_tokens", 1),
            temperature=0,
            ignore_eos=True,
            extra_args={"kv_transfer_params": {"pdlink": r["ask"]}} if r.get("ask") else None,
        )
        for r in batch["requests"]
    ]
    begin = time.monotonic()
    answers = llm.generate([{"prompt_token_ids": r["ids"]} for r in batch["requests"]], params, use_tqdm=False)
    took = time.monotonic() - begin
    return [
        {
            "params": a.kv_transfer_params,
            "cached": a.num_cached_tokens,
            "tokens": list(a.outputs[0].token_ids),
            "seconds": took,
        }
        for a in answers
    ]


def serve(llm: Any) -> None:
    """Run batches of one request as they come in, a line each; answers are lines that begin with @."""
    print("@{}", flush=True)
    for line in sys.stdin:
        print("@" + json.dumps(generate(llm, json.loads(line))[0]), flush=True)


def connected() -> None:
    """Wait until the connector of this process has found its sidecar, where it takes part at all."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():  # in 0.21 the worker is another process, which tells nobody
        time.sleep(1.0)
        return
    worker = get_kv_transfer_group()._worker
    assert worker is None or worker._link.wait_up(60.0), worker._link.refused


def main() -> None:
    """See the module."""
    job = json.loads(Path(sys.argv[1]).read_text())
    begin = time.monotonic()
    from vllm import LLM, __version__
    from vllm.config import KVTransferConfig

    extra = {"kv_transfer_config": KVTransferConfig(**transfer_config(job["socket"], **job.get("extra", {})))}
    if job.get("without"):
        extra = {}
    llm = LLM(model=job["model"], disable_log_stats=True, **job["engine"], **extra)
    out: dict[str, Any] = {"vllm": __version__, "ready": time.monotonic() - begin}
    connected()
    if sys.argv[2] == "-":
        serve(llm)
        return
    out["batches"] = [generate(llm, b) for b in job["batches"]]
    Path(sys.argv[2]).write_text(json.dumps(out))


if __name__ == "__main__":
    main()
