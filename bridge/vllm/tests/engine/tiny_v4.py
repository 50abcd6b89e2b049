"""Writes a tiny DeepSeek-V4 with random weights: tiny_v4.py OUT TOKENIZER_DIR

vLLM's CPU path and transformers both load it. 58 MB. Widths that the CPU kernels fix are the real ones (head 512,
rotated 64, index 128, 256 experts); every layer's experts are chosen by token id, so that nothing hangs on a near
tie.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

VOCAB, EXPERTS, ACTIVE = 2048, 256, 6

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "compress_ratios": [0, 4, 128, 4],
    "num_hash_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 2,
    "moe_intermediate_size": 64,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": ACTIVE,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "expert_dtype": "bf16",
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 512,
    "sliding_window": 128,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 1024,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 16384,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def fill(net: Any) -> None:
    """Give every parameter values of a size that keeps activations near 1."""
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "embed_tokens" in name:
                p.normal_(0, 1)
            elif name.endswith("norm.weight"):
                p.normal_(1, 0.1)
            elif "scale" in name:
                p.normal_(0.5, 0.1)
            else:
                p.normal_(0, p.shape[-1] ** -0.5 if p.dim() > 1 else 0.1)
        for name, b in net.named_buffers():
            if name.endswith("tid2eid"):
                b.copy_(torch.stack([torch.randperm(EXPERTS)[:ACTIVE] for _ in range(VOCAB)]))


def deepseek_name(name: str) -> str:
    """transformers' name of a tensor as DeepSeek's files have it."""
    name = name.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
    return name.replace(".attn.norm.", ".attn.kv_norm.") if name.endswith(".attn.norm.weight") else name


def main() -> None:
    """See the module."""
    out, tokenizer = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    config = json.dumps(CONFIG, indent=1)
    (out / "config.json").write_text(config)
    torch.manual_seed(20)
    net = DeepseekV4ForCausalLM(DeepseekV4Config.from_pretrained(out))
    fill(net)
    exact = {n: p.detach().clone() for n, p in net.named_parameters() if "hc" in n or "sink" in n}
    net = net.to(torch.bfloat16)
    for name, p in net.named_parameters():
        if name in exact:
            p.data = exact[name]
    net.save_pretrained(out)
    tensors = {}
    for f in out.glob("*.safetensors"):
        for name, t in load_file(f).items():
            new = deepseek_name(name)
            tensors[new] = t.float() if new.endswith(".ape") else t
        f.unlink()
    for f in out.glob("*.index.json"):
        f.unlink()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(config)  # save_pretrained writes names of its own
    for f in tokenizer.glob("tokenizer*"):
        shutil.copy(f, out)


if __name__ == "__main__":
    main()
