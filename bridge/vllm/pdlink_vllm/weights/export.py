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

from pdlink_vllm.weights import dequantise, target
from pdlink_vllm.weights.config import CONFIG, OVERLAP, ConfigError, read_config
from pdlink_vllm.weights.dequantise import QuantError, Scheme
from pdlink_vllm.weights.files import FileError, Staging
from pdlink_vllm.weights.safetensors import Array, Tensor, encode, read_header

# Where a layer's attention may live: DeepSeek's own names and MLX's, with and without a wrapper.
PREFIXES = ("layers.", "model.layers.", "language_model.model.layers.")


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

    What has the two names is replaced only if it is of an export (`target.check`), and once both new files are on the
    disk, the note last. Nothing is kept of a layer once it is written to memory; the whole result (0.8 GB for
    DeepSeek-V4-Flash) is held once. Raises ExportError.
    """
    try:
        target.check(out, model)
        config = read_config(model)
        source = _Checkpoint(model, config, options)
        arrays = [(name, source.array(origin, want)) for name, origin, want in wanted(config)]
        kept = {key: config[key] for key in (*CONFIG, "rope_scaling") if key in config}
        meta = {"format": target.FORMAT, "config": json.dumps(kept, separators=(",", ":"), sort_keys=True)}
        parts, digest = encode(arrays, meta)
        size = sum(a.data.nbytes for _, a in arrays)
        said = {"weights": out.name, "sha256": digest, "tensors": len(arrays), "bytes": size, "config": kept}
        with Staging() as staging:
            staging.add(out, parts)
            staging.add(target.note_path(out), [(json.dumps(said, indent=1) + "\n").encode()])
            target.check(out, model)  # reading took a while, and somebody may have taken the names
            staging.commit()
    except (ConfigError, FileError, QuantError, OSError) as e:
        raise ExportError(str(e)) from e
    return Report(out, len(arrays), size, digest, tuple(source.dequantised))


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
        quant = config.get("quantization")
        self._quant: Mapping[str, Any] = quant if isinstance(quant, dict) else {}
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
        _fits(t, shape)
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
            _fits(t, shape)
            return t.raw()
        if t.dtype not in ("U32", "F8_E4M3"):
            raise ExportError(
                f"{t.name} is {t.dtype}: the decoder would compute in that type, want BF16 or a quantised matrix"
            )
        values = self._packed(t, shape) if t.dtype == "U32" else self._tiled(t, shape)
        self.dequantised.append(t.name)
        patterns = dequantise.to_bf16(np.ascontiguousarray(values), t.name, exact=not self._options.allow_rounding)
        return patterns.astype("<u2").view(np.uint8).reshape(-1)

    def _packed(self, t: Tensor, shape: tuple[int, ...]) -> dequantise.F32:
        module = t.name.removesuffix(".weight")
        scheme = self._scheme(module)
        _fits(t, (shape[0], shape[1] * scheme.bits // 32))
        scales, biases = self._tensors.get(f"{module}.scales"), self._tensors.get(f"{module}.biases")
        want = (shape[0], shape[1] // scheme.group)
        if scales is None or scales.shape != want or shape[1] % scheme.group:
            raise ExportError(f"{t.name} is packed, but {module}.scales does not fit it: want shape {list(want)}")
        if biases is not None and biases.shape != want:
            raise ExportError(f"{t.name} is packed, but {module}.biases does not fit it: want shape {list(want)}")
        words = t.raw().view("<u4").reshape(t.shape)
        raw = scales.raw().reshape(scales.shape) if scales.dtype == "U8" else _floats(scales)
        return dequantise.mlx(t.name, scheme, words, raw, None if biases is None else _floats(biases))

    def _tiled(self, t: Tensor, shape: tuple[int, ...]) -> dequantise.F32:
        _fits(t, shape)
        module = t.name.removesuffix(".weight")
        scales = self._tensors.get(f"{module}.scale")
        want = tuple(-(-n // dequantise.TILE) for n in shape)
        if scales is None or scales.shape != want or scales.dtype not in ("F8_E8M0", "U8"):
            raise ExportError(
                f"{t.name} is e4m3, but {module}.scale does not hold powers of two for it, shape {list(want)}"
            )
        return dequantise.tiled(t.name, t.raw().reshape(t.shape), scales.raw().reshape(scales.shape))

    def _scheme(self, module: str) -> Scheme:
        """The module's own entry counts over the model's; MLX writes only what deviates."""
        own = self._quant.get(module)
        own = own if isinstance(own, dict) else {}
        values = {key: own.get(key, self._quant.get(key)) for key in ("mode", "group_size", "bits")}
        group, bits = values["group_size"], values["bits"]
        mode = values["mode"] or "affine"
        if type(group) is not int or type(bits) is not int or not isinstance(mode, str):
            raise ExportError(f"{module} is packed, but config.json has no quantization for it")
        if group < 1 or not 1 <= bits <= 32:
            raise ExportError(f"{module} is packed, and config.json says in groups of {group} with {bits} bits")
        return Scheme(mode, group, bits)


def _fits(t: Tensor, want: tuple[int, ...]) -> None:
    """Refuse a matrix of another shape before its bytes are read."""
    if t.shape != want:
        raise ExportError(f"{t.name} has shape {list(t.shape)}, the configuration wants {list(want)}")


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
