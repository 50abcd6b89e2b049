"""What the transfers of the test sidecar want, and what came of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from pdlink_vllm import wire
from pdlink_vllm.wire import Kind


@dataclass(frozen=True)
class Plan:
    """What a transfer wants. arrays are those of pieces, by (layer, array): offset, size, row bytes, rows."""

    kind: Kind
    blocks: int
    block_tokens: int
    block_bytes: int
    layers: tuple[int, int]
    dtype: wire.DType = wire.DType.BF16
    from_token: int = 0
    arrays: dict[tuple[int, int], tuple[int, int, int, int]] = field(default_factory=dict)
    layout: int = 7


def kv_plan(
    layers: int, heads: int, width: int, dtype: wire.DType, block: int, blocks: int, from_token: int = 0
) -> Plan:
    """A plan of plain keys and values: of each layer first the keys, then the values, [heads, block, width]."""
    run = width * dtype.size
    size = heads * block * run
    arrays = {(i, a): ((2 * i + a) * size, size, run, heads * block) for i in range(layers) for a in (0, 1)}
    return Plan(Kind.KV, blocks, block, 2 * layers * size, (0, layers), dtype, from_token, arrays)


@dataclass
class Transfer:
    """What came of a transfer, from all workers."""

    plan: Plan
    blocks: dict[int, bytearray] = field(default_factory=dict)
    covered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    rows: dict[tuple[int, int], dict[int, bytes]] = field(default_factory=dict)  # (layer, what): first token → bytes
    ended: list[wire.End] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    begins: list[wire.Begin] = field(default_factory=list)
    commits: int = 0
    local: int = 1

    @property
    def over(self) -> bool:
        """Whether every worker said its last word."""
        return len(self.ended) + len(self.aborted) >= self.local

    def missing(self) -> list[tuple[int, int, int]]:
        """The bytes of blocks that did not come, as (block, from, to)."""
        gaps = []
        for b in range(self.plan.from_token // self.plan.block_tokens, self.plan.blocks):
            at = 0
            for first, end in [*sorted(self.covered.get(b, [])), (self.plan.block_bytes, self.plan.block_bytes)]:
                if first > at:
                    gaps.append((b, at, first))
                at = max(at, end)
        return gaps

    def layer_rows(self, layer: int, what: int) -> tuple[int, bytes]:
        """First token and bytes of a layer's rows; fails where they are not one run."""
        parts = self.rows[layer, what]
        first = at = min(parts)
        plan_row = None
        data = bytearray()
        for start in sorted(parts):
            tokens, plan_row = struct.unpack("<II", parts[start][:8])
            assert start == at, f"layer {layer}: rows from {at} to {start} are missing"
            data += parts[start][8:]
            at += tokens
        assert plan_row
        return first, bytes(data)
