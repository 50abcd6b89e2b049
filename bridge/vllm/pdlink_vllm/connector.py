"""The KV connector: vLLM's interface on one side, everything else of this package on the other.

    --kv-transfer-config '{"kv_connector": "PDLinkConnector", "kv_connector_module_path": "pdlink_vllm.connector",
        "kv_role": "kv_producer", "kv_connector_extra_config": {"socket": "/run/pdlink/engine.sock"}}'

It only ever takes: no block of it is loaded, none is kept from being freed, and no request is delayed or changed,
beyond computing rows that the engine could have taken from its prefix cache. What cannot work is refused with one line
in the log and in the answers of requests that asked for it; the engine goes on without us.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import vllm

from pdlink_vllm import engine, facts, params, scheduler
from pdlink_vllm.capture import DTYPES
from pdlink_vllm.device import Cpu, Cuda
from pdlink_vllm.engine import Refusal, Settings, Source
from pdlink_vllm.link import Link
from pdlink_vllm.projection.maker import Maker, Options
from pdlink_vllm.scheduler import KEY, Step
from pdlink_vllm.worker import Worker, hello, hook

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        KVConnectorRole,
        SupportsHMA,
    )
except ImportError as e:  # without these there is no connector that could be switched off
    raise ImportError(f"pdlink: no connector for vLLM {vllm.__version__}, only {engine.TESTED} are tested: {e}") from e

log = logging.getLogger("vllm.pdlink")  # vLLM's own handlers and level, as of everything below "vllm"

R = TypeVar("R")


def _never_raises(method: Callable[..., R]) -> Callable[..., R | None]:
    """A fault of ours must not become the engine's: it is logged with its traceback, and switches the connector off."""

    @functools.wraps(method)
    def guarded(self: PDLinkConnector, *args: Any, **named: Any) -> R | None:
        if self.off:
            return None
        try:
            return method(self, *args, **named)
        except Refusal as e:
            self.switch_off(str(e))
            if e.__cause__ is not None:
                log.warning("pdlink: where that was", exc_info=e.__cause__)
        except Exception as e:
            log.exception("pdlink: an error in %s; no more is handed over", method.__name__)
            self.switch_off(f"{type(e).__name__}: {e}")
        return None

    return guarded


class StepMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """A step on its way from the scheduler's process to the workers."""

    def __init__(self, step: Step) -> None:
        """Wrap a step; it is pickled."""
        self.step = step


class PDLinkConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """One object in the scheduler's process and one in each worker's. See vLLM's base class for who calls what when."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        """See the base class. Whatever is wrong, the engine starts."""
        super().__init__(vllm_config, role, kv_cache_config)
        self.off = ""
        self._tracker: scheduler.Tracker | None = None
        self._worker: Worker | None = None
        self._source = Source.WRITER
        self._steps: list[Step] = []
        self._set_up(vllm_config, role, kv_cache_config)

    @_never_raises
    def _set_up(self, config: Any, role: Any, kv_cache_config: Any) -> None:
        with engine.asked(vllm.__version__):
            self._look(config, role, kv_cache_config)

    def _look(self, config: Any, role: Any, kv_cache_config: Any) -> None:
        from vllm.platforms import current_platform

        self._settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config or {})
        self._adapter = engine.adapter(vllm.__version__, self._settings.untested)
        on_cpu = bool(current_platform.is_cpu())
        if not on_cpu and not current_platform.is_cuda():
            raise Refusal(f"the platform {current_platform.device_name} is not supported, only CUDA and CPU")
        engine.check_config(config, kv_cache_config, on_cpu)
        self._source = engine.source(config, on_cpu)
        if role == KVConnectorRole.SCHEDULER:
            options = scheduler.Options(engine.block_sizes(kv_cache_config), gathers=self._source is Source.CACHE)
            self._tracker = scheduler.Tracker(options)

    def switch_off(self, why: str) -> None:
        """Take part in nothing any more."""
        self.off = why
        log.error("pdlink: nothing is handed over: %s", why)
        worker, self._worker, self._tracker = self._worker, None, None
        if worker is not None:
            worker.close()

    # The scheduler's side.

    @property
    def requires_kv_delivery(self) -> bool:
        """Rows are taken while they are computed: a preempted request owes nobody anything."""
        return False

    @_never_raises
    def on_new_request(self, request: Any) -> None:
        """See the base class (from 0.28 on)."""
        if self._tracker is not None:
            self._tracker.add(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See the base class: we never have anything. None makes the scheduler ask again in its next step."""
        return None if self._matched(request, num_computed_tokens) is False else 0, False

    @_never_raises
    def _matched(self, request: Any, computed: int) -> bool:
        return self._tracker is None or self._tracker.matched(request, computed)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int, *_: Any) -> None:
        """See the base class: nothing to do."""

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """See the base class."""
        return StepMetadata(self._build(scheduler_output) or Step())

    @_never_raises
    def _build(self, output: Any) -> Step:
        return Step() if self._tracker is None else self._tracker.step(output)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """See the base class: blocks may be freed at once. The parameters go to the client in the answer."""
        if self.off:
            asked = isinstance(request.kv_transfer_params, dict) and KEY in request.kv_transfer_params
            return False, {KEY: {"declined": self.off}} if asked else None
        return False, self._finished(request)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """See SupportsHMA."""
        return self.request_finished(request, block_ids)

    @_never_raises
    def _finished(self, request: Any) -> dict[str, Any] | None:
        return None if self._tracker is None else self._tracker.finished(request)

    # The worker's side.

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A graph of a whole forward pass would call nobody between the layers."""
        return True

    @_never_raises
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """See the base class. The model is loaded: find its layers, listen to them, and look for the sidecar."""
        with engine.asked(vllm.__version__):
            loaded, model = self._find(kv_caches)
        if model.replica:
            log.info("pdlink: rank %d has the same heads as another and hands nothing over", loaded.ranks.tp)
            return
        self._take_part(loaded, model)

    def _find(self, kv_caches: dict[str, Any]) -> tuple[engine.Loaded, engine.Model]:
        """Ask the engine for everything that we need to know of it."""
        from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
        from vllm.distributed.parallel_state import get_node_count

        config = self._vllm_config
        ranks = engine.Ranks(
            tp=get_tensor_model_parallel_rank(),
            tp_size=get_tensor_model_parallel_world_size(),
            pp_size=get_pp_group().world_size,
            hosts=get_node_count(),
            pp=get_pp_group().rank_in_group,
        )
        modules = config.compilation_config.static_forward_context
        loaded = engine.Loaded(
            config=config,
            kv_cache_config=self._kv_cache_config,
            caches=kv_caches,
            modules=modules,
            ranks=ranks,
            dtypes=DTYPES,
            get_model=engine.model_getter(),
        )
        if loaded.get_model is None:
            log.warning(
                "pdlink: no caller of register_kv_caches has get_model() in vLLM %s: blocks are handed over, but the "
                "decoder cannot compare its model with this one",
                vllm.__version__,
            )
        return loaded, engine.inspect(loaded, self._adapter, self._source)

    def _take_part(self, loaded: engine.Loaded, model: engine.Model) -> None:
        """Start what hands a model's rows over. What else fails here is our own fault, not the engine's."""
        ranks = loaded.ranks
        with engine.asked(vllm.__version__):
            here = engine.local_workers(self._settings, model, loaded.config, ranks)
        link = Link(
            path=self._settings.socket.replace(engine.RANK, str(ranks.rank)),
            hello=hello(model, ranks.tp, ranks.tp_size, here),
            log=log,
            facts=facts.document(loaded, model),
        )
        caches = loaded.caches.values()
        where = next((t.device for t in caches if isinstance(t, torch.Tensor)), torch.device("cpu"))
        device = Cuda(where, log) if where.type == "cuda" else Cpu()
        try:
            self._worker = Worker(
                link=link,
                model=model,
                source=self._source,
                device=device,
                log=log,
                budget=self._settings.wait_ms / 1000,
                maker=self._maker(model, ranks, device),
            )
            hook(self._worker, self._source, self._adapter)
        except BaseException:
            device.close()  # nobody else knows of its thread as long as there is no worker
            raise
        self._caches = {layer.name: layer for layer in model.layers} if self._source is Source.CACHE else {}
        link.start()
        log.info(
            "pdlink: layers %d to %d, taken from %s", model.layers[0].index, model.layers[-1].index, self._source.value
        )

    def _maker(self, model: engine.Model, ranks: engine.Ranks, device: Cpu | Cuda) -> Maker | None:
        """Return what projects DeepSeek-V4 here, where the settings have it and there is a GPU."""
        s = self._settings
        if self._source is not Source.INPUT or not s.projection_library:
            return None
        if not isinstance(device, Cuda):
            log.warning("pdlink: projection_library is for CUDA devices, rows go to the sidecar")
            return None
        tokens = min(params.PROJECTED_TOKENS, int(self._vllm_config.scheduler_config.max_num_batched_tokens))
        options = Options(
            library=Path(s.projection_library),
            weights=Path(s.projection_weights),
            sha256=s.projection_sha256,
            device=device.index,
            block_tokens=params.BLOCK_TOKENS,
            layers=(model.layers[0].index, model.layers[-1].index + 1),
            rank=ranks.tp,
            ranks=ranks.tp_size,
            hidden=model.width,
            tokens=tokens,
            x=device.reserve(tokens, model.width),
        )
        return Maker(options, log, enter=device.enter)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """See the base class: before every forward pass, and nothing else comes before the layers in all versions."""
        super().bind_connector_metadata(connector_metadata)
        self._begin_step(connector_metadata)

    @_never_raises
    def _begin_step(self, metadata: Any) -> None:
        if self._worker is not None and isinstance(metadata, StepMetadata):
            self._worker.begin_step(metadata.step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """See the base class: nothing is loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """See the base class: nothing is loaded."""

    @_never_raises
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """See the base class: after a layer's cache was written."""
        if self._worker is None or not self._worker.capture.active:
            return
        layer = self._caches.get(layer_name)
        if layer is not None:
            self._worker.capture.cached(layer, kv_layer)

    @_never_raises
    def wait_for_save(self) -> None:
        """See the base class: after the forward pass."""
        if self._worker is not None:
            self._worker.end_step()

    def shutdown(self) -> None:
        """See the base class."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
