"""What the projection costs in plain PyTorch, to hold `bench speed` against.

    torch_baseline.py [--compile] [--runs 25] [--tokens 2048,4096,8192,16384]

All 43 layers of DeepSeek-V4-Flash with random weights on the first GPU, as one writes them down: one product of the
concatenated weights for each layer, then pooling, norm and rotation by whole-tensor operations in float32. Results stay
on the device, which `bench speed` copies to the host. Medians of runs that alternate with the bare products of the
same shapes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

HIDDEN, DIM, INDEX, ROPE, WINDOW, BLOCK, LAYERS = 4096, 512, 128, 64, 128, 2048, 43
EPS = 1e-6

Weights = dict[str, torch.Tensor]


def ratio_of(layer: int) -> int:
    return 0 if layer < 2 else 128 if layer % 2 else 4


def make_weights(ratio: int) -> Weights:
    def rows(n: int) -> torch.Tensor:
        return torch.randn(n, HIDDEN, device="cuda", dtype=torch.bfloat16) / 64

    def norm(n: int) -> torch.Tensor:
        return (1 + 0.2 * torch.randn(n, device="cuda")).to(torch.bfloat16)

    lanes = 2 if ratio == 4 else 1
    w = {"norm": norm(DIM), "comp_norm": norm(DIM), "idx_norm": norm(INDEX)}
    columns = DIM
    if ratio:
        columns += 2 * lanes * DIM
        w["comp_ape"] = 0.7 * torch.randn(ratio, lanes * DIM, device="cuda")
    if ratio == 4:
        columns += 2 * lanes * INDEX
        w["idx_ape"] = 0.7 * torch.randn(ratio, lanes * INDEX, device="cuda")
    w["all"] = rows(columns)
    w["inv"] = (10000 if ratio == 0 else 160000) ** -(torch.arange(0, ROPE, 2, device="cuda") / ROPE)
    return w


def finish(rows: torch.Tensor, weight: torch.Tensor, inv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Norm, then rotation of the last ROPE columns."""
    v = rows.float()
    v = (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + EPS)).to(torch.bfloat16) * weight
    angle = positions.float()[:, None] * inv
    sin, cos = angle.sin(), angle.cos()
    a, b = v[:, -ROPE::2].float(), v[:, -ROPE + 1 :: 2].float()
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(1).to(torch.bfloat16)
    return torch.cat((v[:, :-ROPE], turned), 1)


def pool(
    kv: torch.Tensor, gate: torch.Tensor, ape: torch.Tensor, weight: torch.Tensor, inv: torch.Tensor
) -> torch.Tensor:
    """One row for each window of tokens; with two lanes, of the window before and of this one."""
    ratio, dim = ape.shape[0], weight.shape[0]
    windows = kv.shape[0] // ratio
    values = kv[: windows * ratio].view(windows, ratio, -1).float()
    scores = gate[: windows * ratio].view(windows, ratio, -1).float() + ape
    if ape.shape[1] == 2 * dim:
        before = torch.zeros_like(values[:1, :, :dim])
        values = torch.cat((torch.cat((before, values[:-1, :, :dim])), values[:, :, dim:]), 1)
        never = torch.full_like(before, float("-inf"))
        scores = torch.cat((torch.cat((never, scores[:-1, :, :dim])), scores[:, :, dim:]), 1)
    pooled = (values * scores.softmax(1)).sum(1).to(torch.bfloat16)
    return finish(pooled, weight, inv, ratio * torch.arange(windows, device=kv.device))


def layer(x: torch.Tensor, w: Weights, ratio: int) -> list[torch.Tensor]:
    """The arrays of a chunk's blocks, from position 0."""
    y = x @ w["all"].T
    n = x.shape[0]
    at = torch.arange(n, device=x.device).view(-1, BLOCK)[:, -WINDOW:].flatten()
    out = [finish(y[at, :DIM], w["norm"], w["inv"], at)]
    if ratio == 0:
        return out
    columns = w["comp_ape"].shape[1]
    kv, gate = y[:, DIM : DIM + columns], y[:, DIM + columns : DIM + 2 * columns]
    out.append(pool(kv, gate, w["comp_ape"], w["comp_norm"], w["inv"]))
    if ratio == 4:
        first, columns = DIM + 2 * columns, w["idx_ape"].shape[1]
        kv_idx, gate_idx = y[:, first : first + columns], y[:, first + columns :]
        out.append(pool(kv_idx, gate_idx, w["idx_ape"], w["idx_norm"], w["inv"]))
        last = torch.arange(n, device=x.device).view(-1, BLOCK)[:, -4:].flatten()
        out += [part[last] for part in (kv, gate, kv_idx, gate_idx)]
    return out


def timed(work: Callable[[], object]) -> float:
    """Milliseconds on the device, from the first call to the last result."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def main() -> None:
    p = argparse.ArgumentParser(description="the projection in plain PyTorch")
    p.add_argument("--compile", action="store_true", help="by torch.compile, which takes minutes to begin")
    p.add_argument("--runs", type=int, default=25)
    p.add_argument("--tokens", default="2048,4096,8192,16384", help="multiples of 2048")
    args = p.parse_args()
    torch.manual_seed(1)
    weights = [(ratio_of(i), make_weights(ratio_of(i))) for i in range(LAYERS)]
    run = torch.compile(layer, dynamic=False) if args.compile else layer
    how = "torch.compile" if args.compile else "eager"
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}, {how}: all 43 layers, median of {args.runs}")
    print(f"{'tokens':>8} {'ms':>9} {'bare products, ms':>18} {'ratio':>7}")
    for n in (int(t) for t in args.tokens.split(",")):
        x = torch.randn(n, HIDDEN, device="cuda", dtype=torch.bfloat16)

        def project(x: torch.Tensor = x) -> None:
            for ratio, w in weights:
                run(x, w, ratio)

        def products(x: torch.Tensor = x) -> None:
            for _, w in weights:
                torch.matmul(x, w["all"].T)

        with torch.inference_mode():
            times = [(timed(project), timed(products)) for _ in range(args.runs + 5)][5:]
        ours, bare = (statistics.median(t) for t in zip(*times, strict=True))
        print(f"{n:8} {ours:9.2f} {bare:18.2f} {ours / bare:7.2f}")


if __name__ == "__main__":
    main()
