"""A tiny model of DeepSeek-V4's shape that the decoder can load, and the pdlink case of one prompt on it.

The weights are random with a fixed seed; only shapes and names matter. Every kind of layer is there: window only
(ratio 0), overlapping pools with an indexer (ratio 4), plain pools (ratio 128).
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from omlx.cache.paged_cache import compute_block_hash
from omlx.patches.deepseek_v4 import apply_deepseek_v4_patch

import decoder

MODEL_ID = "tiny-dsv4"
BLOCK_SIZE = 512  # the decoder's own choice for a model with a window of 128
SEED = 20261129
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
FLOAT32_PARAMETERS = ("attn_sink", "hc", "ape", "e_score")  # the rest of a checkpoint is bfloat16

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 768,
    "hidden_size": 128,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "head_dim": 96,
    "qk_rope_head_dim": 32,
    "index_n_heads": 2,
    "index_head_dim": 64,
    "index_topk": 64,
    "compress_ratios": [0, 4, 128, 4],
    "sliding_window": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 1048576,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "bos_token_id": None,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}

# What pdlink needs of the configuration: the geometry of what is cached.
GEOMETRY = (
    "hidden_size",
    "num_hidden_layers",
    "head_dim",
    "qk_rope_head_dim",
    "index_head_dim",
    "sliding_window",
    "rms_norm_eps",
    "rope_theta",
    "compress_rope_theta",
    "rope_scaling",
    "compress_ratios",
    "max_position_embeddings",
)


def _classes() -> Any:
    """The decoder's module with the model classes; the patch registers it."""
    apply_deepseek_v4_patch()
    return importlib.import_module("mlx_lm.models.deepseek_v4")


def _parameter(name: str, old: mx.array, rng: np.random.Generator) -> mx.array:
    """A random parameter of the shape and kind of `old`, scaled so that activations stay near 1."""
    if not mx.issubdtype(old.dtype, mx.floating):
        return mx.array(rng.integers(0, CONFIG["n_routed_experts"], old.shape)).astype(old.dtype)
    noise = rng.standard_normal(old.shape, np.float32)
    if "norm" in name:
        noise = 1 + 0.2 * noise
    elif "embed" not in name:
        noise = noise * np.float32(old.shape[-1] ** -0.5 if old.ndim > 1 else 0.2)
    is_f32 = any(part in name for part in FLOAT32_PARAMETERS)
    return mx.array(noise).astype(mx.float32 if is_f32 else mx.bfloat16)


def make_model(out: Path, tokenizer_dir: Path) -> None:
    """Write the model to a new directory; same seed, same bytes. The tokenizer is borrowed from another tiny model."""
    classes = _classes()
    model = classes.Model(classes.ModelArgs.from_dict(CONFIG))
    rng = np.random.default_rng(SEED)
    weights = {name: _parameter(name, old, rng) for name, old in sorted(tree_flatten(model.parameters()))}
    out.mkdir()
    mx.save_safetensors(str(out / "model.safetensors"), weights, {"format": "mlx"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1))
    for name in TOKENIZER_FILES:
        shutil.copy(tokenizer_dir / name, out / name)


@contextmanager
def _recorded(classes: Any) -> Iterator[dict[int, mx.array]]:
    """Record what each layer's attention is given, [tokens, hidden] by layer number, during one forward pass."""
    seen: dict[int, mx.array] = {}
    kinds = (classes.LocalAttention, classes.CompressedAttention, classes.SparseCompressedAttention)
    originals = [kind.__call__ for kind in kinds]

    def recorder(inner: Any) -> Any:
        def call(self: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
            seen[int(self.layer_idx)] = x[0]
            return inner(self, x, *args, **kwargs)

        return call

    for kind, inner in zip(kinds, originals, strict=True):
        kind.__call__ = recorder(inner)
    try:
        yield seen
    finally:
        for kind, inner in zip(kinds, originals, strict=True):
            kind.__call__ = inner


def _projections(model: Any) -> dict[str, mx.array]:
    """The weights that produce cached values, under the names of a case's weights.safetensors."""
    out: dict[str, mx.array] = {}
    for i, layer in enumerate(model.layers):
        attn = layer.attn
        out[f"layer_{i}.wkv.weight"] = attn.wkv.weight
        out[f"layer_{i}.kv_norm.weight"] = attn.kv_norm.weight
        indexer = getattr(attn, "indexer", None)
        pools = {"comp": getattr(attn, "compressor", None), "idx": getattr(indexer, "compressor", None)}
        for tag, pool in pools.items():
            if pool is None:
                continue
            out[f"layer_{i}.{tag}.wkv.weight"] = pool.wkv.weight
            out[f"layer_{i}.{tag}.wgate.weight"] = pool.wgate.weight
            out[f"layer_{i}.{tag}.ape"] = pool.ape
            out[f"layer_{i}.{tag}.norm.weight"] = pool.norm.weight
    return out


def _chain(prompt: Sequence[int], model_id: str) -> list[str]:
    """The decoder's own hashes of a prompt's whole blocks, in hexadecimal."""
    parent, out = None, []
    for begin in range(0, len(prompt) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = compute_block_hash(parent, list(prompt[begin : begin + BLOCK_SIZE]), model_name=model_id)
        out.append(parent.hex())
    return out


def make_case(out: Path, model_dir: Path, prompt: Sequence[int], captured: int) -> None:
    """Write the case of a prompt: the attention inputs of its first `captured` tokens, and the projection weights.

    The inputs come from one forward pass over all captured tokens: within a pass this decoder's pools overlap as they
    should; between passes it drops the overlap.
    """
    model, _ = decoder.load(model_dir)
    with _recorded(_classes()) as seen:
        decoder.prefill(model, prompt[:captured])
    out.mkdir()
    capture = {f"layer_{i}.x": x for i, x in sorted(seen.items())}
    mx.save_safetensors(str(out / "capture.safetensors"), capture, {"model": out.name})
    mx.save_safetensors(str(out / "weights.safetensors"), _projections(model), {"model": out.name})
    about = {
        "kind": "dsv4",
        "model": out.name,
        "decoder": "omlx",
        "format": "3",
        "block_size": BLOCK_SIZE,
        "numerics": "mlx-cpu",
        "pool_state_elements": 3,
        "config": {key: CONFIG[key] for key in GEOMETRY},
        "tokens": list(prompt),
        "captured_tokens": captured,
        "blocks": _chain(prompt, out.name),
    }
    (out / "case.json").write_text(json.dumps(about, indent=1))


def _arrays(cache: Any) -> list[mx.array]:
    """The arrays that one layer's cache holds, windows in time order, buffers cut to what is filled."""
    parts = getattr(cache, "caches", None) or (cache,)
    out: list[mx.array] = []
    for part in parts:
        if hasattr(part, "_temporal_order"):
            out.append(part._temporal_order(part.keys)[..., -part.max_size :, :])
        elif hasattr(part, "pooled"):
            out.extend(a for a in part.state if a is not None)
        else:
            out.extend(a[..., : part.offset, :] for a in (part.keys, part.values))
    return out


def differing(restored: Sequence[Any], plain: Sequence[Any]) -> list[int]:
    """Numbers of the layers whose restored arrays are not those of a plain pass, bit for bit."""
    bad = []
    for i, (a, b) in enumerate(zip(restored, plain, strict=True)):
        ours, theirs = _arrays(a), _arrays(b)
        same = len(ours) == len(theirs) and all(
            x.shape == y.shape and x.dtype == y.dtype and bool(mx.array_equal(x, y).item())
            for x, y in zip(ours, theirs, strict=True)
        )
        if not same:
            bad.append(i)
    return bad
