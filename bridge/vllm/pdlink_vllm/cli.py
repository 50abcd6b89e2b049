"""The command line: `pdlink-vllm weights export MODEL_DIR`, `pdlink-vllm weights verify FILE`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pdlink_vllm import __version__, params
from pdlink_vllm.weights.export import ExportError, Options, export


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0 done, 1 it did not work (standard error says why), 2 wrong usage."""
    args = _parser().parse_args(arguments)
    try:
        if args.command == "export":
            return _export(args)
        return _verify(args)
    except (ExportError, OSError, ValueError) as e:
        print(f"pdlink-vllm: {e}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="pdlink-vllm", description="What goes with pdlink's connector for vLLM.")
    p.add_argument("--version", action="version", version=__version__)
    groups = p.add_subparsers(required=True, metavar="weights")
    weights = groups.add_parser("weights", help="the decoder's projection weights, for DeepSeek-V4")
    commands = weights.add_subparsers(dest="command", required=True, metavar="export|verify")
    e = commands.add_parser("export", help="take them out of the decoder's checkpoint")
    e.add_argument("model", type=Path, help="directory of the checkpoint that the decoder loads")
    e.add_argument(
        "--out", type=Path, default=Path("projection.safetensors"), help="file to write (default: %(default)s)"
    )
    e.add_argument(
        "--allow-rounding", action="store_true", help="take matrices that bf16 does not hold exactly (affine)"
    )
    e.add_argument("--json", action="store_true", help="print one JSON object")
    v = commands.add_parser("verify", help="hold a file against the JSON file that was written with it")
    v.add_argument("file", type=Path)
    return p


def _export(args: argparse.Namespace) -> int:
    report = export(args.model, args.out, Options(allow_rounding=args.allow_rounding))
    facts = {"weights": str(report.path), "tensors": report.tensors, "bytes": report.bytes, "sha256": report.sha256}
    if args.json:
        print(json.dumps({**facts, "dequantised": len(report.dequantised)}))
        return 0
    print(
        f"{report.path}: {report.tensors} tensors, {report.bytes} bytes, {len(report.dequantised)} matrices dequantised"
    )
    print(f"sha256 {report.sha256}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    note = json.loads(args.file.with_suffix(".json").read_text(encoding="utf-8"))
    digest = hashlib.sha256()
    with args.file.open("rb") as f:
        while chunk := f.read(params.HASH_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != note.get("sha256"):
        print(f"pdlink-vllm: {args.file} is not the file that was exported, export it again", file=sys.stderr)
        return 1
    print(f"{args.file}: sha256 {digest.hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
