"""A real oMLX engine in this process: load a model, generate over a block store, look at what was restored.

Everything here runs on MLX's CPU back end. One engine has one store and one freshly loaded model; engines are not run
at the same time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import make_prompt_cache
from omlx.engine_core import AsyncEngineCore, EngineConfig
from omlx.request import SamplingParams
from omlx.scheduler import SchedulerConfig
from omlx.utils.model_loading import materialize_lazy_state, maybe_apply_pre_load_patches

STORE_LIMIT = 1 << 30  # bytes; far above any case, so that the decoder evicts nothing during a check


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one request gave: greedy token ids, and how many tokens of the prompt came out of the store."""

    tokens: list[int]
    cached: int


def widen_gather_mm() -> None:
    """Let mixture-of-experts models run: the CPU back end multiplies gathered matrices in float32 only.

    The wrapper computes in float32 and rounds back. Only expert layers use it: no cached tensor's arithmetic changes.
    """
    inner = mx.gather_mm

    def gather_mm(a: mx.array, b: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        return inner(a.astype(mx.float32), b.astype(mx.float32), *args, **kwargs).astype(a.dtype)

    mx.gather_mm = gather_mm


def load(model_dir: Path) -> tuple[Any, Any]:
    """Load model and tokenizer from a directory in Hugging Face form."""
    maybe_apply_pre_load_patches(str(model_dir))
    loaded = mlx_lm.load(str(model_dir))
    model, tokenizer = loaded[0], loaded[1]
    materialize_lazy_state(model)  # RoPE tables must not stay bound to the stream of this thread
    return model, tokenizer


class Decoder:
    """One engine over one store. `start` before anything else, `stop` at the end; not for several threads."""

    def __init__(self, model_dir: Path, model_id: str, store: Path, block_size: int) -> None:
        self.model, tokenizer = load(model_dir)
        wanted = {
            "paged_ssd_cache_dir": str(store),
            "paged_ssd_cache_max_size": STORE_LIMIT,
            "paged_cache_block_size": block_size,
            "model_name": model_id,
            "model_path": str(model_dir),
            "max_num_seqs": 4,
        }
        known = {f.name for f in dataclasses.fields(SchedulerConfig)}  # versions differ in which of these they have
        scheduler = SchedulerConfig(**{k: v for k, v in wanted.items() if k in known})
        config = EngineConfig(model_name=str(model_dir), scheduler_config=scheduler)
        self._core = AsyncEngineCore(model=self.model, tokenizer=tokenizer, config=config)

    @property
    def block_size(self) -> int:
        """Tokens a block, as the decoder settled it: it raises the number for models with sliding windows."""
        return int(self._core.engine.scheduler.config.paged_cache_block_size)

    async def start(self) -> None:
        """Start the engine; the store is scanned here."""
        await self._core.engine.start()

    async def stop(self) -> None:
        """Stop the engine and release its store."""
        await self._core.stop()
        self._core.engine.close()

    async def generate(self, prompt: Sequence[int], count: int) -> Answer:
        """Decode `count` tokens greedily after the prompt's token ids."""
        params = SamplingParams(max_tokens=count, temperature=0.0)
        out = await self._core.generate(prompt=list(prompt), sampling_params=params)
        return Answer(tokens=list(out.output_token_ids), cached=int(out.cached_tokens))

    def restore(self, prompt: Sequence[int]) -> tuple[list[Any], int]:
        """Rebuild the per-layer caches for a prompt from the store, with the decoder's own code.

        Returns the caches and the number of tokens that they cover; ([], 0) when the store has nothing for it.
        """
        prefix = self._core.engine.scheduler.block_aware_cache
        table, _ = prefix.fetch_cache("testdecoder", list(prompt))
        caches = prefix.reconstruct_cache(table) if table else None
        return (caches, int(table.num_tokens)) if caches else ([], 0)


def prefill(model: Any, prompt: Sequence[int]) -> list[Any]:
    """Caches after one plain forward pass over the whole prompt, without an engine."""
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([list(prompt)]), cache=caches))
    return caches


def logits(model: Any, tokens: Sequence[int], caches: list[Any]) -> mx.array:
    """Float32 logits [len(tokens), vocabulary] of tokens fed after what the caches hold; advances the caches."""
    return model(mx.array([list(tokens)]), cache=caches)[0].astype(mx.float32)


def max_diff(a: mx.array, b: mx.array) -> float:
    """Largest absolute difference of two arrays of one shape; NaN anywhere gives NaN."""
    return float(mx.abs(a - b).max().item())
