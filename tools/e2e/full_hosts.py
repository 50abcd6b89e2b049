"""The arm in which one engine has its sidecars on two hosts: network namespaces, each with a cable to this one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from full_requests import chat, golden_prompt
from full_stage import LONG, Stage
from procs import MODEL, SERVED, Engine, Pdlink, pair

NET = "10.231"  # .40.1 is this host; .40.2 and .41.2 the two others
GROUP = "sparks"


def ip(*arguments: str) -> None:
    """Run ip, which needs root."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def cables() -> Iterator[list[str]]:
    """Make two namespaces, each with a cable to this one, and routes to this host's first address."""
    names = [f"pdl{os.getpid()}{x}" for x in "ab"]
    try:
        for i, name in enumerate(names):
            here = f"pdl{os.getpid() % 100000}v{i}"
            ip("netns", "add", name)
            ip("link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("addr", "add", f"{NET}.{40 + i}.1/24", "dev", here)
            ip("link", "set", here, "up")
            ip("-n", name, "addr", "add", f"{NET}.{40 + i}.2/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        ip("-n", names[1], "route", "add", f"{NET}.40.1/32", "via", f"{NET}.41.1")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def inside(stage: Stage, namespace: str, program: Path) -> Path:
    """A program that runs another one in a namespace."""
    path: Path = stage.work / f"{program.name}-in-{namespace}"
    path.write_text(f'#!/bin/sh\nexec ip netns exec {namespace} {program} "$@"\n')
    path.chmod(0o755)
    return path


class Hosts:
    """An engine with two ranks in the first namespace, and a sidecar for each rank in a namespace of its own."""

    def __init__(self, stage: Stage, namespaces: list[str]) -> None:
        self.stage, self.namespaces = stage, namespaces
        self.keys = [stage.keys["spark"], stage.work / "keys-spark-b"]
        pair(stage.args.pdlink, stage.keys["mac"], self.keys[1], "spark-b")
        stage.listen = f"{NET}.40.1"
        stage.new_store()
        self.start_engine()
        for rank in (0, 1):
            self.start_prefill(rank)
        self.ready()

    def start_engine(self) -> None:
        """Start the engine; it may take a while."""
        stage = self.stage
        made = Engine(
            *(inside(stage, self.namespaces[0], stage.args.vllm), stage.args.connector, stage.engine_model),
            *(stage.work / "rank-{rank}.sock", stage.work, "float32"),
            name=stage.name("vllm"),
            port=stage.ports["engine"],
            arguments=("--tensor-parallel-size", "2", "--max-num-batched-tokens", "128", "--max-num-seqs", "16"),
            env={
                "VLLM_CPU_OMP_THREADS_BIND": "0|1",
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "VLLM_HOST_IP": "127.0.0.1",
            },
        )
        stage.part("engine", made)

    def start_prefill(self, rank: int) -> None:
        """Start a sidecar; the first asks the engine."""
        stage = self.stage
        arguments = ["--to", stage.to, "--keys", str(self.keys[rank]), "--peer", "mac"]
        arguments += ["--name", f"spark-{'ab'[rank]}", "--socket", str(stage.work / f"rank-{rank}.sock")]
        arguments += ["--mem-floor", "-1", "--group", GROUP, "--rank", f"{rank}/2"]
        if rank == 0:
            arguments += ["--engine", stage.engine_url, "--model", f"{MODEL}={SERVED}"]
        program = inside(stage, self.namespaces[rank], stage.args.pdlink)
        stage.part(f"prefill {rank}", Pdlink(program, stage.name("prefill"), arguments, stage.work))

    def ready(self, times: int = 1) -> None:
        """Wait until the group was whole so many times since `pdlink decode` began."""
        decode = self.stage.parts["decode"]

        def whole() -> bool:
            lines = decode.text().splitlines()
            return sum("prefill group" in line and "reads prompts for" in line for line in lines) >= times

        self.stage.parts["engine"].wait(whole)


def two_hosts(stage: Stage) -> None:
    """Two ranks, two hosts: each sends its own heads of every block."""
    for role in ("prefill", "engine"):
        stage.end(role)
    with cables() as namespaces:
        try:
            arms(stage, Hosts(stage, namespaces))
        finally:
            for role in ("prefill 0", "prefill 1", "engine", "decode"):
                stage.end(role)
            stage.listen = "127.0.0.1"


def arms(stage: Stage, hosts: Hosts) -> None:
    """What is asked of the two."""
    record = golden_prompt(stage, "two hosts, golden prompt", engine=GROUP)
    halves(stage, "two hosts, golden prompt", record)
    body = chat(stage, "two hosts, chat")
    halves(stage, "two hosts, chat", stage.complete("two hosts, chat", stage.ask(body), body, engine=GROUP))
    body = stage.story("two hosts, one sidecar killed", LONG)
    call = stage.being_read("two hosts, one sidecar killed", body)
    stage.kill("prefill 1")
    stage.thaw("engine")
    stage.partial("two hosts, one sidecar killed", call.get(), body, "spark-b")
    hosts.start_prefill(1)
    hosts.ready(2)
    body = stage.story("two hosts, the first request after it")
    stage.complete("two hosts, first request after it", stage.ask(body), body, engine=GROUP)


def halves(stage: Stage, name: str, record: dict[str, object]) -> None:
    """Demand that each host has sent half of the bytes."""
    half = int(str(record["bytes"])) // 2
    want = [{"name": "spark-a", "bytes": half}, {"name": "spark-b", "bytes": half}]
    stage.checks.want(f"{name}: bytes of each host", record.get("hosts"), want)
