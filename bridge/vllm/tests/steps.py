"""An engine's steps over prompts whose attention input is known, and what a sidecar wants of them."""

from __future__ import annotations

import random
from typing import Any

import fakeproj
import sidecar
import torch
from pdlink_vllm.engine import Layer, Model
from pdlink_vllm.projection.shape import Shape
from pdlink_vllm.scheduler import Chunk, Step
from pdlink_vllm.wire import DType, Kind
from pdlink_vllm.worker import Worker

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
    """A prompt's transfer."""
    return name.encode().ljust(16, b".")


def planned(
    s: sidecar.Sidecar, name: str, shape: Shape, blocks: int, layout: int = 7, held: int = 0
) -> sidecar.Transfer:
    """Have the sidecar want a prompt's blocks, of which the decoder holds the first held tokens."""
    places, size = fakeproj.places(shape)
    arrays = {k: (p.offset, p.size, p.row_bytes, p.rows) for k, p in places.items()}
    key = shape.key
    plan = sidecar.Plan(Kind.DSV4, blocks, key.block, size, (key.first, key.end), DType.BF16, held, arrays, layout)
    return s.plan(tid(name), plan)


def model(hidden: int, layers: int) -> Model:
    """An engine's model: all that a worker knows of it."""
    return Model(Kind.DSV4, tuple(Layer(i, f"layers.{i}", None, 0, PAGE) for i in range(layers)), DType.BF16, hidden)
