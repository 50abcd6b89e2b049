"""Models for the arms: the tiny one in float32, with another template or other values."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

# What a chat model's template does with tools, roles and calls, in the tiny tokenizer's words.
TOOLS = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}\ncall {{ c['function']['name'] }} {{ c['function']['arguments'] | tojson }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What an engine might have instead: the same words, in another order.
OTHER = "{% for m in messages | reverse %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def widen(model: Path, to: Path, template: str) -> None:
    """Copy a bfloat16 model as float32, which is exact, with a chat template.

    In bfloat16 two engines differ by rounding, and greedy tokens may too; in float32 they are equal.
    """
    shutil.copytree(model, to)
    config = json.loads((model / "config.json").read_text())
    config["torch_dtype"] = "float32"
    (to / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    tokenizer["chat_template"] = template
    (to / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1))
    header, data = _read(model / "model.safetensors")
    tensors: dict[str, tuple[list[int], bytes]] = {}
    for name, about in header.items():
        if about["dtype"] != "BF16":
            raise ValueError(f"{name} is {about['dtype']}, not BF16")
        first, end = about["data_offsets"]
        wide = bytearray(2 * (end - first))
        wide[2::4], wide[3::4] = data[first:end:2], data[first + 1 : end : 2]
        tensors[name] = about["shape"], bytes(wide)
    _write(to / "model.safetensors", tensors)


def turn(model: Path, to: Path) -> None:
    """Copy a model with another base of its rotations: it answers without an error, and its blocks are wrong."""
    shutil.copytree(model, to)
    config = json.loads((model / "config.json").read_text())
    config["rope_theta"] = 2 * config["rope_theta"]
    (to / "config.json").write_text(json.dumps(config, indent=1))


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], bytes]:
    """The tensors' descriptions and the data of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    return header, raw[8 + length :]


def _write(path: Path, tensors: dict[str, tuple[list[int], bytes]]) -> None:
    """A safetensors file of float32 tensors."""
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))
