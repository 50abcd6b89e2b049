"""What the connector does in a worker process: one object that turns steps into requests at the sidecar."""

from __future__ import annotations

import logging
from typing import Any

from pdlink_vllm import params, wire
from pdlink_vllm.capture import Active, Capture
from pdlink_vllm.device import Device
from pdlink_vllm.engine import Adapter, Layer, Model, Source
from pdlink_vllm.link import Link
from pdlink_vllm.offer import Layouts, Offer
from pdlink_vllm.projection.handle import Carry
from pdlink_vllm.projection.maker import Maker
from pdlink_vllm.projection.shape import PREVIOUS
from pdlink_vllm.request import Request, State
from pdlink_vllm.scheduler import Chunk, Step
from pdlink_vllm.wire import Kind, Mode


class Worker:
    """Follows the steps of one worker. The engine's thread only; nothing is raised to it by what happens at the
    sidecar.
    """

    def __init__(
        self,
        link: Link,
        model: Model,
        source: Source,
        device: Device,
        log: logging.Logger,
        budget: float = params.WAIT_BUDGET,
        maker: Maker | None = None,
    ) -> None:
        """The link is started by the caller, and closed by close, as maker is, which projects DeepSeek-V4 here. budget
        is for each request, in seconds.
        """
        self._budget = budget
        self._link, self.model, self._device, self._log = link, model, device, log
        self._mode = Mode.PIECES if model.kind is Kind.KV else Mode.ROWS
        self.capture = Capture(model, source, self._mode, device)
        self._maker = maker
        if maker is not None:
            device.before_detach(maker.quiet)
        self._carries: dict[str, Carry] = {}
        self._layouts = Layouts()
        self._requests: dict[str, Request] = {}
        self._complete: set[str] = set()  # of these, the engine has shown all that it ever will

    def begin_step(self, step: Step) -> None:
        """Prepare a step, before the forward pass."""
        for rid in step.gone:
            request = self._requests.get(rid)
            if request is not None:
                request.abort("the engine's request ended early")
                self._complete.add(rid)
        active = []
        for chunk in step.chunks:
            request = self._requests.get(chunk.req_id) or self._begin(chunk)
            if chunk.last:
                self._complete.add(chunk.req_id)
            if request.state in (State.BEGINNING, State.LIVE):
                active.append(Active(chunk, request, carry=self._carries.get(chunk.req_id)))
        self.capture.start(active)

    def end_step(self) -> None:
        """Hand over what the step left in slots that are not full, and end the prompts that are complete."""
        for a in self.capture.active:
            a.request.flush()
            if a.chunk.last:
                a.request.end(a.chunk.first + a.chunk.tokens)
        self._learn()
        self.capture.start([])
        over = (State.ENDED, State.OVER)
        for rid in [rid for rid in self._carries if rid in self._complete or self._requests[rid].state in over]:
            self._carries.pop(rid).close()  # nothing more will be projected
        for rid in [rid for rid in self._complete if self._requests[rid].expired()]:
            self._complete.remove(rid)
            self._requests.pop(rid).forget()

    def fail(self, why: str) -> None:
        """End the requests of the step that is being computed."""
        for a in self.capture.active:
            a.request.abort(why)

    def close(self) -> None:
        """End everything; idempotent."""
        self.capture.start([])
        self._link.close()
        if self._maker is not None:
            self._maker.quiet()
        self._device.close()
        while self._carries:
            self._carries.popitem()[1].close()
        if self._maker is not None:
            self._maker.close()

    def _learn(self) -> None:
        """Tell the maker what the sidecar wants of us, so that it has that for the next prompt."""
        for a in self.capture.active if self._maker is not None else ():
            b = a.request.begun
            if self._maker is None or b.block_tokens == 0:
                continue
            if self._maker.learn(b.block_tokens, b.layer_first, b.layer_end) and a.carry is not None:
                arrays = a.request.arrays
                if arrays and not any((i, array) in arrays for i, _ in arrays for array in PREVIOUS):
                    self._maker.without_previous()

    def _carry(self, chunk: Chunk) -> Carry | None:
        """Begin a prompt on the device; None where its rows are to stay rows."""
        ring = self._link.ring
        if self._maker is None or chunk.begin or ring is None or not self._maker.fits(ring.geometry.room):
            return None
        return self._maker.open()

    def _begin(self, chunk: Chunk) -> Request:
        m = self.model
        carry = self._carry(chunk)
        if carry is not None:
            self._carries[chunk.req_id] = carry
        mode = self._mode if carry is None else Mode.PIECES
        row = m.row_bytes if mode is Mode.ROWS else 0
        offer = Offer(
            transfer=chunk.transfer,
            prompt_tokens=chunk.prompt_tokens,
            first_token=chunk.begin,
            mode=mode,
            dtype=m.dtype,
            row_bytes=row,
            budget=self._budget,
        )
        request = Request(self._link, self._layouts, offer, self._device.later, self._log)
        self._requests[chunk.req_id] = request
        request.begin()
        return request


def hook(worker: Worker, source: Source, adapter: Adapter) -> None:
    """Put our ears where a model's rows pass. Rows of steps without a chunk of ours cost a test of an empty list."""
    for layer in worker.model.layers:
        if source is Source.WRITER:
            _hook_writer(worker, layer, adapter)
        elif source is Source.INPUT:
            _hook_input(worker, layer)


def _hook_writer(worker: Worker, layer: Layer, adapter: Adapter) -> None:
    """Wrap the method that is given keys, values and their slots: on this object, not on its class."""
    impl = layer.module.impl
    inner = getattr(impl, adapter.writer)

    def write(module: Any, key: Any, value: Any, cache: Any, slot_mapping: Any, *rest: Any, **named: Any) -> Any:
        if worker.capture.active and module is layer.module:
            worker.capture.written(layer, key, value, slot_mapping)
        return inner(module, key, value, cache, slot_mapping, *rest, **named)

    def forward(
        module: Any, query: Any, key: Any, value: Any, cache: Any, metadata: Any, *rest: Any, **named: Any
    ) -> Any:
        if worker.capture.active and module is layer.module and metadata is not None:
            worker.capture.written(layer, key, value, metadata.slot_mapping)
        return inner(module, query, key, value, cache, metadata, *rest, **named)

    setattr(impl, adapter.writer, forward if adapter.writer == "forward" else write)


def _hook_input(worker: Worker, layer: Layer) -> None:
    """Be told of a DeepSeek-V4 layer's attention input before the layer is."""
    from vllm.forward_context import get_forward_context

    def before(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not worker.capture.active:
            return
        x = named.get("hidden_states", args[1] if len(args) > 1 else None)
        metadata = get_forward_context().attn_metadata
        own = metadata.get(layer.name) if isinstance(metadata, dict) else None
        slot_mapping = getattr(own, "slot_mapping", None)
        if x is None or slot_mapping is None:
            worker.fail("a layer was called without its input or its slots")
            return
        worker.capture.input(layer, x, slot_mapping)

    layer.module.register_forward_pre_hook(before, with_kwargs=True)


def hello(model: Model, tp: int, tp_size: int, local_workers: int) -> wire.Hello:
    """Say who a worker is. Flags, instance and process are the link's."""
    layers = model.layers
    return wire.Hello(
        tp_rank=tp,
        tp_size=tp_size,
        local_workers=local_workers,
        layer_first=layers[0].index,
        layer_end=layers[-1].index + 1,
        head_first=model.head_first,
        head_end=model.head_end,
    )
