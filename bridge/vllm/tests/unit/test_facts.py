"""What a worker tells of its model, as far as that needs no tensors, and how it gets to the sidecar."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import sidecar
from conftest import Place
from pdlink_vllm import facts, params, wire
from pdlink_vllm.link import Link

log = logging.getLogger("test")
SPECIFICATION = Path(__file__).resolve().parents[3] / "facts" / "testdata"
DOCUMENT = json.dumps({"version": 1, "kind": "kv"}).encode()


def told(place: Place, options: sidecar.Options, document: bytes) -> list[bytes]:
    """What a sidecar hears of a worker that connects."""
    s = place.sidecar(options)
    link = Link(str(place.path), wire.Hello(), log, document)
    link.start()
    assert link.wait_up(sidecar.LIMIT)
    link.close()
    s.until(lambda: not s._conns)  # the connection's end comes after all that was said
    return s.facts


def test_the_sidecar_is_told(place: Place) -> None:
    assert told(place, sidecar.Options(), DOCUMENT) == [DOCUMENT]


def test_an_earlier_sidecar_is_not(place: Place) -> None:
    assert told(place, sidecar.Options(facts=False), DOCUMENT) == []


def test_nothing_to_tell(place: Place) -> None:
    assert told(place, sidecar.Options(), b"") == []


def test_a_restarted_sidecar_is_told_again(place: Place) -> None:
    s = place.sidecar()
    link = Link(str(place.path), wire.Hello(), log, DOCUMENT)
    link.start()
    assert link.wait_up(sidecar.LIMIT)
    s.kill()
    again = place.sidecar(after=s)
    again.until(lambda: bool(again.facts))
    link.close()
    assert again.facts == [DOCUMENT]


def test_what_is_looked_at_is_that_of_the_specification() -> None:
    want = json.loads((SPECIFICATION / "sampling.json").read_text(encoding="utf-8"))
    assert list(facts.POSITIONS) == want["positions"]
    for case in want["layers"]:
        assert facts.sampled(case["layers"], case["ratios"]) == case["looked"]
    for case in want["pairs"]:
        width = 2 * case["of"]
        assert facts.rotation(turned(width, width, neighbours=False, scale=1.0))["index"] == case["index"]


def turned(dims: int, width: int, neighbours: bool, scale: float) -> dict[int, np.ndarray]:
    """What a rotation makes of single features."""
    found = {}
    for p in facts.POSITIONS:
        m = np.eye(width)
        for i in range(dims // 2):
            angle = p / 10000 ** (2 * i / dims)
            a, b = (2 * i, 2 * i + 1) if neighbours else (i, i + dims // 2)
            a, b = a + width - dims, b + width - dims
            m[a, a] = m[b, b] = scale * np.cos(angle)
            m[a, b], m[b, a] = scale * np.sin(angle), -scale * np.sin(angle)
        found[p] = m
    return found


@pytest.mark.parametrize("neighbours", [False, True])
def test_rotation(neighbours: bool) -> None:
    got = facts.rotation(turned(32, 48, neighbours, 1.139))
    assert (got["dims"], got["first"], got["pairs"]) == (32, 16, "neighbours" if neighbours else "halves")
    assert got["index"] == [0, 1, 3, 5, 7, 9, 11, 13, 15] and got["at"] == [1, 255, 4095, 32767]
    assert got["cos"][0][0] == facts.number(1.139 * np.cos(1)) and got["sin"][1][8] == facts.number(
        1.139 * np.sin(255 / 10000 ** (15 / 16))
    )


def test_rotations_of_no_known_form() -> None:
    assert facts.rotation({1: np.eye(4)}) == {"dims": 0}
    with pytest.raises(facts.Missing, match="goes with"):
        facts.rotation({1: np.roll(np.eye(16), 3, axis=1)})


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("input_layernorm.weight", "input_layernorm"),
        ("self_attn.q_norm.weight", "self_attn.q_norm"),
        ("attn.mla_attn.compressor.ape", "attn.compressor.ape"),
        ("attn.indexer.compressor.norm.weight", "attn.indexer.compressor.norm"),
        ("ffn.gate.tid2eid", "ffn.gate.tid2eid"),
        ("hc_attn_fn", "attn_hc.fn"),
        ("hc_ffn_scale", "ffn_hc.scale"),
    ],
)
def test_names_are_the_decoders(path: str, name: str) -> None:
    assert facts.left_alone(path) and facts.renamed(path) == name


@pytest.mark.parametrize(
    "path", ["self_attn.qkv_proj.weight", "mlp.gate_proj.bias", "input_layernorm.bias", "ffn.gate.weight"]
)
def test_what_quantisation_changes_is_left_out(path: str) -> None:
    assert not facts.left_alone(path)


def test_bf16() -> None:
    """Rounding to nearest, ties to even: numbers with known patterns."""
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.3895314e38, 0.0], dtype=np.float32)
    assert [hex(v) for v in facts.bf16(values)] == ["0x3f80", "0x3f80", "0x3f82", "0xc020", "0x7f7f", "0x0"]


def test_the_layers_that_are_looked_at() -> None:
    assert facts.sampled(36, []) == [0, 18, 35]
    assert facts.sampled(6, [0, 0, 4, 128, 4, 128]) == [0, 2, 3, 5]


def test_the_golden_documents_are_within_the_limit() -> None:
    """Real ones; the receiving end reads them in its own tests."""
    for path in (Path(__file__).parents[3] / "facts" / "testdata").glob("*/vllm-*.json"):
        assert len(path.read_bytes()) <= params.MAX_FACTS
