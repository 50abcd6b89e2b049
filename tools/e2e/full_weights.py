"""The arm in which a prefill host projects DeepSeek-V4 with other weights than the decoder's."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import deepseek
import sidecar
from deepseek import Setting, native_header
from full_stage import Stage
from house import STEPS
from played import Planner, Play
from procs import KEY, Engine, Pdlink, post


class Telling(Planner):
    """The played decoder of deepseek.py, which tells what a real one would of its model."""

    told: dict[str, Any]

    def info(self, body: Any) -> dict[str, Any]:
        """GET /pdlink/v1/info."""
        out = super().info(body)
        out["model"]["facts"] = self.told
        return out


def other_weights(stage: Stage) -> None:
    """DeepSeek-V4's projection weights at the prefill host are not the decoder's: one bit is another."""
    for role in ("prefill", "engine", "decode"):
        stage.end(role)
    s = Setting(stage.args, stage.checks, stage.work / "v4-weights")
    try:
        _arm(s)
    finally:
        s.stop()


def _arm(s: Setting) -> None:
    engine = s.keep(s.engine())
    play = Play(
        *(deepseek.MODEL, deepseek.BLOCK, s.store, s.encode),
        *(lambda ids: deepseek.chain(s, ids, deepseek.MODEL), lambda ids: native_header(s, ids)),
    )
    planner = Telling(play)
    planner.told = {**_loaded(s, engine), "projection": {"layers": hashes(s.weights(), s.layers)}}
    front = deepseek.start(s, engine, planner.url)
    decode = s.running[-2]
    to = decode.events()[0]["listen"]
    s.running.pop().stop()
    right, wrong = s.work / "projection.safetensors", s.work / "wrong.safetensors"
    raw = bytearray(right.read_bytes())
    raw[-1] ^= 1
    wrong.write_bytes(raw)
    _start(s, engine, to, wrong, "prefill-2")
    status, verdict = _ask(s, front, "Other weights. ")
    pairs = zip(hashes(right, s.layers), hashes(wrong, s.layers), strict=True)
    layer = next(i for i, (a, b) in enumerate(pairs) if a != b)
    s.checks.want("other weights: status", status, 200)
    good = verdict.startswith("declined") and f"projection weights of layer {layer}" in verdict
    s.checks.true("other weights: verdict 'declined', reason has the layer", good, verdict)
    s.checks.want("other weights: blocks that were written", len(list(s.store.rglob("*.safetensors"))), 0)
    s.running.pop().stop()
    _start(s, engine, to, right, "prefill-3")
    deepseek.bridge(s, front, "other weights: first request after it", "The decoder's weights. " + _half(s))
    planner.shutdown()


def _half(s: Setting) -> str:
    return s.prompt[: len(s.prompt) // 2]


def _ask(s: Setting, front: str, name: str) -> tuple[int, str]:
    """Ask at the front door; the status and the verdict."""
    body = {"model": deepseek.MODEL, "prompt": name + _half(s), "max_tokens": STEPS, "temperature": 0}
    status, headers, _ = post(front + deepseek.PATH, body, KEY, deepseek.READ_LIMIT)
    return status, headers.get("X-PDLink", "")


def _loaded(s: Setting, engine: Engine) -> dict[str, Any]:
    """What the engine says that it has loaded, by the tests' own sidecar."""
    listener = sidecar.Sidecar(s.sock, sidecar.Options(slots=16, slot_size=64 << 10))
    try:
        engine.wait(lambda: bool(listener.facts))
        found: dict[str, Any] = json.loads(listener.facts[0])
        return found
    finally:
        listener.kill()


def _start(s: Setting, engine: Engine, to: str, weights: Path, name: str) -> None:
    """Start `pdlink prefill` with some weights."""
    arguments = ["--to", to, "--keys", str(s.work / "keys-spark"), "--peer", "mac", "--name", "spark"]
    arguments += ["--engine", engine.url, "--socket", str(s.sock), "--mem-floor", "-1"]
    arguments += ["--model", f"{deepseek.MODEL}={deepseek.SERVED}", "--weights", str(weights), "--numerics", "mlx-cpu"]
    arguments += ["--model-config", str(s.model / "config.json")]
    prefill = s.keep(Pdlink(s.args.pdlink, name, arguments, s.work))
    prefill.wait(lambda: prefill.saw(event="ready"))


def hashes(file: Path, layers: int) -> list[str]:
    """Fingerprints of exported projection weights, by layer (bridge/facts/FACTS.md)."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    out = []
    for layer in range(layers):
        sum_ = hashlib.sha256()
        prefix = f"layer_{layer}."
        for name in sorted(n for n in header if n.startswith(prefix)):
            t = header[name]
            shape = ",".join(str(d) for d in t["shape"])
            sum_.update(f"{name.removeprefix(prefix)} {t['dtype']} {shape}\n".encode())
            sum_.update(data[slice(*t["data_offsets"])])
        out.append(sum_.hexdigest()[:16])
    return out
