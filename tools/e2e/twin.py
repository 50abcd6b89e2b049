"""What a DeepSeek-V4 decoder on MLX's CPU back end caches of given attention inputs: numpy, a whole prompt at once.

A second implementation of what `pdlink prefill` computes with `--numerics mlx-cpu`, with nothing in common with it but
the numbers of MLX's own kernels (version 0.32.0): bf16 rounds to nearest even; a matrix product adds in float32 in the
order of the inner index; a norm rounds twice; a pool's weighted sum rounds to bf16 at each addition; rotations use
tables in bf16 and round every product. Values are float32 arrays that hold bf16 values.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = np.float32
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]

OVERLAP = 4  # the ratio whose windows overlap; its layers have an indexer

# MLX's exponential: 2 to the integer part times a polynomial in the rest, highest power first.
LOG2E = F32(1.442695)
EXP: tuple[float, ...] = (1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2)
EXP += (2.402264791363012e-1, 6.931472028550421e-1, 1.0)
# Its sine and cosine: pi/4 in three parts, and the single-precision polynomials of the Cephes library.
FOUR_OVER_PI = F32(1.27323954473516)
QUARTER = (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)
COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)


def bf16(a: Any) -> Floats:
    """The nearest bf16 values, ties to even."""
    u = np.ascontiguousarray(a, F32).view(np.uint32).astype(np.uint64)
    u += 0x7FFF + (u >> 16 & 1)
    return (u & 0xFFFF0000).astype(np.uint32).view(F32)


def bits(a: Floats) -> Bits:
    """Patterns of bf16 values."""
    return (np.ascontiguousarray(a, F32).view(np.uint32) >> 16).astype(np.uint16)


def values(a: Bits) -> Floats:
    """Values of bf16 patterns."""
    return (a.astype(np.uint32) << 16).view(F32)


def fused(a: Any, b: Any, c: Any) -> Floats:
    """a*b + c with one rounding to float32: the product is exact in float64."""
    return np.asarray(np.float64(a) * np.float64(b) + np.float64(c), F32)


def product(x: Floats, w: Floats) -> Floats:
    """x [tokens, k] times w [n, k], as bf16. Products of bf16 are exact; sums go along k."""
    out = np.zeros((len(x), len(w)), F32)
    for k in range(x.shape[1]):
        out += x[:, k, None] * w[None, :, k]
    return bf16(out)


def norm(v: Floats, weight: Floats, eps: float) -> Floats:
    """Root mean square norm over the last axis."""
    total = np.zeros(v.shape[:-1], F32)
    for j in range(v.shape[-1]):
        total = total + v[..., j] * v[..., j]
    mean = total * F32(1 / v.shape[-1])
    scale = F32(1) / np.sqrt(mean + F32(eps))
    return bf16(bf16(v * scale[..., None]) * weight)


def exponential(x: Floats) -> Floats:
    """MLX's exp of values that are 0 or below."""
    with np.errstate(invalid="ignore", over="ignore"):
        y = (x * LOG2E).astype(F32)
        whole = np.floor(y.astype(np.float64) + 0.5).astype(F32)
        rest = (y - whole).astype(F32)
        p = np.full_like(x, F32(EXP[0]))
        for c in EXP[1:]:
            p = fused(p, rest, F32(c))
        power = np.where(np.isfinite(whole), np.maximum(whole, -127), -127).astype(np.int32)
        out = ((power + 127) << 23).view(F32) * p
    return np.where(x < -88, F32(0), out).astype(F32)


def pooled(kv: Floats, gate: Floats) -> Floats:
    """Weighted sums over axis 1 of [windows, rows, width]: softmax of the gates, then the sum in bf16, row by row."""
    e = exponential((gate - gate.max(1, keepdims=True)).astype(F32))
    total = np.zeros((len(e), e.shape[2]), F32)
    for j in range(e.shape[1]):
        total = total + e[:, j]
    weight = bf16(e / total[:, None])
    out = np.zeros_like(total)
    for j in range(e.shape[1]):
        out = bf16(out + bf16(kv[:, j] * weight[:, j]))
    return out


def circle(angle: Floats) -> tuple[Floats, Floats]:
    """Sine and cosine of angles that are 0 or above, as bf16."""
    octant = ((angle * FOUR_OVER_PI).astype(F32).astype(np.uint32) + 1) & ~np.uint32(1)
    turns, x = octant.astype(F32), angle
    for part in QUARTER:
        x = fused(turns, F32(part), x)
    z = (x * x).astype(F32)
    near = fused(fused(z, F32(COSINE[0]), F32(COSINE[1])), z, F32(COSINE[2]))
    near = (near * z).astype(F32) * z
    near = fused(z, F32(-0.5), near) + F32(1)
    far = fused(fused(z, F32(SINE[0]), F32(SINE[1])), z, F32(SINE[2]))
    far = fused(x, (far * z).astype(F32), x)
    swap = octant & 2 != 0
    sine = np.where(swap, near, far) * np.where(octant & 4 != 0, F32(-1), F32(1))
    cosine = np.where(swap, far, near) * np.where((octant - np.uint32(2)) & 4 != 0, F32(1), F32(-1))
    return bf16(sine), bf16(cosine)


def frequencies(width: int, base: float, yarn: dict[str, Any] | None) -> Floats:
    """What a position is multiplied with, for each pair of features. The decoder inverts its table twice."""
    j = np.arange(0, width, 2).astype(F32) / F32(width)
    f = F32(1) / np.power(np.float64(base), j.astype(np.float64)).astype(F32)
    if yarn is not None:
        length = float(yarn["original_max_position_embeddings"])

        def pair(turns: float) -> float:
            return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(pair(yarn.get("beta_fast", 32))), 0)
        high = min(math.ceil(pair(yarn.get("beta_slow", 1))), width - 1)
        ramp = (np.arange(width // 2).astype(F32) - F32(low)) / F32(max(high - low, 0.001))
        keep = F32(1) - np.clip(ramp, F32(0), F32(1))
        f = (f / F32(yarn["factor"])) * (F32(1) - keep) + f * keep
    return np.asarray(F32(1) / (F32(1) / f.astype(F32)), F32)


def rotate(v: Floats, f: Floats, positions: npt.NDArray[np.int64]) -> Floats:
    """Rotate the last pairs of each row [rows, width] by its position."""
    n = 2 * len(f)
    sine, cosine = circle(positions.astype(F32)[:, None] * f[None])
    a, b = v[:, -n::2], v[:, -n + 1 :: 2]
    out = v.copy()
    out[:, -n::2] = bf16(bf16(a * cosine) - bf16(b * sine))
    out[:, -n + 1 :: 2] = bf16(bf16(a * sine) + bf16(b * cosine))
    return out


class Checkpoint:
    """The tensors of a model directory with one file of bf16 and float32."""

    def __init__(self, model: Path) -> None:
        self.config: dict[str, Any] = json.loads((model / "config.json").read_text())
        raw = (model / "model.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        self._head, self._raw, self._at = json.loads(raw[8 : 8 + length]), raw, 8 + length

    def get(self, name: str) -> Floats:
        """A tensor as float32."""
        t = self._head[name]
        begin, end = t["data_offsets"]
        data = self._raw[self._at + begin : self._at + end]
        if t["dtype"] == "F32":
            return np.frombuffer(data, F32).reshape(t["shape"])
        if t["dtype"] != "BF16":
            raise ValueError(f"{name} is {t['dtype']}")
        return values(np.frombuffer(data, np.uint16)).reshape(t["shape"])


@dataclass(frozen=True)
class Pool:
    """A pool of one layer: its rows, and the raw rows of each window, which the window after it overlaps with."""

    rows: Floats  # [windows, width]
    kv: Floats  # [tokens, columns], before pooling
    gate: Floats


@dataclass(frozen=True)
class Layer:
    """What one layer caches of a prompt: all rotated keys [tokens, width], and its pools by name."""

    ratio: int
    keys: Floats
    pools: dict[str, Pool]


def pool(c: Checkpoint, name: str, x: Floats, ratio: int) -> Pool:
    """One pool of a layer, over all its whole windows."""
    config = c.config
    kv, gate = product(x, c.get(f"{name}.wkv.weight")), product(x, c.get(f"{name}.wgate.weight"))
    ape, n = c.get(f"{name}.ape"), len(x) // ratio
    k, g = kv[: n * ratio].reshape(n, ratio, -1), gate[: n * ratio].reshape(n, ratio, -1)
    if ratio == OVERLAP:
        g = bf16(g + bf16(ape))
        half = k.shape[2] // 2
        k0, g0 = np.zeros((1, ratio, half), F32), np.full((1, ratio, half), -np.inf, F32)
        k = np.concatenate([np.concatenate([k0, k[:-1, :, :half]]), k[:, :, half:]], 1)
        g = np.concatenate([np.concatenate([g0, g[:-1, :, :half]]), g[:, :, half:]], 1)
    else:
        g = (g + ape).astype(F32)
    rows = norm(pooled(k, g), c.get(f"{name}.norm.weight"), config["rms_norm_eps"])
    f = frequencies(config["qk_rope_head_dim"], config["compress_rope_theta"], config["rope_scaling"])
    return Pool(rotate(rows, f, np.arange(n) * ratio), kv, gate)


def project(c: Checkpoint, inputs: list[Bits]) -> list[Layer]:
    """What every layer caches of its attention inputs, patterns [tokens, hidden] from the first token on."""
    config, out = c.config, []
    for i, x_bits in enumerate(inputs):
        x, ratio, name = values(x_bits), int(config["compress_ratios"][i]), f"layers.{i}.attn"
        raw = norm(product(x, c.get(f"{name}.wkv.weight")), c.get(f"{name}.kv_norm.weight"), config["rms_norm_eps"])
        base, yarn = (config["compress_rope_theta"], config["rope_scaling"]) if ratio else (config["rope_theta"], None)
        keys = rotate(raw, frequencies(config["qk_rope_head_dim"], base, yarn), np.arange(len(x)))
        pools = {}
        if ratio:
            pools[""] = pool(c, f"{name}.compressor", x, ratio)
        if ratio == OVERLAP:
            pools["idx_"] = pool(c, f"{name}.indexer.compressor", x, ratio)
        out.append(Layer(ratio, keys, pools))
    return out


def arrays(layers: list[Layer], window: int, block: int, blocks: int) -> dict[str, Bits]:
    """The arrays that blocks are made of, by the names of pdlink's cases: windows and raw rows at each block's end."""
    out: dict[str, Bits] = {}
    for i, layer in enumerate(layers):
        for end in range(block, blocks * block + 1, block):
            out[f"layer_{i}.win@{end}"] = bits(layer.keys[end - window : end])[None, None]
        for tag, p in layer.pools.items():
            out[f"layer_{i}.{tag}pooled"] = bits(p.rows[: blocks * block // layer.ratio])[None]
            if layer.ratio != OVERLAP:
                continue
            for end in range(block, blocks * block + 1, block):
                out[f"layer_{i}.{tag}prev_kv@{end}"] = bits(p.kv[end - OVERLAP : end])[None, None]
                out[f"layer_{i}.{tag}prev_gate@{end}"] = bits(p.gate[end - OVERLAP : end])[None, None]
    return out


def facts(c: Checkpoint) -> dict[str, Any]:
    """What a decoder that has loaded this checkpoint says of it (bridge/facts/FACTS.md), worked out from its files."""
    config, rope, tensors = c.config, {}, {}
    dims, head, ratios = int(config["qk_rope_head_dim"]), int(config["head_dim"]), config["compress_ratios"]
    index, at = [i * (dims // 2 - 1) // 8 for i in range(9)], [1, 255, 4095]
    for i, ratio in enumerate(ratios):
        base, yarn = (config["compress_rope_theta"], config["rope_scaling"]) if ratio else (config["rope_theta"], None)
        angles = np.array(at, np.float64)[:, None] * frequencies(dims, base, yarn)[index].astype(np.float64)
        form = {"dims": dims, "first": head - dims, "pairs": "neighbours", "index": index, "at": at}
        rope[str(i)] = {**form, "cos": np.cos(angles).tolist(), "sin": np.sin(angles).tolist()}
        for name in ("attn.kv_norm", "attn_norm", *(["attn.compressor.norm"] if ratio else [])):
            v = c.get(f"layers.{i}.{name}.weight")
            digest = hashlib.sha256(bits(v).astype("<u2").tobytes()).hexdigest()[:16]
            tensors[f"layers.{i}.{name}"] = {"shape": list(v.shape), "hash": digest, "first": v[:3].tolist()}
    known = {"version": 1, "kind": "dsv4", "dtype": "BF16", "layers": len(ratios), "head_dim": head, "ratios": ratios}
    known |= {"window": int(config["sliding_window"]), "hidden": int(config["hidden_size"])}
    return known | {"eps": config["rms_norm_eps"], "rope": rope, "tensors": tensors}
