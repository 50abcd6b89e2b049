"""A decoder without MLX: the objects that the plug-in reaches, with plain-KV blocks of four tokens.

It stands in where a test is about the plug-in's own decisions. What a real decoder does is tests/decoder's business.
"""

from __future__ import annotations

import hashlib
import json
import struct
import types
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_model
import numpy as np

BLOCK = 4
LAYERS = 2
SHAPE = (1, 1, BLOCK, 2)
MODEL = "tiny"
CREATED = "1790000000.25"


def compute_block_hash(
    parent: bytes | None, token_ids: list[int], extra_keys: Any = None, model_name: str = ""
) -> bytes:
    """The chain hash, as the format defines it."""
    text = str(tuple(token_ids)) + (str(tuple(extra_keys)) if extra_keys else "")
    return hashlib.sha256(model_name.encode() + (parent or b"omlx-root") + text.encode()).digest()


def chain(ids: list[int], blocks: int) -> list[bytes]:
    """Hashes of a prompt's first blocks."""
    out: list[bytes] = []
    for k in range(blocks):
        out.append(compute_block_hash(out[-1] if out else None, ids[k * BLOCK : (k + 1) * BLOCK], model_name=MODEL))
    return out


def container(tensors: dict[str, tuple[str, tuple[int, ...], bytes]], meta: dict[str, str]) -> bytes:
    """A block file."""
    head: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    head["__metadata__"] = meta
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values())


def block(digest: bytes, seed: int = 0, **meta: str) -> bytes:
    """A block as this decoder writes it; further arguments replace metadata."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(SHAPE))
    tensors = {
        f"layer_{i}_state_{j}": ("F32", SHAPE, rng.standard_normal(size, np.float32).astype("<f4").tobytes())
        for i in range(LAYERS)
        for j in (0, 1)
    }
    types_ = json.dumps(["KVCache"] * LAYERS)
    signature = {
        "block_size": BLOCK,
        "layer_cache_types": ["KVCache"] * LAYERS,
        "model_name": MODEL,
        "num_layers": LAYERS,
    }
    described = {
        "omlx_cache_format_version": "3",
        "block_hash": digest.hex(),
        "token_count": str(BLOCK),
        "num_layers": str(LAYERS),
        "model_name": MODEL,
        "block_size": str(BLOCK),
        "cache_signature": json.dumps(signature, separators=(",", ":")),
        "created_at": CREATED,
        "layer_cache_types": types_,
        "layer_meta_states": json.dumps([[] for _ in range(LAYERS)]),
        **{f"layer_{i}_state_count": "2" for i in range(LAYERS)},
    }
    return container(tensors, {**described, **meta})


@dataclass
class Metadata:
    """What the index knows of a block."""

    block_hash: bytes
    token_count: int
    file_size: int
    file_path: Path


class Index:
    """The index of blocks, oldest first."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Metadata] = {}

    def add(self, metadata: Metadata) -> None:
        """Index a block."""
        self.entries[metadata.block_hash] = metadata

    def remove(self, digest: bytes) -> Metadata | None:
        """Drop a block."""
        return self.entries.pop(digest, None)

    def touch(self, digest: bytes) -> None:
        """Make a block the newest."""
        if digest in self.entries:
            self.entries[digest] = self.entries.pop(digest)


class Manager:
    """The block store."""

    def __init__(
        self, cache_dir: Path, max_size_bytes: int, hot_cache_max_bytes: int = 0, expected_model_name: str = ""
    ) -> None:
        self._cache_dir, self._max_size, self._hot_cache_only = cache_dir, max_size_bytes, False
        self._expected_model_name = expected_model_name
        self._index, self._incompatible_index = Index(), Index()
        self.closed = False
        for digit in "0123456789abcdef":
            (cache_dir / digit).mkdir(parents=True, exist_ok=True)

    def _get_file_path(self, digest: bytes) -> Path:
        return self._cache_dir / digest.hex()[0] / (digest.hex() + ".safetensors")

    def has_block(self, digest: bytes) -> bool:
        """Whether a block is indexed."""
        return digest in self._index.entries

    def get_block_metadata(self, digest: bytes) -> Metadata | None:
        """An indexed block's metadata."""
        return self._index.entries.get(digest)

    def _read_file_metadata(self, path: Path) -> Metadata | None:
        raw = path.read_bytes()
        (n,) = struct.unpack("<Q", raw[:8])
        meta = json.loads(raw[8 : 8 + n])["__metadata__"]
        return Metadata(bytes.fromhex(meta["block_hash"]), int(meta["token_count"]), len(raw), path)

    def _is_compatible_block(self, metadata: Metadata) -> bool:
        return bool(metadata.token_count == BLOCK)

    def _get_effective_max_size(self) -> int:
        return self._max_size

    def _tracked_ssd_size(self) -> int:
        return sum(m.file_size for m in self._index.entries.values())

    def _enforce_size_limit_for_new_block(self, estimated_new_size: int = 1 << 20) -> None:
        while self._index.entries and self._tracked_ssd_size() + estimated_new_size > self._max_size:
            oldest = next(iter(self._index.entries))
            self._index.entries.pop(oldest).file_path.unlink()

    def delete_block(self, digest: bytes) -> bool:
        """Drop a block and its file."""
        found = self._index.remove(digest)
        if found is not None:
            found.file_path.unlink(missing_ok=True)
        return found is not None

    def close(self) -> None:
        """End the store."""
        self.closed = True

    def put(self, digest: bytes, raw: bytes, known: bool = False) -> Path:
        """Lay a file under a block's name; `known` indexes it too."""
        path = self._get_file_path(digest)
        path.write_bytes(raw)
        if known:
            self._index.add(Metadata(digest, BLOCK, len(raw), path))
        return path


@dataclass
class Used:
    """A block of the table of blocks in use."""

    block_id: int
    ref_count: int


class Table:
    """The table of blocks in use."""

    def __init__(self) -> None:
        self.used: dict[bytes, Used] = {}

    def get_block(self, digest: bytes) -> Used | None:
        """A block by its hash."""
        return self.used.get(digest)


class Paged:
    """The manager of blocks in use."""

    def __init__(self, block_size: int, max_blocks: int = 1000, model_name: str = "") -> None:
        self.block_size, self.max_blocks, self.model_name = block_size, max_blocks, model_name
        self.cached_block_hash_to_block = Table()
        self.store: Any = None

    def set_paged_ssd_cache_manager(self, store: Any) -> None:
        """Connect the store."""
        self.store = store

    def evict_block_permanently(self, block_id: int) -> bool:
        """Forget a block."""
        used = self.cached_block_hash_to_block.used
        for digest, found in list(used.items()):
            if found.block_id == block_id:
                del used[digest]
        return True


class Prefix:
    """The prefix cache; stores the canary's block."""

    fail: str = ""

    def __init__(self, model: Any, paged_cache_manager: Paged, paged_ssd_cache_manager: Manager | None = None) -> None:
        self.model, self.paged, self.ssd = model, paged_cache_manager, paged_ssd_cache_manager

    def store_cache(
        self, request_id: str, tokens: list[int], cache_data: list[Any], model_cache_config: Any = None
    ) -> None:
        """Store one block of a request."""
        if self.fail:
            raise RuntimeError(self.fail)
        digest = compute_block_hash(None, tokens[:BLOCK], model_name=self.paged.model_name)
        assert self.ssd is not None
        self.ssd.put(digest, block(digest))


class Cache:
    """A layer's cache."""

    state = ()


class KVCache(Cache):
    """The class name is what the plug-in looks at."""


class Tokenizer:
    """Ids are the bytes of a text; counts its work."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        self.calls += 1
        return list(text.encode())


class Scheduler:
    """The scheduler."""

    def __init__(self, store: Path, limit: int) -> None:
        self.model = fake_model.Model()
        self.paged_ssd_cache_manager = Manager(store, limit, expected_model_name=MODEL)
        self.paged_cache_manager = Paged(BLOCK, model_name=MODEL)
        self.block_aware_cache = Prefix(self.model, self.paged_cache_manager, self.paged_ssd_cache_manager)

    def _extract_cache_states(self, caches: list[Any]) -> tuple[list[Any], Any]:
        return [{"state": ()} for _ in caches], None


class Core:
    """The core that generates."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.engine = types.SimpleNamespace(scheduler=scheduler)
        self._mlx_executor = ThreadPoolExecutor(1)
        self.generated: list[Any] = []

    async def generate(self, prompt: Any, **_: Any) -> str:
        """Generate for real; a plan must never come here."""
        self.generated.append(prompt)
        return "text"

    async def add_request(self, prompt: Any, **_: Any) -> str:
        """Begin to generate for real."""
        self.generated.append(prompt)
        return "id"


class Engine:
    """The engine that handlers talk to."""

    def __init__(self, store: Path, limit: int) -> None:
        self._engine = Core(Scheduler(store, limit))
        self._tokenizer = Tokenizer()
        self.kept = 0
        self.extra: dict[str, Any] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self._tokenizer

    async def generate(self, prompt: Any) -> str:
        """Generate at once."""
        self.kept = 1  # something that an engine makes once
        return await self._engine.generate(prompt=prompt, **self.extra)

    async def stream(self, prompt: Any) -> AsyncIterator[str]:
        """Generate bit by bit."""
        yield await self._engine.add_request(prompt=prompt)

    async def preflight_completion(self, prompt: Any) -> None:
        """The real one counts memory and may evict models."""
        raise AssertionError("a plan must not check memory")


class CompletionRequest:
    """A request model."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.model, self.prompt, self.stream = body["model"], body["prompt"], body.get("stream", False)

    @classmethod
    def model_validate(cls, body: dict[str, Any]) -> CompletionRequest:
        """Read a body."""
        if "prompt" not in body:
            raise ValueError("no prompt")
        return cls(body)


class Request:
    """An HTTP request."""

    def __init__(self, body: bytes = b"", **query: str) -> None:
        self._body, self.query_params = body, query

    async def stream(self) -> AsyncIterator[bytes]:
        """The body, in two parts."""
        yield self._body[:3]
        yield self._body[3:]


class HTTPError(Exception):
    """The framework's refusal."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(detail)
        self.status_code, self.detail = status_code, detail


class Answer:
    """A streamed answer."""

    def __init__(self, parts: AsyncIterator[str]) -> None:
        self.body_iterator = parts


@dataclass
class Server:
    """The server's module."""

    engine: Engine
    loads: int = 0
    released: int = 0
    app: Any = None
    _server_state: Any = field(default=None)


def server(store: Path, limit: int = 1 << 30) -> Server:
    """A server with one loaded model and the completions endpoint."""
    out = Server(Engine(store, limit))
    entry = types.SimpleNamespace(engine=out.engine)
    out._server_state = types.SimpleNamespace(engine_pool=types.SimpleNamespace(_entries={MODEL: entry}))

    async def get_engine_for_model(model: str) -> Engine:
        if model != MODEL:
            raise HTTPError(404, f"Model '{model}' not found")
        out.loads += 1
        return out.engine

    handler = _handler({"get_engine_for_model": get_engine_for_model, "state": out})
    route = types.SimpleNamespace(path="/v1/completions", methods={"POST"}, endpoint=handler)
    out.app = types.SimpleNamespace(routes=[route])
    out.get_engine_for_model = get_engine_for_model  # type: ignore[attr-defined]
    return out


async def completions(request: CompletionRequest, http_request: Request, _: bool = True) -> Any:
    """The handler: counts tokens, checks memory, and generates while its answer is sent."""
    engine = await get_engine_for_model(request.model)  # type: ignore[name-defined]  # noqa: F821
    if len(engine.tokenizer.encode(request.prompt)) > 1000:
        raise HTTPError(400, "too long")
    await engine.preflight_completion(request.prompt)

    async def parts() -> AsyncIterator[str]:
        try:
            yield " "
            if request.stream:
                async for part in engine.stream(request.prompt):
                    yield part
            else:
                yield await engine.generate(request.prompt)
        finally:
            state.released += 1  # type: ignore[name-defined]  # noqa: F821

    return Answer(parts())


def _handler(names: dict[str, Any]) -> Any:
    """The handler with a server's names in its globals."""
    out = types.FunctionType(completions.__code__, {**globals(), **names}, "completions", completions.__defaults__)
    out.__annotations__ = completions.__annotations__
    return out


def modules() -> dict[str, Any]:
    """Stand-ins for the modules that the canary imports."""
    import contextlib

    core = types.ModuleType("mlx.core")
    core.array = lambda x: x  # type: ignore[attr-defined]
    core.eval = lambda *_: None  # type: ignore[attr-defined]
    core.stream = lambda _: contextlib.nullcontext()  # type: ignore[attr-defined]
    core.new_stream = lambda device: device  # type: ignore[attr-defined]
    core.cpu, core.float32, core.int32 = "cpu", np.float32, np.int32  # type: ignore[attr-defined]
    cache = types.ModuleType("mlx_lm.models.cache")
    cache.make_prompt_cache = lambda _: [KVCache() for _ in range(LAYERS)]  # type: ignore[attr-defined]
    names = {"mlx": types.ModuleType("mlx"), "mlx.core": core, "mlx_lm": types.ModuleType("mlx_lm")}
    return {**names, "mlx_lm.models": types.ModuleType("mlx_lm.models"), "mlx_lm.models.cache": cache}
