"""Messages and entries: the bytes of the specification's golden file, both ways, and packets that are none."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pdlink_vllm import ring, wire
from pdlink_vllm.wire import Code, Message, WireError

GOLDEN = json.loads((Path(__file__).parents[3] / "prefill" / "testdata" / "golden.json").read_text())
MESSAGES = list(wire._TYPES.values())


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda c: c.__name__)
def test_both_ways(cls: type[Message]) -> None:
    rng = random.Random(cls.TYPE)
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if f.type == "str":
            values[f.name] = "words for people"
        elif f.type == "bytes":
            values[f.name] = rng.randbytes(32 if f.name == "sha256" else 16)
        else:
            values[f.name] = rng.randint(1, 200)
    m = cls(**values)
    packet = m.encode()
    assert len(packet) == wire.PACKET
    assert packet[:6] == b"PDLE" + bytes([1, cls.TYPE])
    assert wire.decode(packet) == m


@pytest.mark.parametrize("golden", GOLDEN["messages"], ids=lambda g: g["name"])
def test_golden(golden: dict[str, Any]) -> None:
    """The other end's bytes of every message, both ways."""
    m = wire.decode(bytes.fromhex(golden["hex"]))
    assert (m.TYPE, m.code, m.handle) == (golden["type"], golden["code"], golden["handle"])
    named = {}
    for f in dataclasses.fields(m)[2:]:
        value = getattr(m, f.name)
        if f.type == "bytes":
            named[f.name] = value.hex()
        elif f.name == "layout":
            named[f.name] = f"{value:016x}"
        else:
            named[f.name] = value
    for name, value in golden["fields"].items():
        assert named.pop(name) == value, name
    assert not any(named.values() if isinstance(m, wire.Hello) else (v for v in named.values() if isinstance(v, int)))
    assert m.encode().hex() == golden["hex"]


def test_golden_memory() -> None:
    memory = {m["name"]: bytes.fromhex(m["hex"]) for m in GOLDEN["memory"]}
    header = ring._HEADER.unpack_from(memory["ring_header"])
    assert header[:4] == (wire.RING_MAGIC, wire.VERSION, 4, 8192)
    pieces = [memory["record_taken"][64 + 32 * i :][:32] for i in range(2)]
    entries = [wire.decode_entry(p, wire.Mode.PIECES) for p in pieces]
    assert entries == [wire.Piece(2, 4096, 96), wire.Piece(3, 0, 32)]
    rows = memory["record_rows"][64:96]
    assert wire.decode_entry(rows, wire.Mode.ROWS) == wire.Rows(5, 2048, 300, 4, wire.What.V, 2, 2)
    assert wire.Rows(5, 2048, 300, 4, wire.What.V, 2, 2).encode() == rows


def test_texts_are_cut_and_ascii() -> None:
    m = wire.decode(wire.Abort(0, 1, "ä" * 60).encode())
    assert isinstance(m, wire.Abort)
    assert m.text == "?" * 48


@pytest.mark.parametrize(
    "packet", [b"", bytes(63), bytes(64), b"PDLE\x02\x01" + bytes(58), b"PDLE\x01\x63" + bytes(58), bytes(65)]
)
def test_no_message(packet: bytes) -> None:
    with pytest.raises(WireError):
        wire.decode(packet)


def test_unknown_codes_are_failures() -> None:
    assert Code(77) is Code.FAILED
    assert all(c.meaning for c in Code)


@pytest.mark.parametrize(
    ("entry", "mode"),
    [(wire.Piece(3, 1 << 40, 4096), wire.Mode.PIECES), (wire.Rows(2, 512, 100, 4, wire.What.V, 6, 2), wire.Mode.ROWS)],
)
def test_entries(entry: wire.Entry, mode: wire.Mode) -> None:
    data = entry.encode()
    assert len(data) == wire.ENTRY
    assert wire.decode_entry(data, mode) == entry
    with pytest.raises(WireError):
        wire.decode_entry(data[:-1], mode)


def test_any_packet_is_a_message_or_none() -> None:
    rng = random.Random(7)
    for _ in range(5000):
        packet = bytearray(rng.randbytes(rng.choice([63, 64, 64, 64, 64, 65])))
        if rng.random() < 0.9:
            packet[:6] = b"PDLE\x01" + bytes([rng.randrange(20)])
        try:
            m = wire.decode(bytes(packet))
        except WireError:
            continue
        assert len(m.encode()) == wire.PACKET
