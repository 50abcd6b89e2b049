"""Cutting rows into slots and blocks: whatever the sizes, the union of the cuts is the rows, each byte at its place."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pdlink_vllm.packing import Cut, PieceCutter, Place, RowCutter, Space, cut_all
from pdlink_vllm.wire import Piece, Rows, What


def laid_out(rows: np.ndarray, first: int, cut: Cut, heads_first: bool) -> np.ndarray:
    """The bytes of a cut in slot order, as capture copies them."""
    part = rows[cut.first - first : cut.first - first + cut.tokens]
    if heads_first:
        part = part[:, cut.head : cut.head + cut.heads]
    if cut.blocks:
        part = part.reshape(cut.blocks, -1, *part.shape[1:]).swapaxes(1, 2)
    elif heads_first:
        part = part.swapaxes(0, 1)
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8)


@pytest.mark.parametrize("seed", range(200))
def test_pieces_make_blocks(seed: int) -> None:
    rng = random.Random(seed)
    heads, width, block = rng.randint(1, 5), rng.choice([2, 8]), rng.choice([4, 16, 32])
    total, first_head = heads + rng.randint(0, 3), 0
    first_head = rng.randint(0, total - heads)
    first, tokens = rng.randint(0, 3 * block), rng.randint(1, 5 * block)
    run = width * 2
    room, entries = rng.randint(run, 6 * heads * block * run), rng.randint(1, 12)
    rows = np.random.default_rng(seed).integers(0, 1 << 16, (tokens, heads, width), dtype=np.uint16)

    blocks = -(-(first + tokens) // block)
    got = np.zeros((blocks, total, block, width), np.uint16)
    seen = np.zeros(got.size * 2, np.uint8)
    flat = got.reshape(-1).view(np.uint8)
    size = total * block * run
    cutter = PieceCutter(Place(0, run, block, first_head), heads, first, tokens)
    for cut in cut_all(cutter, room, entries):
        data = laid_out(rows, first, cut, True)
        assert cut.bytes == data.size == sum(e.length for e in cut.entries) <= room
        assert 1 <= len(cut.entries) <= entries
        at = 0
        for e in cut.entries:
            assert isinstance(e, Piece)
            where = e.block * size + e.offset
            assert e.offset + e.length <= size
            flat[where : where + e.length] = data[at : at + e.length]
            seen[where : where + e.length] += 1
            at += e.length
    want = np.zeros_like(got)
    for t in range(tokens):
        b, at = divmod(first + t, block)
        want[b, first_head : first_head + heads, at] = rows[t]
    assert np.array_equal(got, want)
    assert seen.max() == 1 and int(seen.sum()) == rows.nbytes  # every byte once


@pytest.mark.parametrize("seed", range(50))
def test_rows_stay_rows(seed: int) -> None:
    rng = random.Random(seed)
    row, block, first, tokens = rng.choice([8, 96]), 16, rng.randint(0, 40), rng.randint(1, 300)
    room = rng.randint(row, 40 * row)
    at = first
    for cut in cut_all(RowCutter(3, What.X, row, block, first, tokens, (0, 0)), room, 5):
        (e,) = cut.entries
        assert isinstance(e, Rows)
        assert (e.layer, e.first, e.length, e.what) == (3, at, e.tokens * row, What.X)
        assert e.length <= room
        at += e.tokens
    assert at == first + tokens


def test_whole_blocks_are_one_cut() -> None:
    """The usual case costs one copy for all blocks that fit; of the next block, the heads that fit go along."""
    cutter = PieceCutter(Place(0, 256, 256, 0), 8, 512, 2048)
    cuts = list(cut_all(cutter, (4 << 20) - 4096, 126))
    assert [(c.blocks, len(c.entries)) for c in cuts] == [(7, 7), (0, 1), (0, 1)]


def test_crumbs_wait_for_the_next_slot() -> None:
    cutter = PieceCutter(Place(0, 2, 64, 0), 1, 0, 64)
    assert cutter.next(Space(20, 5, 4096)) is None
    assert RowCutter(0, What.X, 2, 64, 0, 64, (0, 0)).next(Space(20, 5, 4096)) is None
    assert cutter.next(Space(100, 5, 4096)) is not None


def test_a_row_that_never_fits() -> None:
    assert RowCutter(0, What.X, 8192, 64, 0, 1, (0, 0)).next(Space(4096, 126, 4096)) is None
    assert PieceCutter(Place(0, 8192, 64, 0), 1, 0, 1).next(Space(4096, 126, 4096)) is None
