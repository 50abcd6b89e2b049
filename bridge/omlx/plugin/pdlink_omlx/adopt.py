"""Make a running decoder see blocks that lie in its store, and give them back.

Files are checked first, on ordinary threads (rules.py). What passed is handed to the decoder on its own executor,
between two of its steps: it reads the metadata itself, judges them by its own rule where it has one, makes room by its
own rule and indexes the block. Nothing else is needed: the decoder's table of blocks is filled at lookup.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import params, rules, seam, space
from .canary import Native
from .errors import Refusal

BEHIND = "it comes after a block that cannot be used"


@dataclass
class Outcome:
    """What became of a chain's blocks. `blocks` is how many of them, from the first on, the decoder will use."""

    blocks: int = 0
    size: int = 0  # bytes of the adopted ones
    adopted: list[bytes] = field(default_factory=list)
    known: list[bytes] = field(default_factory=list)
    refused: dict[bytes, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why it is not all of them; empty when it is."""
        for digest, why in self.refused.items():
            return f"block {self.blocks} ({digest.hex()[:12]}): {why}"
        return ""


async def adopt(live: seam.Live, native: Native, chain: Sequence[bytes], first: int = 0) -> Outcome:
    """Adopt blocks of a prompt in order, until one is refused: `chain` from the prompt's block number `first` on.

    Those before `first` are taken for granted.
    """
    out = Outcome(blocks=first)
    loop = asyncio.get_running_loop()
    known = await asyncio.to_thread(_known, live, chain)
    out.known += chain[:known]
    out.blocks += known
    for begin in range(known, len(chain), params.EXECUTOR_BATCH):
        batch = list(chain[begin : begin + params.EXECUTOR_BATCH])
        faults = await asyncio.to_thread(_faults, live, native, batch, first + begin)
        await loop.run_in_executor(live.executor, _index, live, batch, faults, out)
        if out.refused:
            for digest in chain[begin + len(batch) :]:
                out.refused[digest] = BEHIND
            break
    held = first + await asyncio.to_thread(_held, live, chain[: out.blocks - first])
    if held < out.blocks:
        out.blocks = held
        out.refused = {chain[held - first]: "the decoder evicted it at once: its store is too small", **out.refused}
    return out


def _known(live: seam.Live, chain: Sequence[bytes]) -> int:
    """How many blocks from the first of the chain on the decoder has; all that it has are marked as used now."""
    space.touch(live, chain)
    return _held(live, chain)


def _faults(live: seam.Live, native: Native, batch: list[bytes], begin: int) -> list[str | None]:
    """For each block: empty when the decoder knows it, None when its file may be adopted, otherwise why not."""
    out: list[str | None] = []
    for k, digest in enumerate(batch):
        out.append("" if live.has(digest) else rules.fault(native, live.path(digest), digest, begin + k))
    return out


def _held(live: seam.Live, chain: Sequence[bytes]) -> int:
    for k, digest in enumerate(chain):
        if not live.has(digest):
            return k
    return len(chain)


def _index(live: seam.Live, batch: list[bytes], faults: list[str | None], out: Outcome) -> None:
    """Hand checked blocks to the decoder. For its executor."""
    refresh = getattr(live.scheduler, "refresh_ssd_layer_signature", None)
    if callable(refresh):
        refresh()  # so that layer types and signature take part in the decoder's judgement
    for digest, found in zip(batch, faults, strict=True):
        why = found
        if out.refused:
            why = BEHIND
        elif why is None:
            why = _add(live, digest, out)
        elif why == "":
            out.known.append(digest)
            why = None
        if why is not None:
            out.refused[digest] = why
        else:
            out.blocks += 1


def _add(live: seam.Live, digest: bytes, out: Outcome) -> str | None:
    """Index one block; the decoder's reason against it, or None."""
    what = "adopt a block"
    if live.has(digest):  # somebody else was quicker
        out.known.append(digest)
        return None
    metadata = seam.need_call(live.manager, "_read_file_metadata", what)(live.path(digest))
    if metadata is None:
        return "the decoder cannot read it, or not this version of the format"
    if bytes(seam.need(metadata, "block_hash", what)) != digest:
        return "the decoder reads another hash in it"
    if int(seam.need(metadata, "token_count", what)) != live.block_tokens:
        return f"the decoder reads {metadata.token_count} tokens in it, not {live.block_tokens}"
    judge = getattr(live.manager, "_is_compatible_block", None)
    if callable(judge) and not judge(metadata):
        return "the decoder finds it incompatible (model, layers, block size, types or signature)"
    add = seam.need_call(seam.need(live.manager, "_index", what), "add", what)
    size = int(seam.need(metadata, "file_size", what))
    space.admit(live, size)
    lock = getattr(live.manager, "_lock", None)
    with lock if lock is not None else contextlib.nullcontext():
        incompatible = getattr(live.manager, "_incompatible_index", None)
        if incompatible is not None:
            seam.need_call(incompatible, "remove", what)(digest)
        add(metadata)
    out.adopted.append(digest)
    out.size += size
    return None


def in_the_way(live: seam.Live, digest: bytes, why: str) -> None:
    """Remove a file that lies under a block's name and is none that the decoder can use.

    The decoder's own rule is the same: when it stores this block it writes over the file, also when it has the file in
    its list of incompatible ones. A Refusal where the file cannot be removed.
    """
    path = live.path(digest)
    try:
        incompatible = getattr(live.manager, "_incompatible_index", None)
        if incompatible is not None:
            seam.need_call(incompatible, "remove", "replace a file")(digest)
        path.unlink(missing_ok=True)
    except OSError as err:
        raise Refusal("conflict", f"{path} is in the way ({why}) and cannot be removed: {err.strerror or err}") from err


def evict(live: seam.Live, digests: Sequence[bytes], ours: Any) -> tuple[list[bytes], dict[bytes, str]]:
    """Take blocks of ours out of the decoder's store. For its executor. Returns what went, and why the rest did not."""
    delete = seam.need_call(live.manager, "delete_block", "evict")
    gone: list[bytes] = []
    refused: dict[bytes, str] = {}
    for digest in digests:
        if digest not in ours:
            refused[digest] = "it was not adopted since the decoder's start"
        elif (why := _forget(live, digest)) is not None:
            refused[digest] = why
        elif not delete(digest):
            refused[digest] = "the decoder does not hold it"
        else:
            gone.append(digest)
    return gone, refused


def _forget(live: seam.Live, digest: bytes) -> str | None:
    """Take a block out of the decoder's table of blocks in use; why it must stay, or None."""
    table = getattr(live.paged, "cached_block_hash_to_block", None)
    find = getattr(table, "get_block", None)
    if not callable(find):
        return None
    block = find(digest)
    if block is None:
        return None
    if getattr(block, "ref_count", 0) > 0:
        return "a request uses it"
    drop = getattr(live.paged, "evict_block_permanently", None)
    if not callable(drop) or len(inspect.signature(drop).parameters) != 1:
        return None
    return None if drop(seam.need(block, "block_id", "evict")) else "the decoder keeps it"


def exists(path: Path) -> bool:
    """Whether anything lies at a path, links without an end included."""
    return path.is_symlink() or path.exists()
