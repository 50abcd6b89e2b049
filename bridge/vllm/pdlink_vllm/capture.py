"""Finds a prompt's rows among all that a step computes, and puts them into slots. Beside `facts`, the only module that
computes with tensors.

A step's batch holds rows of many requests in an order of the engine's own. What is certain is the slot that the
engine's block table gives to each token: it says where the token's keys go, so it says which row is whose. Every row is
checked that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pdlink_vllm import params
from pdlink_vllm.device import Computes, Target
from pdlink_vllm.engine import Layer, Model, Source
from pdlink_vllm.filling import At, Done, Fill
from pdlink_vllm.packing import Cut, PieceCutter, RowCutter
from pdlink_vllm.projection.handle import Carry, Run
from pdlink_vllm.request import Request
from pdlink_vllm.ring import Ring
from pdlink_vllm.scheduler import Chunk
from pdlink_vllm.wire import ArrayId, DType, Kind, Mode, What

DTYPES = {torch.bfloat16: DType.BF16, torch.float16: DType.F16, torch.float32: DType.F32}


def zeros(ring: Ring, at: int, cut: Cut) -> None:
    """Fill a cut with zeros."""
    ring.memory[at : at + cut.bytes] = bytes(cut.bytes)


class CaptureError(RuntimeError):
    """Rows are not where they must be. The text is for the log and the verdict."""


@dataclass
class Active:
    """A chunk of the step that is being computed, with what was found out about it on the way."""

    chunk: Chunk
    request: Request
    slots: dict[int, Any] = field(default_factory=dict)  # by group: the chunk's slots, on the host
    found: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by group: index of the rows, and check
    carry: Carry | None = None  # of a prompt that is projected here

    @property
    def fills(self) -> bool:
        """Whether the prompt ends here: where that is in the middle of a block that is wanted, zeros fill it up."""
        return self.chunk.last and not self.chunk.sealed

    def slots_of(self, layer: Layer) -> Any:
        """Return the cache slot of each of the chunk's tokens, int64 on the host."""
        held = self.slots.get(layer.group)
        if held is None:
            blocks, skip = self.chunk.places[layer.group]
            held = slots(blocks, skip, self.chunk.tokens, layer.block_size)
            self.slots[layer.group] = held
        return held


def slots(blocks: tuple[int, ...], skip: int, tokens: int, block_size: int) -> Any:
    """Return the slots of consecutive tokens whose first lies skip tokens into the first of the blocks."""
    if -(-(skip + tokens) // block_size) != len(blocks):
        raise CaptureError(f"{len(blocks)} blocks of {block_size} for {tokens} tokens from {skip} on")
    starts = torch.tensor(blocks, dtype=torch.int64) * block_size
    every = (starts[:, None] + torch.arange(block_size, dtype=torch.int64)).reshape(-1)
    return every[skip : skip + tokens]


def rows_on_host(slot_mapping: Any, wanted: Any) -> int:
    """Return the first of the consecutive rows that hold the wanted slots. Raises CaptureError."""
    hit = (slot_mapping == wanted[0]).nonzero()
    if hit.numel() == 1:
        first = int(hit[0])
        if torch.equal(slot_mapping[first : first + wanted.numel()], wanted.to(slot_mapping.dtype)):
            return first
    raise CaptureError("the step's batch does not hold the rows that were scheduled")


def rows_on_device(slot_mapping: Any, wanted: Any) -> tuple[Any, Any]:
    """The same without waiting for a device: the rows' index, and a bool that says whether they are the right ones."""
    count = wanted.numel()
    target = wanted.pin_memory().to(slot_mapping.device, non_blocking=True) if slot_mapping.is_cuda else wanted
    first = (slot_mapping == target[0]).to(torch.int32).argmax()
    index = (first + torch.arange(count, device=slot_mapping.device)).clamp_(max=slot_mapping.numel() - 1)
    return index, (slot_mapping.index_select(0, index) == target).all()


@dataclass(frozen=True)
class CacheForm:
    """How a paged cache of keys and values is read: the axes of block, token and, where there is one, of keys and
    values.
    """

    block: int
    token: int
    pair: int | None  # axis of length 2; None: keys and values share the last axis
    block_size: int  # of the tensor: the engine may cut its blocks for the kernel

    def gather(self, cache: Any, slots: Any) -> tuple[Any, Any]:
        """Return keys and values [tokens, heads, width] of slots, which lie on the cache's device, in new memory."""
        b, t = slots // self.block_size, slots % self.block_size
        if self.pair is None:
            both = cache[b, :, t] if self.token == 2 else cache[b, t]
            half = both.shape[-1] // 2
            return both[..., :half], both[..., half:]
        keys, values = cache.unbind(self.pair)
        return keys[b, t], values[b, t]


def cache_form(shape: tuple[int, ...], heads: int, width: int) -> CacheForm:
    """Tell the form of a layer's cache from its shape (logical order; strides may differ). Raises CaptureError."""
    if len(shape) == 4 and shape[1] == heads and shape[3] == 2 * width:
        return CacheForm(0, 2, None, shape[2])
    if len(shape) == 5 and shape[3:] == (heads, width):
        if shape[0] == 2 and shape[1] != 2:
            return CacheForm(1, 2, 0, shape[2])
        if shape[1] == 2 and shape[0] != 2:
            return CacheForm(0, 2, 1, shape[2])
    raise CaptureError(f"a KV cache of shape {list(shape)} for {heads} heads of {width} is not known")


@dataclass
class _Call:
    """Rows of one layer, tokens [first, end) of the prompt, that are projected from the front on."""

    carry: Carry
    layer: int
    rows: Any
    first: int
    end: int
    block: int
    device: Computes
    check: Any
    done: int = 0  # rows

    def make(self, places: list[At]) -> Done:
        """Project what the next places are for, one for each block. See Make."""
        first = self.first + self.done
        n = min((first // self.block + len(places)) * self.block, self.end) - first
        carry, x = self.carry, self.rows[self.done : self.done + n]
        to = [self.device.address(*place) if place is not None else None for place in places]
        ticket: list[int] = []

        def wait() -> bool:
            """Wait for the call, once for each slot that it wrote to."""
            return carry.wait(ticket[0])

        carry.handle.used_by(wait)  # the prompt may be over before its last slots are waited for
        done = self.device.after(wait, self.check)
        ticket.append(carry.project(self.layer, x.data_ptr(), n, first, to, self.device.stream()))
        self.done += n
        return done


class Capture:
    """Takes rows of the steps of one worker and gives them to the requests that they belong to.

    The engine's thread only. What goes wrong with one request ends that request, and is told by the return value of
    nothing: the engine must not notice.
    """

    def __init__(self, model: Model, source: Source, mode: Mode, device: Target) -> None:
        """mode says whether keys and values become pieces of blocks here, or stay rows for the sidecar."""
        self._model, self._source, self._mode, self._device = model, source, mode, device
        self._forms: dict[str, CacheForm] = {}
        self._on_device: dict[int, Any] = {}
        self.active: list[Active] = []

    def start(self, active: list[Active]) -> None:
        """Begin a step."""
        self.active = active
        self._on_device = {}
        for a in active:
            size = self._model.row_bytes * (2 if self._model.kind is Kind.KV else 1)
            tokens = a.chunk.tokens + (params.ENDLESS if a.fills else 0)
            if a.carry is not None:
                size, tokens = a.carry.handle.shape.token_bytes, a.chunk.tokens
            a.request.expect(a.chunk.first, tokens, (layer.index for layer in self._model.layers), size)

    def written(self, layer: Layer, key: Any, value: Any, slot_mapping: Any) -> None:
        """See the keys and values [tokens, heads, width] that a layer is about to write to its cache."""
        for a in self.active:
            self._guarded(a, self._take_written, layer, key, value, slot_mapping)

    def _take_written(self, a: Active, layer: Layer, key: Any, value: Any, slot_mapping: Any) -> None:
        self._fill_up(a, layer)
        first, end = a.request.span(a.chunk.first, a.chunk.tokens, layer.index)
        if first >= end:
            return
        row = self._rows(a, layer, slot_mapping) + first - a.chunk.first
        for what, t in ((What.K, key), (What.V, value)):
            self._put_kv(a.request, layer, what, t[row : row + end - first], first)

    def cached(self, layer: Layer, cache: Any) -> None:
        """See a layer's paged cache after it was written."""
        for a in self.active:
            self._guarded(a, self._take_cached, layer, cache)

    def _take_cached(self, a: Active, layer: Layer, cache: Any) -> None:
        self._fill_up(a, layer)
        first, end = a.request.span(a.chunk.first, a.chunk.tokens, layer.index)
        if first >= end:
            return
        form = self._forms.get(layer.name)
        if form is None:
            form = self._forms[layer.name] = cache_form(tuple(cache.shape), self._model.heads, self._model.width)
        wanted = a.slots_of(layer)
        key = id(wanted)
        if key not in self._on_device:
            self._on_device[key] = wanted.pin_memory().to(cache.device, non_blocking=True) if cache.is_cuda else wanted
        slots = self._on_device[key][first - a.chunk.first : end - a.chunk.first]
        for what, t in zip((What.K, What.V), form.gather(cache, slots), strict=True):
            self._put_kv(a.request, layer, what, t, first)

    def input(self, layer: Layer, x: Any, slot_mapping: Any) -> None:
        """See the attention input [tokens, hidden] of a layer. slot_mapping is that of its window's cache."""
        for a in self.active:
            self._guarded(a, self._take_input, layer, x, slot_mapping)

    def _take_input(self, a: Active, layer: Layer, x: Any, slot_mapping: Any) -> None:
        first, end = self._input_span(a, layer)
        if first >= end:
            return
        if x.dtype != torch.bfloat16 or x.shape[-1] != self._model.width:
            raise CaptureError(f"attention input of type {x.dtype} and width {x.shape[-1]}")
        if a.carry is None:
            self._put_input(a, layer, x, slot_mapping, first, end)
        else:
            self._project(a, a.carry, layer, x, slot_mapping, first, end)

    def _input_span(self, a: Active, layer: Layer) -> tuple[int, int]:
        """Return the part [a, b) of the prompt's tokens whose input this step has and somebody needs; a >= b where it
        is none. Waits for BEGUN, which says so.
        """
        if a.carry is None:
            return a.request.span(a.chunk.first, a.chunk.tokens, layer.index)
        end = min(a.chunk.first + a.chunk.tokens, a.request.reach(layer.index))
        return a.carry.sees(layer.index, a.chunk.first, end, a.request.begun.from_token)

    def _put_input(self, a: Active, layer: Layer, x: Any, slot_mapping: Any, first: int, end: int) -> None:
        """Put the input of tokens [first, end) into slots as it is."""
        skip, count, check = first - a.chunk.first, end - first, None
        if x.is_cuda:
            if layer.group not in a.found:
                a.found[layer.group] = rows_on_device(slot_mapping, a.slots_of(layer))
            index, check = a.found[layer.group]
            rows = x.index_select(0, index[skip : skip + count])
        else:
            row = self._rows(a, layer, slot_mapping) + skip
            rows = x[row : row + count]
        m = self._model
        cutter = RowCutter(layer.index, What.X, m.row_bytes, a.request.begun.block_tokens, first, count, (0, 0))
        a.request.put(cutter, self._fill(rows.unsqueeze(1), first, check, heads_first=False))

    def _project(self, a: Active, carry: Carry, layer: Layer, x: Any, slot_mapping: Any, first: int, end: int) -> None:
        """Have the input of tokens [first, end) become pieces of blocks, on the engine's stream. Those that the decoder
        has already are only carried on from.
        """
        why = carry.refuses(a.request.begun, a.request.arrays)
        if why:
            raise CaptureError(f"the plan's {why} not those that are projected here")
        index, check = self._trusted(a, carry, layer, x, slot_mapping)
        held = a.request.begun.from_token
        if carry.enters(layer.index, first, held):
            carry.skip(layer.index, first, self._device.stream())
        for run in carry.runs(first, end, held):
            at = run.first - a.chunk.first
            rows = self._device.rows(x, index[at : at + run.tokens])
            if run.sent:
                self._send_run(a.request, carry, layer, run, rows, check)
            else:
                nowhere = [None] * carry.touched(run)
                stream = self._device.stream()
                carry.project(layer.index, rows.data_ptr(), run.tokens, run.first, nowhere, stream)

    def _send_run(self, request: Request, carry: Carry, layer: Layer, run: Run, rows: Any, check: Any) -> None:
        """Project a run into slots, in as many calls as those make it."""
        shape = carry.handle.shape
        call = _Call(
            carry=carry,
            layer=layer.index,
            rows=rows,
            first=run.first,
            end=run.first + run.tokens,
            block=shape.key.block,
            device=self._device,
            check=check,
        )
        request.put_parts(list(shape.parts(layer.index, run.first, run.tokens, request.arrays)), call.make)

    def _trusted(self, a: Active, carry: Carry, layer: Layer, x: Any, slot_mapping: Any) -> tuple[Any, Any]:
        """Return the index of the chunk's rows and, on a device, whether they and all before them are the right ones:
        what is made of them depends on all.
        """
        group = layer.group
        if group not in a.found:
            wanted = a.slots_of(layer)
            if not x.is_cuda:
                a.found[group] = (torch.arange(len(wanted)) + rows_on_host(slot_mapping, wanted), None)
            else:
                index, check = rows_on_device(slot_mapping, wanted)
                doubt = carry.doubt.get(group)
                carry.doubt[group] = check if doubt is None else check & doubt
                a.found[group] = (index, carry.doubt[group])
        index, check = a.found[group]
        return index, check

    def _rows(self, a: Active, layer: Layer, slot_mapping: Any) -> int:
        """Return a chunk's first row on the host: looked for once in a step and group, checked in every layer."""
        wanted = a.slots_of(layer)
        held = a.found.get(layer.group)
        if held is not None:
            row = int(held[0])
            if torch.equal(slot_mapping[row : row + wanted.numel()], wanted.to(slot_mapping.dtype)):
                return row
        row = rows_on_host(slot_mapping, wanted)
        a.found[layer.group] = (row, None)
        return row

    def _put_kv(self, request: Request, layer: Layer, what: What, rows: Any, first: int) -> None:
        m = self._model
        if DTYPES.get(rows.dtype) is not m.dtype or tuple(rows.shape[1:]) != (m.heads, m.width):
            raise CaptureError(f"layer {layer.index}: rows of type {rows.dtype} and shape {list(rows.shape)}")
        if self._mode is Mode.ROWS:
            size = request.begun.block_tokens
            cutter: RowCutter | PieceCutter = RowCutter(
                layer.index, what, m.row_bytes, size, first, len(rows), (m.head_first, m.heads)
            )
            request.put(cutter, self._fill(rows, first, None, heads_first=False))
            return
        place = request.place(layer.index, ArrayId(what), m.width * m.dtype.size, m.head_first)
        if place is not None:
            request.put(PieceCutter(place, m.heads, first, len(rows)), self._fill(rows, first, None, heads_first=True))

    def _fill_up(self, a: Active, layer: Layer) -> None:
        """Put zeros behind a prompt that ends in the middle of a block."""
        m = self._model
        if not a.fills or self._mode is not Mode.PIECES:
            return
        first, end = a.request.span(a.chunk.prompt_tokens, params.ENDLESS, layer.index)
        for array in (ArrayId.K, ArrayId.V) if first < end else ():
            place = a.request.place(layer.index, array, m.width * m.dtype.size, m.head_first)
            if place is not None:
                a.request.put(PieceCutter(place, m.heads, first, end - first), zeros)

    def _fill(self, rows: Any, first: int, check: Any, heads_first: bool) -> Fill:
        """Return what copies a cut of rows [tokens, heads, width], in the order of blocks or of rows."""

        def fill(ring: Ring, at: int, cut: Cut) -> Done | None:
            begin = cut.first - first
            part = (
                rows[begin : begin + cut.tokens, cut.head : cut.head + cut.heads]
                if heads_first
                else rows[begin : begin + cut.tokens]
            )
            if cut.blocks:
                part = part.unflatten(0, (cut.blocks, -1)).transpose(1, 2)
            elif heads_first:
                part = part.transpose(0, 1)
            return self._device.copy(part, ring, at, check)

        return fill

    def _guarded(self, a: Active, take: Callable[..., None], *rows: Any) -> None:
        """Let what is wrong with a request be that request's end and nobody else's."""
        try:
            take(a, *rows)
        except Exception as e:
            a.request.abort(f"{type(e).__name__}: {e}")
