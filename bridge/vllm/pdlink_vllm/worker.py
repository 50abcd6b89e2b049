"""What the connector does in a worker process: one object that turns steps into requests at the sidecar."""

from __future__ import annotations

import logging
from typing import Any

from pdlink_vllm import params, wire
from pdlink_vllm.capture import Active, Capture
from pdlink_vllm.device import Device
from pdlink_vllm.engine import Adapter, Layer, Model, Source
from pdlink_vllm.link import Link
from pdlink_vllm.request import Layouts, Offer, Request, State
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
    ) -> None:
        """The link is started by the caller, and closed by close. budget is for each request, in seconds."""
        self._budget = budget
        self._link, self.model, self._device, self._log = link, model, device, log
        self._mode = Mode.PIECES if model.kind is Kind.KV else Mode.ROWS
        self.capture = Capture(model, source, self._mode, device)
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
                active.append(Active(chunk, request))
        self.capture.start(active)

    def end_step(self) -> None:
        """Hand over what the step left in slots that are not full, and end the prompts that are complete."""
        for a in self.capture.active:
            a.request.flush()
            if a.chunk.last:
                a.request.end(a.chunk.first + a.chunk.tokens)
        self.capture.start([])
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
        self._device.close()

    def _begin(self, chunk: Chunk) -> Request:
        m = self.model
        row = m.row_bytes if self._mode is Mode.ROWS else 0
        offer = Offer(chunk.transfer, chunk.prompt_tokens, chunk.begin, self._mode, m.dtype, row, self._budget)
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
