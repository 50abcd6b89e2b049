"""Adoption of a few blocks at a time, what that does to reservations, and files that are read the short way."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from pathlib import Path
from typing import Any

import fakes
import pytest
from pdlink_omlx import blockfile
from pdlink_omlx.api import Endpoints
from pdlink_omlx.errors import Refusal

TEXT = "a prompt of a few blocks"
CHAIN = fakes.chain(list(TEXT.encode()), 5)


def adopt(endpoints: Endpoints, chain: list[bytes], **more: Any) -> dict[str, Any]:
    call = {"model": fakes.MODEL, "hashes": [d.hex() for d in chain], **more}
    return asyncio.run(endpoints.adopt(fakes.Request(json.dumps(call).encode())))


def plan(endpoints: Endpoints, text: str = TEXT) -> dict[str, Any]:
    body = json.dumps({"model": fakes.MODEL, "prompt": text}).encode()
    return asyncio.run(endpoints.plan(fakes.Request(body, path="/v1/completions")))


def manager(server: fakes.Server) -> fakes.Manager:
    return server.engine._engine.engine.scheduler.paged_ssd_cache_manager


def test_a_few_at_a_time(server: fakes.Server, endpoints: Endpoints) -> None:
    store = manager(server)
    for digest in CHAIN[:3]:
        store.put(digest, fakes.block(digest))
    assert adopt(endpoints, CHAIN[:2])["blocks"] == 2
    got = adopt(endpoints, CHAIN[2:3], first=2)
    assert (got["blocks"], got["adopted"], got["known"]) == (3, [CHAIN[2].hex()], [])
    got = adopt(endpoints, CHAIN[2:], first=2)
    assert (got["blocks"], got["known"]) == (3, [CHAIN[2].hex()])
    assert got["reason"].startswith("block 3 ") and list(got["refused"]) == [d.hex() for d in CHAIN[3:]]
    for digest in CHAIN[3:]:
        store.put(digest, fakes.block(digest))
    got = adopt(endpoints, CHAIN)  # all of them: what the decoder holds
    assert (got["blocks"], len(got["known"]), len(got["adopted"])) == (5, 3, 2)


def test_all_of_them_says_what_was_evicted(server: fakes.Server, endpoints: Endpoints) -> None:
    store = manager(server)
    for digest in CHAIN:
        store.put(digest, fakes.block(digest))
    assert adopt(endpoints, CHAIN[:4])["blocks"] == 4
    store.delete_block(CHAIN[1])
    assert adopt(endpoints, CHAIN[4:], first=4)["blocks"] == 5, "those before it are taken for granted"
    assert adopt(endpoints, CHAIN)["blocks"] == 1


@pytest.mark.parametrize("first", [-1, "1", 1.0, True, None, 1 << 20])
def test_bad_first(endpoints: Endpoints, first: Any) -> None:
    with pytest.raises(Refusal) as caught:
        adopt(endpoints, CHAIN, first=first)
    assert caught.value.code == "bad-request"


def test_room_is_given_back_as_blocks_come(tmp_path: Path) -> None:
    size = len(fakes.block(CHAIN[0]))
    server = fakes.server(tmp_path / "store", limit=8 * size)
    endpoints, store = Endpoints(server), manager(server)
    assert plan(endpoints)["bytes"] == 5 * size
    with pytest.raises(Refusal):  # five are reserved, three are free
        plan(endpoints, "a" * 17)
    for digest in CHAIN[:4]:
        store.put(digest, fakes.block(digest))
    adopt(endpoints, CHAIN[:2])
    adopt(endpoints, CHAIN[2:4], first=2)
    ledger = endpoints._ledgers[str(store._cache_dir)]
    assert [r.size for r in ledger._reserved.values()] == [size], "what is there is not reserved any more"
    store.put(CHAIN[4], fakes.block(CHAIN[4]))
    adopt(endpoints, CHAIN)
    assert ledger._reserved == {} and ledger.written == 5 * size


def test_a_plan_without_missing_blocks_has_no_ids(server: fakes.Server, endpoints: Endpoints) -> None:
    for digest in CHAIN:
        manager(server).put(digest, fakes.block(digest), known=True)
    got = plan(endpoints)
    assert (got["present"], got["ids"], len(got["hashes"])) == (5, "", 5)


def both(path: Path, like: blockfile.Header) -> tuple[Any, Any]:
    """What a file is, read with the help of another header and without."""
    found: list[Any] = []
    for helper in (like, None):
        fd = os.open(path, os.O_RDONLY)
        try:
            found.append(blockfile.read_from(fd, helper))
        except blockfile.Damaged as err:
            found.append(str(err))
        finally:
            os.close(fd)
    return found[0], found[1]


def test_the_short_way_finds_the_same(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(fakes.block(CHAIN[0]))
    like = blockfile.read(path)
    raw = fakes.block(CHAIN[1], seed=3)
    (n,) = struct.unpack("<Q", raw[:8])
    head, data = json.loads(raw[8 : 8 + n]), raw[8 + n :]

    def write(text: str, values: bytes = data) -> None:
        other.write_bytes(struct.pack("<Q", len(text)) + text.encode() + values)

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    write(text(head))
    short, long = both(other, like)
    assert short == long and short.tensors is like.tensors and long.tensors is not like.tensors
    extra = {**head, "layer_9": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    for change in (
        text(extra),  # a tensor behind the metadata
        text({"__metadata__": head["__metadata__"], **head}),
        text({**head, "__metadata__": {"a": 1}}),
        text({**head, "__metadata__": []}),
        text(head).replace('"shape":[1,1,4,2]', '"shape":[1,1,2,4]', 1),
        text(head)[:-1],
        text(head) + "}",
    ):
        write(change)
        short, long = both(other, like)
        assert short == long, change[-80:]
        if isinstance(short, blockfile.Header):
            assert short.tensors is not like.tensors
    write(text(head), data[:-4])
    short, long = both(other, like)
    assert short == long and isinstance(short, str)


def test_which_tensor_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "a"
    raw = bytearray(fakes.block(CHAIN[0]))
    path.write_bytes(raw)
    header = blockfile.read(path)
    t = header.tensors["layer_1_state_0"]
    raw[header.data + t.end - 4 : header.data + t.end] = b"\x00\x00\x80\x7f"
    path.write_bytes(raw)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert blockfile.not_finite(fd, header, header.windows) == "layer_1_state_0"
        os.truncate(path, header.data + t.begin + 2)
        with pytest.raises(blockfile.Damaged, match="layer_1_state_0 is cut short"):
            blockfile.not_finite(fd, header, header.windows)
    finally:
        os.close(fd)
