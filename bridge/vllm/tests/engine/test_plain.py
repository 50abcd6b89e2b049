"""Plain keys and values of a real vLLM, in every version that is supported, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
import sidecar
from conftest import Place
from engines import Prompt, ids, other
from pdlink_vllm.wire import DType

pytestmark = pytest.mark.engine

LAYERS, HEADS, WIDTH, BLOCK = 3, 2, 64, 256

# Largest difference in float32. Measured: 1.6e-5, of values up to 9.
TOLERANCE = 1e-4

SINGLE = Prompt("single", ids(1, 1500))
PREFIX = Prompt("prefix hit", [*ids(1, 1500), *ids(9, 200)])
BATCH = [Prompt("batch a", ids(2, 700)), Prompt("batch b", ids(3, 333)), Prompt("batch c", ids(5, 901))]
MIXED = Prompt("mixed", ids(7, 1100))
CROWD = [Prompt("crowd a", ids(12, 700)), Prompt("crowd b", ids(13, 633)), Prompt("crowd c", ids(15, 370))]
SHORT = Prompt("short", ids(20, BLOCK))
PROMPTS = [SINGLE, PREFIX, *BATCH, MIXED, *CROWD, SHORT]

# 14 blocks of 128 tokens hold one long prompt, or several short ones until they grow: the crowd is preempted.
ENGINE = {
    "dtype": "float32",
    "max_model_len": 1792,
    "max_num_batched_tokens": 512,
    "num_gpu_blocks_override": 15,
    "block_size": 128,
    "enforce_eager": True,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
}
BATCHES: list[dict[str, Any]] = [
    {"requests": [SINGLE.request]},
    {"requests": [PREFIX.request]},
    {"requests": [BATCH[0].request, BATCH[1].request, other(ids(4, 150)), BATCH[2].request]},
    {"requests": [other(ids(6, 40)), MIXED.request], "max_tokens": 8},
    {"requests": [p.request for p in CROWD], "max_tokens": 100},
    {"requests": [SHORT.request, {"ask": {"transfer": "none"}, "ids": ids(21, 50)}]},
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What transformers computes of the prompts."""
    return engines.reference(engines.QWEN3, {p.name: p.ids for p in PROMPTS}, tmp_path_factory.mktemp("reference"))


def worst(t: sidecar.Transfer, want: Any) -> float:
    """The largest difference of a transfer's blocks from what they should be; every byte must have come."""
    assert (t.aborted, sorted({e.tokens for e in t.ended})) == ([], [t.begins[0].prompt_tokens])
    assert t.missing() == []
    assert len(t.blocks) == t.plan.blocks
    result = 0.0
    for b, data in t.blocks.items():
        got = np.frombuffer(bytes(data), np.float32).reshape(LAYERS, 2, HEADS, BLOCK, WIDTH)
        for layer in range(LAYERS):
            for j, what in enumerate("kv"):
                rows = want[f"{what}{layer}"][:, b * BLOCK : (b + 1) * BLOCK]
                result = max(result, float(np.abs(got[layer, j] - rows).max()))
    return result


@pytest.mark.parametrize("version", engines.VERSIONS)
def test_blocks(version: str, place: Place, tmp_path: Path, expected: dict[str, Any]) -> None:
    s = place.sidecar(sidecar.Options(slots=16, slot_size=256 << 10))
    for p in PROMPTS:
        s.plan(p.transfer, sidecar.kv_plan(LAYERS, HEADS, WIDTH, DType.F32, BLOCK, len(p.ids) // BLOCK))
    job = {
        "model": str(engines.QWEN3),
        "socket": str(place.path),
        "engine": ENGINE,
        "batches": BATCHES,
        "extra": {"wait_ms": 30000},
    }
    out = engines.engine(version, job, tmp_path)
    assert out["vllm"] == version
    answers = [a for batch in out["batches"] for a in batch]
    by_transfer = {
        a["params"]["pdlink"]["transfer"]: a for a in answers if a["params"] and "transfer" in a["params"]["pdlink"]
    }
    for p in PROMPTS:
        t = s.wait(p.transfer, 10)
        assert t.aborted == [], p.name
        assert [e.tokens for e in t.ended] == [len(p.ids)], p.name
        assert [b.first_token for b in t.begins] == [0], p.name
        assert worst(t, expected[p.name]) < TOLERANCE, p.name
        said = by_transfer[p.transfer.hex()]["params"]["pdlink"]
        assert (said["rows"], said["prompt"], said["hit"]) == (len(p.ids), len(p.ids), 0), p.name
    assert sum(a["params"]["pdlink"]["resumed"] for a in out["batches"][4]) > 0, (
        "nobody was preempted: the test tests less than it says"
    )
    assert out["batches"][2][2]["params"] is None
    assert "32 hex digits" in out["batches"][5][1]["params"]["pdlink"]["declined"]
    assert s.hellos[0].head_end == HEADS
    assert s.hellos[0].layer_end == LAYERS
    engines.knows_its_model(s.facts)
