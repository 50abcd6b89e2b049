"""How rows are cut to fit into slots and where the cuts lie in a block. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdlink_vllm.params import MIN_CUT_SHARE
from pdlink_vllm.wire import Entry, Piece, Rows


@dataclass(frozen=True)
class Space:
    """What a slot still takes: bytes, entries, and the bytes that an empty one takes."""

    bytes: int
    entries: int
    empty: int


@dataclass(frozen=True)
class Cut:
    """A part of the rows at hand, in the order in which it lies in the slot.

    Tokens [first, first + tokens) of the prompt, heads [head, head + heads) of the worker's own. With blocks > 0 the
    part is that many whole blocks, each [heads, block tokens, width]; else it lies in one block, [heads, tokens,
    width]. For x, and for keys and values that stay rows, it is [tokens, heads, width] and blocks is 0.
    """

    first: int
    tokens: int
    head: int
    heads: int
    blocks: int
    entries: tuple[Entry, ...]
    bytes: int


@dataclass(frozen=True)
class Place:
    """Where a worker's heads of one array lie in a block's data. offset is that of the array, run the bytes of one
    head's row.
    """

    offset: int
    run: int
    block_tokens: int
    first_head: int  # of the model, the worker's first

    def at(self, head: int, token: int) -> int:
        """Return the offset of one row: head counts from the worker's first, token from the block's."""
        return self.offset + ((self.first_head + head) * self.block_tokens + token) * self.run


class PieceCutter:
    """Cuts keys or values [tokens, heads, width] into pieces of blocks. Call next with what a slot takes until it is
    done.
    """

    def __init__(self, place: Place, heads: int, first: int, tokens: int) -> None:
        self._place, self._heads = place, heads
        self._at, self._end, self._head, self._done = first, first + tokens, 0, 0

    @property
    def block(self) -> int | None:
        """The block that comes next; None when all is cut."""
        return self._at // self._place.block_tokens if self._at < self._end else None

    def next(self, space: Space) -> Cut | None:
        """Return the next cut, at most as large as space; None when the slot should be sent first."""
        p, size = self._place, self._place.block_tokens
        run = p.run
        block, token = divmod(self._at, size)
        whole = token == 0 and self._end - self._at >= size and self._head == 0 and self._done == 0
        one = self._heads * size * run
        if whole and one <= space.bytes and space.entries:
            count = min((self._end - self._at) // size, space.bytes // one, space.entries)
            entries = tuple(Piece(block + i, p.at(0, 0), one) for i in range(count))
            cut = Cut(self._at, count * size, 0, self._heads, count, entries, count * one)
            self._at += count * size
            return cut
        span = min(size - token, self._end - self._at)
        return (
            self._heads_of(block, token, span, space)
            if self._done == 0
            else self._rest_of_head(block, token, span, space)
        )

    def _heads_of(self, block: int, token: int, span: int, space: Space) -> Cut | None:
        """All tokens of the block at hand, of as many heads as fit."""
        p = self._place
        per_head = span * p.run
        left = self._heads - self._head
        fit = min(left, space.bytes // per_head)
        joined = span == p.block_tokens  # whole heads lie one behind the other
        if not joined:
            fit = min(fit, space.entries)
        if fit == 0 or space.entries == 0:
            return self._rest_of_head(block, token, span, space)
        if joined:
            entries: tuple[Entry, ...] = (Piece(block, p.at(self._head, token), fit * per_head),)
        else:
            entries = tuple(Piece(block, p.at(self._head + h, token), per_head) for h in range(fit))
        cut = Cut(self._at, span, self._head, fit, 0, entries, fit * per_head)
        self._head += fit
        self._advance(span)
        return cut

    def _rest_of_head(self, block: int, token: int, span: int, space: Space) -> Cut | None:
        """As many tokens of one head as fit, because not all do; None where that would be a crumb."""
        p = self._place
        left = span - self._done
        fit = min(left, space.bytes // p.run)
        if (
            fit == 0
            or space.entries == 0
            or (fit < left and space.bytes < space.empty and space.bytes < space.empty // MIN_CUT_SHARE)
        ):
            return None
        entry = Piece(block, p.at(self._head, token + self._done), fit * p.run)
        cut = Cut(self._at + self._done, fit, self._head, 1, 0, (entry,), fit * p.run)
        self._done += fit
        if self._done == span:
            self._done = 0
            self._head += 1
            self._advance(span)
        return cut

    def _advance(self, span: int) -> None:
        if self._head == self._heads:
            self._head = 0
            self._at += span


class RowCutter:
    """Cuts rows [tokens, heads, width] that stay rows: x, or keys and values that the sidecar puts into blocks."""

    def __init__(
        self, layer: int, what: int, row_bytes: int, block_tokens: int, first: int, tokens: int, heads: tuple[int, int]
    ) -> None:
        """heads are those of the model that a row holds, (first, count); (0, 0) for x."""
        self._layer, self._what, self._row, self._size = layer, what, row_bytes, block_tokens
        self._at, self._end, self._heads = first, first + tokens, heads

    @property
    def block(self) -> int | None:
        """The block that comes next; None when all is cut."""
        return self._at // self._size if self._at < self._end else None

    def next(self, space: Space) -> Cut | None:
        """Return the next cut, at most as large as space; None when the slot should be sent first."""
        left = self._end - self._at
        fit = min(left, space.bytes // self._row)
        if (
            fit == 0
            or space.entries == 0
            or (fit < left and space.bytes < space.empty and space.bytes < space.empty // MIN_CUT_SHARE)
        ):
            return None
        entry = Rows(self._layer, fit * self._row, self._at, fit, self._what, *self._heads)
        cut = Cut(self._at, fit, 0, self._heads[1], 0, (entry,), fit * self._row)
        self._at += fit
        return cut


Cutter = PieceCutter | RowCutter


def cut_all(cutter: Cutter, room: int, entries: int) -> Iterator[Cut]:
    """Cut everything into fresh slots: what Request does, without a ring; for sizes and tests."""
    space = Space(room, entries, room)
    while cutter.block is not None:
        cut = cutter.next(space)
        if cut is None:
            space = Space(room, entries, room)
            continue
        space = Space(space.bytes - cut.bytes, space.entries - len(cut.entries), room)
        yield cut
