"""What the connector should take, computed by transformers in float32: reference.py MODEL PROMPTS.json FOLDER

PROMPTS: {name: ids}. Writes FOLDER/<name>.npz with k<layer> and v<layer> [heads, tokens, width], or x<layer> [tokens,
hidden] for DeepSeek-V4. A process of its own, because vLLM registers configurations that transformers cannot use.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache


def main() -> None:
    """See the module."""
    model, prompts, folder = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    v4 = net.config.model_type == "deepseek_v4"
    seen: dict[str, Any] = {}
    for i, layer in enumerate(net.model.layers if v4 else ()):

        def see(_: Any, args: Any, named: Any, i: int = i) -> None:
            seen[f"x{i}"] = (named["hidden_states"] if "hidden_states" in named else args[0])[0].numpy()

        layer.self_attn.register_forward_pre_hook(see, with_kwargs=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, ids in prompts.items():
        seen.clear()
        cache = None if v4 else DynamicCache()
        with torch.no_grad():
            net(torch.tensor([ids]), **({} if v4 else {"past_key_values": cache, "use_cache": True}))
        for n, kv in enumerate(cache.layers if cache is not None else ()):
            seen[f"k{n}"], seen[f"v{n}"] = kv.keys[0].numpy(), kv.values[0].numpy()
        np.savez(folder / f"{name}.npz", **seen)


if __name__ == "__main__":
    main()
