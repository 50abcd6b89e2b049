"""The command line: `pdlink-vllm weights export MODEL_DIR`, `pdlink-vllm weights verify FILE`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pdlink_vllm import __version__, params
from pdlink_vllm.weights.export import Options, export
from pdlink_vllm.weights.files import FileError, open_regular
from pdlink_vllm.weights.target import note_path, read_note


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0 done, 1 it did not work (standard error says why), 2 wrong usage, 130
    interrupted.
    """
    args = _parser().parse_args(arguments)
    try:
        if args.command == "export":
            return _export(args)
        return _verify(args)
    except (OSError, ValueError) as e:
        print(f"pdlink-vllm: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pdlink-vllm: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="pdlink-vllm", description="What goes with pdlink's connector for vLLM.")
    p.add_argument("--version", action="version", version=__version__)
    groups = p.add_subparsers(required=True, metavar="weights")
    weights = groups.add_parser("weights", help="the decoder's projection weights, for DeepSeek-V4")
    commands = weights.add_subparsers(dest="command", required=True, metavar="export|verify")
    e = commands.add_parser("export", help="take them out of the decoder's checkpoint")
    e.add_argument("model", type=Path, help="directory of the checkpoint that the decoder loads")
    e.add_argument(
        "--out",
        type=Path,
        default=Path("projection.safetensors"),
        help="file to write, outside MODEL, with a JSON file beside it; only those of an earlier export are replaced "
        "(default: %(default)s)",
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
    digest = hashlib.sha256()
    with open_regular(args.file) as f:
        note = note_path(args.file)
        if note == args.file:
            raise FileError(f"{args.file} is a note: give the weights' file, which lies beside it")
        try:
            said = read_note(note)["sha256"]
        except FileNotFoundError as e:
            raise FileError(f"{note} is not there: copy it along with the weights") from e
        while chunk := f.read(params.HASH_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != said:
        raise FileError(f"{args.file} is not the file that was exported, copy it or export it again")
    print(f"{args.file}: sha256 {digest.hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
