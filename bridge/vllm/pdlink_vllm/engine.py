"""What is known of vLLM: which versions, and what a loaded model must look like for its rows to be taken.

The engine's classes differ between versions and models, so everything that is used of them is looked for first, and
what is not there is a Refusal that names it. Outside `connector` and `facts`, this is the only module that knows names
of the engine.
"""

from __future__ import annotations

import contextlib
import enum
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, cast

from pdlink_vllm import params
from pdlink_vllm.wire import DType, Kind


class Refusal(Exception):
    """This engine, model or setting cannot hand over. The text names what it is, and the cure where there is one."""


@dataclass(frozen=True)
class Adapter:
    """How a version of the engine differs from the others.

    writer is the method of an attention implementation, on CPU, that is given keys, values and where they go. v4_suffix
    ends the name, among the model's registered modules, of the module that is given a DeepSeek-V4 layer's attention
    input.
    """

    minor: int
    writer: str
    v4_suffix: str


# Versions that the tests run, or whose sources were read; 0.22 to 0.33 differ from these in nothing that is used here
# as far as anybody looked, which is why `untested` exists and is off.
ADAPTERS = (
    Adapter(21, "forward", ".attn.deepseek_v4_multi_head_latent_attention"),
    Adapter(28, "do_kv_cache_update", ".attn"),
    Adapter(32, "do_kv_cache_update", ".attn"),
)
NEWEST = 33  # 0.33 was read, not run

TESTED = ", ".join(f"0.{a.minor}" for a in ADAPTERS)

_VERSION = re.compile(r"0\.(\d+)(?:\D|$)")


def adapter(version: str, untested: bool = False) -> Adapter:
    """Return the adapter for a version of vLLM. Raises Refusal."""
    m = _VERSION.match(version)
    minor = int(m.group(1)) if m else -1
    for a in ADAPTERS:
        if a.minor == minor:
            return a
    near = [a for a in ADAPTERS if a.minor < minor]
    if not near or minor > NEWEST:
        raise Refusal(f"vLLM {version} is not supported, only {TESTED}")
    if not untested:
        raise Refusal(
            f'vLLM {version} was never tested with this connector, only {TESTED}; "untested": true in '
            "kv_connector_extra_config tries it all the same"
        )
    return near[-1]


@contextlib.contextmanager
def asked(version: str) -> Iterator[None]:
    """What is asked of the engine inside, and is not where it was or not what it was, is a Refusal that names it."""
    try:
        yield
    except (AssertionError, AttributeError, ImportError, LookupError, TypeError, ValueError) as e:
        raise Refusal(
            f"vLLM {version} is not as this connector knows it ({type(e).__name__}: {e}); tested are {TESTED}"
        ) from e


RANK = "{rank}"  # in a path: the worker's number


@dataclass(frozen=True)
class Settings:
    """kv_connector_extra_config. socket: path of the sidecar's socket; {rank} in it is the worker's number in its
    engine, where each worker has a sidecar of its own. wait_ms: how long one request may make the engine wait, all in
    all. local_workers: how many workers of this engine that take part have this sidecar; 0: found out. untested: accept
    versions between those that were tested. projection_library, projection_weights, projection_sha256: libpdproj.so,
    the weights that were exported for it, and their sha256; DeepSeek-V4 is projected on the engine's GPU where all
    three are said.
    """

    socket: str = "/run/pdlink/engine.sock"
    wait_ms: int = int(params.WAIT_BUDGET * 1000)
    local_workers: int = 0
    untested: bool = False
    projection_library: str = ""
    projection_weights: str = ""
    projection_sha256: str = ""

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        """Read the settings. Raises Refusal for a name or type that is not known: a typing error must not go unseen."""
        for key, value in extra.items():
            default = getattr(cls, key, None)
            if default is None or type(value) is not type(default):
                raise Refusal(
                    f"kv_connector_extra_config: {key} = {value!r} is not known; there are socket, "
                    "projection_library, projection_weights and projection_sha256 (texts), wait_ms and local_workers "
                    "(numbers) and untested (true or false)"
                )
        made = cls(**extra)
        said = [made.projection_library, made.projection_weights, made.projection_sha256]
        if any(said) and not all(said):
            raise Refusal(
                "kv_connector_extra_config: projection_library, projection_weights and projection_sha256 belong "
                "together"
            )
        return made


class Source(enum.Enum):
    """Where rows are taken from."""

    WRITER = "keys and values on their way into the cache"
    CACHE = "the paged cache"
    INPUT = "the attention's input"


def source(config: Any, on_cpu: bool) -> Source:
    """Say where a model's rows will be taken from; the same in all processes of an engine."""
    if getattr(config.model_config.hf_config, "model_type", "") == "deepseek_v4":
        return Source.INPUT
    return Source.WRITER if on_cpu else Source.CACHE


def check_config(config: Any, kv_cache_config: Any, on_cpu: bool) -> None:
    """Refuse settings under which rows cannot be taken, whatever the model. Raises Refusal."""
    p = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(p, name, 1) > 1:
            raise Refusal(f"{name} = {getattr(p, name)}: tokens are spread over ranks, which is not supported")
    if not getattr(kv_cache_config, "kv_cache_groups", None):
        raise Refusal("the engine names no KV cache groups: the model has no KV cache, or this version hides it")
    if source(config, on_cpu) is not Source.INPUT and getattr(config.model_config, "use_mla", False):
        raise Refusal(
            f"{getattr(config.model_config.hf_config, 'model_type', 'the model')} has latent attention: only plain "
            "keys and values, and DeepSeek-V4, can be handed over"
        )
    if source(config, on_cpu) is Source.INPUT and not config.model_config.enforce_eager:
        raise Refusal("DeepSeek-V4 needs --enforce-eager: a captured graph shows no attention input")


def block_sizes(kv_cache_config: Any) -> tuple[int, ...]:
    """Return the tokens of a block, for each KV cache group."""
    return tuple(int(g.kv_cache_spec.block_size) for g in kv_cache_config.kv_cache_groups)


@dataclass(frozen=True)
class Layer:
    """One layer of the model in this process. name is its KV cache's, or for DeepSeek-V4 that of its window's; group
    the KV cache group of that name, block_size its tokens of a block.
    """

    index: int
    name: str
    module: Any
    group: int
    block_size: int


@dataclass(frozen=True)
class Model:
    """A loaded model whose rows can be taken. heads [head_first, head_end) of kv_heads are this rank's; all 0 for
    DeepSeek-V4. width is that of a head, or of the attention input.
    """

    kind: Kind
    layers: tuple[Layer, ...]
    dtype: DType
    width: int
    head_first: int = 0
    head_end: int = 0
    replica: bool = False  # another rank has the same heads and hands them over

    @property
    def heads(self) -> int:
        """Key/value heads of this rank."""
        return self.head_end - self.head_first

    @property
    def row_bytes(self) -> int:
        """Bytes of one token of one layer: of x, or of keys alone."""
        return self.width * self.dtype.size * max(1, self.heads)


@dataclass(frozen=True)
class Ranks:
    """Where this process stands: tensor parallelism, pipeline stages, and hosts that the engine's workers are spread
    over, as many on each and in the order of their ranks.
    """

    tp: int = 0
    tp_size: int = 1
    pp_size: int = 1
    hosts: int = 1
    pp: int = 0

    @property
    def rank(self) -> int:
        """This worker's number in its engine."""
        return self.pp * self.tp_size + self.tp


@dataclass(frozen=True)
class Loaded:
    """What the engine gave the worker after it loaded the model. modules: all that registered a name; caches: by layer
    name; get_model: returns the whole of it; None where the engine does not offer that (see model_getter).
    """

    config: Any
    kv_cache_config: Any
    caches: Mapping[str, Any]
    modules: Mapping[str, Any]
    ranks: Ranks
    dtypes: Mapping[Any, DType] = field(default_factory=dict)
    get_model: Callable[[], Any] | None = None


def model_getter() -> Callable[[], Any] | None:
    """Return get_model of the model runner or worker that is calling; None where nobody that calls has it.

    Connectors are not given the model, and its parts do not know what they are parts of. get_model is what every
    supported version offers for it, on runners and on workers, and it takes wrappers of CUDA graphs off; no other name
    of theirs is used. Without the model everything is handed over all the same, and the document of facts says why it
    has no fingerprints.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(params.CALLERS):
        if frame is None:
            break
        get = None
        with contextlib.suppress(Exception):  # callers are any objects, and may answer for attributes as they like
            get = getattr(frame.f_locals.get("self"), "get_model", None)
        if callable(get):
            return cast(Callable[[], Any], get)
        frame = frame.f_back
    return None


_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def layer_index(name: str) -> int:
    """Return the layer's number in a module's name; -1 when there is none."""
    m = _LAYER.search(name)
    return int(m.group(1)) if m else -1


def inspect(loaded: Loaded, adapter: Adapter, source: Source) -> Model:
    """Find the layers of a loaded model. Raises Refusal."""
    if source is Source.INPUT:
        return _deepseek_v4(loaded, adapter)
    return _plain(loaded, adapter, source)


def _group_of(loaded: Loaded, name: str) -> tuple[int, int]:
    """Return KV cache group and block size of a cache by name."""
    for i, g in enumerate(loaded.kv_cache_config.kv_cache_groups):
        if name in g.layer_names:
            return i, int(g.kv_cache_spec.block_size)
    raise Refusal(f"{name} is in no KV cache group")


def _in_order(layers: dict[int, Layer], what: str) -> tuple[Layer, ...]:
    """Check that a stage's layers are consecutive."""
    order = sorted(layers)
    if not order:
        raise Refusal(f"the model has no {what}: only models whose every layer has one can hand over")
    if order != list(range(order[0], order[-1] + 1)):
        raise Refusal(f"only layers {order} have {what}: models that mix kinds of attention cannot hand over")
    return tuple(layers[i] for i in order)


def _dtype(loaded: Loaded, dtype: Any) -> DType:
    if dtype not in loaded.dtypes:
        raise Refusal(f"rows of type {dtype} cannot be handed over, only bfloat16, float16 and float32: set --dtype")
    return loaded.dtypes[dtype]


def _plain(loaded: Loaded, adapter: Adapter, source: Source) -> Model:
    text = loaded.config.model_config.hf_text_config
    count = int(text.num_hidden_layers)
    layers: dict[int, Layer] = {}
    for name, module in loaded.modules.items():
        if name not in loaded.caches:
            continue
        index = layer_index(name)
        if not 0 <= index < count:
            continue  # a draft model's
        if index in layers:
            raise Refusal(f"layer {index} has two KV caches, {layers[index].name} and {name}")
        _check_plain(name, module, adapter, source)
        layers[index] = Layer(index, name, module, *_group_of(loaded, name))
    found = _in_order(layers, "plain attention")
    if loaded.ranks.pp_size == 1 and len(found) != count:
        raise Refusal(f"{len(found)} of {count} layers have plain attention: models that mix kinds cannot hand over")
    first, total = found[0].module, int(loaded.config.model_config.get_total_num_kv_heads())
    shapes = {(m.module.num_kv_heads, m.module.head_size) for m in found}
    if len(shapes) != 1:
        raise Refusal("layers differ in their key/value heads or head width")
    tp, size = loaded.ranks.tp, loaded.ranks.tp_size
    own = int(first.num_kv_heads)
    copies = max(1, size // total)  # ranks that hold the same heads
    if own * size != max(total, size):
        raise Refusal(f"{own} key/value heads on each of {size} ranks do not make {total}")
    head = tp * own if copies == 1 else tp // copies
    dtype = _dtype(loaded, first.kv_cache_torch_dtype)
    return Model(Kind.KV, found, dtype, int(first.head_size), head, head + own, replica=tp % copies != 0)


def _check_plain(name: str, module: Any, adapter: Adapter, source: Source) -> None:
    for attribute in ("impl", "num_kv_heads", "head_size", "kv_cache_dtype", "kv_cache_torch_dtype"):
        if not hasattr(module, attribute):
            raise Refusal(f"{name} is {type(module).__name__} without {attribute}: only plain attention can hand over")
    kind = str(getattr(module, "attn_type", "decoder"))
    if kind.lower().rpartition(".")[2] != "decoder":
        raise Refusal(f"{name} is {kind} attention")
    if getattr(module, "sliding_window", None) is not None:
        raise Refusal(f"{name} has a sliding window: the decoder's blocks hold whole prompts")
    if getattr(module, "kv_sharing_target_layer_name", None) is not None:
        raise Refusal(f"{name} shares its KV cache with another layer")
    if getattr(module, "head_size_v", module.head_size) != module.head_size:
        raise Refusal(f"{name} has values of another width than its keys")
    if str(module.kv_cache_dtype) not in ("auto", "bfloat16", "float16", "float32"):
        raise Refusal(f"{name} has a KV cache of type {module.kv_cache_dtype}: start vLLM with --kv-cache-dtype auto")
    if source is Source.WRITER and not callable(getattr(module.impl, adapter.writer, None)):
        raise Refusal(f"{type(module.impl).__name__} has no {adapter.writer}: this attention backend is not known")


def _deepseek_v4(loaded: Loaded, adapter: Adapter) -> Model:
    text = loaded.config.model_config.hf_text_config
    count, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    layers: dict[int, Layer] = {}
    for name, module in loaded.modules.items():
        index = layer_index(name)
        if not name.endswith(adapter.v4_suffix) or not 0 <= index < count:
            continue
        window = getattr(getattr(module, "swa_cache_layer", None), "prefix", None)
        if not isinstance(window, str) or not hasattr(module, "register_forward_pre_hook"):
            raise Refusal(
                f"{name} is {type(module).__name__} without swa_cache_layer: this form of DeepSeek-V4 is not known"
            )
        layers[index] = Layer(index, window, module, *_group_of(loaded, window))
    found = _in_order(layers, f"module {adapter.v4_suffix}")
    if loaded.ranks.pp_size == 1 and len(found) != count:
        raise Refusal(f"{len(found)} of {count} layers have DeepSeek-V4's attention")
    dtype = _dtype(loaded, loaded.config.model_config.dtype)
    if dtype is not DType.BF16:
        raise Refusal("DeepSeek-V4 runs in another type than bfloat16, the decoder's: set --dtype bfloat16")
    return Model(Kind.DSV4, found, dtype, hidden)


def local_workers(settings: Settings, model: Model, config: Any, ranks: Ranks) -> int:
    """Return how many workers of this engine that take part have this one's sidecar. Raises Refusal where that cannot
    be known.
    """
    if settings.local_workers:
        return settings.local_workers
    if RANK in settings.socket:
        return 1
    total = ranks.tp_size * ranks.pp_size
    if ranks.hosts > 1 and (getattr(config.parallel_config, "data_parallel_size", 1) > 1 or total % ranks.hosts):
        raise Refusal(
            f"{total} workers on {ranks.hosts} hosts: say how many that take part are on this one with "
            '"local_workers" in kv_connector_extra_config'
        )
    heads = int(config.model_config.get_total_num_kv_heads()) if model.kind is Kind.KV else ranks.tp_size
    copies = max(1, ranks.tp_size // heads)  # ranks that hold the same heads, of which one takes part
    here = total // ranks.hosts
    first = ranks.rank // here * here
    return sum(rank % ranks.tp_size % copies == 0 for rank in range(first, first + here))
