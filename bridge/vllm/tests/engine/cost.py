"""What the connector costs an engine on CPU: prefill times with and without it, interleaved: cost.py [ROUNDS]

Two engines with the same model of random weights (8 layers of Qwen3-0.6B's widths) stand side by side and prefill the
same 512 tokens in turn. Printed: the median of each, and what the connector itself counted, per prefill and as a share
of it. The sidecar runs in this process and throws everything away.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import engines

sys.path.insert(0, str(engines.HERE.parent))
sys.path.insert(0, str(engines.PACKAGE))

import sidecar
from pdlink_vllm.wire import DType

LAYERS, HEADS, WIDTH, BLOCK, TOKENS = 8, 8, 128, 256, 512


def model(folder: Path) -> Path:
    """A configuration without weights."""
    config = json.loads((engines.QWEN3 / "config.json").read_text())
    config.update(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=HEADS,
        head_dim=WIDTH,
        max_window_layers=LAYERS,
    )
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))
    for f in engines.QWEN3.glob("token*"):
        (folder / f.name).write_bytes(f.read_bytes())
    return folder


def start(folder: Path, name: str, job: dict[str, Any]) -> subprocess.Popen[str]:
    """Start an engine that prefills when it is told to, and wait until it is ready."""
    (folder / f"{name}.json").write_text(json.dumps(job))
    command = [str(engines.python("0.32.0")), str(engines.HERE / "run_engine.py"), str(folder / f"{name}.json"), "-"]
    log = (folder / f"{name}.log").open("w")
    p = subprocess.Popen(
        command, env=engines.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
    )
    told(p)
    return p


def told(p: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that an engine prints for us."""
    assert p.stdout is not None
    for line in p.stdout:
        if line.startswith("@"):
            answer: dict[str, Any] = json.loads(line[1:])
            return answer
    raise RuntimeError(f"the engine ended with {p.wait()}")


def prefill(p: subprocess.Popen[str], request: dict[str, Any]) -> float:
    """Prefill one prompt and return the seconds that it took."""
    assert p.stdin is not None
    p.stdin.write(json.dumps({"requests": [request]}) + "\n")
    p.stdin.flush()
    return float(told(p)["seconds"])


def main() -> None:
    """See the module."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d)
        s = sidecar.Sidecar(folder / "s", sidecar.Options(slots=64, slot_size=1 << 20))
        job = {
            "model": str(model(folder)),
            "socket": str(folder / "s"),
            "engine": {
                "dtype": "bfloat16",
                "load_format": "dummy",
                "max_model_len": 1024,
                "max_num_batched_tokens": 512,
                "enforce_eager": True,
                "enable_prefix_caching": False,
            },
        }
        p = {"with": start(folder, "with", job), "without": start(folder, "without", {**job, "without": True})}
        seconds: dict[str, list[float]] = {"with": [], "without": []}
        spent = []
        for i in range(rounds + 2):
            prompt = engines.Prompt(f"prompt {i}", engines.ids(i, TOKENS))
            t = s.plan(prompt.transfer, sidecar.kv_plan(LAYERS, HEADS, WIDTH, DType.BF16, BLOCK, TOKENS // BLOCK))
            order = ("with", "without") if i % 2 else ("without", "with")
            for name in order:
                took = prefill(p[name], prompt.request if name == "with" else {"ids": prompt.ids})
                if i >= 2:  # the first ones warm up
                    seconds[name].append(took)
            end = s.wait(prompt.transfer, 30).ended[0]
            assert t.missing() == []
            t.blocks.clear()
            if i >= 2:
                spent.append((end.capture_ns, end.wait_ns))
        for q in p.values():
            q.kill()
        s.kill()
    a, b = statistics.median(seconds["with"]), statistics.median(seconds["without"])
    capture, wait = (statistics.median(x[j] for x in spent) / 1e6 for j in (0, 1))
    print(f"{rounds} rounds of {TOKENS} tokens, medians: with {a * 1e3:.1f} ms, without {b * 1e3:.1f} ms")
    print(f"difference {(a / b - 1) * 100:+.2f} %")
    for name, ms in (("copying", capture), ("waiting", wait)):
        print(f"counted by the connector, {name}: {ms:.2f} ms, {ms / b / 10:.2f} %")


if __name__ == "__main__":
    main()
