"""DeepSeek-V4's attention input from a real vLLM on CPU (with the shim beside this file) against transformers."""

from __future__ import annotations

from pathlib import Path

import engines
import numpy as np
import pytest
import sidecar
from conftest import Place
from engines import Prompt, ids, other
from pdlink_vllm.wire import Kind, What

pytestmark = pytest.mark.engine

LAYERS, HIDDEN, BLOCK = 4, 128, 512

# Relative L2 of each layer. Measured: 0.003, 0.009, 0.012, 0.014; bf16 and fp8 keys against float32. One row late: 1.4.
TOLERANCE = (0.006, 0.02, 0.02, 0.03)

ALONE = Prompt("alone", ids(1, 1061))
AGAIN = Prompt("again", ids(1, 1061))
BESIDE = Prompt("beside", ids(2, 700))


def values(data: bytes) -> np.ndarray:
    """bf16 as float32."""
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(-1, HIDDEN)


def test_input(place: Place, tmp_path: Path) -> None:
    model = engines.tiny_v4()
    s = place.sidecar(sidecar.Options(slots=16, slot_size=64 << 10))
    for p in (ALONE, AGAIN, BESIDE):
        s.plan(p.transfer, sidecar.Plan(Kind.DSV4, len(p.ids) // BLOCK, BLOCK, 1 << 20, (0, LAYERS)))
    job = {
        "model": str(model),
        "socket": str(place.path),
        "extra": {"wait_ms": 30000},
        "engine": {
            "dtype": "bfloat16",
            "max_model_len": 4096,
            "max_num_batched_tokens": 512,
            "enforce_eager": True,
            "enable_chunked_prefill": True,
        },
        "batches": [{"requests": [ALONE.request]}, {"requests": [other(ids(4, 150)), AGAIN.request, BESIDE.request]}],
    }
    out = engines.engine("0.32.0", job, tmp_path, v4=True)
    want = engines.reference(model, {p.name: p.ids for p in (ALONE, BESIDE)}, tmp_path)
    assert [a["params"]["pdlink"]["steps"] for a in (out["batches"][0][0], out["batches"][1][1])] == [3, 3]
    engines.knows_its_model(s.facts)
    got: dict[str, list[bytes]] = {}
    for p in (ALONE, AGAIN, BESIDE):
        t = s.wait(p.transfer, 10)
        assert t.aborted == []
        assert t.ended[0].tokens == len(p.ids)
        for layer in range(LAYERS):
            first, data = t.layer_rows(layer, What.X)
            assert first == 0
            got.setdefault(p.name, []).append(data)
    assert got["alone"] == got["again"]  # to the bit, alone and among others
    for name in ("alone", "beside"):
        for layer in range(LAYERS):
            x = values(got[name][layer])
            y = want[name][f"x{layer}"][: len(x)]
            assert len(x) == len(y) == (1024 if name == "alone" else 512)
            assert np.linalg.norm(x - y) < TOLERANCE[layer] * np.linalg.norm(y), (name, layer)
            assert np.linalg.norm(x[1:] - y[:-1]) > np.linalg.norm(y), (name, layer)
