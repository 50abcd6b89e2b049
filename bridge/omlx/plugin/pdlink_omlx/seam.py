"""What is used of the decoder's objects, each behind a test that it is there.

Nothing in this package relies on an attribute of the decoder that it has not looked for, here by `need` or elsewhere by
getattr: where something has moved, the caller gets a refusal that says what, and the decoder goes on as if this package
were not there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Refusal

_MISSING = object()


def need(obj: Any, path: str, what: str) -> Any:
    """Follow a dotted path of attributes; a Refusal that names the first missing one."""
    for name in path.split("."):
        found = getattr(obj, name, _MISSING)
        if found is _MISSING or found is None:
            raise Refusal("moved", f"{what}: this decoder's {type(obj).__name__} has no {name}")
        obj = found
    return obj


def need_call(obj: Any, name: str, what: str) -> Callable[..., Any]:
    """A callable attribute, or a Refusal."""
    found = need(obj, name, what)
    if not callable(found):
        raise Refusal("moved", f"{what}: this decoder's {type(obj).__name__}.{name} cannot be called")
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Live:
    """A loaded model with a block store: the decoder's own objects.

    `manager` (the store and its index) has its own locks; `scheduler`, `paged` (the table of blocks in use) and
    `prefix` belong to `executor`'s thread.
    """

    model_id: str  # as the API lists it
    hash_model: str  # as hashes and metadata have it
    block_tokens: int
    engine: Any
    scheduler: Any
    manager: Any
    paged: Any
    prefix: Any
    executor: Executor
    store: Path

    def path(self, digest: bytes) -> Path:
        """The file of a block, as the decoder names it."""
        found = Path(need_call(self.manager, "_get_file_path", "name a block's file")(digest))
        if found.name != digest.hex() + ".safetensors" or self.store not in found.parents:
            raise Refusal("moved", f"name a block's file: the decoder's name for it is {found}")
        return found

    def has(self, digest: bytes) -> bool:
        """Whether the decoder would find the block."""
        return bool(need_call(self.manager, "has_block", "look a block up")(digest))


def live_of(engine: Any, model_id: str) -> Live:
    """The objects behind a loaded engine."""
    what = "reach the block store"
    core = need(engine, "_engine", what)
    scheduler = need(core, "engine.scheduler", what)
    executor = getattr(core, "_mlx_executor", None) or need(core, "engine._mlx_executor", what)
    manager = getattr(scheduler, "paged_ssd_cache_manager", None)
    if manager is None:
        raise Refusal("unsupported", "the decoder runs without a block store: start it with --paged-ssd-cache-dir")
    if getattr(manager, "_hot_cache_only", False):
        raise Refusal("unsupported", "the decoder keeps blocks in memory only: give its cache a directory")
    if getattr(scheduler, "_turboquant_kv_bits", None):
        raise Refusal("unsupported", "the decoder quantises its cache (TurboQuant): switch that off for this model")
    paged = need(scheduler, "paged_cache_manager", what)
    name = need(paged, "model_name", what)
    if not isinstance(name, str) or not name:
        raise Refusal("unsupported", "the decoder caches without a model name: its hashes would not be this model's")
    tokens = need(paged, "block_size", what)
    if not isinstance(tokens, int) or tokens < 1:
        raise Refusal("moved", f"{what}: block size {tokens!r}")
    return Live(
        model_id=model_id,
        hash_model=name,
        block_tokens=tokens,
        engine=engine,
        scheduler=scheduler,
        manager=manager,
        paged=paged,
        prefix=need(scheduler, "block_aware_cache", what),
        executor=executor,
        store=Path(need(manager, "_cache_dir", what)),
    )


def entries(server: Any) -> dict[str, Any]:
    """The models that the server knows, by id; an entry's `engine` is None while it is not loaded."""
    pool = getattr(need(server, "_server_state", "list models"), "engine_pool", None)
    if pool is None:
        return {}  # the server is starting
    found = need(pool, "_entries", "list models")
    if not isinstance(found, dict):
        raise Refusal("moved", "list models: the engine pool's entries are no dict")
    return dict(found)


def id_of(server: Any, engine: Any) -> str:
    """The API's id of a loaded engine."""
    for model_id, entry in entries(server).items():
        if getattr(entry, "engine", None) is engine:
            return str(model_id)
    raise Refusal("moved", "find the model: its engine is not in the pool")


async def load(server: Any, model: str) -> Live:
    """A model's objects; loads it as a request would, with the decoder's own rules."""
    engine = await need_call(server, "get_engine_for_model", "load a model")(model)
    return live_of(engine, id_of(server, engine))


def hasher(live: Live) -> Callable[..., bytes]:
    """The decoder's chain hash."""
    module = sys.modules[type(live.paged).__module__]
    return need_call(module, "compute_block_hash", "hash blocks")


def chain(live: Live, ids: list[int], blocks: int) -> list[bytes]:
    """Hashes of the first whole blocks of a prompt, by the decoder's own function."""
    one, size = hasher(live), live.block_tokens
    out: list[bytes] = []
    parent = None
    for k in range(blocks):
        digest = one(parent, ids[k * size : (k + 1) * size], model_name=live.hash_model)
        if not isinstance(digest, bytes) or len(digest) != 32:
            raise Refusal("moved", "hash blocks: the decoder's hash is no 32 bytes")
        out.append(bytes(digest))
        parent = digest
    return out
