"""Whether a file is the block that it should be: the decoder's own block (canary.py) says what one looks like.

The decoder's checks at adoption are few: a wrong shape is indexed without complaint and then breaks every request that
begins with the block's tokens. So a file must equal the native block in names, dtypes, shapes and metadata, apart from
what belongs to its place in the prompt, which is worked out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import blockfile, params
from .canary import Native

ROTATING = "RotatingKVCache"
POOL = "PoolingCache"
DELTA = "PoolingCacheDelta"
FREE = ("block_hash", "created_at", "layer_meta_states")  # metadata that differ from block to block


def fault(native: Native, path: Path, digest: bytes, index: int) -> str | None:
    """Why the file is not block `index` of a prompt with this hash; None when it is."""
    why = _fault(native, path, digest, index)
    return None if why is None else why[: params.MAX_REASON]  # names and texts of the file are in it


def _fault(native: Native, path: Path, digest: bytes, index: int) -> str | None:
    try:
        with blockfile.opened(path) as fd:
            header = blockfile.read_from(fd, native.header)
            return (
                _identity(header, digest)
                or _metadata(native.header.meta, header.meta, index, int(native.header.meta["token_count"]))
                or _tensors(native.header, header, index)
                or _ranges(fd, header, index)
                or _values(fd, native.header, header)
            )
    except blockfile.Damaged as err:
        return str(err)
    except FileNotFoundError:
        return "there is no such file"
    except PermissionError:
        return f"{path} may not be read by the decoder's user: let the receiver's umask or group allow it"
    except OSError as err:
        return f"it cannot be read: {err}"


def _identity(header: blockfile.Header, digest: bytes) -> str | None:
    recorded = header.meta.get("block_hash")
    return None if recorded == digest.hex() else f"it holds block {recorded}"


def _metadata(native: dict[str, str], meta: dict[str, str], index: int, tokens: int) -> str | None:
    for key, value in native.items():
        if key not in meta:
            return f"metadata {key} is missing"
        if key not in FREE and meta[key] != value:
            return f"metadata {key} is {meta[key][:100]!r}, not {value[:100]!r}"
    for key in meta:
        if key not in native:
            return f"metadata {key} is extra"
    if "layer_meta_states" in native:
        want = _metas(json.loads(native["layer_meta_states"]), index, tokens, _types(native))
        try:
            got = json.loads(meta["layer_meta_states"])
        except (ValueError, RecursionError):
            return "metadata layer_meta_states is no JSON"
        if got != want:
            return "metadata layer_meta_states belongs to another place in the prompt or to another model"
    return None


def size(native: Native, index: int) -> int:
    """Bytes of block `index`'s file; pools that are no deltas grow from block to block."""
    grows = (native.header.tensors[name] for name in _growing(native.header))
    return native.header.size + index * sum(t.end - t.begin for t in grows)


def _types(meta: dict[str, str]) -> list[str]:
    found = json.loads(meta.get("layer_cache_types", "[]"))
    return [str(t) for t in found]


def _metas(native: list[Any], index: int, tokens: int, types: list[str]) -> list[Any]:
    """Metas of block `index`: a rotating window records how many tokens the prompt has up to the block's end."""

    def window(meta: Any) -> Any:
        if not isinstance(meta, list) or len(meta) < 4 or str(meta[2]) != str(tokens):
            return meta
        end = tokens * (index + 1)
        return [*meta[:2], str(end) if isinstance(meta[2], str) else end, *meta[3:]]

    out: list[Any] = []
    for i, meta in enumerate(native):
        kind = types[i] if i < len(types) else ""
        if kind == ROTATING:
            out.append(window(meta))
        elif kind == "CacheList" and isinstance(meta, list) and len(meta) == 2:
            names, subs = meta
            out.append([names, [window(m) if n == ROTATING else m for n, m in zip(names, subs, strict=True)]])
        else:
            out.append(meta)
    return out


def _tensors(native: blockfile.Header, header: blockfile.Header, index: int) -> str | None:
    grows = _growing(native)
    if header.tensors is native.tensors and (index == 0 or not grows):
        return None
    for name, want in native.tensors.items():
        got = header.tensors.get(name)
        if got is None:
            return f"tensor {name} is missing"
        shape = want.shape
        if name in grows:
            shape = (shape[0], shape[1] * (index + 1), *shape[2:])
        if got.dtype != want.dtype or got.shape != shape:
            return f"tensor {name} is {got.dtype} {list(got.shape)}, not {want.dtype} {list(shape)}"
    for name in header.tensors:
        if name not in native.tensors:
            return f"tensor {name} is extra"
    return None


def _pools(header: blockfile.Header) -> list[str]:
    """Prefixes of the pools' tensors."""
    out = []
    types, metas = _types(header.meta), json.loads(header.meta.get("layer_meta_states", "[]"))
    for i, (kind, meta) in enumerate(zip(types, metas, strict=True)):
        if kind == "CacheList" and isinstance(meta, list) and len(meta) == 2:
            out += [f"layer_{i}_sub_{j}" for j, name in enumerate(meta[0]) if name == POOL]
    return out


def _growing(native: blockfile.Header) -> set[str]:
    """Tensors that hold the rows of all blocks up to their own: pools that are no deltas."""
    deltas = {k.removesuffix("_state_class_name") for k, v in native.meta.items() if v == DELTA}
    names = {p + "_state_2" for p in _pools(native) if p not in deltas}
    return {n for n in names if n in native.tensors and n + "_none" not in native.meta}


def _ranges(fd: int, header: blockfile.Header, index: int) -> str | None:
    for prefix in _pools(header):
        count = int(header.meta.get(prefix + "_state_count", "0"))
        name = f"{prefix}_state_{count - 1}"
        if header.meta.get(prefix + "_state_class_name") != DELTA or name not in header.tensors:
            continue
        rows = header.tensors[prefix + "_state_2"].shape[1]
        want = [index * rows, (index + 1) * rows]
        got = blockfile.integers(fd, header, name)
        if got != want:
            return f"tensor {name} says rows {got}, not {want}"
    return None


def _values(fd: int, native: blockfile.Header, header: blockfile.Header) -> str | None:
    windows = native.windows if header.tensors is native.tensors else header.windows
    name = blockfile.not_finite(fd, header, windows)
    return None if name is None else f"tensor {name} has values that are not finite"
