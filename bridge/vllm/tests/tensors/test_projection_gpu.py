"""The same worker on a GPU with libpdproj, which PDLINK_PDPROJ names: what must come out is what one call of it for all
rows gives, bit for bit, and near what the decoder itself had (the recorded case's caches are a CPU's, which rounds
differently).
"""

from __future__ import annotations

import ctypes
import itertools
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
from pdlink_vllm import wire
from pdlink_vllm.device import Cuda
from pdlink_vllm.engine import Source
from pdlink_vllm.link import Link
from pdlink_vllm.projection import abi
from pdlink_vllm.projection.handle import Handle, Limits, Weights
from pdlink_vllm.projection.maker import Maker, Options
from pdlink_vllm.projection.shape import PREVIOUS, Key, Shape
from pdlink_vllm.scheduler import Step
from pdlink_vllm.weights.safetensors import Array, read_header, write
from pdlink_vllm.wire import Mode
from pdlink_vllm.worker import Worker
from steps import Prompts, model, planned, tid

log = logging.getLogger("test")
CASE = Path(__file__).parents[4] / "tools" / "pdlink" / "testdata" / "cases" / "dsv4-a"


@pytest.fixture
def link(place: Place) -> Iterator[Link]:
    made = Link(str(place.path), wire.Hello(layer_end=5), log)  # of no model here there are more layers
    made.start()
    yield made
    made.close()


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
            library=self.library,
            weights=self.path,
            sha256=self.sha256,
            device=0,
            block_tokens=self.block,
            layers=(0, self.layers),
            rank=0,
            ranks=1,
            hidden=hidden,
            tokens=tokens,
            x=device.reserve(tokens, hidden),
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
    of = model(g.shape.geometry.hidden, g.layers)
    e = Prompts(Worker(link, of, Source.INPUT, device, log, sidecar.LIMIT, maker), "cuda")
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


@pytest.mark.gpu
@pytest.mark.parametrize("cuts", [[0], [0, 1, 511, 513, 700]], ids=["whole", "cut"])
def test_on_a_gpu_behind_a_held_prefix(place: Place, link: Link, tmp_path: Path, cuts: list[int]) -> None:
    """What follows a prefix that the decoder holds has the bits of a prompt that was projected from its start."""
    g = Gpu(tmp_path)
    s = place.sidecar(sidecar.Options(slots=64, slot_size=1 << 20))
    assert link.wait_up(30)
    device = Cuda(torch.device("cuda", 0), log)
    maker = Maker(g.options(device), log)
    assert maker.wait(120), maker.failed
    of = model(g.shape.geometry.hidden, g.layers)
    e = Prompts(Worker(link, of, Source.INPUT, device, log, sidecar.LIMIT, maker), "cuda")
    e.prompt("a", g.x)
    t = planned(s, "a", g.shape, g.tokens // g.block, held=g.block)
    for at, end in itertools.pairwise([*cuts, g.tokens]):
        e.step([("a", at, end)])
    s.wait(tid("a"))
    assert t.aborted == []
    assert t.missing() == []
    assert sorted(t.blocks) == list(range(1, g.tokens // g.block))
    for b, want in list(enumerate(g.at_once(g.x)))[1:]:
        assert bytes(t.blocks[b]) == bytes(want), f"block {b} is not what one call from the start gives"
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
                handle._h,
                carry._request,
                layer,
                x[at:].data_ptr(),
                n,
                at,
                to,
                len(parts),
                pieces,
                64,
                ctypes.byref(count),
                ctypes.byref(ticket),
                torch.cuda.current_stream().cuda_stream,
                ctypes.byref(err),
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
    of = model(g.shape.geometry.hidden, g.layers)
    e = Prompts(Worker(link, of, Source.INPUT, device, log, sidecar.LIMIT, maker), "cuda")
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
