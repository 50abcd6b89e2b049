"""What the loaded model is: numbers that a prefill engine's model must share, read off the loaded objects.

Blocks of another model, of other weights or of another rotation are adopted like right ones, and nothing shows it. So
whoever brings blocks compares this document with the other engine's. bridge/facts/FACTS.md is its specification. What
this decoder does not have where it is looked for is left out, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import json
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import params, seam
from .canary import Native, stream
from .errors import Refusal

VERSION = 1

# What every tokenizer has an opinion about: words, scripts, white space, digits, specials of several models.
PROBE = (
    "Hello, wörld! 你好，世界。 def f(x):\n\treturn x ** 2  # 12345.678\n"  # noqa: RUF001
    "<|im_start|>user<|im_end|><｜User｜><think></think> 🙂  end"  # noqa: RUF001
)

POSITIONS = (1, 255, 4095, 32767)
PAIRS = 8  # that a rotation is told at, less one

# Tensors that quantisation leaves alone, beside norms: by the last part of their path, or by one before it.
LEFT_ALONE = ("attn_sink", "sinks", "ape", "tid2eid", "e_score_correction_bias")
LEFT_ALONE_IN = ("attn_hc", "ffn_hc")


@dataclass(frozen=True)
class Facts:
    """The document, and a name for it that changes when it does."""

    document: dict[str, Any]
    name: str


@dataclass(frozen=True)
class _Made:
    model: str
    scheduler: weakref.ref[Any]
    result: asyncio.Task[Facts]


class Book:
    """The documents of the loaded models, made once each; for one event loop. No model is kept alive."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}

    async def get(self, live: seam.Live, native: Native) -> Facts:
        """The model's document; made when it is not there, between steps of the decoder."""
        made = self._made.get(id(live.scheduler))
        if made is None or made.scheduler() is not live.scheduler or made.result.cancelled():
            self._made = {k: v for k, v in self._made.items() if v.scheduler() is not None}
            made = _Made(live.model_id, weakref.ref(live.scheduler), asyncio.ensure_future(make(live, native)))
            self._made[id(live.scheduler)] = made
        return await asyncio.shield(made.result)

    def pending(self) -> list[str]:
        """The loaded models whose document is being made."""
        return [m.model for m in self._made.values() if m.scheduler() is not None and not m.result.done()]


async def make(live: seam.Live, native: Native) -> Facts:
    """The model's document. Nothing is raised: what cannot be told is said in it."""
    out: dict[str, Any] = {"version": VERSION}
    try:
        await _make(out, live, native)
    except Exception as err:  # kept as text: an exception would keep the model alive
        _silent(out, "", err)
    text = json.dumps(out, sort_keys=True)
    return Facts(out, hashlib.sha256(text.encode()).hexdigest()[:32])


async def _make(out: dict[str, Any], live: seam.Live, native: Native) -> None:
    loop = asyncio.get_running_loop()
    out.update(await loop.run_in_executor(live.executor, of, live, native))
    out.update(_text_of(live))
    if out.get("kind") != "dsv4":
        return
    hashes: list[str] = []
    try:
        for k in range(out["layers"]):  # a turn each: decoding waits for one layer, not for all
            hashes.append(await loop.run_in_executor(live.executor, _projection_of, live, k))
        out["projection"] = {"layers": hashes}
    except Exception as err:
        _silent(out, "projection", err)


def _silent(out: dict[str, Any], field: str, err: Exception) -> None:
    """Note why a field is missing."""
    why = err.message if isinstance(err, Refusal) else f"{type(err).__name__}: {err}"
    out.setdefault("unknown", {})[field] = why[:200]


def of(live: seam.Live, native: Native) -> dict[str, Any]:
    """The document without what takes longer. For the decoder's executor."""
    out: dict[str, Any] = {"version": VERSION}
    try:
        model = seam.need(live.scheduler, "model", "look at the model")
        layers = _layers(model)
        out["layers"] = len(layers)
        _geometry(out, layers, native)
    except Exception as err:
        _silent(out, "", err)
        return out
    looked = sampled(len(layers), out.get("ratios", []))
    with _cpu():
        for field, run in (("rope", _ropes), ("tensors", _tensors)):
            try:
                out[field] = run(model, layers, looked, out)
            except Exception as err:
                _silent(out, field, err)
    vocab = _vocabulary(model)
    if vocab is not None:
        out["vocab"] = vocab
    return out


def _layers(model: Any) -> list[Any]:
    """The model's layers."""
    for path in ("layers", "model.layers", "language_model.layers", "language_model.model.layers"):
        found: Any = model
        for name in path.split("."):
            found = getattr(found, name, None)
        if isinstance(found, (list, tuple)) and found:
            return list(found)
    raise Refusal("moved", f"look at the model: {type(model).__name__} has no layers")


def _attention(layer: Any) -> Any:
    """A layer's attention."""
    for name in ("self_attn", "attn", "attention"):
        found = getattr(layer, name, None)
        if found is not None:
            return found
    raise Refusal("moved", f"look at the model: {type(layer).__name__} has no attention")


def _first(obj: Any, *names: str) -> Any:
    """The first attribute that is there; None where none is."""
    return next((v for v in (getattr(obj, name, None) for name in names) if v is not None), None)


def _geometry(out: dict[str, Any], layers: list[Any], native: Native) -> None:
    """Numbers of the model, those of what is cached from the decoder's own block."""
    attention, tensors = _attention(layers[0]), native.header.tensors
    ratios = [getattr(_attention(layer), "compress_ratio", None) for layer in layers]
    types = json.loads(native.header.meta.get("layer_cache_types", "[]"))
    if all(isinstance(r, int) for r in ratios):
        out["kind"], out["ratios"] = "dsv4", ratios
        window = tensors.get("layer_0_state_0") or tensors.get("layer_0_sub_0_state_0")
        if window is not None and len(window.shape) == 4:
            out["window"], out["head_dim"], out["dtype"] = window.shape[2], window.shape[3], window.dtype
    elif types and set(types) == {"KVCache"}:
        out["kind"] = "kv"
        keys = tensors["layer_0_state_0"]
        out["kv_heads"], out["head_dim"], out["dtype"] = keys.shape[1], keys.shape[3], keys.dtype
    heads = _first(attention, "n_heads", "num_heads", "num_attention_heads")
    if isinstance(heads, int):
        out["heads"] = heads
    norm = _first(layers[0], "input_layernorm", "attn_norm", "attention_norm")
    weight, eps = getattr(norm, "weight", None), _first(norm, "eps", "variance_epsilon")
    if weight is not None:
        out["hidden"] = int(weight.shape[0])
    if isinstance(eps, float):
        out["eps"] = number(eps)


def _vocabulary(model: Any) -> int | None:
    """Rows of the embedding."""
    for owner in (model, *(getattr(model, n, None) for n in ("model", "language_model"))):
        weight = getattr(_first(owner, "embed_tokens", "embedding"), "weight", None)
        if weight is not None:
            return int(weight.shape[0])
    inner = getattr(getattr(model, "language_model", None), "model", None)
    return None if inner is None else _vocabulary(inner)


def sampled(layers: int, ratios: list[int]) -> list[int]:
    """The layers that are looked at."""
    firsts = {ratios.index(r) for r in set(ratios)}
    return sorted({0, layers // 2, layers - 1} | firsts)


@contextlib.contextmanager
def _cpu() -> Iterator[None]:
    """Compute on the CPU: Metal's sines are not exact, and what is compared is what the model asks for."""
    mx = importlib.import_module("mlx.core")
    fresh = getattr(mx, "new_stream", None)
    if fresh is None or not hasattr(mx, "cpu"):
        yield
        return
    with mx.stream(fresh(mx.cpu)):
        yield


def _ropes(_: Any, layers: list[Any], looked: list[int], out: dict[str, Any]) -> dict[str, Any]:
    """How layers rotate."""
    found = {}
    for k in looked:
        rope = _first(_attention(layers[k]), "rope", "rotary_emb", "position_rope")
        if not callable(rope):
            raise Refusal("moved", f"look at the rotation: {type(_attention(layers[k])).__name__} has no rope")
        found[str(k)] = rotation(_turned(rope, out["head_dim"]))
    return found


def _turned(rope: Any, width: int) -> dict[int, Any]:
    """What a rotation makes of features that are all 0 but one, by position: [feature, feature]."""
    mx = importlib.import_module("mlx.core")
    one = mx.array(np.eye(width, dtype=np.float32).reshape(1, width, 1, width))
    return {p: np.array(rope(one, offset=p), dtype=np.float64).reshape(width, width) for p in POSITIONS}


def rotation(turned: dict[int, Any]) -> dict[str, Any]:
    """Tell a rotation from what it makes of single features."""
    moved = sum(np.abs(m - np.diag(np.diag(m))) for m in turned.values())
    partner = {int(i): int(np.argmax(moved[i])) for i in np.flatnonzero(moved.any(axis=1))}
    if not partner:
        return {"dims": 0}
    first, dims = min(partner), len(partner)
    step = partner[first] - first
    firsts = [first + 2 * k if step == 1 else first + k for k in range(dims // 2)]
    if step not in (1, dims // 2) or any(partner.get(i) != i + step for i in firsts):
        raise Refusal("moved", f"look at the rotation: feature {first} goes with {partner[first]}, of {dims}")
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


def number(value: float) -> float:
    """Six digits of a number."""
    return float(f"{float(value):.6g}")


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of a tree of parameters, with their paths."""
    if isinstance(tree, (dict, list, tuple)):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for name, value in items:
            yield from _leaves(value, f"{path}.{name}" if path else str(name))
    elif tree is not None:
        yield path, tree


def _left_alone(path: str) -> bool:
    """Whether quantisation leaves a tensor as it is."""
    parts = path.removesuffix(".weight").split(".")
    if any(p in LEFT_ALONE_IN for p in parts[:-1]):
        return True
    return parts[-1] in LEFT_ALONE or (path.endswith(".weight") and parts[-1].endswith("norm"))


def _tensors(model: Any, layers: list[Any], looked: list[int], _: dict[str, Any]) -> dict[str, Any]:
    """Fingerprints of tensors."""
    found = {}
    for k in looked:
        for path, value in _leaves(layers[k].parameters()):
            if _left_alone(path):
                found[f"layers.{k}.{path.removesuffix('.weight')}"] = fingerprint(_numbers(value))
    for owner in (model, *(getattr(model, n, None) for n in ("model", "language_model"))):
        weight = getattr(getattr(owner, "norm", None), "weight", None)
        if weight is not None:
            found["norm"] = fingerprint(_numbers(weight))
            break
    return found


def _numbers(value: Any) -> Any:
    """An array as numpy's: floats as float32, which holds bf16 and f16 exactly."""
    mx = importlib.import_module("mlx.core")
    kind = str(value.dtype)
    whole = "int" in kind
    return np.array(value.astype(mx.int32 if whole else mx.float32))


def bf16(values: Any) -> Any:
    """Patterns of float32 values rounded to bf16, ties to even; uint16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def fingerprint(values: Any) -> dict[str, Any]:
    """Shape, hash and first values of an array of float32 or int32."""
    whole = np.issubdtype(values.dtype, np.integer)
    raw = values.astype("<i4") if whole else bf16(values)
    first = [float(v) if math.isfinite(v) else 0.0 for v in values.reshape(-1)[:3]]
    return {
        "shape": [int(n) for n in values.shape],
        "hash": hashlib.sha256(np.ascontiguousarray(raw).tobytes()).hexdigest()[:16],
        "first": [number(v) for v in first],
    }


def _text_of(live: seam.Live) -> dict[str, Any]:
    """What the tokenizer makes of the probe text, and its template's hash. On the event loop, as requests are."""
    out: dict[str, Any] = {}
    tokenizer = _first(live.engine, "_tokenizer", "tokenizer")
    with contextlib.suppress(Exception):
        ids = np.array(list(tokenizer.encode(PROBE)), dtype="<i4")
        digest = hashlib.sha256(ids.tobytes()).hexdigest()[:16]
        out["text"] = {"hash": digest, "count": len(ids), "first": [int(i) for i in ids[:8]]}
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, str):
        out["template"] = hashlib.sha256(template.encode()).hexdigest()[:16]
    return out


def _projection_of(live: seam.Live, k: int) -> str:
    """The hash of a layer's projection weights. For the decoder's executor."""
    layer = _layers(live.scheduler.model)[k]
    with stream(live):
        return projection_hash(dict(_weights(_attention(layer))))


def _weights(attention: Any) -> Iterator[tuple[str, Any]]:
    """A layer's projection weights under the names of the exported file, as numpy arrays of its types."""
    yield "wkv.weight", _matrix(attention.wkv)
    yield "kv_norm.weight", _norm(attention.kv_norm)
    pools = [("comp", getattr(attention, "compressor", None))]
    pools += [("idx", getattr(getattr(attention, "indexer", None), "compressor", None))]
    for name, pool in pools:
        if pool is not None:
            yield f"{name}.wkv.weight", _matrix(pool.wkv)
            yield f"{name}.wgate.weight", _matrix(pool.wgate)
            yield f"{name}.ape", _numbers(pool.ape).astype("<f4")
            yield f"{name}.norm.weight", _norm(pool.norm)


def _norm(module: Any) -> Any:
    """A norm's weight as bf16 patterns."""
    if not str(module.weight.dtype).endswith("bfloat16"):
        raise Refusal("unsupported", f"a norm of the projection is {module.weight.dtype}, not bfloat16")
    return bf16(_numbers(module.weight))


def _matrix(module: Any) -> Any:
    """A matrix as bf16 patterns, dequantised where that is exact."""
    mx = importlib.import_module("mlx.core")
    scales = getattr(module, "scales", None)
    if scales is None:
        return bf16(_numbers(module.weight))
    mode = getattr(module, "mode", "affine")
    if mode not in params.EXACT_MODES:
        raise Refusal("unsupported", f"a matrix of the projection is quantised as {mode}: its values round differently")
    values = mx.dequantize(
        module.weight, scales, None, group_size=module.group_size, bits=module.bits, mode=mode, dtype=mx.float32
    )
    return bf16(_numbers(values))


def projection_hash(tensors: dict[str, Any]) -> str:
    """The hash of one layer's projection weights: uint16 patterns are BF16, float32 is F32."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = np.ascontiguousarray(tensors[name])
        kind = "F32" if t.dtype == np.dtype("<f4") else "BF16"
        digest.update(f"{name} {kind} {','.join(str(n) for n in t.shape)}\n".encode())
        digest.update(t.tobytes())
    return digest.hexdigest()[:16]
