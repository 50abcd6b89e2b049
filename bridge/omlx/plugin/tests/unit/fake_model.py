"""A model without MLX, whose arrays are numpy's: what the plug-in looks at when it tells what was loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class Rope:
    """A rotation of a head's features, with a scale."""

    def __init__(self, dims: int, base: float = 10000.0, scale: float = 1.0, neighbours: bool = False) -> None:
        self.dims, self.scale, self.neighbours = dims, scale, neighbours
        self.inverse = 1 / base ** (np.arange(0, dims, 2) / dims)

    def __call__(self, x: Any, offset: int = 0) -> Any:
        """Rotate the first features of [..., width] for one position."""
        out = np.array(x, dtype=np.float64)
        half = self.dims // 2
        first = slice(0, self.dims, 2) if self.neighbours else slice(0, half)
        second = slice(1, self.dims, 2) if self.neighbours else slice(half, self.dims)
        a, b = out[..., first].copy(), out[..., second].copy()
        cos, sin = self.scale * np.cos(offset * self.inverse), self.scale * np.sin(offset * self.inverse)
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out


def norm(width: int, seed: int) -> Any:
    """A norm whose weights bf16 holds exactly."""
    rng = np.random.default_rng(seed)
    return SimpleNamespace(weight=(rng.integers(64, 192, width) / 128).astype(np.float32), eps=1e-6)


class Layer:
    """A layer with plain attention."""

    def __init__(self, seed: int, rope: Any) -> None:
        self.input_layernorm = norm(6, seed)
        self.post_attention_layernorm = norm(6, seed + 1)
        self.self_attn = SimpleNamespace(rope=rope, n_heads=3, q_norm=norm(2, seed + 2))

    def parameters(self) -> dict[str, Any]:
        """The tree of arrays, as MLX's modules tell it."""
        return {
            "input_layernorm": {"weight": self.input_layernorm.weight},
            "post_attention_layernorm": {"weight": self.post_attention_layernorm.weight},
            "self_attn": {"q_norm": {"weight": self.self_attn.q_norm.weight}, "q_proj": {"weight": np.ones((6, 6))}},
            "experts": [{"bias": np.ones(3)}],
        }


class Model:
    """A model that computes nothing."""

    def __init__(self, layers: int = 2) -> None:
        self.layers = [Layer(10 * i, Rope(2)) for i in range(layers)]
        self.model = SimpleNamespace(norm=norm(6, 99), embed_tokens=SimpleNamespace(weight=np.ones((61, 6))))

    def __call__(self, tokens: Any, cache: Any) -> Any:
        """One pass."""
        return tokens
