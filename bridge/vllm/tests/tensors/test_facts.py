"""What is read off a loaded model: modules of the engine's shapes, real tensors. Needs torch."""

from __future__ import annotations

import json
from types import SimpleNamespace as N
from typing import Any

import numpy as np
import pytest
import torch
from pdlink_vllm import facts
from pdlink_vllm.engine import Layer, Loaded, Model, Ranks, model_getter
from pdlink_vllm.wire import DType, Kind
from torch import nn

HIDDEN, HEADS, WIDTH, TABLE = 24, 2, 8, 300


class Norm(nn.Module):
    """A norm as the engine has it."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.rand(width, generator=g).bfloat16(), requires_grad=False)
        self.variance_epsilon = 1e-5


class Rotary(nn.Module):
    """A rotation with a table in bf16, which converts it for good when it is given another type, as the engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.head_size = WIDTH
        angles = torch.arange(TABLE).float()[:, None] / 10000 ** (torch.arange(0, WIDTH, 2).float() / WIDTH)
        self.register_buffer("cos_sin_cache", torch.cat((angles.cos(), angles.sin()), -1).bfloat16(), persistent=False)

    def forward_native(self, positions: Any, query: Any, key: Any = None) -> tuple[Any, Any]:
        """Rotate halves."""
        self.cos_sin_cache = self.cos_sin_cache.to(query.dtype)
        cos, sin = self.cos_sin_cache[positions].unsqueeze(1).chunk(2, -1)
        a, b = query.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1), key


ROPE = Rotary()  # layers share it, as they do in the engine


class Block(nn.Module):
    """A decoder layer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(HIDDEN, seed)
        self.self_attn = nn.Module()
        self.self_attn.rotary_emb = ROPE
        self.self_attn.q_norm = Norm(WIDTH, seed + 1)
        self.self_attn.wide_norm = Norm(HEADS * WIDTH, seed + 2)  # over all heads: each rank has its own
        self.self_attn.attn = nn.Module()
        self.self_attn.attn.num_heads = 3
        self.mlp = nn.Linear(HIDDEN, HIDDEN)


class Runner:
    """Whoever has the model and registers its caches."""

    def __init__(self, layers: int = 4) -> None:
        self.model = nn.Module()
        self.model.model = nn.Module()
        self.model.model.layers = nn.ModuleList(Block(10 * i) for i in range(layers))
        self.model.model.norm = Norm(HIDDEN, 99)
        self.model.model.embed = nn.Embedding(64, HIDDEN)
        self.model.model.embed.org_vocab_size = 61
        self.other = nn.Linear(1, 1)

    def get_model(self) -> Any:
        return self.model

    def register(self, ranks: Ranks | None = None, first: int = 0, end: int = 4) -> dict[str, Any]:
        """Tell of layers [first, end)."""
        blocks = self.model.model.layers
        layers = tuple(Layer(i, f"l{i}", blocks[i].self_attn.attn, 0, 16) for i in range(first, end))
        config = N(model_config=N(hf_text_config=N(num_hidden_layers=4), get_total_num_kv_heads=lambda: HEADS))
        loaded = Loaded(config, None, {}, {}, ranks or Ranks(), get_model=model_getter())
        out: dict[str, Any] = json.loads(facts.document(loaded, Model(Kind.KV, layers, DType.BF16, WIDTH, 0, HEADS)))
        return out


def test_document() -> None:
    got = Runner().register()
    numbers = {
        "version": 1,
        "layers": 4,
        "kv_heads": HEADS,
        "head_dim": WIDTH,
        "heads": 3,
        "hidden": HIDDEN,
        "vocab": 61,
    }
    assert {k: got[k] for k in numbers} == numbers
    assert (got["kind"], got["dtype"], got["eps"]) == ("kv", "BF16", 1e-5) and "unknown" not in got
    names = ("input_layernorm", "self_attn.q_norm", "self_attn.wide_norm")
    assert sorted(got["tensors"]) == sorted([*(f"layers.{i}.{n}" for i in (0, 2, 3) for n in names), "norm"])


def test_rotation_is_seen_as_it_is() -> None:
    got = Runner().register()["rope"]
    assert sorted(got) == ["0", "2", "3"]
    assert got["0"]["at"] == [1, 255], "the table does not reach further"
    assert (got["0"]["dims"], got["0"]["pairs"]) == (WIDTH, "halves")
    assert got["3"]["sin"][0] == [facts.number(torch.sin(torch.tensor(10000 ** (-i / 4))).bfloat16()) for i in range(4)]
    assert ROPE.cos_sin_cache.dtype is torch.bfloat16, "looking has changed the engine"


def test_fingerprints_do_not_follow_the_type() -> None:
    runner = Runner()
    want = runner.register()["tensors"]
    for block in runner.model.model.layers:
        block.input_layernorm.weight = nn.Parameter(block.input_layernorm.weight.float(), requires_grad=False)
    assert runner.register()["tensors"] == want
    runner.model.model.layers[2].input_layernorm.weight[0] += 0.5
    changed = {k for k, v in runner.register()["tensors"].items() if v != want[k]}
    assert changed == {"layers.2.input_layernorm"}


def test_a_rank_tells_only_what_it_has_whole() -> None:
    got = Runner().register(Ranks(1, 2))
    assert got["heads"] == 6 and not any("wide" in name for name in got["tensors"]) and len(got["tensors"]) == 7


def test_a_stage_tells_of_its_layers() -> None:
    got = Runner().register(Ranks(pp_size=2), 2, 4)
    assert sorted(got["rope"]) == ["2", "3"] and got["layers"] == 4


@pytest.mark.parametrize(
    ("get_model", "why"),
    [
        (None, "no caller of register_kv_caches has get_model(): this version of the engine keeps it elsewhere"),
        (lambda: nn.Linear(1, 1), "get_model() returns a Linear, of which Module is no part"),
        (lambda: None, "get_model() returns a NoneType, which has no named_modules()"),
        (lambda: {}["model"], "KeyError: 'model'"),
    ],
)
def test_a_model_that_is_not_to_be_had(get_model: Any, why: str) -> None:
    """The rest of the document is there, and says why the model's part is not."""
    layers = (Layer(0, "l0", Runner().model.model.layers[0].self_attn.attn, 0, 16),)
    config = N(model_config=N(hf_text_config=N(num_hidden_layers=4), get_total_num_kv_heads=lambda: HEADS))
    loaded = Loaded(config, None, {}, {}, Ranks(), get_model=get_model)
    got = json.loads(facts.document(loaded, Model(Kind.KV, layers, DType.BF16, WIDTH, 0, HEADS)))
    assert got["unknown"] == {"": why} and "tensors" not in got
    assert (got["layers"], got["kv_heads"]) == (4, HEADS)


def test_what_is_not_there_is_said() -> None:
    runner = Runner()
    runner.model.model.embed.org_vocab_size = None
    for block in runner.model.model.layers:
        block.self_attn.rotary_emb = nn.Module()
    got = runner.register()
    assert set(got["unknown"]) == {"vocab", "rope"} and "no rotary_emb with a table" in got["unknown"]["rope"]
    assert got["tensors"]


def test_a_rotation_of_neighbours_in_the_last_features() -> None:
    """As DeepSeek-V4 does it: the first features pass."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head_size = WIDTH
            self.register_buffer("cos_sin_cache", torch.zeros(2, 4), persistent=False)

        def forward_native(self, positions: Any, query: Any, key: Any = None) -> tuple[Any, Any]:
            out = query.clone()
            a, b = query[..., 4::2], query[..., 5::2]
            c, s = np.cos(0.5), np.sin(0.5)
            out[..., 4::2], out[..., 5::2] = a * c - b * s, a * s + b * c
            return out, key

    runner = Runner()
    for block in runner.model.model.layers:
        block.self_attn.rotary_emb = Last()
    got = runner.register()["rope"]["0"]
    assert (got["dims"], got["first"], got["pairs"], got["at"]) == (4, 4, "neighbours", [1])
    assert got["cos"] == [[pytest.approx(np.cos(0.5), rel=1e-5)] * 2]
