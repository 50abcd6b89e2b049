"""The endpoints' answers and decisions, on a decoder without MLX. testdata has answers that the Go client reads too."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import weakref
from pathlib import Path
from typing import Any

import fakes
import pytest
from pdlink_omlx import api, params
from pdlink_omlx.api import Endpoints
from pdlink_omlx.errors import Refusal

TESTDATA = Path(__file__).resolve().parents[2] / "testdata"
TEXT = "a prompt of a few blocks"  # 24 bytes: 24 tokens
IDS = list(TEXT.encode())
CHAIN = fakes.chain(IDS, 5)


def held(name: str, got: Any) -> None:
    """Compare with an example that the Go client is held to as well; PDLINK_WRITE_TESTDATA=1 writes it anew."""
    text = json.dumps(got, indent=1) + "\n"
    if os.environ.get("PDLINK_WRITE_TESTDATA"):
        (TESTDATA / name).write_text(text)
    assert text == (TESTDATA / name).read_text()


def request(prompt: Any = TEXT, model: str = fakes.MODEL, **more: Any) -> bytes:
    return json.dumps({"model": model, "prompt": prompt, **more}).encode()


def plan(endpoints: Endpoints, body: bytes | None = None, path: str = "/v1/completions") -> dict[str, Any]:
    return asyncio.run(endpoints.plan(fakes.Request(request() if body is None else body, path=path)))


def adopt(endpoints: Endpoints, chain: list[bytes]) -> dict[str, Any]:
    call = json.dumps({"model": fakes.MODEL, "hashes": [d.hex() for d in chain]}).encode()
    return asyncio.run(endpoints.adopt(fakes.Request(call)))


def manager(server: fakes.Server) -> fakes.Manager:
    return server.engine._engine.engine.scheduler.paged_ssd_cache_manager


def refusal(run: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        run()
    return caught.value


def test_plan(server: fakes.Server, endpoints: Endpoints) -> None:
    manager(server).put(CHAIN[0], fakes.block(CHAIN[0]), known=True)
    got = plan(endpoints)
    held("plan.json", got)
    # 24 tokens are six blocks, and one token must stay: five.
    assert (got["tokens"], got["blocks"], got["present"]) == (24, 5, 1)
    assert base64.b64decode(got["ids"]) == b"".join(i.to_bytes(4, "little") for i in IDS[:20])
    assert got["bytes"] == 4 * len(fakes.block(CHAIN[0]))
    assert server.engine._engine.generated == [], "a plan generates"
    assert server.released == server.loads == 1, "what the handler holds is released"
    assert server.engine._tokenizer.calls == 2, "one tokenisation, and one of the probe text"
    assert server.engine.kept == 1, "what the engine makes once is kept"


def test_plan_of_a_stream(server: fakes.Server, endpoints: Endpoints) -> None:
    assert plan(endpoints, request(stream=True)) == plan(endpoints)
    assert server.engine._engine.generated == []
    assert server.released == 2


def test_plan_of_a_short_prompt(endpoints: Endpoints) -> None:
    for text, blocks in (("", 0), ("abcd", 0), ("abcde", 1), ("abcdefgh", 1), ("abcdefghi", 2)):
        got = plan(endpoints, request(text))
        assert (got["tokens"], got["blocks"], len(got["hashes"])) == (len(text), blocks, blocks)


def test_info(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"omlx": "0.0.1", "mlx": "0.0.2", "mlx_lm": "0.0.3"}
    monkeypatch.setattr(api, "_versions", lambda: versions)
    got = asyncio.run(endpoints.info(fakes.Request(model=fakes.MODEL)))
    store = got["model"]["store"]
    assert Path(store["path"]).is_dir() and store["uid"] == os.getuid()
    got["model"]["store"] = {**store, "path": "/store", "uid": 501, "gid": 20, "mode": 493}
    held("info.json", got)
    assert got["model"]["layout"] == plan(endpoints)["layout"]
    assert got["plans"]["/v1/completions"] == "" and "0 for /v1/messages" in got["plans"]["/v1/messages"]
    assert "model" not in asyncio.run(endpoints.info(fakes.Request()))
    assert refusal(lambda: asyncio.run(endpoints.info(fakes.Request(model="other")))).code == "bad-request"


def test_adopt(server: fakes.Server, endpoints: Endpoints) -> None:
    store = manager(server)
    store.put(CHAIN[0], fakes.block(CHAIN[0]), known=True)
    for digest in CHAIN[1:3]:
        store.put(digest, fakes.block(digest))
    store._incompatible_index.add(fakes.Metadata(CHAIN[1], 0, 0, Path()))
    got = adopt(endpoints, CHAIN[:4])
    held("adoption.json", got)
    assert got["blocks"] == 3 and got["adopted"] == [d.hex() for d in CHAIN[1:3]] and got["known"] == [CHAIN[0].hex()]
    assert got["refused"] == {CHAIN[3].hex(): "there is no such file"}
    assert all(store.has_block(d) for d in CHAIN[:3]) and not store._incompatible_index.entries
    assert adopt(endpoints, CHAIN[:3])["known"] == [d.hex() for d in CHAIN[:3]]
    assert plan(endpoints)["present"] == 3


def test_adopt_stops_at_the_first_refusal(server: fakes.Server, endpoints: Endpoints) -> None:
    store = manager(server)
    for digest in (CHAIN[0], *CHAIN[2:5]):
        store.put(digest, fakes.block(digest))
    got = adopt(endpoints, CHAIN[:5])
    assert got["blocks"] == 1 and got["adopted"] == [CHAIN[0].hex()]
    assert list(got["refused"]) == [d.hex() for d in CHAIN[1:5]]
    assert got["reason"].startswith("block 1 ")


def test_adopt_a_long_chain(server: fakes.Server, endpoints: Endpoints) -> None:
    ids = list(range(BLOCKS * fakes.BLOCK))
    chain = fakes.chain(ids, BLOCKS)
    for digest in chain:
        manager(server).put(digest, fakes.block(digest))
    got = adopt(endpoints, chain)
    assert got["blocks"] == BLOCKS and got["adopted"] == [d.hex() for d in chain] and got["refused"] == {}


BLOCKS = 3 * params.EXECUTOR_BATCH + 1


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("cut short", lambda raw: raw[:-1], "bytes wanted"),
        ("longer", lambda raw: raw + b"\0", "bytes wanted"),
        ("empty", lambda raw: b"", "no block file"),
        ("no header", lambda raw: b"\xff" * len(raw), "header of"),
        ("another block", lambda raw: fakes.block(CHAIN[4]), "holds block"),
        ("another model", lambda raw: fakes.block(CHAIN[0], model_name="other"), "model_name"),
        ("another format", lambda raw: fakes.block(CHAIN[0], omlx_cache_format_version="2"), "format_version"),
        ("an extra key", lambda raw: fakes.block(CHAIN[0], payload_layout="embedded"), "payload_layout is extra"),
        ("another dtype", lambda raw: raw.replace(b'"F32"', b'"I32"'), "not F32"),
        ("another shape", lambda raw: raw.replace(b"[1,1,4,2]", b"[1,4,1,2]"), "not F32"),
        ("another name", lambda raw: raw.replace(b"layer_1_state_1", b"layer_1_state_7"), "missing"),
        ("values that are not numbers", lambda raw: raw[:-4] + b"\0\0\xc0\x7f", "not finite"),
        ("infinity", lambda raw: raw[:-32] + b"\0\0\x80\xff" * 8, "not finite"),
        ("other metas", lambda raw: fakes.block(CHAIN[0], layer_meta_states="[[1], []]"), "layer_meta_states"),
    ],
)
def test_adopt_refuses(server: fakes.Server, endpoints: Endpoints, name: str, change: Any, says: str) -> None:
    raw = fakes.block(CHAIN[0])
    changed = change(raw)
    assert changed != raw
    manager(server).put(CHAIN[0], changed)
    got = adopt(endpoints, CHAIN[:1])
    assert got["blocks"] == 0 and not manager(server).has_block(CHAIN[0])
    assert says in got["refused"][CHAIN[0].hex()]
    # A plan finds the same file in the way and removes it, so that the block can be written.
    assert plan(endpoints)["present"] == 0
    assert not manager(server)._get_file_path(CHAIN[0]).exists()


def test_the_decoders_own_rule(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    manager(server).put(CHAIN[0], fakes.block(CHAIN[0]))
    monkeypatch.setattr(fakes.Manager, "_is_compatible_block", lambda *_: False)
    assert "incompatible" in adopt(endpoints, CHAIN[:1])["reason"]


def test_plan_adopts_what_lies_there(server: fakes.Server, endpoints: Endpoints) -> None:
    for digest in (CHAIN[0], CHAIN[1], CHAIN[3]):
        manager(server).put(digest, fakes.block(digest))
    assert plan(endpoints)["present"] == 2
    assert manager(server)._get_file_path(CHAIN[3]).exists(), "a good block behind a gap stays"


def test_a_file_in_the_way_that_stays(server: fakes.Server, endpoints: Endpoints) -> None:
    manager(server)._get_file_path(CHAIN[0]).mkdir()
    found = refusal(lambda: plan(endpoints))
    assert (found.code, found.status) == ("conflict", 409) and "cannot be removed" in found.message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "no JSON"),
        (b"[1]", "no object"),
        (request(["a", "b"]), "several prompts"),
        (b'{"model":"tiny"}', "request model refuses"),
        (request(model="other"), "Model 'other' not found"),
        (request("x" * 1001), "too long"),
        (b'{"model":"tiny","messages":[{"content":[{"type":"image_url"}]}]}', "image_url"),
        (b'{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}', "type image"),
        (b'{"model":"tiny","input":[{"type":"input_file"}]}', "input_file"),
    ],
)
def test_unplannable(server: fakes.Server, endpoints: Endpoints, body: bytes, says: str) -> None:
    found = refusal(lambda: plan(endpoints, body))
    assert (found.code, found.status) == ("unplannable", 422) and says in found.message
    assert server.engine._engine.generated == []


def test_unplannable_paths(endpoints: Endpoints) -> None:
    for path in ("", "/v1/embeddings", "/pdlink/v1/plan"):
        assert refusal(lambda p=path: plan(endpoints, path=p)).code == "unplannable"
    assert refusal(lambda: plan(endpoints, path="/v1/messages")).code == "moved"


def test_more_than_text_is_not_planned(server: fakes.Server, endpoints: Endpoints) -> None:
    server.engine.extra = {"vlm_image_hash": "abc"}
    assert refusal(lambda: plan(endpoints)).code == "unplannable"
    server.engine.extra = {"vlm_image_hash": None, "vlm_cache_key_ranges": [], "vlm_cache_key_start": 0}
    assert plan(endpoints)["blocks"] == 5


def test_space(tmp_path: Path) -> None:
    size = len(fakes.block(CHAIN[0]))
    server = fakes.server(tmp_path / "store", limit=4 * size)
    endpoints, store = Endpoints(server), manager(server)
    found = refusal(lambda: plan(endpoints))
    assert (found.code, found.status) == ("space", 507) and str(5 * size) in found.message

    old = fakes.chain([9] * 16, 3)
    for digest in (CHAIN[0], *old):
        store.put(digest, fakes.block(digest), known=True)
    got = plan(endpoints, request(TEXT[:13]))  # three blocks, the first is there
    assert (got["present"], got["bytes"]) == (1, 2 * size)
    assert store.has_block(CHAIN[0]), "the prefix being answered stays"
    assert [store.has_block(d) for d in old] == [False, False, True], "the oldest go"
    found = refusal(lambda: plan(endpoints, request("another prompt")))
    assert found.code == "space", "the first plan's room is reserved"
    for digest in CHAIN[1:3]:
        store.put(digest, fakes.block(digest))
    assert adopt(endpoints, CHAIN[:3])["blocks"] == 3
    assert plan(endpoints, request("another prompt"))["bytes"] == 3 * size, "and given back when it was used"


def test_budget(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(fakes.block(CHAIN[0]))
    monkeypatch.setenv(params.ENV_DAILY, str(6 * size))
    plan(endpoints)
    for digest in CHAIN[:5]:
        manager(server).put(digest, fakes.block(digest))
    adopt(endpoints, CHAIN)
    found = refusal(lambda: plan(endpoints, request("another prompt")))
    assert (found.code, found.status) == ("budget", 429) and str(5 * size) in found.message
    again = Endpoints(server)  # the decoder starts anew on the same day
    assert refusal(lambda: plan(again, request("another prompt"))).code == "budget"


def test_daily_limit() -> None:
    for text, want in (("", 0), ("12", 12), ("3k", 3 << 10), ("500G", 500 << 30), ("1 TiB", 1 << 40), ("2MB", 2 << 20)):
        assert api.daily_limit(text) == want
    for text in ("x", "-1", "1.5G", "G"):
        assert refusal(lambda t=text: api.daily_limit(t)).code == "unsupported"


def test_evict(server: fakes.Server, endpoints: Endpoints) -> None:
    store = manager(server)
    for digest in CHAIN[:3]:
        store.put(digest, fakes.block(digest))
    store.put(CHAIN[3], fakes.block(CHAIN[3]), known=True)  # the decoder's own
    adopt(endpoints, CHAIN[:3])
    table = server.engine._engine.engine.scheduler.paged_cache_manager.cached_block_hash_to_block.used
    table[CHAIN[0]], table[CHAIN[1]] = fakes.Used(1, 2), fakes.Used(2, 0)
    call = json.dumps({"model": fakes.MODEL, "hashes": [d.hex() for d in CHAIN[:4]]}).encode()
    got = asyncio.run(endpoints.evict(fakes.Request(call)))
    held("eviction.json", got)
    assert got["evicted"] == [d.hex() for d in CHAIN[1:3]]
    assert [store.has_block(d) for d in CHAIN[:4]] == [True, False, False, True]
    assert not store._get_file_path(CHAIN[1]).exists() and CHAIN[1] not in table


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model":"tiny"}',
        b'{"model":"tiny","hashes":["ab"]}',
        b'{"model":1,"hashes":[]}',
        b'{"model":"tiny","hashes":["' + b"AB" * 32 + b'"]}',
        b'{"model":"tiny","hashes":[3]}',
        b'{"model":"tiny","hashes":["' + b"ab" * 32 + b'","' + b"ab" * 32 + b'"]}',
    ],
)
def test_bad_calls(endpoints: Endpoints, body: bytes) -> None:
    for run in (endpoints.adopt, endpoints.evict):
        assert refusal(lambda r=run: asyncio.run(r(fakes.Request(body)))).code == "bad-request"


def test_body_limit(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params, "MAX_BODY", 100)
    found = refusal(lambda: plan(endpoints, request("x" * 100)))
    assert (found.code, found.status) == ("too-large", 413)


def test_canary_fails(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes.Prefix, "fail", "no memory")
    found = refusal(lambda: plan(endpoints))
    assert found.code == "canary" and "no memory" in found.message
    manager(server).put(CHAIN[0], fakes.block(CHAIN[0]))
    assert refusal(lambda: adopt(endpoints, CHAIN[:1])).code == "canary"
    assert not manager(server).has_block(CHAIN[0]), "nothing is adopted without a canary"
    monkeypatch.setattr(fakes.Prefix, "fail", "")
    monkeypatch.setattr(params, "CANARY_RETRY", 0.0)
    assert plan(endpoints)["present"] == 1


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("scheduler.paged_ssd_cache_manager", None, "unsupported"),
        ("scheduler.paged_ssd_cache_manager._hot_cache_only", True, "unsupported"),
        ("scheduler._turboquant_kv_bits", 4.0, "unsupported"),
        ("scheduler.paged_cache_manager.model_name", "", "unsupported"),
        ("scheduler.paged_cache_manager", None, "moved"),
        ("scheduler.block_aware_cache", None, "moved"),
        ("scheduler.model", None, "moved"),
        ("scheduler.paged_ssd_cache_manager.has_block", None, "moved"),
        ("scheduler.paged_ssd_cache_manager._get_file_path", lambda d: Path("/elsewhere"), "moved"),
        ("scheduler._extract_cache_states", None, "moved"),
    ],
)
def test_something_moved(server: fakes.Server, endpoints: Endpoints, path: str, value: Any, code: str) -> None:
    *way, last = path.split(".")
    obj: Any = server.engine._engine.engine
    for name in way:
        obj = getattr(obj, name)
    setattr(obj, last, value)
    assert refusal(lambda: plan(endpoints)).code == code
    assert server.engine._engine.generated == []


def test_canaries_are_made_ahead(server: fakes.Server, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params, "WATCH_SECONDS", 0.01)
    made: list[int] = []
    real = fakes.Prefix.store_cache
    monkeypatch.setattr(fakes.Prefix, "store_cache", lambda self, *a, **k: (made.append(1), real(self, *a, **k)))
    entry = server._server_state.engine_pool._entries[fakes.MODEL]
    engine, entry.engine = entry.engine, None

    async def run() -> None:
        endpoints.watch()
        endpoints.watch()
        await asyncio.sleep(0.05)
        assert made == []
        entry.engine = engine
        await asyncio.sleep(0.2)
        assert made == [1], "once, and without a request"
        await endpoints.plan(fakes.Request(request(), path="/v1/completions"))
        assert made == [1]

    asyncio.run(run())


def test_no_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unloaded model's memory is wanted back, whether its canary was made or failed."""
    for failure in ("", "no memory"):
        monkeypatch.setattr(fakes.Prefix, "fail", failure)
        server = fakes.server(tmp_path / "store")
        endpoints = Endpoints(server)
        if failure:
            refusal(lambda e=endpoints: plan(e))
        else:
            plan(endpoints)
        ref = weakref.ref(server.engine._engine.engine.scheduler)
        server._server_state.engine_pool._entries.clear()
        server.engine._engine._mlx_executor.shutdown()
        server.engine = None  # type: ignore[assignment]
        gc.collect()
        assert ref() is None
