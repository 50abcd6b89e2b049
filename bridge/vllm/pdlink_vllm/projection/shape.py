"""What a layer's rows make of a block, and where that lies. Arithmetic only; sections are those of PROTOCOL.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdlink_vllm import wire
from pdlink_vllm.projection.abi import ProjectionError
from pdlink_vllm.wire import ArrayId, DType, Piece

OVERLAP = 4  # ratio whose windows overlap: it keeps the window before, and has an indexer

# Arrays that hold the window before the next one, whole when a block is.
PREVIOUS = (ArrayId.PREV_KV, ArrayId.PREV_GATE, ArrayId.IDX_PREV_KV, ArrayId.IDX_PREV_GATE)


@dataclass(frozen=True)
class Geometry:
    """The numbers of a DeepSeek-V4 decoder that the projection needs; widths in elements. yarn is (factor, original
    positions, beta_fast, beta_slow), all 0 without scaling.
    """

    hidden: int
    head: int
    index: int
    rope: int
    window: int
    positions: int
    eps: float
    theta: float
    compress_theta: float
    ratios: tuple[int, ...]
    yarn: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Geometry:
        """Read the decoder's configuration, as the exported weights have it. Raises ProjectionError."""
        try:
            ratios = tuple(int(r) for r in config["compress_ratios"][: int(config["num_hidden_layers"])])
            scaling = config.get("rope_scaling")
            factor = original = fast = slow = 0.0
            if scaling is not None:
                if (scaling.get("type") or scaling.get("rope_type")) != "yarn":
                    raise ProjectionError("rope_scaling is not yarn, and no other is known")
                factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
                fast, slow = float(scaling.get("beta_fast", 32)), float(scaling.get("beta_slow", 1))
            g = cls(
                hidden=int(config["hidden_size"]),
                head=int(config["head_dim"]),
                index=int(config["index_head_dim"]),
                rope=int(config["qk_rope_head_dim"]),
                window=int(config["sliding_window"]),
                positions=int(config["max_position_embeddings"]),
                eps=float(config["rms_norm_eps"]),
                theta=float(config["rope_theta"]),
                compress_theta=float(config["compress_rope_theta"]),
                ratios=ratios,
                yarn=(factor, original, fast, slow),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ProjectionError(f"the weights' configuration lacks a number ({e!r}): export them again") from e
        sizes = (g.hidden, g.head, g.index, g.rope, g.window, g.positions)
        reals = (g.eps, g.theta, g.compress_theta, *g.yarn)
        if min(sizes) < 1 or not ratios or not all(math.isfinite(r) for r in reals):
            raise ProjectionError("the weights' configuration holds sizes that cannot be")
        return g

    def width(self, array: ArrayId) -> int:
        """Return the elements of one row of an array."""
        wide = self.index if array in (ArrayId.IDX_POOLED, ArrayId.IDX_PREV_KV, ArrayId.IDX_PREV_GATE) else self.head
        return 2 * wide if array in PREVIOUS else wide


@dataclass(frozen=True)
class Key:
    """What a handle is made for: the decoder's blocks, in tokens; layers [first, end) of the model; whether blocks hold
    the window before.
    """

    block: int
    first: int
    end: int
    previous: bool = True


def share(ratios: Sequence[int], first: int, end: int, rank: int, size: int) -> tuple[int, int]:
    """Return the layers, of [first, end), that one of several ranks that see the same hands over: section 3. The
    sidecar computes the same, and its word counts.
    """
    work = {0: 1, OVERLAP: 6}
    total = sum(work.get(r, 3) for r in ratios[first:end])
    own, done = [], 0
    for i in range(first, end):
        w = work.get(ratios[i], 3)
        if (2 * done + w) * size // (2 * total) == rank:
            own.append(i)
        done += w
    return (own[0], own[-1] + 1) if own else (end, end)


@dataclass(frozen=True)
class Part:
    """What a call completes of one block: entries in the order in which they will lie, without gaps."""

    block: int
    entries: tuple[Piece, ...]
    bytes: int


@dataclass(frozen=True)
class Shape:
    """Blocks of one model, for one key."""

    geometry: Geometry
    key: Key
    _arrays: dict[int, tuple[tuple[ArrayId, int, int], ...]] = field(default_factory=dict, compare=False)

    def arrays(self, ratio: int) -> tuple[tuple[ArrayId, int, int], ...]:
        """Return a block's arrays of a layer, in order: which, rows, and bytes of a row."""
        known = self._arrays.get(ratio)
        if known is None:
            g, rows = self.geometry, self.key.block // ratio if ratio else 0
            found = [(ArrayId.WINDOW, g.window)]
            if ratio:
                found.append((ArrayId.POOLED, rows))
            if ratio == OVERLAP:
                found += [(a, OVERLAP) for a in PREVIOUS[:2] if self.key.previous]
                found.append((ArrayId.IDX_POOLED, rows))
                found += [(a, OVERLAP) for a in PREVIOUS[2:] if self.key.previous]
            known = self._arrays[ratio] = tuple((a, n, 2 * g.width(a)) for a, n in found)
        return known

    def offsets(self, ratio: int) -> dict[ArrayId, int]:
        """Return where the arrays lie one behind the other, in bytes."""
        at, out = 0, {}
        for a, rows, row in self.arrays(ratio):
            out[a] = at
            at += rows * row
        return out

    def span(self, ratio: int) -> int:
        """Return the bytes of a layer in a block."""
        return sum(rows * row for _, rows, row in self.arrays(ratio))

    @property
    def widest(self) -> int:
        """The most bytes that a block has of one layer: a slot must take them."""
        return max((self.span(r) for r in self.geometry.ratios[self.key.first : self.key.end]), default=0)

    @property
    def token_bytes(self) -> int:
        """The bytes of a block for each of its tokens and of the key's layers, on average and rounded down."""
        spans = [self.span(r) for r in self.geometry.ratios[self.key.first : self.key.end]]
        return sum(spans) // max(1, len(spans) * self.key.block)

    def enters(self, layer: int, from_token: int) -> int:
        """Return the token, a block's first, from which on a layer's rows must be seen so that all that tokens from
        from_token on complete is right. A layer whose windows overlap must have seen the one before.
        """
        before = OVERLAP if self.geometry.ratios[layer] == OVERLAP else 0
        return max(0, from_token - before) // self.key.block * self.key.block

    def differs(self, block: int, first: int, end: int, places: Mapping[tuple[int, int], wire.Array]) -> str:
        """Say what of a plan is not what is made here: its blocks in tokens, layers [first, end), and the places of
        those layers' arrays. Empty where nothing is.
        """
        k = self.key
        if block != k.block:
            return f"blocks of {block} tokens are"
        if not k.first <= first <= end <= k.end:
            return f"layers {first} to {end - 1} are"
        got = {w: (p.rows, p.row_bytes, p.size, p.dtype) for w, p in places.items() if first <= w[0] < end}
        want = {
            (i, int(a)): (rows, row, rows * row, DType.BF16)
            for i in range(first, end)
            for a, rows, row in self.arrays(self.geometry.ratios[i])
        }
        if got != want:
            layer, array = min(w for w in {*got, *want} if got.get(w) != want.get(w))
            return f"array {array} of layer {layer} is"
        return ""

    def parts(self, layer: int, first: int, n: int, places: Mapping[tuple[int, int], wire.Array]) -> Iterator[Part]:
        """Yield what rows [first, first + n) of a layer complete, for each block that they touch, places being the
        plan's. Entries that follow each other in the block too are one.
        """
        size, ratio = self.key.block, self.geometry.ratios[layer]
        for block in range(first // size, (first + n - 1) // size + 1):
            entries: list[Piece] = []
            total = 0
            for a, rows, row in self.arrays(ratio):
                start, stop = self._completed(a, rows, ratio, first, n, block)
                if start >= stop:
                    continue
                offset, length = places[layer, a].offset + start * row, (stop - start) * row
                last = entries[-1] if entries else None
                if last is not None and last.offset + last.length == offset:
                    entries[-1] = Piece(block, last.offset, last.length + length)
                else:
                    entries.append(Piece(block, offset, length))
                total += length
            yield Part(block, tuple(entries), total)

    def _completed(self, array: ArrayId, rows: int, ratio: int, first: int, n: int, block: int) -> tuple[int, int]:
        """Return the rows of a block's array that a call completes."""
        begin, end, last = block * self.key.block, (block + 1) * self.key.block, first + n
        if array is ArrayId.WINDOW:
            zero = end - rows
            return max(zero, first) - zero, min(end, last) - zero
        if array in PREVIOUS:
            return (0, rows) if first < end <= last else (0, 0)
        zero = begin // ratio
        return max(first // ratio, zero) - zero, min(last // ratio - zero, rows)
