"""Stands for libpdproj where there is no device: the same calls on ordinary memory, with a rule that anybody can check.

A window's row is the front of its token's input, a pooled row that of the last token it pools; rows of the window
before are those of its four tokens, each twice as wide. No arithmetic: every byte says which row it is of.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
from pdlink_vllm import wire
from pdlink_vllm.projection import abi
from pdlink_vllm.projection.shape import Geometry, Shape
from pdlink_vllm.weights.export import wanted
from pdlink_vllm.weights.safetensors import Array, write
from pdlink_vllm.wire import ArrayId

CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "index_head_dim": 16,
    "sliding_window": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "compress_rope_theta": 16e4,
    "compress_ratios": [0, 4, 128, 4],
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 1024},
}
GEOMETRY = Geometry(64, 32, 16, 8, 128, 4096, 1e-6, 1e4, 16e4, (0, 4, 128, 4), (16, 1024, 32, 1))


def libc() -> Path:
    """A real library: one that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if line.endswith("/libc.so.6"))


def weights(folder: Path) -> tuple[Path, str]:
    """Write weights of that configuration and return path and sha256."""
    rng = np.random.default_rng(1)
    arrays = []
    for name, _, shape in wanted(CONFIG):
        dtype, size = ("F32", 4) if name.endswith("ape") else ("BF16", 2)
        arrays.append((name, Array(dtype, shape, rng.integers(0, 60, size * int(np.prod(shape)), np.uint8))))
    path = folder / "weights.safetensors"
    return path, write(path, arrays, {"config": json.dumps(CONFIG)})


def places(shape: Shape) -> tuple[dict[tuple[int, int], wire.Array], int]:
    """A plan's places of all layers of a key, one behind the other, and the bytes of a block."""
    out, at = {}, 0
    for i in range(shape.key.first, shape.key.end):
        for a, rows, row in shape.arrays(shape.geometry.ratios[i]):
            out[i, int(a)] = wire.Array(0, 0, i, int(a), at, rows * row, row, rows, wire.DType.BF16)
            at += rows * row
    return out, at


def block(shape: Shape, layer: int, index: int, x: np.ndarray) -> dict[int, bytes]:
    """What a block's arrays of a layer must be for input x [tokens, hidden] as bf16 patterns, by array."""
    size, g = shape.key.block, shape.geometry
    ratio = g.ratios[layer]
    out = {}
    for a, rows, _ in shape.arrays(ratio):
        end = (index + 1) * size
        if a is ArrayId.WINDOW:
            tokens = np.arange(end - rows, end)
        elif a in (ArrayId.POOLED, ArrayId.IDX_POOLED):
            tokens = np.arange(rows) * ratio + index * size + ratio - 1
        else:
            tokens = np.arange(end - rows, end)
        out[int(a)] = x[tokens, : g.width(a)].tobytes()
    return out


class Library:
    """The functions of the library. What they do to their arguments is what pdproj.h says, packed."""

    def __init__(self) -> None:
        """Nothing is created yet. fail: code that project returns; rows: how many were projected, of all layers."""
        self.created = self.destroyed = self.open = self.prepared = self.calls = self.fail = self.rows = 0
        self.ticket = 0
        self._handles: dict[int, tuple[abi.Config, list[abi.Layer]]] = {}
        self._requests: dict[int, dict[int, int]] = {}  # position of each layer
        self._rows: dict[int, dict[int, np.ndarray]] = {}  # its last four rows
        self._alone: dict[int, dict[int, int]] = {}  # tokens at which layers began, without the window before
        self._next = 1

    def pdproj_create(self, config: Any, out: Any, err: Any) -> int:
        """Keep a copy of what matters."""
        c = config._obj
        layers = (abi.Layer * c.layers).from_address(c.layer)
        assert c.size == ctypes.sizeof(abi.Config)
        assert c.flags == abi.PACKED
        if any(layer.ratio and c.block_tokens % layer.ratio for layer in layers):
            err._obj.text = b"a block is no multiple of a ratio"
            return 1
        self.created += 1
        self._handles[self._next] = (abi.Config.from_buffer_copy(c), [abi.Layer.from_buffer_copy(x) for x in layers])
        out._obj.value, self._next = self._next, self._next + 1
        return 0

    def pdproj_used(self, h: Any, out: Any, err: Any) -> int:
        """Say something."""
        out._obj.weights = 1 << 20
        return 0

    def pdproj_destroy(self, h: Any) -> None:
        """Forget a handle."""
        del self._handles[h.value]
        self.destroyed += 1

    def pdproj_request_create(self, h: Any, out: Any, err: Any) -> int:
        """Begin at 0 in all layers."""
        if self.open >= self._handles[h.value][0].max_requests:
            return abi.FULL
        self.open += 1
        self._requests[self._next], self._rows[self._next], self._alone[self._next] = {}, {}, {}
        out._obj.value, self._next = self._next, self._next + 1
        return 0

    def pdproj_request_free(self, h: Any, r: Any) -> None:
        """Forget a request."""
        del self._requests[r.value]
        self.open -= 1

    def pdproj_seed(self, h: Any, r: Any, layer: int, position: int, *rest: Any) -> int:
        """Put a layer at a block's first token; of the window before nothing is ever given here."""
        *previous, stream, err = rest
        assert (previous, stream) == ([None] * 4, 0)
        if position % self._handles[h.value][0].block_tokens:
            err._obj.text = b"no boundary of blocks"
            return 6
        self._requests[r.value][layer] = position
        self._rows[r.value].pop(layer, None)
        self._alone[r.value][layer] = position
        return 0

    def pdproj_prepare(self, h: Any, layer: int, x: int, n: int, first: int, err: Any) -> int:
        """Count."""
        self.prepared += 1
        return 0

    def pdproj_wait(self, h: Any, ticket: int, err: Any) -> int:
        """Everything is done."""
        return 0 if ticket <= self.ticket else 1

    def pdproj_project(
        self, h: Any, r: Any, layer: int, x: int, n: int, first: int, dst: Any, dsts: int, *rest: Any
    ) -> int:
        """Write by the rule of this module."""
        pieces, most, count, ticket, stream, err = rest
        assert (pieces, most, count, stream) == (None, 0, None, 0)
        c, layers = self._handles[h.value]
        at, carried = self._requests[r.value], self._rows[r.value]
        if self.fail or at.get(layer, 0) != first or n > c.max_tokens:
            err._obj.text = b"rows that do not continue the request"
            return self.fail or 6
        assert dsts == (first + n - 1) // c.block_tokens - first // c.block_tokens + 1
        at[layer] = first + n
        rows = np.frombuffer((ctypes.c_uint8 * (2 * n * c.hidden)).from_address(x), "<u2").reshape(n, c.hidden)
        alone = self._alone[r.value].get(layer, 0)
        for i in range(dsts):
            if dst[i]:
                index = first // c.block_tokens + i
                self._block(c, layers[layer], (carried.get(layer), alone), rows, first, index, dst[i])
        carried[layer] = np.concatenate([carried[layer], rows])[-4:] if layer in carried else rows[-4:].copy()
        self.ticket += 1
        self.calls += 1
        self.rows += n
        ticket._obj.value = self.ticket
        return 0

    def _block(self, c: abi.Config, layer: abi.Layer, known: Any, x: Any, first: int, index: int, to: int) -> None:
        carried, alone = known
        end, last = (index + 1) * c.block_tokens, first + len(x)
        if carried is not None:
            x, first = np.concatenate([carried, x]), first - len(carried)
        begin = last - len(x) + (0 if carried is None else len(carried))
        found = []
        for _, a in sorted((at, a) for a, at in enumerate(layer.offset) if at >= 0):
            array = ArrayId(a + 2)
            wide = c.index_dim if array.name.startswith("IDX") else c.head_dim
            if array is ArrayId.WINDOW:
                tokens = [t for t in range(end - c.window, end) if begin <= t < last]
            elif array in (ArrayId.POOLED, ArrayId.IDX_POOLED):
                own = range(index * c.block_tokens + layer.ratio - 1, end, layer.ratio)
                tokens = [t for t in own if begin <= t < last]
            else:
                tokens, wide = (list(range(end - 4, end)) if begin < end <= last else []), 2 * wide
            made = x[[t - first for t in tokens], :wide].copy()
            if alone and layer.ratio == 4 and alone + 3 in tokens and array in (ArrayId.POOLED, ArrayId.IDX_POOLED):
                made[tokens.index(alone + 3)] ^= 0xFFFF  # it would need the window before
            found.append(made.tobytes())
        data = b"".join(found)
        ctypes.memmove(to, data, len(data))
