"""Where an export may write: to a free name outside the checkpoint, or over an earlier export."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdlink_vllm.weights.files import FileError, read_json
from pdlink_vllm.weights.safetensors import read_metadata

# What the weights say of themselves: the value of `format` in their metadata.
FORMAT = "pdlink-projection-1"


def note_path(weights: Path) -> Path:
    """Return the path of the JSON file beside weights; their path must have a name."""
    return weights.with_suffix(".json")


def read_note(path: Path) -> Mapping[str, Any]:
    """Read the JSON file of an export; its weights and sha256 are texts. Raises FileError, OSError."""
    note = read_json(path)
    if not isinstance(note, dict) or not isinstance(note.get("weights"), str) or not _is_sha256(note.get("sha256")):
        raise FileError(f"{path} is no note of an export: it has no weights and sha256")
    return note


def check(out: Path, model: Path) -> None:
    """Look whether weights of the checkpoint in directory model may be written to out, and their note beside it.

    Refused: a name that is taken by anything but a regular file (a link, too: it would be replaced, not followed), a
    place in the checkpoint's directory, weights that would be their own note. What has either name already must be of
    an export: the note names these weights, the weights say of themselves what they are. Raises FileError, OSError.
    """
    if out.name in ("", ".."):
        raise FileError(f"{out} names no file: give --out FILE.safetensors")
    if out.suffix.lower() == ".json":
        raise FileError(f"{out} would be its own note, which ends in .json: give --out FILE.safetensors")
    if not out.parent.is_dir():
        raise FileError(f"{out.parent} is no directory: make it first, or give --out another place")
    if _within(out.parent, model):
        raise FileError(
            f"{out} lies in the checkpoint's directory, whose files the decoder loads: give --out another place"
        )
    note = note_path(out)
    weights_there, note_there = _taken(out), _taken(note)
    if note_there:
        _check_note(note, out.name)
    if weights_there and not _exported(out):
        raise FileError(f"{out} exists and is not of an export: move it away, or give --out another name")


def _check_note(note: Path, name: str) -> None:
    try:
        said = read_note(note)["weights"]
    except (FileError, OSError) as e:
        raise FileError(
            f"{note} exists and is no note of an export: move it away, or give --out another name ({e})"
        ) from e
    if said != name:
        raise FileError(f"{note} is the note of {said}, not of {name}: move it away, or give --out another name")


def _taken(path: Path) -> bool:
    """Say whether a regular file has the name; anything else that has it is refused."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        raise FileError(f"{path} is a symbolic link: give --out the name of the file itself")
    if not stat.S_ISREG(mode):
        raise FileError(f"{path} exists and is no regular file: give --out another name")
    return True


def _exported(path: Path) -> bool:
    try:
        return read_metadata(path).get("format") == FORMAT
    except (FileError, OSError):
        return False


def _within(folder: Path, model: Path) -> bool:
    """Say whether folder is the directory model or below it, by whatever name."""
    try:
        top = model.stat()
    except OSError:
        return False  # reading the checkpoint says so
    folder = folder.resolve()
    return any(os.path.samestat(p.stat(), top) for p in (folder, *folder.parents))


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value)
