"""Takes a DeepSeek-V4 decoder's projection weights out of its checkpoint, under the names that the projection reads.

The result is one safetensors file: for each layer the window projection and norm, for compressed layers the pool's two
projections, bias and norm, and for ratio 4 the same of the indexer; matrices and norms BF16, biases F32. 43 layers of
DeepSeek-V4-Flash make 334 tensors. The file's sha256 is what both ends of a transfer pin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pdlink_vllm.weights import dequantise
from pdlink_vllm.weights.dequantise import QuantError, Scheme
from pdlink_vllm.weights.safetensors import Array, FileError, Tensor, read_header, write

# What a checkpoint's config.json must say; the projection needs all of it, and nothing of it can be guessed.
CONFIG = (
    "hidden_size",
    "num_hidden_layers",
    "head_dim",
    "qk_rope_head_dim",
    "index_head_dim",
    "sliding_window",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "compress_rope_theta",
    "compress_ratios",
)

# Where a layer's attention may live: DeepSeek's own names and MLX's, with and without a wrapper.
PREFIXES = ("layers.", "model.layers.", "language_model.model.layers.")

# Ratio whose windows overlap: its pool is twice as wide, and it has an indexer.
OVERLAP = 4


class ExportError(ValueError):
    """The checkpoint has no usable projection weights. The text says which file or tensor and what to do."""


@dataclass(frozen=True)
class Options:
    """How to export. allow_rounding takes matrices that bf16 does not hold exactly, to the nearest value."""

    allow_rounding: bool = False


@dataclass(frozen=True)
class Report:
    """What was written: tensors, bytes of their data, the sha256 of the file, and each tensor's place of origin."""

    path: Path
    tensors: int
    bytes: int
    sha256: str
    dequantised: tuple[str, ...]


def export(model: Path, out: Path, options: Options) -> Report:
    """Write the weights of the checkpoint in directory model to out, beside a JSON file with what was exported.

    Nothing is kept of a layer once it is written to memory; the whole result (0.8 GB for DeepSeek-V4-Flash) is held
    once. Raises ExportError; out is then as it was.
    """
    config = read_config(model)
    try:
        source = _Checkpoint(model, config, options)
        arrays = [(name, source.array(origin, want)) for name, origin, want in wanted(config)]
        kept = {key: config[key] for key in (*CONFIG, "rope_scaling") if key in config}
        meta = {"format": "pdlink-projection-1", "config": json.dumps(kept, separators=(",", ":"), sort_keys=True)}
        digest = write(out, arrays, meta)
    except (FileError, QuantError, OSError) as e:
        raise ExportError(str(e)) from e
    size = sum(a.data.nbytes for _, a in arrays)
    report = Report(out, len(arrays), size, digest, tuple(source.dequantised))
    note = {"weights": out.name, "sha256": digest, "tensors": len(arrays), "bytes": size, "config": kept}
    out.with_suffix(".json").write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    return report


def read_config(model: Path) -> dict[str, Any]:
    """Read and check a checkpoint's config.json. compress_ratios loses the draft layer's entry. Raises ExportError."""
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ExportError(f"{path}: {e}") from e
    if not isinstance(config, dict):
        raise ExportError(f"{path} holds no object")
    missing = [key for key in CONFIG if key not in config]
    if "compress_ratios" in missing:
        raise ExportError(
            f"{path} has no compress_ratios: engines make up different schedules without it, take the list "
            "from the original checkpoint"
        )
    if missing:
        raise ExportError(f"{path} has no {', '.join(missing)}: it is not the configuration of a DeepSeek-V4 decoder")
    if config.get("rope_scaling") is None and config.get("rope_parameters"):
        raise ExportError(
            f"{path} has rope_parameters but no rope_scaling: the decoder reads only the latter and would "
            "rotate without yarn; add rope_scaling as in the original checkpoint"
        )
    layers, ratios = config["num_hidden_layers"], config["compress_ratios"]
    if type(layers) is not int or not isinstance(ratios, list) or not 1 <= layers <= len(ratios) <= layers + 1:
        raise ExportError(f"{path}: compress_ratios must have one entry for each of num_hidden_layers")
    config["compress_ratios"] = ratios[:layers]
    if any(r not in (0, 4, 128) for r in config["compress_ratios"]):
        raise ExportError(f"{path}: compress_ratios holds something else than 0, 4 and 128")
    return config


def wanted(config: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (name in the file, name in the checkpoint below the layers' prefix, shape), in the file's order."""
    hidden, head, index = config["hidden_size"], config["head_dim"], config["index_head_dim"]
    for i, ratio in enumerate(config["compress_ratios"]):
        yield f"layer_{i}.wkv.weight", f"{i}.attn.wkv.weight", (head, hidden)
        yield f"layer_{i}.kv_norm.weight", f"{i}.attn.kv_norm.weight", (head,)
        pools = [("comp", "compressor", head)] if ratio else []
        pools += [("idx", "indexer.compressor", index)] if ratio == OVERLAP else []
        for short, long, dim in pools:
            width = 2 * dim if ratio == OVERLAP else dim
            for part, shape in (
                ("wkv.weight", (width, hidden)),
                ("wgate.weight", (width, hidden)),
                ("ape", (ratio, width)),
                ("norm.weight", (dim,)),
            ):
                yield f"layer_{i}.{short}.{part}", f"{i}.attn.{long}.{part}", shape


class _Checkpoint:
    """A model directory: finds tensors, and makes them what the projection wants."""

    def __init__(self, model: Path, config: Mapping[str, Any], options: Options) -> None:
        files = sorted(model.glob("*.safetensors"))
        if not files:
            raise ExportError(f"{model} holds no .safetensors files")
        self._tensors: dict[str, Tensor] = {}
        for f in files:
            self._tensors.update(read_header(f))
        found = [p for p in PREFIXES if f"{p}0.attn.wkv.weight" in self._tensors]
        if not found:
            raise ExportError(f"{model} holds no layers.0.attn.wkv.weight: it is no DeepSeek-V4 checkpoint")
        self._prefix = found[0]
        self._quant = config.get("quantization") or {}
        self._options = options
        self.dequantised: list[str] = []

    def array(self, origin: str, shape: tuple[int, ...]) -> Array:
        """Return a tensor as the file wants it. Raises ExportError, QuantError."""
        name = self._prefix + origin
        t = self._tensors.get(name)
        if t is None:
            raise ExportError(f"{name} is missing: the checkpoint is not complete, or of another model")
        if len(shape) == 2 and not origin.endswith(".ape"):
            return Array("BF16", shape, self._matrix(t, shape))
        if t.shape != shape:
            raise ExportError(f"{name} has shape {list(t.shape)}, the configuration wants {list(shape)}")
        if origin.endswith(".ape"):
            return Array("F32", shape, _bias(t))
        if t.dtype != "BF16":
            raise ExportError(
                f"{name} is {t.dtype}: the decoder would compute and cache the layer in that type; "
                "use a decoder checkpoint whose norms are BF16"
            )
        return Array("BF16", shape, t.raw())

    def _matrix(self, t: Tensor, shape: tuple[int, ...]) -> dequantise.U8:
        if t.dtype == "BF16":
            if t.shape != shape:
                raise ExportError(f"{t.name} has shape {list(t.shape)}, the configuration wants {list(shape)}")
            return t.raw()
        if t.dtype not in ("U32", "F8_E4M3"):
            raise ExportError(
                f"{t.name} is {t.dtype}: the decoder would compute in that type, want BF16 or a quantised matrix"
            )
        values = self._packed(t) if t.dtype == "U32" else self._tiled(t)
        if values.shape != shape:
            raise ExportError(f"{t.name} holds {list(values.shape)} values, the configuration wants {list(shape)}")
        self.dequantised.append(t.name)
        patterns = dequantise.to_bf16(np.ascontiguousarray(values), t.name, exact=not self._options.allow_rounding)
        return patterns.astype("<u2").view(np.uint8).reshape(-1)

    def _packed(self, t: Tensor) -> dequantise.F32:
        module = t.name.removesuffix(".weight")
        scheme = self._scheme(module)
        scales, biases = self._tensors.get(f"{module}.scales"), self._tensors.get(f"{module}.biases")
        if scales is None or len(t.shape) != 2 or len(scales.shape) != 2:
            raise ExportError(f"{t.name} is packed, but {module}.scales does not fit it")
        words = t.raw().view("<u4").reshape(t.shape)
        raw = scales.raw().reshape(scales.shape) if scales.dtype == "U8" else _floats(scales)
        return dequantise.mlx(t.name, scheme, words, raw, None if biases is None else _floats(biases))

    def _tiled(self, t: Tensor) -> dequantise.F32:
        module = t.name.removesuffix(".weight")
        scales = self._tensors.get(f"{module}.scale")
        if scales is None or len(t.shape) != 2 or len(scales.shape) != 2 or scales.dtype not in ("F8_E8M0", "U8"):
            raise ExportError(f"{t.name} is e4m3, but {module}.scale does not hold powers of two for it")
        return dequantise.tiled(t.name, t.raw().reshape(t.shape), scales.raw().reshape(scales.shape))

    def _scheme(self, module: str) -> Scheme:
        """The module's own entry counts over the model's; MLX writes only what deviates."""
        own = self._quant.get(module)
        own = own if isinstance(own, dict) else {}
        values = {key: own.get(key, self._quant.get(key)) for key in ("mode", "group_size", "bits")}
        group, bits = values["group_size"], values["bits"]
        if type(group) is not int or type(bits) is not int or group < 1:
            raise ExportError(f"{module} is packed, but config.json has no quantization for it")
        return Scheme(values["mode"] or "affine", group, bits)


def _floats(t: Tensor) -> dequantise.F32:
    if t.dtype == "F32":
        return t.raw().view("<f4").reshape(t.shape).astype(np.float32)
    if t.dtype == "BF16":
        return (t.raw().view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(t.shape)
    if t.dtype == "F16":
        return t.raw().view("<f2").astype(np.float32).reshape(t.shape)
    raise ExportError(f"{t.name} is {t.dtype}, want a float")


def _bias(t: Tensor) -> dequantise.U8:
    """The positional bias: F32, or BF16 where the decoder's checkpoint was cast. Widening changes no value."""
    if t.dtype not in ("F32", "BF16"):
        raise ExportError(f"{t.name} is {t.dtype}, want F32 (or BF16, where the decoder's checkpoint was cast)")
    return _floats(t).astype("<f4").view(np.uint8).reshape(-1)
