"""What a request needs: its prompt's blocks, which of them the decoder holds, and room for the others."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable
from typing import Any

from . import adopt, dryrun, params, rules, seam
from .canary import Canaries, Native
from .space import Ledger
from .tail import Tails


async def plan(
    server: Any,
    canaries: Canaries,
    ledger_of: Callable[[seam.Live], Ledger],
    path: str,
    body: bytes,
    http_request: Any,
    tails: Tails | None = None,
) -> dict[str, Any]:
    """The answer of the plan endpoint; a Refusal says why there is none. API.md has the fields.

    With tails, what lies behind the last whole block is planned too, where it can be handed over.
    """
    prompt = await dryrun.prompt_of(server, path, body, http_request)
    live, size = prompt.live, prompt.live.block_tokens
    native = await canaries.get(live)
    ledger = ledger_of(live)
    # At least one token stays uncovered: a decoder has to compute one to have something to sample from.
    blocks = max(0, len(prompt.ids) - 1) // size
    if blocks > params.MAX_HASHES:
        blocks = params.MAX_HASHES
    chain = await asyncio.to_thread(seam.chain, live, prompt.ids, blocks)
    present = await _present(live, native, ledger, chain)
    tail = tails.plan(live, native, prompt.ids, chain) if tails is not None and present < blocks else None
    need = sum(rules.size(native, k) for k in range(present, blocks + (tail is not None)))
    if need:
        await asyncio.to_thread(ledger.reserve, live, chain[-1].hex(), need, chain, present)
    out: dict[str, Any] = {
        "model": live.model_id,
        "hash_model": live.hash_model,
        "layout": native.layout,
        "tokens": len(prompt.ids),
        "block_tokens": size,
        "blocks": blocks,
        "present": present,
        "bytes": need,
        "hashes": [d.hex() for d in chain],
        "ids": packed(prompt.packed[: len(prompt.ids) - 1 if tail else blocks * size]) if present < blocks else "",
    }
    if tail is not None:
        out["tail"] = {"tokens": tail.tokens, "hash": tail.digest.hex()}
    return out


def packed(ids: Any) -> str:
    """Ids as base64 of little-endian unsigned 32-bit numbers."""
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return base64.b64encode(ids.tobytes()).decode("ascii")


async def _present(live: seam.Live, native: Native, ledger: Ledger, chain: list[bytes]) -> int:
    """How many blocks from the first on the decoder will use.

    Files that lie there and are not indexed are adopted, or removed where no decoder could use them.
    """
    present, lying = await asyncio.to_thread(_look, live, chain)
    if not lying:
        return present
    if lying[0] == present:
        end = present
        while end - present < len(lying) and lying[end - present] == end:
            end += 1
        work = asyncio.ensure_future(adopt.adopt(live, native, chain[present:end], present))
        done, _ = await asyncio.wait({work}, timeout=params.PLAN_ADOPT_WAIT)
        if not done:
            return present  # it goes on behind the decoder's work; the transfer finds the files as well
        found = work.result()
        present = found.blocks
        ledger.wrote(found.size)
    await asyncio.to_thread(_clear, live, native, chain, [k for k in lying if k >= present])
    return present


def _look(live: seam.Live, chain: list[bytes]) -> tuple[int, list[int]]:
    """The present blocks, and the numbers of later ones that lie there and that the decoder does not know."""
    present = 0
    while present < len(chain) and live.has(chain[present]):
        present += 1
    later = range(present, len(chain))
    return present, [k for k in later if not live.has(chain[k]) and adopt.exists(live.path(chain[k]))]


def _clear(live: seam.Live, native: Native, chain: list[bytes], lying: list[int]) -> None:
    """Remove what is in the way of blocks that are to be written."""
    for k in lying:
        why = rules.fault(native, live.path(chain[k]), chain[k], k)
        if why is not None and adopt.exists(live.path(chain[k])) and not live.has(chain[k]):
            adopt.in_the_way(live, chain[k], why)
