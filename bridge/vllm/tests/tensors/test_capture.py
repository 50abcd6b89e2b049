"""Tensors: rows found by slot, caches of every form, and a worker that sees whole steps. Needs torch."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace as N
from typing import Any

import pytest
import sidecar
import torch
from conftest import Place
from pdlink_vllm import request, wire
from pdlink_vllm.capture import CaptureError, cache_form, rows_on_device, rows_on_host, slots
from pdlink_vllm.device import Cpu, Cuda
from pdlink_vllm.engine import Adapter, Layer, Model, Source
from pdlink_vllm.link import Link, poll_until
from pdlink_vllm.scheduler import Chunk, Step
from pdlink_vllm.wire import DType, Kind, What
from pdlink_vllm.worker import Worker, hello, hook

log = logging.getLogger("test")


CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def test_slots() -> None:
    assert slots((7, 3), 2, 3, 4).tolist() == [30, 31, 12]
    assert slots((5,), 0, 4, 4).tolist() == [20, 21, 22, 23]
    with pytest.raises(CaptureError):
        slots((7,), 2, 3, 4)
    with pytest.raises(CaptureError):
        slots((7, 3, 1), 2, 3, 4)


@pytest.mark.parametrize("where", ["cpu", CUDA])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_by_slot(dtype: Any, where: str) -> None:
    mapping = torch.tensor([99, 12, 13, 40, 41, 42, -1, -1], dtype=dtype, device=where)
    wanted = torch.tensor([40, 41, 42])
    if where == "cpu":
        assert rows_on_host(mapping, wanted) == 3
    index, good = rows_on_device(mapping, wanted)
    assert index.tolist() == [3, 4, 5]
    assert bool(good)


@pytest.mark.parametrize("where", ["cpu", CUDA])
@pytest.mark.parametrize("wanted", [[77, 78], [41, 43], [42, 43], [13, 14]])
def test_rows_that_are_not_there(wanted: list[int], where: str) -> None:
    """Wrong rows are noticed, whichever way they are looked for: found nowhere, cut off, or of somebody else."""
    mapping = torch.tensor([99, 12, 13, 40, 41, 42], device=where)
    if where == "cpu":
        with pytest.raises(CaptureError):
            rows_on_host(mapping, torch.tensor(wanted))
    _, good = rows_on_device(mapping, torch.tensor(wanted))
    assert not bool(good)


B, H, S, D = 6, 3, 16, 8


def paged(form: str, where: str = "cpu") -> tuple[Any, Any, Any]:
    """An empty cache in one of the engine's forms, and views of its keys and values [blocks, tokens, heads, width]."""

    def empty(*shape: int) -> Any:
        return torch.zeros(shape, device=where)

    if form.startswith("packed"):
        base = empty(B, S, H, 2 * D).permute(0, 2, 1, 3) if form == "packed nhd" else empty(B, H, S, 2 * D)
        if form == "packed hbnc":
            base = empty(H, B, S, 2 * D).permute(1, 0, 2, 3)
        return base, base[..., :D].permute(0, 2, 1, 3), base[..., D:].permute(0, 2, 1, 3)
    if form == "pair first":
        base = empty(2, B, S, H, D)
        return base, base[0], base[1]
    if form == "pair first hnd":
        base = empty(2, B, H, S, D).permute(0, 1, 3, 2, 4)
        return base, base[0], base[1]
    base = empty(B, 2, S, H, D)
    return base, base[:, 0], base[:, 1]


FORMS = ["packed hnd", "packed nhd", "packed hbnc", "pair first", "pair first hnd", "pair second"]


@pytest.mark.parametrize("where", ["cpu", CUDA])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_cache(form: str, where: str) -> None:
    cache, keys, values = paged(form, where)
    g = torch.Generator().manual_seed(1)
    rows = torch.randn(2, 40, H, D, generator=g).to(where)
    order = slots((4, 0, 5), 3, 40, S)
    for i, slot in enumerate(order.tolist()):
        keys[slot // S, slot % S], values[slot // S, slot % S] = rows[0, i], rows[1, i]
    k, v = cache_form(tuple(cache.shape), H, D).gather(cache, order.to(where))
    assert torch.equal(k, rows[0])
    assert torch.equal(v, rows[1])


@pytest.mark.parametrize("shape", [(2, 2, 16, 3, 8), (6, 4, 16, 16), (6, 3, 16, 8), (6, 16), (3, 6, 16, 3, 8)])
def test_forms_that_are_not_known(shape: tuple[int, ...]) -> None:
    with pytest.raises(CaptureError, match="is not known"):
        cache_form(shape, H, D)


LAYERS, BLOCK, WIDTH = 2, 32, 8


class Engine:
    """What an engine does around a worker: has blocks, mixes requests into batches, calls the hooks of each layer."""

    def __init__(
        self,
        source: Source,
        link: Link,
        writer: str = "do_kv_cache_update",
        heads: int = 2,
        block: int = 16,
        where: str = "cpu",
        budget: float = sidecar.LIMIT,
    ) -> None:
        self.where = where
        self.block, self.heads, self.random = block, heads, random.Random(5)
        self.tables: dict[str, list[int]] = {}
        self.free = list(range(1, 400))
        self.random.shuffle(self.free)
        self.rows: dict[str, list[Any]] = {}
        self.lengths: dict[str, int] = {}
        self.source, self.writer = source, writer
        self.calls = 0
        kind = Kind.DSV4 if source is Source.INPUT else Kind.KV
        layers = []
        for i in range(LAYERS):
            impl = N(**{writer: self.count})
            layers.append(Layer(i, f"layers.{i}", N(impl=impl), 0, block))
        self.model = Model(kind, tuple(layers), DType.BF16, WIDTH, 0, 0 if kind is Kind.DSV4 else heads)
        self.cache = [
            torch.zeros(401, block, heads, 2 * WIDTH, dtype=torch.bfloat16, device=where).permute(0, 2, 1, 3)
            for _ in range(LAYERS)
        ]
        device = Cpu() if where == "cpu" else Cuda(torch.device(where, 0), log)
        self.worker = Worker(link, self.model, source, device, log, budget)
        if source is Source.WRITER:
            hook(self.worker, source, Adapter(0, writer, ""))

    def count(self, *_: Any, **__: Any) -> None:
        self.calls += 1

    def prompt(self, name: str, tokens: int, decoded: int = 4) -> list[Any]:
        """Rows of a prompt and of what is decoded after it: for each layer keys and values, or x twice."""
        self.lengths[name] = tokens
        tokens += decoded
        shape = (tokens, WIDTH) if self.source is Source.INPUT else (tokens, self.heads, WIDTH)
        self.rows[name] = [[torch.randn(shape).to(self.where, torch.bfloat16) for _ in range(2)] for _ in range(LAYERS)]
        self.tables[name] = [self.free.pop() for _ in range(-(-tokens // self.block))]
        return self.rows[name]

    def step(
        self,
        parts: list[tuple[str, int, int]],
        follow: set[str],
        gone: tuple[str, ...] = (),
        first: dict[str, int] | None = None,
    ) -> None:
        """Compute tokens [a, b) of some prompts, in any order, some of which take part."""
        chunks = []
        for name, a, b in parts:
            if name in follow:
                a0 = (first or {}).get(name, a)
                table = self.tables[name][a0 // self.block : -(-b // self.block)]
                total = self.lengths[name]
                chunks.append(
                    Chunk(name, name.encode().ljust(16, b"."), total, 0, a0, b - a0, ((tuple(table), a0 % self.block),))
                )
        self.worker.begin_step(Step(chunks, list(gone)))
        parts = self.random.sample(parts, len(parts))
        mapping = torch.cat([self._slots(*p) for p in parts]) if parts else torch.zeros(0, dtype=torch.int64)
        mapping = mapping.to(self.where)
        for layer in self.model.layers:
            batch = (
                [torch.cat([self.rows[n][layer.index][j][a:b] for n, a, b in parts]) for j in range(2)] if parts else []
            )
            if batch:
                self._layer(layer, batch, mapping)
        self.worker.end_step()

    def _slots(self, name: str, a: int, b: int) -> Any:
        table = self.tables[name]
        return torch.tensor([table[t // self.block] * self.block + t % self.block for t in range(a, b)])

    def _layer(self, layer: Layer, batch: list[Any], mapping: Any) -> None:
        if self.source is Source.INPUT:
            self.worker.capture.input(layer, batch[0], mapping)
        elif self.source is Source.CACHE:
            view = self.cache[layer.index]
            for i, slot in enumerate(mapping.tolist()):
                view[slot // self.block, :, slot % self.block] = torch.cat([batch[0][i], batch[1][i]], -1)
            self.worker.capture.cached(layer, view)
        elif self.writer == "forward":
            layer.module.impl.forward(
                layer.module, batch[0], batch[0], batch[1], None, N(slot_mapping=mapping), output=None
            )
        else:
            layer.module.impl.do_kv_cache_update(layer.module, batch[0], batch[1], None, mapping)


@pytest.fixture
def link(place: Place) -> Iterator[Link]:
    made = Link(str(place.path), wire.Hello(layer_end=LAYERS, head_end=2), log)
    made.start()
    yield made
    made.close()


def plan(name: str, blocks: int, s: sidecar.Sidecar, kind: Kind = Kind.KV, heads: int = 2) -> sidecar.Transfer:
    p = sidecar.kv_plan(LAYERS, heads, WIDTH, DType.BF16, BLOCK, blocks)
    if kind is Kind.DSV4:
        p = sidecar.Plan(kind, blocks, BLOCK, 1 << 20, (0, LAYERS))
    return s.plan(name.encode().ljust(16, b"."), p)


def same_blocks(t: sidecar.Transfer, rows: list[Any], heads: int = 2) -> None:
    assert t.missing() == []
    for b, data in t.blocks.items():
        got = torch.frombuffer(data, dtype=torch.bfloat16).reshape(LAYERS, 2, heads, BLOCK, WIDTH)
        for layer in range(LAYERS):
            for j in range(2):
                want = rows[layer][j][b * BLOCK : (b + 1) * BLOCK].transpose(0, 1).cpu()
                assert torch.equal(got[layer, j], want), (b, layer, j)


def same_rows(t: sidecar.Transfer, layer: int, x: Any) -> None:
    first, data = t.layer_rows(layer, What.X)
    assert first == 0
    assert torch.equal(torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(-1, WIDTH), x.cpu())


STEPS = [
    [("a", 0, 50), ("x", 0, 30)],
    [("x", 30, 31), ("a", 50, 51), ("b", 0, 77)],
    [("a", 51, 140), ("x", 31, 32)],
    [("b", 77, 96), ("x", 32, 33), ("a", 140, 150)],
    [("b", 96, 97), ("x", 33, 34)],  # decoding
]


@pytest.mark.parametrize(
    ("source", "writer", "where"),
    [
        (Source.WRITER, "do_kv_cache_update", "cpu"),
        (Source.WRITER, "forward", "cpu"),
        (Source.CACHE, "-", "cpu"),
        pytest.param(Source.CACHE, "-", "cuda", marks=pytest.mark.gpu),
    ],
    ids=["writer", "forward", "cache", "cache on cuda"],
)
def test_mixed_batches(place: Place, link: Link, source: Source, writer: str, where: str) -> None:
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(source, link, writer, where=where)
    a, b, _ = e.prompt("a", 150), e.prompt("b", 96), e.prompt("x", 40)
    plan("a", 4, s)
    plan("b", 3, s)
    for parts in STEPS[:4]:
        e.step(parts, {"a", "b"})
    e.step(STEPS[4], set())
    same_blocks(s.wait(b"a".ljust(16, b".")), a)
    same_blocks(s.wait(b"b".ljust(16, b".")), b)
    if source is Source.WRITER:
        assert e.calls == LAYERS * len(STEPS)  # the engine's own method ran each time
    e.worker.close()


@pytest.mark.parametrize("source", list(Source), ids=[s.name.lower() for s in Source])
def test_a_late_begun_loses_no_row(place: Place, link: Link, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer 0 of the first chunk, which is the whole prompt, is at its hook before the sidecar has answered BEGIN."""
    waits = threading.Event()

    def waiting(*args: Any) -> tuple[bool, float]:
        waits.set()
        return poll_until(*args)

    monkeypatch.setattr(request, "poll_until", waiting)
    s = place.sidecar(sidecar.Options(hold_begins=True))
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(source, link)
    rows = e.prompt("a", 4 * BLOCK)
    t = plan("a", 4, s, e.model.kind)
    step = threading.Thread(target=e.step, args=([("a", 0, 4 * BLOCK)], {"a"}))
    step.start()
    assert waits.wait(sidecar.LIMIT)
    s.until(lambda: len(t.begins) == 1)
    assert (t.commits, step.is_alive()) == (0, True)
    s.let_begin()
    step.join(sidecar.LIMIT)
    s.wait(b"a".ljust(16, b"."))
    assert (t.ended[0].tokens, t.aborted) == (4 * BLOCK, [])
    if source is Source.INPUT:
        for layer in range(LAYERS):
            same_rows(t, layer, rows[layer][0][: 4 * BLOCK])
    else:
        same_blocks(t, rows)
    e.worker.close()


@pytest.mark.parametrize(
    ("source", "where"),
    [
        (Source.WRITER, "cpu"),
        (Source.CACHE, "cpu"),
        pytest.param(Source.CACHE, "cuda", marks=pytest.mark.gpu),
    ],
    ids=["writer", "cache", "cache on cuda"],
)
def test_an_unfinished_last_block_is_filled_up(place: Place, link: Link, source: Source, where: str) -> None:
    """A prompt that ends in the middle of a block that is wanted: zeros follow, be it behind its first row."""
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(source, link, where=where)
    for name, tokens, blocks in (("a", 150, 5), ("b", 97, 4), ("c", 96, 3), ("d", 100, 3)):
        rows = e.prompt(name, tokens)
        t = plan(name, blocks, s)
        e.step([(name, 0, 70)], {name})
        e.step([(name, 70, tokens - 1)], {name})
        e.step([(name, tokens - 1, tokens)], {name})
        for layer in rows:
            for j in range(2):
                layer[j] = torch.cat([layer[j][:tokens].cpu(), torch.zeros(BLOCK, 2, WIDTH, dtype=torch.bfloat16)])
        same_blocks(s.wait(name.encode().ljust(16, b".")), rows)
        assert t.ended[0].tokens == tokens
    e.worker.close()


@pytest.mark.parametrize("where", ["cpu", CUDA])
def test_a_prefix_hit_is_gathered(place: Place, link: Link, where: str) -> None:
    """Rows that an earlier request left in the cache come with the first chunk."""
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(Source.CACHE, link, where=where)
    rows = e.prompt("a", 128)
    plan("a", 4, s)
    e.step([("a", 0, 80)], set())
    e.step([("a", 80, 128)], {"a"}, first={"a": 0})
    same_blocks(s.wait(b"a".ljust(16, b".")), rows)
    e.worker.close()


@pytest.mark.parametrize("where", ["cpu", CUDA])
def test_attention_input(place: Place, link: Link, where: str) -> None:
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(Source.INPUT, link, where=where)
    a, b, _ = e.prompt("a", 150), e.prompt("b", 97), e.prompt("x", 40)
    plan("a", 4, s, Kind.DSV4)
    plan("b", 3, s, Kind.DSV4)
    for parts in STEPS:
        e.step(parts, {"a", "b"})
    for name, rows, blocks in (("a", a, 4), ("b", b, 3)):
        t = s.wait(name.encode().ljust(16, b"."))
        for layer in range(LAYERS):
            same_rows(t, layer, rows[layer][0][: blocks * BLOCK])
    e.worker.close()


@pytest.mark.gpu
def test_wrong_rows_on_a_device_are_not_committed(place: Place, link: Link) -> None:
    """There the check comes with the copy: what was copied wrongly is returned, and the request ends."""
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(Source.INPUT, link, where="cuda")
    e.prompt("a", 64)
    t = plan("a", 2, s, Kind.DSV4)
    e.worker.begin_step(Step([chunk("a", e, 64, table=(398, 399, 397, 396))]))
    for layer in e.model.layers:
        e._layer(layer, [e.rows["a"][layer.index][0]], e._slots("a", 0, 64).to("cuda"))
    e.worker.end_step()
    s.wait(b"a".ljust(16, b"."))
    assert t.rows == {}
    assert "did not deliver" in t.aborted[0]
    e.worker.close()


def test_rows_that_are_not_in_the_batch_end_one_request_only(place: Place, link: Link) -> None:
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(Source.WRITER, link)
    a, _ = e.prompt("a", 64), e.prompt("b", 64)
    plan("a", 2, s)
    t = plan("b", 2, s)
    e.worker.begin_step(Step([chunk("a", e, 64), chunk("b", e, 64, table=(398, 399, 397, 396))]))
    for layer in e.model.layers:
        batch = [torch.cat([e.rows[n][layer.index][j] for n in ("a", "b")]) for j in range(2)]
        e._layer(layer, batch, torch.cat([e._slots("a", 0, 64), e._slots("b", 0, 64)]))
    e.worker.end_step()
    same_blocks(s.wait(b"a".ljust(16, b".")), a)
    s.wait(b"b".ljust(16, b"."))
    assert "does not hold the rows" in t.aborted[0] or "CaptureError" in t.aborted[0]
    assert t.blocks == {}
    e.worker.close()


def chunk(name: str, e: Engine, tokens: int, table: tuple[int, ...] | None = None) -> Chunk:
    return Chunk(
        name,
        name.encode().ljust(16, b"."),
        tokens,
        0,
        0,
        tokens,
        ((table or tuple(e.tables[name][: -(-tokens // e.block)]), 0),),
    )


def test_a_request_that_is_over_is_not_begun_again(place: Place, link: Link) -> None:
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(Source.WRITER, link)
    e.prompt("a", 96)
    for first in (0, 32):
        e.step([("a", first, first + 32)], {"a"})  # nobody planned it
    plan("a", 3, s)
    e.step([("a", 64, 96)], {"a"})
    assert s.transfers[b"a".ljust(16, b".")].begins == []
    e.step([], set())
    assert e.worker._requests == {}
    e.worker.close()


def test_gone(place: Place, link: Link) -> None:
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    e = Engine(Source.WRITER, link)
    e.prompt("a", 96)
    t = plan("a", 3, s)
    e.step([("a", 0, 32)], {"a"})
    e.step([], set(), gone=("a", "never seen"))
    s.wait(b"a".ljust(16, b"."))
    assert t.aborted == ["the engine's request ended early"]
    assert e.worker._requests == {}
    e.worker.close()


def test_rows_of_another_type_or_shape(place: Place, link: Link) -> None:
    s = place.sidecar()
    assert link.wait_up(sidecar.LIMIT)
    changes: list[Any] = [lambda t: t.float(), lambda t: t[:, :1], lambda t: t[..., :4]]
    for i, change in enumerate(changes):
        name = f"a{i}"
        e = Engine(Source.WRITER, link)
        e.prompt(name, 64)
        t = plan(name, 2, s)
        e.rows[name] = [[change(x) for x in layer] for layer in e.rows[name]]
        e.step([(name, 0, 64)], {name})
        s.wait(name.encode().ljust(16, b"."))
        assert "CaptureError" in t.aborted[0]
    link.close()


def test_hello() -> None:
    layers = tuple(Layer(i, "", None, 0, 16) for i in (4, 5, 6))
    h = hello(Model(Kind.KV, layers, DType.F16, 64, 2, 4), 1, 2, 2)
    assert (h.layer_first, h.layer_end, h.head_first, h.head_end, h.tp_rank, h.tp_size, h.local_workers) == (
        4,
        7,
        2,
        4,
        1,
        2,
        2,
    )
