"""What is told of a loaded model: on a model without MLX, and held against the specification's own numbers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_model
import fakes
import numpy as np
import pytest
from pdlink_omlx import facts
from pdlink_omlx.api import Endpoints
from pdlink_omlx.errors import Refusal

SHARED = Path(__file__).resolve().parents[4] / "facts" / "testdata"


def document(server: fakes.Server) -> dict[str, Any]:
    """What info says of the model."""
    endpoints = Endpoints(server)
    return asyncio.run(endpoints.info(fakes.Request(model=fakes.MODEL)))["model"]["facts"]


def test_document(server: fakes.Server) -> None:
    got = document(server)
    numbers = {
        "version": 1,
        "layers": 2,
        "kv_heads": 1,
        "head_dim": 2,
        "heads": 3,
        "hidden": 6,
        "vocab": 61,
        "eps": 1e-6,
    }
    assert {k: got[k] for k in numbers} == numbers and (got["kind"], got["dtype"]) == ("kv", "F32")
    assert list(got["tensors"]) == [
        *(
            f"layers.{i}.{n}"
            for i in (0, 1)
            for n in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm")
        ),
        "norm",
    ]
    assert got["rope"]["1"]["dims"] == 2 and got["rope"]["1"]["cos"][0] == [0.540302]
    assert got["text"]["count"] == len(facts.PROBE.encode()) and "unknown" not in got
    assert len(json.dumps(got)) < 32 << 10


def test_the_probe_text_is_that_of_the_specification() -> None:
    assert (SHARED / "probe.txt").read_text(encoding="utf-8").removesuffix("\n") == facts.PROBE


def test_what_is_looked_at_is_that_of_the_specification() -> None:
    want = json.loads((SHARED / "sampling.json").read_text(encoding="utf-8"))
    assert list(facts.POSITIONS) == want["positions"]
    for case in want["layers"]:
        assert facts.sampled(case["layers"], case["ratios"]) == case["looked"]
    for case in want["pairs"]:
        rope = fake_model.Rope(2 * case["of"])
        assert facts.rotation(turned(rope, 2 * case["of"]))["index"] == case["index"]


def test_the_name_follows_the_model(server: fakes.Server, tmp_path: Path) -> None:
    """A plan names what is loaded, so that another model under the same id is noticed."""

    def name(endpoints: Endpoints) -> str:
        body = json.dumps({"model": fakes.MODEL, "prompt": "a prompt of a few blocks"}).encode()
        return str(asyncio.run(endpoints.plan(fakes.Request(body, path="/v1/completions")))["facts"])

    other = fakes.server(tmp_path / "other")
    other.engine._engine.engine.scheduler.model.layers[0].self_attn.rope = fake_model.Rope(2, scale=1.1)
    endpoints = Endpoints(server)
    first = name(endpoints)
    assert len(first) == 32 and name(endpoints) == first == name(Endpoints(server)) != name(Endpoints(other))
    assert document(other)["rope"]["0"]["cos"] == [[facts.number(1.1 * np.cos(p))] for p in facts.POSITIONS]


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("dims", [8, 16])
def test_rotation(neighbours: bool, dims: int) -> None:
    rope = fake_model.Rope(dims, base=1e6, scale=1.25, neighbours=neighbours)
    got = facts.rotation(turned(rope, 16))
    assert (got["dims"], got["first"], got["pairs"]) == (dims, 0, "neighbours" if neighbours else "halves")
    assert got["at"] == list(facts.POSITIONS) and got["index"] == list(range(dims // 2))
    for i, p in enumerate(got["at"]):
        for j, pair in enumerate(got["index"]):
            angle = p * rope.inverse[pair]
            assert got["cos"][i][j] == pytest.approx(1.25 * np.cos(angle), rel=1e-5)
            assert got["sin"][i][j] == pytest.approx(1.25 * np.sin(angle), rel=1e-5)


def turned(rope: Any, width: int) -> dict[int, Any]:
    one = np.eye(width).reshape(1, width, 1, width)
    return {p: rope(one, offset=p).reshape(width, width) for p in facts.POSITIONS}


def test_rotations_of_no_known_form() -> None:
    assert facts.rotation(turned(lambda x, offset: x, 4)) == {"dims": 0}
    with pytest.raises(Refusal, match="goes with"):
        facts.rotation(turned(lambda x, offset: np.roll(x, 3, axis=-1), 16))


def test_bf16() -> None:
    """Rounding to nearest, ties to even: numbers with known patterns."""
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.3895314e38, 0.0], dtype=np.float32)
    assert [hex(v) for v in facts.bf16(values)] == ["0x3f80", "0x3f80", "0x3f82", "0xc020", "0x7f7f", "0x0"]
    got = facts.fingerprint(np.array([[1, 2], [3, 4]], dtype=np.int64))
    want = hashlib.sha256(struct.pack("<4i", 1, 2, 3, 4)).hexdigest()[:16]
    assert got == {"shape": [2, 2], "hash": want, "first": [1.0, 2.0, 3.0]}
    # A float32 and its bf16 twin have one fingerprint: quantisers keep norms in either.
    exact = np.array([1.5, -0.25], dtype=np.float32)
    assert facts.fingerprint(exact)["hash"] == facts.fingerprint(exact + np.float32(1e-9))["hash"]


def test_what_has_moved_is_said(server: fakes.Server) -> None:
    model = server.engine._engine.engine.scheduler.model
    model.layers[1].self_attn.rope = None
    got = document(server)
    assert "rope" not in got and got["unknown"] == {"rope": "look at the rotation: SimpleNamespace has no rope"}
    assert len(got["tensors"]) == 7


def test_a_model_of_no_known_form(server: fakes.Server) -> None:
    server.engine._engine.engine.scheduler.model = lambda tokens, cache: tokens
    got = document(server)
    assert got["unknown"] == {"": "look at the model: function has no layers"} and set(got) == {
        "version",
        "unknown",
        "text",
    }


def v4(quantised: str = "") -> Any:
    """An attention of DeepSeek-V4's shape, ratio 4."""

    class Bf16(np.ndarray):  # an array whose type says so, as MLX's does
        @property
        def dtype(self) -> Any:  # type: ignore[override]
            return "mlx.core.bfloat16"

        def astype(self, kind: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            return np.asarray(self.view(np.ndarray)).astype(kind)

    def weight(*shape: int) -> Any:
        count = int(np.prod(shape))
        return ((np.arange(count) % 7 - 3) / 4).astype(np.float32).reshape(shape).view(Bf16)

    def matrix(*shape: int) -> Any:
        if quantised:
            return SimpleNamespace(weight=weight(*shape), scales=weight(1), mode=quantised, group_size=32, bits=8)
        return SimpleNamespace(weight=weight(*shape))

    def pool(width: int, out: int) -> Any:
        ape = np.arange(4 * out, dtype=np.float32).reshape(4, out) / 8
        return SimpleNamespace(
            wkv=matrix(out, 6), wgate=matrix(out, 6), ape=ape, norm=SimpleNamespace(weight=weight(width))
        )

    indexer = SimpleNamespace(compressor=pool(2, 4))
    return SimpleNamespace(
        wkv=matrix(3, 6), kv_norm=SimpleNamespace(weight=weight(3)), compressor=pool(3, 6), indexer=indexer
    )


def test_projection_hash() -> None:
    """The number is the one that Go computes of the same tensors (bridge/prefill)."""
    assert facts.projection_hash(dict(facts._weights(v4()))) == PROJECTION


PROJECTION = "ac9af2d4f3336ef5"


def test_affine_weights_are_not_hashed() -> None:
    with pytest.raises(Refusal, match="affine"):
        facts.projection_hash(dict(facts._weights(v4("affine"))))
