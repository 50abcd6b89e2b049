"""A link and what a worker does with it, with numpy rows in the place of tensors; rows that anybody can check."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sidecar
from pdlink_vllm import wire
from pdlink_vllm.link import Link
from pdlink_vllm.offer import Layouts, Offer
from pdlink_vllm.packing import Cut, PieceCutter
from pdlink_vllm.request import Request
from pdlink_vllm.ring import LEASED, Ring
from pdlink_vllm.wire import ArrayId, DType, Mode

log = logging.getLogger("test")

LAYERS, HEADS, WIDTH, BLOCK = 3, 2, 16, 32
RUN = WIDTH * 2


class Rig:
    """A link and what a worker does with it, with numpy rows in the place of tensors."""

    def __init__(self, path: Path, hello: wire.Hello | None = None) -> None:
        self.link = Link(str(path), hello or wire.Hello(layer_end=LAYERS, head_end=HEADS), log)
        self.layouts = Layouts()
        self.link.start()

    def close(self) -> None:
        self.link.close()

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so that the sidecar's messages make so."""
        with self.link.changed:
            assert self.link.changed.wait_for(ready, sidecar.LIMIT), self.link.refused

    def heard(self, s: sidecar.Sidecar) -> None:
        """Wait until all that was committed so far has had its effect."""
        with self.link.changed:
            mine = [(g.slot.index, g.slot.generation) for g in self.link._given.values() if g.committed is not None]
        s.until(lambda: all(s.memory.state(i) != (LEASED, generation) for i, generation in mine))

    def request(
        self, transfer: bytes, tokens: int, mode: Mode = Mode.PIECES, row: int = 0, budget: float = sidecar.LIMIT
    ) -> Request:
        offer = Offer(transfer, tokens, 0, mode, DType.BF16, row, budget)
        r = Request(self.link, self.layouts, offer, None, log)
        r.begin()
        return r


def rows_of(layer: int, what: int, tokens: int, heads: int = HEADS, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, layer, what])
    return rng.integers(0, 1 << 16, (tokens, heads, WIDTH), dtype=np.uint16)


def filler(rows: np.ndarray, first: int) -> Callable[[Ring, int, Cut], None]:
    def fill(ring: Ring, at: int, cut: Cut) -> None:
        part = rows[cut.first - first : cut.first - first + cut.tokens, cut.head : cut.head + cut.heads]
        part = part.reshape(cut.blocks, -1, *part.shape[1:]).swapaxes(1, 2) if cut.blocks else part.swapaxes(0, 1)
        data = part.tobytes()
        ring.memory[at : at + len(data)] = data

    return fill


def step(
    r: Request, first: int, tokens: int, total: int, heads: tuple[int, int] = (0, HEADS), layers: int = LAYERS
) -> None:
    """Put one chunk of all layers, as a forward pass does."""
    own = heads[1] - heads[0]
    r.expect(first, tokens, range(layers), 2 * own * RUN)
    for layer in range(layers):
        a, e = r.span(first, tokens, layer)
        if a >= e:
            continue
        for what in (0, 1):
            place = r.place(layer, ArrayId(what), RUN, heads[0])
            if place is not None:
                rows = rows_of(layer, what, total)[a:e, heads[0] : heads[1]]
                r.put(PieceCutter(place, own, a, e - a), filler(rows, a))
    r.flush()


def run(r: Request, total: int, chunk: int, heads: tuple[int, int] = (0, HEADS)) -> None:
    for first in range(0, total, chunk):
        step(r, first, min(chunk, total - first), total, heads)
    r.end(total)


def check(t: sidecar.Transfer, blocks: int | None = None) -> None:
    """Every byte of the first blocks is there, and right."""
    n = t.plan.blocks if blocks is None else blocks
    assert [g for g in t.missing() if g[0] < n] == []
    total = t.plan.blocks * BLOCK
    for b in range(t.plan.from_token // BLOCK, n):
        data = np.frombuffer(bytes(t.blocks[b]), np.uint16).reshape(LAYERS, 2, HEADS, BLOCK, WIDTH)
        for layer in range(LAYERS):
            for what in (0, 1):
                want = rows_of(layer, what, total + 7)[b * BLOCK : (b + 1) * BLOCK].swapaxes(0, 1)
                assert np.array_equal(data[layer, what], want), (b, layer, what)


def plan(blocks: int, from_token: int = 0) -> sidecar.Plan:
    return sidecar.kv_plan(LAYERS, HEADS, WIDTH, DType.BF16, BLOCK, blocks, from_token)
