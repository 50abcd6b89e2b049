"""A DeepSeek-V4 checkpoint's configuration, as far as the projection needs it, and the values that it may have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdlink_vllm.weights.files import FileError, read_json

# What config.json must say; the projection needs all of it, and nothing of it can be guessed.
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

# Largest values, those of the sidecar: far beyond any model, and what is made of them fits into the 32 bits of a size
# in the library's description of a model.
MAX_LAYERS = 4096
SIZES = {
    "hidden_size": 1 << 17,
    "head_dim": 1 << 13,
    "qk_rope_head_dim": 1 << 13,
    "index_head_dim": 1 << 13,
    "sliding_window": 1 << 14,
    "max_position_embeddings": 1 << 24,
}
REALS = {
    "rms_norm_eps": (1e-30, 1.0),
    "rope_theta": (1.001, 1e15),
    "compress_rope_theta": (1.001, 1e15),
}
YARN = {
    "factor": (1.0, 1e6),
    "original_max_position_embeddings": (1.0, float(1 << 24)),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
}
YARN_OPTIONAL = ("beta_fast", "beta_slow")

# Ratio whose windows overlap: its pool is twice as wide, and it has an indexer.
OVERLAP = 4


class ConfigError(ValueError):
    """A configuration lacks a value or has one that no projection can be made of. The text names it."""


def read_config(model: Path) -> dict[str, Any]:
    """Read and check a checkpoint's config.json. compress_ratios loses the draft layer's entry. Raises ConfigError."""
    path = model / "config.json"
    try:
        config = read_json(path)
    except (OSError, FileError) as e:
        raise ConfigError(str(e) if isinstance(e, FileError) else f"{path}: {e.strerror}") from e
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no object")
    missing = [key for key in CONFIG if key not in config]
    if "compress_ratios" in missing:
        raise ConfigError(
            f"{path} has no compress_ratios: engines make up different schedules without it, take the list "
            "from the original checkpoint"
        )
    if missing:
        raise ConfigError(f"{path} has no {', '.join(missing)}: it is not the configuration of a DeepSeek-V4 decoder")
    if config.get("rope_scaling") is None and config.get("rope_parameters"):
        raise ConfigError(
            f"{path} has rope_parameters but no rope_scaling: the decoder reads only the latter and would "
            "rotate without yarn; add rope_scaling as in the original checkpoint"
        )
    check_config(config, str(path))
    return {**config, "compress_ratios": config["compress_ratios"][: config["num_hidden_layers"]]}


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Look at every value that the projection takes; where begins the message. Raises ConfigError."""
    layers, ratios = config.get("num_hidden_layers"), config.get("compress_ratios")
    if type(layers) is not int or not 1 <= layers <= MAX_LAYERS:
        raise ConfigError(f"{where}: num_hidden_layers is {_shown(layers)}, want 1 to {MAX_LAYERS}")
    if not isinstance(ratios, list) or not layers <= len(ratios) <= layers + 1:
        raise ConfigError(f"{where}: compress_ratios must have one entry for each of num_hidden_layers")
    if any(type(r) is not int or r not in (0, OVERLAP, 128) for r in ratios[:layers]):
        raise ConfigError(f"{where}: compress_ratios holds something else than 0, 4 and 128")
    for key, most in SIZES.items():
        size = config.get(key)
        if type(size) is not int or not 1 <= size <= most:
            raise ConfigError(f"{where}: {key} is {_shown(size)}, want 1 to {most}")
    rope = config["qk_rope_head_dim"]
    least = min(config["head_dim"], config["index_head_dim"]) if OVERLAP in ratios[:layers] else config["head_dim"]
    if rope > least or rope % 2:
        raise ConfigError(f"{where}: qk_rope_head_dim is {rope}, want an even number up to {least}, the smallest head")
    for key, (low, top) in REALS.items():
        _check_real(where, key, config.get(key), low, top)
    _check_yarn(where, config.get("rope_scaling"))


def _check_yarn(where: str, scaling: object) -> None:
    if scaling is None:
        return
    if not isinstance(scaling, dict):
        raise ConfigError(f"{where}: rope_scaling is {_shown(scaling)}, want an object")
    kind = scaling.get("type")
    kind = scaling.get("rope_type") if kind is None else kind
    if kind != "yarn":
        raise ConfigError(f"{where}: the type of rope_scaling is {_shown(kind)}, and none but yarn is known")
    for key, value in scaling.items():  # all of it goes into the weights, which other programs parse
        if isinstance(value, (dict, list)) or (isinstance(value, float) and not math.isfinite(value)):
            raise ConfigError(f"{where}: rope_scaling.{key} is {_shown(value)}, want a number or a text")
    for key, (low, top) in YARN.items():
        if scaling.get(key) is not None or key not in YARN_OPTIONAL:
            _check_real(where, f"rope_scaling.{key}", scaling.get(key), low, top)


def _check_real(where: str, key: str, value: object, low: float, top: float) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= top:
        raise ConfigError(f"{where}: {key} is {_shown(value)}, want {low:g} to {top:g}")


def _shown(value: object) -> str:
    """Return a value as a message can hold it: an integer may have thousands of digits, a text any length."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
