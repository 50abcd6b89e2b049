"""Where real engines are, and how tests run them. PDLINK_VLLM names the folder with their environments and models."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PACKAGE = HERE.parent.parent
ROOT = PACKAGE.parent.parent
FOLDER = Path(os.environ.get("PDLINK_VLLM", ROOT / ".build" / "vllm"))
QWEN3 = ROOT / "bridge" / "omlx" / "testdecoder" / "testdata" / "tiny-qwen3"
TINY_V4 = FOLDER / "models" / "tiny-v4"
# Those that plain attention is tested with.
VERSIONS = os.environ.get("PDLINK_VLLM_VERSIONS", "0.32.0 0.28.0 0.21.0").split()

# A run takes a minute on two idle cores; on a busy machine many times that.
LIMIT = 1200


def python(version: str) -> Path:
    """The interpreter of an engine's environment; fails where it is missing, and says how it is made."""
    p = FOLDER / f"venv-{version}" / "bin" / "python"
    assert p.exists(), f"{p} is missing: run {HERE}/setup.sh {version} {FOLDER}/venv-{version}"
    return p


def environment(v4: bool = False, package: bool = True) -> dict[str, str]:
    """What an engine's process needs in its environment."""
    env = dict(
        os.environ, VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", PYTHONDONTWRITEBYTECODE="1"
    )
    env.setdefault("OMP_NUM_THREADS", "2")
    paths = [str(PACKAGE)] if package else []
    if v4:
        paths.append(str(HERE / "shim"))
        env.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="0")
    env["PYTHONPATH"] = os.pathsep.join(paths)
    return env


def run(command: list[str], env: dict[str, str], log: Path) -> None:
    """Run a program to its end, kindly to others; its output lies in log and, when it fails, in the error."""
    with log.open("w") as f:
        code = subprocess.run(
            ["nice", "-n", "10", *command], env=env, stdout=f, stderr=f, timeout=LIMIT, check=False
        ).returncode
    assert code == 0, f"{command[0]} ended with {code}:\n{log.read_text()[-4000:]}"


def engine(version: str, job: dict[str, Any], folder: Path, v4: bool = False) -> dict[str, Any]:
    """Run one engine over a job (see run_engine.py) and return what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    run(
        [str(python(version)), str(HERE / "run_engine.py"), str(folder / "job.json"), str(folder / "out.json")],
        environment(v4),
        folder / "engine.log",
    )
    out: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return out


def knows_its_model(told: list[bytes]) -> None:
    """The engine was found to offer the model: everything that the document of facts can have is in the one told."""
    assert told
    document = json.loads(told[0])
    assert "unknown" not in document, document["unknown"]
    assert document["rope"]
    assert "norm" in document["tensors"]


def reference(model: Path, prompts: dict[str, list[int]], folder: Path) -> dict[str, Any]:
    """What transformers makes of prompts, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prompts.json").write_text(json.dumps(prompts))
    run(
        [str(python("0.32.0")), str(HERE / "reference.py"), str(model), str(folder / "prompts.json"), str(folder)],
        environment(package=False),
        folder / "reference.log",
    )
    return {name: np.load(folder / f"{name}.npz") for name in prompts}


def tiny_v4() -> Path:
    """The tiny DeepSeek-V4, made if it is not there yet."""
    if not (TINY_V4 / "model.safetensors").exists():
        part = TINY_V4.with_suffix(".part")
        run(
            [str(python("0.32.0")), str(HERE / "tiny_v4.py"), str(part), str(QWEN3)],
            environment(package=False),
            FOLDER / "tiny-v4.log",
        )
        part.rename(TINY_V4)
    return TINY_V4


def ids(seed: int, count: int) -> list[int]:
    """A prompt without much of a pattern, of ids that both tiny models have."""
    return [3 + (i * 37 + seed * 101 + i * i * 7) % 750 for i in range(count)]


@dataclass
class Prompt:
    """A prompt that takes part, and its transfer."""

    name: str
    ids: list[int]
    transfer: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Name the transfer after the prompt."""
        self.transfer = self.name.encode().ljust(16, b".")

    @property
    def request(self) -> dict[str, Any]:
        """The request of a job."""
        return {"ask": {"transfer": self.transfer.hex()}, "ids": self.ids}


def other(prompt: list[int]) -> dict[str, Any]:
    """A request that has nothing to do with us."""
    return {"ids": prompt}
