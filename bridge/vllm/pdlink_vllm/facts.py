"""What the loaded model is: numbers that the decoder's model must share, read off the loaded modules.

Rows of another model, of other weights or of another rotation become blocks like right ones, and nothing shows it. So
the sidecar is told what this engine has loaded, and the decoder's end compares. bridge/facts/FACTS.md is the
specification of the document. What is not where it is looked for is left out, with the reason.

Only `rotation` and what it needs computes with tensors, once, while the engine starts.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pdlink_vllm import params
from pdlink_vllm.engine import Loaded, Model
from pdlink_vllm.wire import Kind

VERSION = 1
# What a rotation is told at, as the specification has it.
POSITIONS = (1, 255, 4095, 32767)
PAIRS = 8  # that a rotation is told at, less one

# Tensors that quantisation leaves alone, beside norms: by the last part of their path.
LEFT_ALONE = ("attn_sink", "sinks", "ape", "tid2eid", "e_score_correction_bias")

# The decoder's words for what this engine calls otherwise.
RENAMED = (
    (re.compile(r"^hc_(attn|ffn)_(fn|base|scale)$"), r"\1_hc.\2"),
    (re.compile(r"\.mla_attn\."), "."),
)


class Missing(Exception):
    """Something is not where it is looked for. The text says what."""


def document(loaded: Loaded, model: Model) -> bytes:
    """Return the document of this worker's part of the model, as JSON. Nothing is raised."""
    out: dict[str, Any] = {"version": VERSION}
    try:
        _geometry(out, loaded, model)
        root = root_of(loaded.get_model, model.layers[0].module)
        parts = {layer.index: _layer_of(root, layer.module) for layer in model.layers}
    except Exception as e:
        _silent(out, "", e)
        return _encode(out)
    looked = [k for k in sampled(out["layers"], out.get("ratios", [])) if k in parts]
    steps: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("rope", lambda: {str(k): rotation(_turned(parts[k], model)) for k in looked}),
        ("tensors", lambda: _tensors(root, parts, looked, loaded, model)),
        ("vocab", lambda: _vocabulary(root)),
        ("hidden", lambda: int(_norm(parts[model.layers[0].index]).weight.shape[0])),
        ("eps", lambda: number(float(_norm(parts[model.layers[0].index]).variance_epsilon))),
    )
    for field, run in steps:
        try:
            out[field] = run()
        except Exception as e:
            _silent(out, field, e)
    return _encode(out)


def _encode(out: dict[str, Any]) -> bytes:
    text = json.dumps(out, separators=(",", ":")).encode()
    if len(text) > params.MAX_FACTS:
        out = {"version": VERSION, "unknown": {"": f"{len(text)} bytes, limit {params.MAX_FACTS}"}}
        text = json.dumps(out, separators=(",", ":")).encode()
    return text


def _silent(out: dict[str, Any], field: str, e: Exception) -> None:
    """Note why a field is missing."""
    why = str(e) if isinstance(e, Missing) else f"{type(e).__name__}: {e}"
    out.setdefault("unknown", {})[field] = why[: params.REASON]


def sampled(layers: int, ratios: list[int]) -> list[int]:
    """Return the layers that are looked at."""
    firsts = {ratios.index(r) for r in set(ratios)}
    return sorted({0, layers // 2, layers - 1} | firsts)


def number(value: float) -> float:
    """Return six digits of a number."""
    return float(f"{float(value):.6g}")


def _geometry(out: dict[str, Any], loaded: Loaded, model: Model) -> None:
    """Numbers of the whole model."""
    config = loaded.config.model_config
    text = config.hf_text_config
    first = model.layers[0].module
    out["layers"] = int(text.num_hidden_layers)
    out["dtype"] = model.dtype.name
    if model.kind is Kind.KV:
        out["kind"] = "kv"
        out["kv_heads"] = int(config.get_total_num_kv_heads())
        out["head_dim"] = model.width
        heads = getattr(first, "num_heads", None)
        if isinstance(heads, int):
            out["heads"] = heads * loaded.ranks.tp_size
        return
    out["kind"] = "dsv4"
    out["head_dim"] = int(_need(first, "head_dim"))
    out["window"] = int(_need(first, "window_size"))
    heads = getattr(first, "n_heads", None)
    if isinstance(heads, int):
        out["heads"] = heads
    # Of other stages only the configuration tells; the engine calls ratio 0 1.
    ratios = [int(r) for r in list(text.compress_ratios)[: out["layers"]]]
    for layer in model.layers:
        ratios[layer.index] = int(_need(layer.module, "compress_ratio"))
    out["ratios"] = [0 if r == 1 else r for r in ratios]


def _need(module: Any, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise Missing(f"{type(module).__name__} has no {name}")
    return found


def root_of(get_model: Callable[[], Any] | None, module: Any) -> Any:
    """Return the model that a module is part of. Raises Missing, and what get_model raises."""
    if get_model is None:
        raise Missing("no caller of register_kv_caches has get_model(): this version of the engine keeps it elsewhere")
    root = get_model()
    if not callable(getattr(root, "named_modules", None)):
        raise Missing(f"get_model() returns a {type(root).__name__}, which has no named_modules()")
    if not any(m is module for m in root.modules()):
        raise Missing(f"get_model() returns a {type(root).__name__}, of which {type(module).__name__} is no part")
    return root


_LAYER = re.compile(r"^(?:.*\.)?layers\.\d+")


def _layer_of(root: Any, module: Any) -> tuple[str, Any]:
    """Return a module's layer in the model, with its name."""
    for name, m in root.named_modules():
        if m is module:
            found = _LAYER.match(name)
            if found is not None:
                return found.group(0), root.get_submodule(found.group(0))
    raise Missing(f"the model has no layer with its {type(module).__name__}")


def _norm(part: tuple[str, Any]) -> Any:
    """Return the norm at a layer's beginning."""
    for name in ("input_layernorm", "attn_norm", "attention_norm"):
        found = getattr(part[1], name, None)
        if found is not None:
            return found
    raise Missing(f"{type(part[1]).__name__} has no norm at its beginning")


def _vocabulary(root: Any) -> int:
    """Return the rows of the embedding, without what the engine pads it with."""
    for m in root.modules():
        found = getattr(m, "org_vocab_size", None)
        if isinstance(found, int):
            return found
    raise Missing("no module has org_vocab_size")


def _turned(part: tuple[str, Any], model: Model) -> dict[int, Any]:
    """What a layer's rotation makes of features that are all 0 but one, by position: [feature, feature].

    The table's own type is used: given another one, the engine would convert its table for good.
    """
    import torch

    rope = next((m for n, m in part[1].named_modules() if n.endswith("rotary_emb")), None)
    table, run = getattr(rope, "cos_sin_cache", None), getattr(rope, "forward_native", None)
    if not isinstance(table, torch.Tensor) or table.dim() != 2 or not callable(run):
        raise Missing(f"{type(part[1]).__name__} has no rotary_emb with a table of cosines and sines")
    width = int(getattr(rope, "head_size", model.width))
    found = {}
    with torch.inference_mode():
        one = torch.eye(width, dtype=table.dtype, device=table.device).reshape(1, width, width)
        for p in POSITIONS:
            if p < table.shape[0]:  # beyond it a device would fault
                at = torch.tensor([p], dtype=torch.long, device=table.device)
                turned = run(at, one.clone())[0]
                found[p] = turned.reshape(width, width).double().cpu().numpy()
    return found


def rotation(turned: Mapping[int, Any]) -> dict[str, Any]:
    """Tell a rotation from what it makes of single features."""
    moved = sum(np.abs(m - np.diag(np.diag(m))) for m in turned.values())
    partner = {int(i): int(np.argmax(moved[i])) for i in np.flatnonzero(np.any(moved, axis=1))}
    if not partner:
        return {"dims": 0}
    first, dims = min(partner), len(partner)
    step = partner[first] - first
    firsts = [first + 2 * k if step == 1 else first + k for k in range(dims // 2)]
    if step not in (1, dims // 2) or any(partner.get(i) != i + step for i in firsts):
        raise Missing(f"feature {first} goes with {partner[first]}, of {dims}")
    n = dims // 2
    index = sorted({i * (n - 1) // PAIRS for i in range(PAIRS + 1)})
    at = sorted(turned)
    return {
        "dims": dims,
        "first": first,
        "pairs": "neighbours" if step == 1 else "halves",
        "index": index,
        "at": at,
        "cos": [[number(turned[p][firsts[i], firsts[i]]) for i in index] for p in at],
        "sin": [[number(turned[p][firsts[i], firsts[i] + step]) for i in index] for p in at],
    }


def _tensors(
    root: Any, parts: Mapping[int, tuple[str, Any]], looked: list[int], loaded: Loaded, model: Model
) -> dict[str, Any]:
    """Fingerprints of tensors that this rank has whole."""
    found = {}
    for k in looked:
        for path, value in parts[k][1].named_parameters():
            if not left_alone(path):
                continue
            whole = _whole(path, value, parts[k], loaded, model)
            if whole is not None:
                found[f"layers.{k}.{renamed(path)}"] = fingerprint(_numbers(whole))
    for owner in (root, getattr(root, "model", None), getattr(getattr(root, "language_model", None), "model", None)):
        weight = getattr(getattr(owner, "norm", None), "weight", None)
        if weight is not None:
            found["norm"] = fingerprint(_numbers(weight))
            break
    return found


def left_alone(path: str) -> bool:
    """Say whether quantisation leaves a tensor as it is."""
    last = path.removesuffix(".weight").rpartition(".")[2]
    if last in LEFT_ALONE or RENAMED[0][0].match(last):
        return True
    return path.endswith(".weight") and last.endswith("norm")


def renamed(path: str) -> str:
    """Return the decoder's name of a tensor."""
    path = path.removesuffix(".weight")
    for was, now in RENAMED:
        path = was.sub(now, path)
    return path


def _whole(path: str, value: Any, part: tuple[str, Any], loaded: Loaded, model: Model) -> Any:
    """Return a tensor as the whole model has it; None where this rank has only a part."""
    if path.endswith("attn_sink"):  # padded, and with tensor parallelism only this rank's heads
        heads = getattr(model.layers[0].module, "n_heads", None)
        return value[:heads] if isinstance(heads, int) and loaded.ranks.tp_size == 1 else None
    if loaded.ranks.tp_size == 1 or model.kind is Kind.DSV4:
        return value
    hidden = int(_norm(part).weight.shape[0])
    return value if value.dim() == 1 and value.shape[0] in (hidden, model.width) else None


def _numbers(value: Any) -> Any:
    """Return a tensor as numpy's: floats as float32, which holds bf16 and f16 exactly."""
    value = value.detach().to("cpu")
    return value.float().numpy() if value.is_floating_point() else value.int().numpy()


def bf16(values: Any) -> Any:
    """Return the patterns of float32 values rounded to bf16, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def fingerprint(values: Any) -> dict[str, Any]:
    """Return shape, hash and first values of an array of float32 or int32."""
    whole = np.issubdtype(values.dtype, np.integer)
    raw = values.astype("<i4") if whole else bf16(values)
    first = [float(v) if math.isfinite(v) else 0.0 for v in values.reshape(-1)[:3]]
    return {
        "shape": [int(n) for n in values.shape],
        "hash": hashlib.sha256(np.ascontiguousarray(raw).tobytes()).hexdigest()[:16],
        "first": [number(v) for v in first],
    }
