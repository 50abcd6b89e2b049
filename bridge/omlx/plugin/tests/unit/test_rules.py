"""What a file must be to be block k of a prompt, for layouts of all formats: headers as the Go writer gives them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pdlink_omlx import blockfile, rules
from pdlink_omlx.canary import Native, layout_of

HEADERS = Path(__file__).resolve().parents[2] / "testdata" / "headers"
NAMES = sorted(p.stem for p in HEADERS.glob("*.json"))
DIGEST = bytes([2]) + bytes(31)


def made(name: str, block: int) -> tuple[dict[str, Any], str, int]:
    found = next(h for h in json.loads((HEADERS / f"{name}.json").read_text()) if h["block"] == block)
    return json.loads(found["header"]), found["header"], found["data_bytes"]


def native(name: str) -> Native:
    parsed, text, size = made(name, 0)
    header = blockfile.parse(text, parsed, 8 + len(text), 8 + len(text) + size)
    return Native(header, bytes(32), [], layout_of(header))


def write(path: Path, parsed: dict[str, Any], size: int, edit: Callable[[bytearray, dict[str, Any]], None]) -> None:
    """A file of this header, with zeros for values and right row ranges; `edit` may change the values."""
    values = bytearray(size)
    for name, t in parsed.items():
        if name != "__metadata__" and t["dtype"] == "I64":
            rows = parsed[name.rpartition("_")[0] + "_2"]["shape"][1]
            values[t["data_offsets"][0] : t["data_offsets"][1]] = struct.pack("<qq", 2 * rows, 3 * rows)
    edit(values, parsed)
    text = json.dumps(parsed, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(values))


def fault(tmp_path: Path, name: str, edit: Any = lambda values, parsed: None, index: int = 2) -> str | None:
    parsed, _, size = made(name, 2)
    path = tmp_path / "block"
    write(path, parsed, size, edit)
    return rules.fault(native(name), path, DIGEST, index)


@pytest.mark.parametrize("name", NAMES)
def test_good(tmp_path: Path, name: str) -> None:
    assert fault(tmp_path, name) is None


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("dsv4")])
def test_another_place(tmp_path: Path, name: str) -> None:
    assert "layer_meta_states" in str(fault(tmp_path, name, index=1))


@pytest.mark.parametrize("name", NAMES)
def test_dtype_and_shape(tmp_path: Path, name: str) -> None:
    parsed, _, _ = made(name, 2)
    for tensor, t in parsed.items():
        if tensor == "__metadata__":
            continue

        def dtype(_: bytearray, p: dict[str, Any], n: str = tensor) -> None:
            p[n]["dtype"] = {"BF16": "F16", "F16": "BF16", "F32": "I32", "I64": "U64"}[p[n]["dtype"]]

        def shape(_: bytearray, p: dict[str, Any], n: str = tensor) -> None:
            p[n]["shape"] = [1, *p[n]["shape"]]

        assert f"tensor {tensor} is" in str(fault(tmp_path, name, dtype)), t
        assert f"tensor {tensor} is" in str(fault(tmp_path, name, shape)), t


@pytest.mark.parametrize("name", ["dsv4-4", "dsv4-5"])
def test_row_range(tmp_path: Path, name: str) -> None:
    parsed, _, _ = made(name, 2)
    ranges = [n for n, t in parsed.items() if n != "__metadata__" and t["dtype"] == "I64"]
    assert ranges

    for tensor in ranges:

        def moved(values: bytearray, p: dict[str, Any], n: str = tensor) -> None:
            values[p[n]["data_offsets"][0]] ^= 1

        assert f"tensor {tensor} says rows" in str(fault(tmp_path, name, moved))


@pytest.mark.parametrize("name", NAMES)
def test_values(tmp_path: Path, name: str) -> None:
    """Poison over a whole tensor, in its last value, and over its middle row is seen."""
    parsed, _, _ = made(name, 2)
    poison = {"BF16": b"\xc0\x7f", "F16": b"\0\x7e", "F32": b"\0\0\x80\x7f"}
    for tensor, t in parsed.items():
        if tensor == "__metadata__" or t["dtype"] not in poison:
            continue
        begin, end = t["data_offsets"]
        one = poison[t["dtype"]]
        middle = begin + (end - begin) // 2 // len(one) * len(one)
        for at, stop in ((begin, end), (end - len(one), end), (middle, min(end, middle + 64 * len(one)))):

            def bad(values: bytearray, _: Any, a: int = at, s: int = stop, v: bytes = one) -> None:
                values[a:s] = v * ((s - a) // len(v))

            assert fault(tmp_path, name, bad) == f"tensor {tensor} has values that are not finite"


def test_metadata(tmp_path: Path) -> None:
    name = "dsv4-4"
    meta = made(name, 2)[0]["__metadata__"]
    for key in meta:

        def gone(_: bytearray, p: dict[str, Any], k: str = key) -> None:
            del p["__metadata__"][k]

        def other(_: bytearray, p: dict[str, Any], k: str = key) -> None:
            p["__metadata__"][k] = "[0]"

        assert fault(tmp_path, name, gone) is not None, key
        assert (fault(tmp_path, name, other) is None) == (key == "created_at"), key


def test_unreadable(tmp_path: Path) -> None:
    assert rules.fault(native("kv-3"), tmp_path / "none", DIGEST, 0) == "there is no such file"
    assert rules.fault(native("kv-3"), tmp_path, DIGEST, 0) == "it is no regular file"
    assert "cannot be read" in str(rules.fault(native("kv-3"), tmp_path / ("n" * 300), DIGEST, 0))


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": "F9", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
    ],
)
def test_damaged_headers(entry: Any) -> None:
    with pytest.raises(blockfile.Damaged):
        blockfile.parse("", {"t": entry}, 8, 12)


@pytest.mark.parametrize("parsed", [[], "x", {"__metadata__": []}, {"__metadata__": {"a": 1}}])
def test_damaged_containers(parsed: Any) -> None:
    with pytest.raises(blockfile.Damaged):
        blockfile.parse("", parsed, 8, 8)
