"""The projection as far as no device is needed: the C interface, what a call completes, handles that come and go."""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakeproj
import numpy as np
import pytest
from pdlink_vllm import params, wire
from pdlink_vllm.projection import abi
from pdlink_vllm.projection.abi import ProjectionError
from pdlink_vllm.projection.handle import Handle, Limits, Run, Weights
from pdlink_vllm.projection.maker import Maker, Options
from pdlink_vllm.projection.shape import PREVIOUS, Geometry, Key, Shape, share
from pdlink_vllm.weights.safetensors import Array, write
from pdlink_vllm.wire import ArrayId

log = logging.getLogger("test")
HEADER = Path(__file__).parents[4] / "kernels" / "cuda" / "pdproj.h"

TYPES = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
}


def declared(struct: str) -> list[tuple[str, type]]:
    """The fields of a struct of pdproj.h, as ctypes has them; the constants in front of it are its lengths."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", text, re.S)
    assert body, struct
    sizes = {"PDPROJ_TEXT": 256, "PDPROJ_ARRAYS": 8}
    fields: list[tuple[str, type]] = []
    for line in body[1].split(";"):
        m = re.match(r"\s*(?:const\s+)?(\w+)\s+(.*)", line.replace("\n", " "))
        if not m:
            continue
        for part in m[2].split(","):
            name = part.strip()
            kind: Any = TYPES.get(m[1], ctypes.c_void_p)
            if name.startswith("*"):
                name, kind = name[1:], ctypes.c_char_p if m[1] == "char" else ctypes.c_void_p
            array = re.match(r"(\w+)\[(\w+)\]", name)
            if array:
                name, kind = array[1], kind * (sizes.get(array[2]) or int(array[2]))
            fields.append((name, kind))
    return fields


@pytest.mark.parametrize(
    ("struct", "ours"),
    [
        ("pdproj_error", abi.Error),
        ("pdproj_layer", abi.Layer),
        ("pdproj_config", abi.Config),
        ("pdproj_facts", abi.Facts),
        ("pdproj_usage", abi.Usage),
        ("pdproj_piece", abi.PieceOf),
    ],
)
def test_structs_are_those_of_the_header(struct: str, ours: type[ctypes.Structure]) -> None:
    assert [(f[0], f[1]) for f in ours._fields_] == declared(struct)


def test_constants_are_those_of_the_header() -> None:
    text = HEADER.read_text()
    for name, value in (("TEXT", abi.TEXT), ("ABI", abi.ABI)):
        assert f"#define PDPROJ_{name} {value}\n" in text
    codes = {"ECUDA": abi.CUDA, "ESTATE": abi.STATE, "EFULL": abi.FULL, "ELOST": abi.LOST}
    for name, value in {"PACKED": abi.PACKED, "ARRAYS": abi.ARRAYS, **codes}.items():
        assert re.search(rf"PDPROJ_{name} = {value}\b", text), name
    for a in ArrayId:
        if a > ArrayId.V:
            assert re.search(rf"PDPROJ_{a.name} = {int(a) - 2}\b", text), a


def test_functions_are_those_of_the_header() -> None:
    text = " ".join(HEADER.read_text().split())
    for name, (_, arguments) in abi.FUNCTIONS.items():
        m = re.search(rf"PDPROJ_API \w+ {name}\(([^)]*)\);", text)
        assert m, name
        assert len(arguments) == (0 if m[1] == "void" else m[1].count(",") + 1), name


def test_a_library_that_is_not_there_or_another(tmp_path: Path) -> None:
    with pytest.raises(ProjectionError, match="No such file"):
        abi.load(tmp_path / "libpdproj.so")
    with pytest.raises(ProjectionError, match="pdproj_abi"):
        abi.load(fakeproj.libc())


GEOMETRY = fakeproj.GEOMETRY


@pytest.mark.parametrize("previous", [True, False])
def test_every_byte_is_completed_once(previous: bool) -> None:
    """However the rows are cut, the parts of all calls are the blocks' bytes, each once, and never of another block."""
    key = Key(256, 0, 4, previous)
    shape = Shape(GEOMETRY, key)
    places, size = fakeproj.places(shape)
    rnd = random.Random(3)
    for _ in range(20):
        for layer in range(4):
            seen = np.zeros((3, size), np.int32)
            at, total = 0, 256 * 3
            while at < total:
                n = min(total - at, rnd.choice([1, 3, 4, 100, 127, 128, 129, 255, 256, 257, 700]))
                for part in shape.parts(layer, at, n, places):
                    assert part.bytes == sum(e.length for e in part.entries)
                    for e in part.entries:
                        assert e.block == part.block
                        seen[e.block, e.offset : e.offset + e.length] += 1
                at += n
            for (i, _), p in places.items():
                assert (seen[:, p.offset : p.offset + p.size] == (i == layer)).all()


def test_a_whole_block_is_one_entry() -> None:
    shape = Shape(GEOMETRY, Key(256, 0, 4))
    places, _ = fakeproj.places(shape)
    parts = list(shape.parts(1, 256, 512, places))
    assert [(p.block, len(p.entries), p.bytes) for p in parts] == [(1, 1, shape.span(4)), (2, 1, shape.span(4))]


def test_plans_that_differ() -> None:
    shape = Shape(GEOMETRY, Key(256, 1, 3))
    places, _ = fakeproj.places(Shape(GEOMETRY, Key(256, 0, 4)))
    assert shape.differs(256, 1, 3, places) == ""
    assert shape.differs(256, 2, 3, places) == ""
    assert "blocks of 512" in shape.differs(512, 1, 3, places)
    assert "layers 0 to 2" in shape.differs(256, 0, 3, places)
    without = {k: p for k, p in places.items() if k[1] not in PREVIOUS}
    assert "array 4 of layer 1" in shape.differs(256, 1, 3, without)
    assert Shape(GEOMETRY, Key(256, 1, 3, False)).differs(256, 1, 3, without) == ""
    wide = {**places, (2, 3): wire.Array(layer=2, array=3, rows=2, row_bytes=32, size=64, dtype=2)}
    assert "array 3 of layer 2" in shape.differs(256, 1, 3, wide)


def test_shares() -> None:
    """As the sidecar's test has them: every layer is one rank's, runs are in order."""
    ratios = [0, 0, *([4, 128] * 20), 4]
    for size in (1, 2, 3, 8):
        runs = [share(ratios, 0, 43, r, size) for r in range(size)]
        assert [i for a, b in runs for i in range(a, b)] == list(range(43))
    assert share(ratios, 0, 43, 0, 2) == (0, 22)
    assert share([0], 0, 1, 0, 2) == (1, 1)


CONFIG = fakeproj.CONFIG


def test_configurations() -> None:
    assert Geometry.of(CONFIG) == GEOMETRY
    assert Geometry.of({**CONFIG, "rope_scaling": None}).yarn == (0, 0, 0, 0)
    for bad in ({"rope_scaling": {"type": "linear"}}, {"head_dim": 0}, {"rms_norm_eps": "much"}, {"rope_theta": None}):
        with pytest.raises(ProjectionError):
            Geometry.of({**CONFIG, **bad})


def test_weights(tmp_path: Path) -> None:
    path, digest = fakeproj.weights(tmp_path)
    w = Weights(path, digest.upper())
    keep: list[object] = []
    shape = Shape(w.geometry, Key(256, 0, 4))
    layer = w.layer(1, shape, keep)
    assert layer.ratio == 4
    assert all(getattr(layer, f) for f in ("kv", "kv_norm", "comp_kv", "comp_ape", "idx_gate", "idx_norm", "idx_ape"))
    assert list(layer.offset) == [*shape.offsets(4).values(), -1]
    plain = w.layer(0, shape, keep)
    assert (plain.comp_kv, plain.idx_ape, list(plain.offset)) == (None, None, [0, *[-1] * 7])
    with pytest.raises(ProjectionError, match="sha256 is"):
        Weights(path, "0" * 64)
    with pytest.raises(ProjectionError, match="No such file"):
        Weights(tmp_path / "none", digest)
    bare = tmp_path / "bare"
    data = np.zeros(2, np.uint8)
    with pytest.raises(ProjectionError, match="no configuration"):
        Weights(bare, write(bare, [("a", Array("BF16", (1,), data))], {}))
    with pytest.raises(ProjectionError, match="differ"):
        Weights(bare, write(bare, [("a", Array("BF16", (1,), data))], {"config": json.dumps(CONFIG)}))
    bare.write_bytes(b"x")
    with pytest.raises(ProjectionError):
        Weights(bare, hashlib.sha256(b"x").hexdigest())


def test_weights_are_what_was_hashed(tmp_path: Path) -> None:
    """Nothing that becomes of the file later reaches them: not other bytes in it, nor its end."""
    path, digest = fakeproj.weights(tmp_path)
    before = path.read_bytes()
    w = Weights(path, digest)
    with path.open("r+b") as f:
        f.write(bytes(len(before)))
    path.open("wb").close()
    keep: list[object] = []
    shape = Shape(w.geometry, Key(256, 0, 4))
    found = 0
    for i in range(4):
        layer = w.layer(i, shape, keep)
        for field in ("kv", "comp_gate", "idx_norm"):
            at = getattr(layer, field)
            if at is not None:
                assert ctypes.string_at(at, 32) in before
                found += 1
    assert found == 4 + 3 + 2


def test_weights_that_change_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is parsed is what was hashed, also where another file has the name by then; a shorter one is told of."""
    path, digest = fakeproj.weights(tmp_path)
    whole, sha256 = path.read_bytes(), hashlib.sha256

    def swapped(*a: Any) -> Any:
        path.with_name("other").write_bytes(b"x")
        path.with_name("other").replace(path)
        return sha256(*a)

    monkeypatch.setattr(hashlib, "sha256", swapped)
    assert Weights(path, digest).geometry == GEOMETRY
    path.write_bytes(whole)

    def cut(*a: Any) -> Any:
        path.open("wb").close()
        return sha256(*a)

    monkeypatch.setattr(hashlib, "sha256", cut)
    with pytest.raises(ProjectionError, match="became shorter"):
        Weights(path, digest)
    monkeypatch.undo()
    path.write_bytes(whole)
    monkeypatch.setattr(params, "MAX_WEIGHTS", len(whole) - 1)
    with pytest.raises(ProjectionError, match=f"more than {len(whole) - 1}"):
        Weights(path, digest)


def made(tmp_path: Path, lib: fakeproj.Library, key: Key, requests: int = 2) -> Handle:
    path, digest = fakeproj.weights(tmp_path)
    w = Weights(path, digest)
    return Handle(lib, w, Shape(w.geometry, key), 0, Limits(512, requests))


def test_a_handle_frees_when_nobody_uses_it(tmp_path: Path) -> None:
    lib = fakeproj.Library()
    h = made(tmp_path, lib, Key(256, 0, 4))
    a, b = h.open(), h.open()
    assert a is not None
    assert b is not None
    assert h.open() is None
    assert h.bytes > 0
    assert not h.retire(0)
    a.close()
    a.close()
    b.close()
    assert h.retire(10)
    assert h.retire(10)
    assert not h.wait(5)  # nobody can say any more that it arrived
    assert (lib.destroyed, lib.open) == (1, 0)


def options(tmp_path: Path, **changes: object) -> Options:
    path, digest = fakeproj.weights(tmp_path)
    o = Options(
        library=tmp_path / "lib.so",
        weights=path,
        sha256=digest,
        device=0,
        block_tokens=256,
        layers=(0, 4),
        rank=0,
        ranks=1,
        hidden=GEOMETRY.hidden,
        tokens=512,
        x=4096,
        requests=2,
    )
    return Options(**{**o.__dict__, **changes})


def test_a_maker_follows_the_decoder(tmp_path: Path) -> None:
    lib = fakeproj.Library()
    m = Maker(options(tmp_path), log, lib)
    assert m.wait(30)
    assert lib.prepared == 4
    assert m.learn(256, 0, 4)
    assert m.fits(1 << 20)
    assert not m.fits(100)
    carry = m.open()
    assert carry is not None
    assert not m.learn(512, 1, 3)
    assert m.open() is None
    carry.close()
    assert m.wait(30)
    second = m.open()
    assert second is not None
    assert second.handle.shape.key == Key(512, 1, 3)
    second.close()
    m.without_previous()
    assert m.wait(30)
    third = m.open()
    assert third is not None
    assert third.handle.shape.key == Key(512, 1, 3, False)
    third.close()
    m.quiet()
    m.close()
    assert (lib.created, lib.destroyed) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden": 8}, "the engine's are not"),
        ({"layers": (0, 5)}, "the engine's are not"),
        ({"sha256": "00"}, "sha256"),
        ({"block_tokens": 130}, "no multiple"),
    ],
)
def test_a_maker_that_cannot(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    m = Maker(options(tmp_path, **changes), log, fakeproj.Library())
    assert not m.wait(30)
    assert why in m.failed
    assert m.open() is None
    assert m.learn(512, 0, 4)
    m.close()


def test_a_maker_without_a_library(tmp_path: Path) -> None:
    m = Maker(options(tmp_path), log)
    assert not m.wait(30)
    assert "lib.so" in m.failed
    m.close()


def test_where_a_prompt_is_entered() -> None:
    """At a block's start, early enough for the window before what is wanted."""
    shape = Shape(fakeproj.GEOMETRY, Key(256, 0, 4))
    wanted = (0, 1, 255, 256, 257, 259, 260, 512)
    assert [shape.enters(0, at) for at in wanted] == [0, 0, 0, 256, 256, 256, 256, 512]
    assert [shape.enters(2, at) for at in wanted] == [0, 0, 0, 256, 256, 256, 256, 512]
    assert [shape.enters(1, at) for at in wanted] == [0, 0, 0, 0, 0, 0, 256, 256]


def test_what_a_carry_decides(tmp_path: Path) -> None:
    """Which rows a layer must see, where it is entered, and what one call takes: held tokens apart from wanted ones."""
    h = made(tmp_path, fakeproj.Library(), Key(256, 0, 4))
    carry = h.open()
    assert carry is not None
    # Layer 0 keeps a window only, layer 1 must have seen the four tokens before.
    assert carry.sees(0, 0, 1100, 512) == (512, 1100)
    assert carry.sees(1, 0, 1100, 512) == (256, 1100)
    assert carry.sees(1, 700, 1100, 512) == (700, 1100)
    assert carry.sees(0, 0, 0, 512) == (512, 0), "nothing is wanted: nothing is seen"
    assert [carry.enters(1, at, 512) for at in (0, 256, 512)] == [False, True, False]
    assert not carry.enters(0, 0, 0), "a prompt's start is where a layer stands anyway"
    runs = list(carry.runs(256, 1300, 512))
    assert runs == [Run(256, 256, False), Run(512, 512, True), Run(1024, 276, True)]
    assert [carry.touched(r) for r in (*runs, Run(255, 2, True))] == [1, 2, 2, 2]
    places, _ = fakeproj.places(h.shape)
    good = wire.Begun(block_tokens=256, layer_first=0, layer_end=4)
    for _ in range(2):
        assert carry.refuses(good, places) == ""
        assert "blocks of 512" in carry.refuses(replace(good, block_tokens=512), places), "a sidecar that came back"
    carry.close()
    assert h.retire(0)
