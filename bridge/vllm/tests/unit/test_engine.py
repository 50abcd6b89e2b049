"""What is refused, by name: versions, settings, models. With objects of the engine's shapes."""

from __future__ import annotations

from types import SimpleNamespace as N
from typing import Any

import pytest
from pdlink_vllm import engine, params
from pdlink_vllm.engine import Loaded, Ranks, Refusal, Settings, Source
from pdlink_vllm.wire import DType, Kind

DTYPES = {"bf16": DType.BF16, "f32": DType.F32}


@pytest.mark.parametrize(("version", "minor"), [("0.32.0", 32), ("0.28.1.dev3+g1234", 28), ("0.21.1rc1.dev1", 21)])
def test_versions(version: str, minor: int) -> None:
    assert engine.adapter(version).minor == minor


@pytest.mark.parametrize("version", ["0.20.2", "0.34.0", "1.0.0", "dev", "", "0.3"])
def test_versions_that_are_refused(version: str) -> None:
    for untested in (False, True):
        with pytest.raises(Refusal, match=r"is not supported, only 0\.21, 0\.28, 0\.32"):
            engine.adapter(version, untested)


@pytest.mark.parametrize(("version", "minor"), [("0.22.0", 21), ("0.27.9", 21), ("0.30.0", 28), ("0.33.0", 32)])
def test_versions_between(version: str, minor: int) -> None:
    with pytest.raises(Refusal, match="was never tested"):
        engine.adapter(version)
    assert engine.adapter(version, untested=True).minor == minor


def test_settings() -> None:
    assert Settings.of({}) == Settings()
    assert Settings.of({"socket": "/x", "local_workers": 2, "untested": True}) == Settings(
        "/x", local_workers=2, untested=True
    )


@pytest.mark.parametrize(
    "extra", [{"sokcet": "/x"}, {"socket": 3}, {"local_workers": True}, {"local_workers": "2"}, {"of": "x"}]
)
def test_settings_that_are_not_known(extra: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="is not known"):
        Settings.of(extra)


def test_a_projection_is_said_whole() -> None:
    whole = {"projection_library": "/l", "projection_weights": "/w", "projection_sha256": "00"}
    assert Settings.of(whole).projection_weights == "/w"
    for key in whole:
        with pytest.raises(Refusal, match="belong together"):
            Settings.of({k: v for k, v in whole.items() if k != key})


def module(**more: Any) -> Any:
    values = {
        "impl": N(do_kv_cache_update=lambda: None, forward=lambda: None),
        "num_kv_heads": 4,
        "head_size": 64,
        "kv_cache_dtype": "auto",
        "kv_cache_torch_dtype": "bf16",
        "attn_type": "decoder",
        "sliding_window": None,
        "kv_sharing_target_layer_name": None,
        "head_size_v": 64,
    }
    return N(**{**values, **more})


def config(layers: int = 3, kind: str = "qwen3", total: int = 4, **more: Any) -> Any:
    text = N(num_hidden_layers=layers, hidden_size=256)
    model = N(
        hf_config=N(model_type=kind),
        hf_text_config=text,
        enforce_eager=True,
        use_mla=False,
        dtype="bf16",
        get_total_num_kv_heads=lambda: total,
    )
    parallel = N(decode_context_parallel_size=1, prefill_context_parallel_size=1, data_parallel_size=1, **more)
    return N(model_config=model, parallel_config=parallel)


def caches(*names: str, size: int = 128) -> Any:
    return N(kv_cache_groups=[N(layer_names=list(names), kv_cache_spec=N(block_size=size))])


def loaded(
    layers: int = 3, ranks: Ranks | None = None, total: int = 4, change: dict[int, Any] | None = None, **more: Any
) -> Loaded:
    modules = {f"model.layers.{i}.self_attn.attn": (change or {}).get(i) or module(**more) for i in range(layers)}
    return Loaded(
        config(layers, total=total), caches(*modules), dict.fromkeys(modules), modules, ranks or Ranks(), DTYPES
    )


def plain(x: Loaded) -> engine.Model:
    return engine.inspect(x, engine.adapter("0.32.0"), Source.WRITER)


def test_a_plain_model() -> None:
    m = plain(loaded())
    assert (m.kind, m.dtype, m.width, m.heads, m.head_first, m.replica) == (Kind.KV, DType.BF16, 64, 4, 0, False)
    assert [layer.index for layer in m.layers] == [0, 1, 2]
    assert m.layers[2].block_size == 128
    assert m.row_bytes == 512


@pytest.mark.parametrize(
    ("ranks", "own", "total", "heads", "replica", "local"),
    [
        (Ranks(0, 2), 2, 4, (0, 2), False, 2),
        (Ranks(1, 2), 2, 4, (2, 4), False, 2),
        (Ranks(1, 4), 1, 2, (0, 1), True, 2),
        (Ranks(2, 4), 1, 2, (1, 2), False, 2),
        (Ranks(1, 2, hosts=2), 2, 4, (2, 4), False, 1),
        (Ranks(0, 2, hosts=2), 1, 1, (0, 1), False, 1),
        (Ranks(2, 4, hosts=2), 1, 2, (1, 2), False, 1),
        (Ranks(0, 4, hosts=2), 1, 1, (0, 1), False, 1),
        (Ranks(3, 4, hosts=2), 1, 4, (3, 4), False, 2),
        (Ranks(1, 2, 2, hosts=2, pp=1), 2, 4, (2, 4), False, 2),
    ],
)
def test_ranks(ranks: Ranks, own: int, total: int, heads: tuple[int, int], replica: bool, local: int) -> None:
    x = loaded(ranks=ranks, total=total, num_kv_heads=own)
    m = plain(x)
    assert ((m.head_first, m.head_end), m.replica) == (heads, replica)
    assert engine.local_workers(Settings(), m, x.config, ranks) == local
    assert engine.local_workers(Settings(local_workers=7), m, x.config, ranks) == 7


def test_a_sidecar_for_each_worker() -> None:
    ranks = Ranks(1, 2, 2, pp=1)
    x = loaded(ranks=ranks, num_kv_heads=2)
    assert ranks.rank == 3
    assert engine.local_workers(Settings("/run/engine-{rank}.sock"), plain(x), x.config, ranks) == 1


def test_stages() -> None:
    x = loaded(6, Ranks(pp_size=2))
    names = [n for n in x.modules if engine.layer_index(n) >= 3]
    stage = Loaded(x.config, caches(*names), dict.fromkeys(names), {n: x.modules[n] for n in names}, x.ranks, DTYPES)
    m = plain(stage)
    assert [layer.index for layer in m.layers] == [3, 4, 5]
    assert engine.local_workers(Settings(), m, x.config, x.ranks) == 2


def test_workers_that_cannot_be_counted() -> None:
    x = loaded(ranks=Ranks(0, 4, hosts=3))
    with pytest.raises(Refusal, match="local_workers"):
        engine.local_workers(Settings(), plain(loaded()), x.config, x.ranks)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sliding_window": 4096}, "sliding window"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype auto"),
        ({"attn_type": "encoder_only"}, "encoder_only attention"),
        ({"kv_sharing_target_layer_name": "x"}, "shares its KV cache"),
        ({"head_size_v": 32}, "another width"),
        ({"kv_cache_torch_dtype": "fp4"}, "cannot be handed over"),
        ({"impl": N()}, "no do_kv_cache_update"),
        ({"num_kv_heads": 3}, "do not make 4"),
    ],
)
def test_attention_that_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        plain(loaded(**more))


def test_models_that_are_refused() -> None:
    other = N(impl=None)
    for x, words in (
        (loaded(0), "has no plain attention"),
        (loaded(change={1: other}), "without num_kv_heads"),
        (loaded(change={1: module(head_size=128, head_size_v=128)}), "differ"),
    ):
        with pytest.raises(Refusal, match=words):
            plain(x)
    x = loaded()
    few = {n: m for n, m in x.modules.items() if "layers.1" not in n}
    with pytest.raises(Refusal, match="mix kinds"):
        plain(Loaded(x.config, caches(*few), dict.fromkeys(few), few, Ranks(), DTYPES))
    with pytest.raises(Refusal, match="in no KV cache group"):
        plain(Loaded(x.config, caches(), x.caches, x.modules, Ranks(), DTYPES))
    twice = {**x.modules, "other.layers.1.attn": module()}
    with pytest.raises(Refusal, match="two KV caches"):
        plain(Loaded(x.config, caches(*twice), dict.fromkeys(twice), twice, Ranks(), DTYPES))


def test_draft_layers_are_left_out() -> None:
    x = loaded()
    more = {**x.modules, "draft.layers.3.attn": module(), "model.rotary": N()}
    assert len(plain(Loaded(x.config, caches(*more), dict.fromkeys(more), more, Ranks(), DTYPES)).layers) == 3


def v4(suffix: str = ".attn", layers: int = 3, **more: Any) -> Loaded:
    modules = {
        f"model.layers.{i}{suffix}": N(
            swa_cache_layer=N(prefix=f"model.layers.{i}.attn.swa_cache"), register_forward_pre_hook=print, **more
        )
        for i in range(layers)
    }
    modules["model.layers.0.attn.swa_cache"] = N()
    names = [f"model.layers.{i}.attn.swa_cache" for i in range(layers)]
    return Loaded(config(layers, "deepseek_v4"), caches(*names, size=64), {}, modules, Ranks(1, 2), DTYPES)


@pytest.mark.parametrize(
    ("version", "suffix"), [("0.32.0", ".attn"), ("0.21.0", ".attn.deepseek_v4_multi_head_latent_attention")]
)
def test_deepseek_v4(version: str, suffix: str) -> None:
    m = engine.inspect(v4(suffix), engine.adapter(version), Source.INPUT)
    assert (m.kind, m.width, m.heads, m.row_bytes) == (Kind.DSV4, 256, 0, 512)
    assert m.layers[1].name == "model.layers.1.attn.swa_cache"
    assert engine.local_workers(Settings(), m, config(3, "deepseek_v4"), Ranks(1, 2)) == 2


def test_deepseek_v4_that_is_refused() -> None:
    x = v4()
    with pytest.raises(Refusal, match=r"no module \.attn\.deepseek"):
        engine.inspect(x, engine.adapter("0.21.0"), Source.INPUT)
    x.modules["model.layers.1.attn"].swa_cache_layer = None
    with pytest.raises(Refusal, match="without swa_cache_layer"):
        engine.inspect(x, engine.adapter("0.32.0"), Source.INPUT)
    y = v4()
    y.config.model_config.dtype = "f32"
    with pytest.raises(Refusal, match="--dtype bfloat16"):
        engine.inspect(y, engine.adapter("0.32.0"), Source.INPUT)


def test_configurations() -> None:
    groups = caches("x")
    engine.check_config(config(), groups, True)
    with pytest.raises(Refusal, match="decode_context_parallel_size = 2"):
        c = config()
        c.parallel_config.decode_context_parallel_size = 2
        engine.check_config(c, groups, False)
    with pytest.raises(Refusal, match="no KV cache groups"):
        engine.check_config(config(), None, True)
    eager = config(kind="deepseek_v4")
    engine.check_config(eager, groups, False)
    eager.model_config.enforce_eager = False
    with pytest.raises(Refusal, match="--enforce-eager"):
        engine.check_config(eager, groups, False)
    latent = config(kind="deepseek_v3")
    latent.model_config.use_mla = True
    with pytest.raises(Refusal, match="deepseek_v3 has latent attention"):
        engine.check_config(latent, groups, False)


def test_sources() -> None:
    assert engine.source(config(), True) is Source.WRITER
    assert engine.source(config(), False) is Source.CACHE
    assert engine.source(config(kind="deepseek_v4"), True) is Source.INPUT


class Runner:
    """Whoever calls, as the engine's runners and workers do: with the model, or without."""

    def get_model(self) -> str:
        return "the model"

    def register(self, deep: int = 0) -> Any:
        return Plain().register(deep)


class Plain:
    def register(self, deep: int) -> Any:
        return self.register(deep - 1) if deep else engine.model_getter()


def test_the_model_is_that_of_whoever_calls() -> None:
    get = Runner().register()
    assert get is not None
    assert get() == "the model"
    assert Plain().register(0) is None, "nobody has it"
    assert Runner().register(params.CALLERS) is None, "it is not looked for in the whole stack"
    moved = Runner()
    moved.get_model = "elsewhere"  # type: ignore[assignment, method-assign]
    assert moved.register() is None


@pytest.mark.parametrize("kind", [AttributeError, ImportError, KeyError, TypeError, RuntimeError])
def test_callers_that_answer_otherwise(kind: type[Exception]) -> None:
    """Objects on the stack are whatever the engine and its libraries have: none may keep the model from being found."""

    class Proxy(Runner):
        """Somebody in between."""

        def __getattribute__(self, name: str) -> Any:
            if name == "get_model":
                raise kind(name)
            return super().__getattribute__(name)

        def pass_on(self, to: Any) -> Any:
            return to()

    class Above(Runner):
        def call(self) -> Any:
            return Proxy().pass_on(engine.model_getter)

    found = Above().call()
    assert found is not None
    assert found() == "the model"


@pytest.mark.parametrize(
    "kind", [AssertionError, AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError]
)
def test_an_engine_that_moved_is_refused_by_name(kind: type[Exception]) -> None:
    words = rf"vLLM 0\.32\.9 is not as .*\({kind.__name__}: .?get_node_count.*0\.28, 0\.32"
    with pytest.raises(Refusal, match=words), engine.asked("0.32.9"):
        raise kind("get_node_count")


def test_what_is_no_move_stays_what_it_is() -> None:
    for e in (Refusal("the setting"), MemoryError()):
        with pytest.raises(type(e)) as found, engine.asked("v"):
            raise e
        assert found.value is e
