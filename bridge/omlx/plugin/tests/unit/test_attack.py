"""What strangers send and lay into the store: it is refused with its reason, soon, and the endpoints go on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes
import pytest
from pdlink_omlx import blockfile, jsontext, params, space
from pdlink_omlx.api import Endpoints
from pdlink_omlx.errors import Refusal

IDS = list(b"a prompt of a few blocks")
CHAIN = fakes.chain(IDS, 5)
DEEP = 200_000  # levels


def store(server: fakes.Server) -> fakes.Manager:
    return server.engine._engine.engine.scheduler.paged_ssd_cache_manager


def body(hashes: list[bytes], **more: Any) -> bytes:
    return json.dumps({"model": fakes.MODEL, "hashes": [d.hex() for d in hashes], **more}).encode()


def plan(endpoints: Endpoints, text: bytes = b"") -> dict[str, Any]:
    call = text or json.dumps({"model": fakes.MODEL, "prompt": bytes(IDS).decode()}).encode()
    return asyncio.run(endpoints.plan(fakes.Request(call, path="/v1/completions")))


def soon(path: Path, run: Callable[[], Any]) -> Any:
    """The result of something that may wait for the other end of a pipe; fails where it does."""
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(run()))
    thread.start()
    thread.join(30)
    waits = thread.is_alive()
    if waits:
        end = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # so that it ends
        os.close(end)
        thread.join()
    assert not waits and out, "it waits, or failed"
    return out[0]


def refused(server: fakes.Server, endpoints: Endpoints) -> str:
    """Why the file of the first block is not adopted. A plan then takes it out of the way."""
    path = store(server)._get_file_path(CHAIN[0])
    got = soon(path, lambda: asyncio.run(endpoints.adopt(fakes.Request(body(CHAIN[:1])))))
    assert got["blocks"] == 0 and not store(server).has_block(CHAIN[0])
    json.dumps(got).encode()
    soon(path, lambda: plan(endpoints))
    assert not path.exists() and not path.is_symlink()
    why: str = got["refused"][CHAIN[0].hex()]
    assert len(why) <= params.MAX_REASON
    return why


def nested(kind: str) -> bytes:
    """A block whose header is nested deeply, within the limit on headers."""
    raw = fakes.block(CHAIN[0])
    (n,) = struct.unpack("<Q", raw[:8])
    text, data = raw[8 : 8 + n].decode().rstrip(" "), raw[8 + n :]
    at = text.index(blockfile.METADATA) + len(blockfile.METADATA)
    header = {
        "all": "[" * DEEP + "]" * DEEP,
        "a tensor": '{"t":' + "[" * DEEP + "]" * DEEP + "}",
        "behind known tensors": text[:at] + '{"a":' * DEEP + "0" + "}" * DEEP + "}",
    }[kind].encode()
    assert len(header) <= params.MAX_HEADER
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize("kind", ["all", "a tensor", "behind known tensors"])
def test_nested_headers(server: fakes.Server, endpoints: Endpoints, kind: str) -> None:
    store(server).put(CHAIN[0], nested(kind))
    assert "nested too deeply" in refused(server, endpoints)


def test_nested_metadata(server: fakes.Server, endpoints: Endpoints) -> None:
    store(server).put(CHAIN[0], fakes.block(CHAIN[0], layer_meta_states="[" * DEEP + "]" * DEEP))
    assert "layer_meta_states is no JSON" in refused(server, endpoints)


def test_long_and_broken_names(server: fakes.Server, endpoints: Endpoints) -> None:
    """Names are part of the reason, which is bounded and can leave."""
    raw = fakes.block(CHAIN[0])
    for meta in ({"x" * 100_000: "1"}, {"block_hash": "y" * 100_000}, {"\ud800": "1"}, {"model_name": "\udfff"}):
        store(server).put(CHAIN[0], fakes.block(CHAIN[0], **meta))
        refused(server, endpoints)
    store(server).put(CHAIN[0], raw.replace(b'"layer_1_state_1"', b'"layer_1\\ud800st"'))
    assert "layer_1_state_1 is missing" in refused(server, endpoints)


@pytest.mark.parametrize("kind", ["pipe", "link", "link to nothing", "socket"])
def test_no_regular_files(server: fakes.Server, endpoints: Endpoints, tmp_path: Path, kind: str) -> None:
    path = store(server)._get_file_path(CHAIN[0])
    other = tmp_path / "other"
    other.write_bytes(fakes.block(CHAIN[0]))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
        os.chdir(here)
    else:
        path.symlink_to(other if kind == "link" else tmp_path / "nothing")
    assert refused(server, endpoints) == "it is no regular file"
    assert other.read_bytes() == fakes.block(CHAIN[0]), "what a link leads to stays"


@pytest.mark.parametrize("name", ["adopt", "evict"])
def test_large_calls(endpoints: Endpoints, name: str) -> None:
    """The longest call that may be made is taken, and one of twice that size is not."""
    longest = body([i.to_bytes(32, "big") for i in range(params.MAX_HASHES)])
    assert params.MAX_CALL // 2 < len(longest) < params.MAX_CALL - 4096
    run = getattr(endpoints, name)
    assert len(asyncio.run(run(fakes.Request(longest)))["refused"]) == params.MAX_HASHES
    with pytest.raises(Refusal) as caught:
        asyncio.run(run(fakes.Request(longest + b" " * (params.MAX_CALL - len(longest) + 1))))
    assert (caught.value.code, caught.value.status) == ("too-large", 413) and "2097152" in caught.value.message


ODD = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b"1" * 10_000,
]


@pytest.mark.parametrize("value", ODD, ids=lambda v: v[:9].decode())
def test_odd_json(server: fakes.Server, endpoints: Endpoints, value: bytes) -> None:
    """Also where nobody would look at the value."""
    for run in (endpoints.adopt, endpoints.evict):
        with pytest.raises(Refusal) as caught:
            asyncio.run(run(fakes.Request(body([], more=0)[:-2] + value + b"}")))
        assert (caught.value.code, caught.value.message) == ("bad-request", "the body is no JSON")
    with pytest.raises(Refusal) as caught:
        plan(endpoints, b'{"model":"tiny","prompt":"x","temperature":' + value + b"}")
    assert (caught.value.code, caught.value.message) == ("unplannable", "the body is no JSON")
    assert server.engine._engine.generated == [] and server.loads == 0


@pytest.mark.parametrize("first", [b"true", b"1.0", b"1e400", b"-1", b"16385", b'"0"', b"null", b"[]"])
def test_odd_numbers(endpoints: Endpoints, first: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        asyncio.run(endpoints.adopt(fakes.Request(body([], first=0)[:-2] + first + b"}")))
    assert caught.value.code == "bad-request" and "first is no number" in caught.value.message


@pytest.mark.parametrize(
    "digest", ["../" * 21 + "a", "/" + "a" * 63, "A" * 64, "a" * 63 + "\0", "é" * 64, "a" * 65, "٣" * 64]
)
def test_hashes_are_no_paths(endpoints: Endpoints, digest: str) -> None:
    for call in ({"hashes": [digest]}, {"hashes": [], "tail": digest}):
        with pytest.raises(Refusal) as caught:
            asyncio.run(endpoints.adopt(fakes.Request(json.dumps({"model": fakes.MODEL, **call}).encode())))
        assert caught.value.code == "bad-request"


def test_json() -> None:
    assert jsontext.parse(b'{"a":[1,2.5,null,true,"\\ud800"]}') == {"a": [1, 2.5, None, True, "\ud800"]}
    for text in ("", "{", "nan", "NaN", "[1,Infinity]", "\ufeff{}", b"\xff", "1" * 5000):
        with pytest.raises(ValueError):
            jsontext.parse(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"day": 7}', '{"day": "DAY", "bytes": 1e999}', '{"day": "DAY", "bytes": NaN}', "[" * DEEP]
)
def test_damaged_counts_of_a_day(tmp_path: Path, text: str) -> None:
    """A file that says nothing counts as none, and the next write mends it."""
    path = tmp_path / "pdlink" / "writes.json"
    path.parent.mkdir()
    path.write_text(text.replace("DAY", space._today()))
    ledger = space.Ledger(tmp_path, 100)
    assert ledger.written == 0
    ledger.wrote(7)
    assert space.Ledger(tmp_path, 100).written == 7


def test_pipes_for_the_counts_of_a_day(tmp_path: Path) -> None:
    path = tmp_path / "pdlink" / "writes.json"
    path.parent.mkdir()
    part = path.with_suffix(f".{os.getpid()}.part")
    for p in (path, part):
        os.mkfifo(p)
    ledger = soon(path, lambda: space.Ledger(tmp_path, 100))
    soon(part, lambda: ledger.wrote(7))
    assert space.Ledger(tmp_path, 100).written == 7
