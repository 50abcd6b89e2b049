"""A worker that projects: steps in, the decoder's blocks out; on a CPU with a stand-in for libpdproj, on a GPU with it.

On a GPU, PDLINK_PDPROJ names the library; what must come out is what one call of it for all rows gives, bit for bit,
and near what the decoder itself had (the recorded case's caches are a CPU's, which rounds differently).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeproj
import numpy as np
import pytest
import sidecar
import torch
from conftest import Place
from held import Held
from pdlink_vllm import wire
from pdlink_vllm.device import Cpu, Cuda
from pdlink_vllm.engine import Layer, Model, Source
from pdlink_vllm.link import Link
from pdlink_vllm.projection import abi
from pdlink_vllm.projection.handle import Handle, Limits, Weights
from pdlink_vllm.projection.maker import Maker, Options
from pdlink_vllm.projection.shape import PREVIOUS, Key, Shape
from pdlink_vllm.scheduler import Chunk, Step
from pdlink_vllm.weights.safetensors import Array, read_header, write
from pdlink_vllm.wire import DType, Kind, Mode, What
from pdlink_vllm.worker import Worker

log = logging.getLogger("test")
CASE = Path(__file__).parents[4] / "tools" / "pdlink" / "testdata" / "cases" / "dsv4-a"
PAGE = 16


class Prompts:
    """An engine's steps over prompts whose input is known, around one worker."""

    def __init__(self, worker: Worker, where: str) -> None:
        """Nothing is computed yet."""
        self.worker, self.where = worker, where
        self.x: dict[str, list[Any]] = {}  # by layer
        self.tables: dict[str, list[int]] = {}
        self.random = random.Random(3)
        self.free = list(range(2000))
        self.random.shuffle(self.free)

    def prompt(self, name: str, x: list[Any]) -> None:
        """Take part with inputs [tokens, hidden] of each layer."""
        self.x[name] = [t.to(self.where) for t in x]
        self.tables[name] = [self.free.pop() for _ in range(-(-len(x[0]) // PAGE))]

    def step(self, parts: list[tuple[str, int, int]], follow: set[str] | None = None) -> None:
        """Compute tokens [a, b) of prompts, in an order of the engine's own."""
        chunks = [self._chunk(*p) for p in parts if follow is None or p[0] in follow]
        self.worker.begin_step(Step(chunks))
        parts = self.random.sample(parts, len(parts))
        mapping = torch.cat([self._slots(*p) for p in parts]).to(self.where)
        for layer in self.worker.model.layers:
            self.worker.capture.input(layer, torch.cat([self.x[n][layer.index][a:b] for n, a, b in parts]), mapping)
        self.worker.end_step()

    def _chunk(self, name: str, a: int, b: int) -> Chunk:
        table = tuple(self.tables[name][a // PAGE : -(-b // PAGE)])
        return Chunk(name, tid(name), len(self.x[name][0]), 0, a, b - a, ((table, a % PAGE),))

    def _slots(self, name: str, a: int, b: int) -> Any:
        table = self.tables[name]
        return torch.tensor([table[t // PAGE] * PAGE + t % PAGE for t in range(a, b)])


def tid(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def planned(s: sidecar.Sidecar, name: str, shape: Shape, blocks: int, layout: int = 7) -> sidecar.Transfer:
    places, size = fakeproj.places(shape)
    arrays = {k: (p.offset, p.size, p.row_bytes, p.rows) for k, p in places.items()}
    key = shape.key
    plan = sidecar.Plan(Kind.DSV4, blocks, key.block, size, (key.first, key.end), DType.BF16, 0, arrays, layout)
    return s.plan(tid(name), plan)


def model(hidden: int, layers: int) -> Model:
    return Model(Kind.DSV4, tuple(Layer(i, f"layers.{i}", None, 0, PAGE) for i in range(layers)), DType.BF16, hidden)


@pytest.fixture
def link(place: Place) -> Iterator[Link]:
    made = Link(str(place.path), wire.Hello(layer_end=5), log)  # of no model here there are more layers
    made.start()
    yield made
    made.close()


class Cpu4:
    """A worker of the stand-in's model, with a maker of it."""

    def __init__(self, folder: Path, link: Link, ready: bool = True, device: Cpu | None = None, **changes: Any) -> None:
        """Wait for the handle where ready."""
        self.lib = fakeproj.Library()
        path, digest = fakeproj.weights(folder)
        o = {"block_tokens": 256, "tokens": 300, "requests": 2, **changes}
        options = Options(folder / "lib", path, digest, 0, layers=(0, 4), rank=0, ranks=1, hidden=64, **o)
        self.maker = Maker(options, log, self.lib)
        assert not ready or self.maker.wait(30)
        self.worker = Worker(link, model(64, 4), Source.INPUT, device or Cpu(), log, maker=self.maker)
        self.prompts = Prompts(self.worker, "cpu")

    def prompt(self, name: str, tokens: int) -> np.ndarray:
        """Random input; returned as bf16 patterns [layers, tokens, hidden]."""
        x = [torch.randn(tokens, 64).to(torch.bfloat16) for _ in range(4)]
        self.prompts.prompt(name, x)
        return np.stack([t.view(torch.int16).numpy().view("<u2") for t in x])


SHAPE = Shape(fakeproj.GEOMETRY, Key(256, 0, 4))


def right(t: sidecar.Transfer, shape: Shape, x: np.ndarray) -> None:
    assert t.missing() == []
    places, _ = fakeproj.places(shape)
    for b, data in t.blocks.items():
        for layer in range(shape.key.first, shape.key.end):
            for array, want in fakeproj.block(shape, layer, b, x[layer]).items():
                p = places[layer, array]
                assert bytes(data[p.offset : p.offset + p.size]) == want, (b, layer, array)


STEPS = [
    [("a", 0, 200), ("x", 0, 30)],
    [("x", 30, 31), ("a", 200, 201), ("b", 0, 513)],
    [("a", 201, 900), ("x", 31, 32)],
    [("b", 513, 600), ("x", 32, 33), ("a", 900, 1100)],
]


@pytest.mark.parametrize("slots", [(64, 64 << 10), (4, 64 << 10), (8, 36 << 10)], ids=["many", "few", "small"])
def test_blocks_are_made_here(place: Place, link: Link, tmp_path: Path, slots: tuple[int, int]) -> None:
    """Whatever chunks and slots there are; few slots mean more calls, not other bytes."""
    s = place.sidecar(sidecar.Options(slots=slots[0], slot_size=slots[1], max_leases=2 if slots[0] == 4 else 4))
    assert link.wait_up(30)
    e = Cpu4(tmp_path, link)
    a, b, _ = e.prompt("a", 1100), e.prompt("b", 600), e.prompt("x", 40)
    ta, tb = planned(s, "a", SHAPE, 4), planned(s, "b", SHAPE, 2)
    for parts in STEPS:
        e.prompts.step(parts, {"a", "b"})
    s.wait(tid("a"))
    s.wait(tid("b"))
    assert not ta.aborted + tb.aborted
    assert ta.begins[0].mode == Mode.PIECES
    assert ta.ended[0].tokens == 1100
    right(ta, SHAPE, a)
    right(tb, SHAPE, b)
    assert e.lib.open == 0
    e.worker.close()
    assert (e.lib.created, e.lib.destroyed) == (1, 1)


def test_slots_that_a_device_fills_are_held(place: Place, link: Link, tmp_path: Path) -> None:
    """Slots that are not committed yet count as leases: the sidecar takes more than it allows for a breach."""
    s = place.sidecar(sidecar.Options(slots=4, slot_size=36 << 10, max_leases=2))
    assert link.wait_up(30)
    device = Held()
    e = Cpu4(tmp_path, link, device=device)
    a = e.prompt("a", 1024)
    t = planned(s, "a", SHAPE, 4)
    for at in (0, 300, 812):
        e.prompts.step([("a", at, min(1024, at + 512 if at else 300))])
    device.release()
    s.wait(tid("a"))
    assert t.aborted == []
    right(t, SHAPE, a)
    e.worker.close()


def test_more_prompts_than_places_stay_rows(place: Place, link: Link, tmp_path: Path) -> None:
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(30)
    e = Cpu4(tmp_path, link)
    names = ["a", "b", "c"]
    x = {n: e.prompt(n, 300) for n in names}
    t = {n: planned(s, n, SHAPE, 1) for n in names}
    e.prompts.step([(n, 0, 100) for n in names])
    e.prompts.step([(n, 100, 300) for n in names])
    modes = sorted(int(s.wait(tid(n)).begins[0].mode) for n in names)
    assert modes == [Mode.PIECES, Mode.PIECES, Mode.ROWS]
    for n in names:
        if t[n].begins[0].mode == Mode.PIECES:
            right(t[n], SHAPE, x[n])
        else:
            first, data = t[n].layer_rows(2, What.X)
            assert (first, data) == (0, x[n][2, :256].tobytes())
    e.prompt("d", 256)
    planned(s, "d", SHAPE, 1)
    e.prompts.step([("d", 0, 256)])
    assert s.wait(tid("d")).begins[0].mode == Mode.PIECES, "the places came free"
    e.worker.close()


def test_it_learns_what_the_decoder_has(place: Place, link: Link, tmp_path: Path) -> None:
    """Another block size, and blocks without the window before: one prompt each ends, the next is right."""
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(30)
    e = Cpu4(tmp_path, link)
    wanted = Shape(fakeproj.GEOMETRY, Key(512, 0, 4, False))
    for i, why in enumerate(("blocks of 512", "array 4 of layer 1", "")):
        name = f"a{i}"
        x = e.prompt(name, 512)
        t = planned(s, name, wanted, 1, layout=9)
        e.prompts.step([(name, 0, 512)])
        s.wait(tid(name))
        assert [why in text for text in t.aborted] == [True] * bool(why)
        assert e.maker.wait(30)
        if not why:
            right(t, wanted, x)
    e.worker.close()
    assert (e.lib.created, e.lib.destroyed) == (3, 3)


def test_a_slot_too_small_means_rows(place: Place, link: Link, tmp_path: Path) -> None:
    s = place.sidecar(sidecar.Options(slots=64, slot_size=8 << 10))
    assert link.wait_up(30)
    e = Cpu4(tmp_path, link)
    e.prompt("a", 256)
    t = planned(s, "a", SHAPE, 1)
    e.prompts.step([("a", 0, 256)])
    assert s.wait(tid("a")).begins[0].mode == Mode.ROWS
    assert t.ended
    e.worker.close()


def test_a_library_that_fails_ends_one_prompt(place: Place, link: Link, tmp_path: Path) -> None:
    s = place.sidecar(sidecar.Options(slots=64))
    assert link.wait_up(30)
    e = Cpu4(tmp_path, link)
    e.prompt("a", 600)
    t = planned(s, "a", SHAPE, 2)
    e.prompts.step([("a", 0, 200)])
    e.lib.fail = 5
    e.prompts.step([("a", 200, 400)])
    e.lib.fail = 0
    s.wait(tid("a"))
    assert "ProjectionError" in t.aborted[0]
    x = e.prompt("b", 256)
    tb = planned(s, "b", SHAPE, 1)
    e.prompts.step([("b", 0, 256)])
    s.wait(tid("b"))
    right(tb, SHAPE, x)
    e.worker.close()
    assert e.lib.open == 0


def test_a_sealed_transfer_and_a_lost_ring(place: Place, link: Link, tmp_path: Path) -> None:
    s = place.sidecar(sidecar.Options(slots=64, give_slots=1, slot_size=36 << 10))
    assert link.wait_up(30)
    e = Cpu4(tmp_path, link, tokens=512)
    e.prompt("a", 1024)
    t = planned(s, "a", SHAPE, 4)
    for at in (0, 512):
        e.prompts.step([("a", at, at + 512)])
    s.wait(tid("a"))
    assert t.commits <= 1
    assert e.lib.open == 0
    e.worker.close()


# On a GPU.


def recorded() -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """The recorded case: its description, its inputs, the decoder's caches, and its weights' tensors."""

    def tensors(name: str) -> dict[str, np.ndarray]:
        return {
            k: t.raw().view("<u2").reshape(t.shape) for k, t in read_header(CASE / name).items() if t.dtype == "BF16"
        }

    case = json.loads((CASE / "case.json").read_text())
    return case, tensors("capture.safetensors"), tensors("state.safetensors"), read_header(CASE / "weights.safetensors")


class Gpu:
    """The recorded case's model on the GPU: weights with their configuration, and the library."""

    def __init__(self, folder: Path) -> None:
        """Write the weights as `weights export` does."""
        self.case, x, self.state, held = recorded()
        self.layers, self.block = len(self.case["config"]["compress_ratios"]), self.case["block_size"]
        arrays = [(k, Array(t.dtype, t.shape, t.raw())) for k, t in held.items()]
        self.path = folder / "weights.safetensors"
        self.sha256 = write(self.path, arrays, {"config": json.dumps(self.case["config"])})
        self.library = Path(os.environ["PDLINK_PDPROJ"])
        found = [x[f"layer_{i}.x"] for i in range(self.layers)]
        self.x = [torch.from_numpy(t.view("<i2").copy()).view(torch.bfloat16) for t in found]
        self.tokens = len(self.x[0])
        weights = Weights(self.path, self.sha256)
        self.shape = Shape(weights.geometry, Key(self.block, 0, self.layers))

    def options(self, device: Cuda, tokens: int = 1024) -> Options:
        """Options of a maker for it."""
        hidden = self.case["config"]["hidden_size"]
        return Options(
            self.library,
            self.path,
            self.sha256,
            0,
            self.block,
            (0, self.layers),
            0,
            1,
            hidden,
            tokens,
            device.reserve(tokens, hidden),
        )

    def at_once(self, x: list[Any]) -> list[bytearray]:
        """Blocks as one call for each layer makes them, without anything of ours between."""
        lib = abi.load(self.library)
        handle = Handle(lib, Weights(self.path, self.sha256), self.shape, 0, Limits(len(x[0]), 1))
        places, size = fakeproj.places(self.shape)
        blocks = len(x[0]) // self.block
        out = torch.zeros(blocks * size, dtype=torch.uint8).pin_memory()
        rest = -(-len(x[0]) // self.block)
        carry = handle.open()
        assert carry is not None
        for i in range(self.layers):
            base = places[i, int(wire.ArrayId.WINDOW)].offset
            to = [out.data_ptr() + b * size + base for b in range(blocks)] + [None] * (rest - blocks)
            at = x[i].to("cuda")
            ticket = carry.project(i, at.data_ptr(), len(at), 0, to, torch.cuda.current_stream().cuda_stream)
            assert handle.wait(ticket)
        carry.close()
        assert handle.retire(10)
        data = out.numpy().tobytes()
        return [bytearray(data[b * size : (b + 1) * size]) for b in range(blocks)]


def distance(got: bytes, want: np.ndarray) -> float:
    """Relative L2 of bf16 patterns."""
    a, b = (np.left_shift(v.astype(np.uint32), 16).view(np.float32) for v in (np.frombuffer(got, "<u2"), want))
    return float(np.linalg.norm(a - b.reshape(-1)) / np.linalg.norm(b))


@pytest.mark.gpu
@pytest.mark.parametrize("slots", [(64, 1 << 20), (6, 160 << 10)], ids=["many", "few"])
def test_on_a_gpu(place: Place, link: Link, tmp_path: Path, slots: tuple[int, int]) -> None:
    g = Gpu(tmp_path)
    s = place.sidecar(sidecar.Options(slots=slots[0], slot_size=slots[1], max_leases=4 if slots[0] > 8 else 2))
    assert link.wait_up(30)
    device = Cuda(torch.device("cuda", 0), log)
    maker = Maker(g.options(device), log)
    assert maker.wait(120), maker.failed
    e = Prompts(Worker(link, model(g.shape.geometry.hidden, g.layers), Source.INPUT, device, log, maker=maker), "cuda")
    other = [torch.flip(t, (0,)) for t in g.x]
    for name, x in (("a", g.x), ("b", other), ("x", g.x)):
        e.prompt(name, x)
    blocks = g.tokens // g.block
    ta, tb = planned(s, "a", g.shape, blocks), planned(s, "b", g.shape, blocks)
    e.step([("a", 0, 700), ("x", 0, 40)], {"a", "b"})
    e.step([("b", 0, 1024), ("a", 700, 701), ("x", 40, 41)], {"a", "b"})
    e.step([("a", 701, g.tokens), ("x", 41, 42), ("b", 1024, g.tokens)], {"a", "b"})
    for name, t, x in (("a", ta, g.x), ("b", tb, other)):
        s.wait(tid(name))
        assert t.aborted == []
        assert t.begins[0].mode == Mode.PIECES
        assert t.missing() == []
        for b, want in enumerate(g.at_once(x)):
            assert bytes(t.blocks[b]) == bytes(want), f"{name}: block {b} is not what one call gives"
    near(g, ta)
    e.worker.close()


def near(g: Gpu, t: sidecar.Transfer) -> None:
    """Compare with the decoder's own caches at the last whole block."""
    places, _ = fakeproj.places(g.shape)
    blocks = g.tokens // g.block
    names = {3: "pooled", 6: "idx_pooled"}
    names |= {int(a): a.name.lower() for a in PREVIOUS}
    for (layer, array), p in places.items():
        ratio = g.shape.geometry.ratios[layer]
        if array in (3, 6):
            got = b"".join(bytes(t.blocks[b][p.offset : p.offset + p.size]) for b in range(blocks))
            want = g.state[f"layer_{layer}.{names[array]}"]
            want = want.reshape(-1, want.shape[-1])[: blocks * g.block // ratio]
        else:
            got = bytes(t.blocks[blocks - 1][p.offset : p.offset + p.size])
            want = g.state[f"layer_{layer}.{names.get(array, 'win')}@{blocks * g.block}"]
        assert distance(got, np.ascontiguousarray(want)) < 0.02, (layer, array)


@pytest.mark.gpu
def test_pieces_are_those_that_the_library_lists(tmp_path: Path) -> None:
    """What is counted here to find room for is what a call completes."""
    g = Gpu(tmp_path)
    lib = abi.load(g.library)
    handle = Handle(lib, Weights(g.path, g.sha256), g.shape, 0, Limits(1024, 1))
    places, _ = fakeproj.places(g.shape)
    out = torch.zeros(4 << 20, dtype=torch.uint8).pin_memory()
    rnd = random.Random(2)
    for layer in range(g.layers):
        carry = handle.open()
        assert carry is not None
        at, base = 0, places[layer, int(wire.ArrayId.WINDOW)].offset
        x = g.x[layer].to("cuda")
        while at < g.tokens:
            n = min(g.tokens - at, rnd.choice([1, 3, 130, 400, 512, 700]))
            parts = list(g.shape.parts(layer, at, n, places))
            to = (ctypes.c_void_p * len(parts))(*(out.data_ptr() + i * (1 << 20) for i in range(len(parts))))
            pieces, count, ticket, err = (abi.PieceOf * 64)(), ctypes.c_int32(), ctypes.c_uint64(), abi.Error()
            code = lib.pdproj_project(
                *(handle._h, carry._request, layer, x[at:].data_ptr(), n, at, to, len(parts), pieces, 64),
                *(
                    ctypes.byref(count),
                    ctypes.byref(ticket),
                    torch.cuda.current_stream().cuda_stream,
                    ctypes.byref(err),
                ),
            )
            abi.check(code, err, "project")
            got = [(p.block, p.offset + base, p.length) for p in pieces[: count.value]]
            assert got == [(e.block, e.offset, e.length) for part in parts for e in part.entries]
            starts = [p.at for p in pieces[: count.value]]
            want = []
            for i, part in enumerate(parts):
                where = out.data_ptr() + i * (1 << 20)
                for e in part.entries:
                    want.append(where)
                    where += e.length
            assert starts == want
            at += n
        carry.close()
    assert handle.retire(10)


@pytest.mark.gpu
def test_a_gpu_at_work_holds_up_nobody(place: Place, link: Link, tmp_path: Path) -> None:
    """Rows are handed to the library while the device is busy: the engine's thread does not wait for it."""
    g = Gpu(tmp_path)
    s = place.sidecar(sidecar.Options(slots=64, slot_size=1 << 20, max_leases=16))
    assert link.wait_up(30)
    device = Cuda(torch.device("cuda", 0), log)
    maker = Maker(g.options(device), log)
    assert maker.wait(120), maker.failed
    e = Prompts(Worker(link, model(g.shape.geometry.hidden, g.layers), Source.INPUT, device, log, maker=maker), "cuda")
    for name in ("a", "b"):
        e.prompt(name, g.x)
        planned(s, name, g.shape, 1)
    e.step([("a", 0, 512)])  # first uses: page-locking, kernels
    mapping, big = e._slots("b", 0, 512).to("cuda"), torch.randn(8192, 8192, device="cuda")
    x = [g.x[i][:512].to("cuda") for i in range(g.layers)]
    torch.cuda.synchronize()
    e.worker.begin_step(Step([e._chunk("b", 0, 512)]))
    for _ in range(60):
        big = (big @ big).clamp_(-1, 1)
    for layer in e.worker.model.layers:
        e.worker.capture.input(layer, x[layer.index], mapping)
    busy = torch.cuda.Event()
    busy.record()
    assert not busy.query(), "the device was waited for"
    e.worker.end_step()
    e.step([("a", 512, g.tokens), ("b", 512, g.tokens)])
    for name in ("a", "b"):
        assert not s.wait(tid(name)).aborted
        assert s.transfers[tid(name)].missing() == []
    e.worker.close()
