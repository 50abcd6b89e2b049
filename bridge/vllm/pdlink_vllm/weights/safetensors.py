"""Reads and writes safetensors files without trusting what they say about themselves."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pdlink_vllm import params
from pdlink_vllm.weights.files import FileError as FileError
from pdlink_vllm.weights.files import Staging, open_regular, parse

# Bytes of one element, for every type that a checkpoint of interest holds.
ELEMENT = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "U32": 4,
    "I32": 4,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "BOOL": 1,
}

# Largest extent of a shape, the largest that numpy has: with a 0 beside it, one needs no bytes to be claimed.
MAX_EXTENT = (1 << 63) - 1

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its place is in bytes from the start of the file, its shape in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    begin: int
    end: int

    def raw(self) -> Bytes:
        """Read the tensor's bytes; the caller owns them. Raises FileError, OSError."""
        with open_regular(self.path) as f:
            f.seek(self.begin)
            data = f.read(self.end - self.begin)
        if len(data) != self.end - self.begin:
            raise FileError(f"{self.path}: {self.name}: the file became shorter while it was read")
        return np.frombuffer(data, dtype=np.uint8)


def read_header(path: Path) -> dict[str, Tensor]:
    """List a file's tensors; no byte belongs to two of them. Raises FileError, OSError."""
    with open_regular(path) as f:
        return _read_head(f, os.fstat(f.fileno()).st_size, path).tensors()


def read_metadata(path: Path) -> dict[str, str]:
    """Return what a file says about itself. Raises FileError, OSError."""
    with open_regular(path) as f:
        return _read_head(f, os.fstat(f.fileno()).st_size, path).metadata()


@dataclass(frozen=True)
class Whole:
    """All of a file as it was when it was read, in memory of this process alone: nothing that anybody does to the file
    later changes it. sha256, in hex, is that of data.
    """

    path: Path
    data: Bytes
    sha256: str

    def header(self) -> dict[str, Tensor]:
        """List the tensors as read_header does; their places are those in data. Raises FileError."""
        return self._head().tensors()

    def metadata(self) -> dict[str, str]:
        """Return what the file says about itself. Raises FileError."""
        return self._head().metadata()

    def _head(self) -> _Head:
        return _read_head(io.BytesIO(self.data[: 8 + params.MAX_HEADER].tobytes()), len(self.data), self.path)


def read_whole(path: Path, limit: int) -> Whole:
    """Read a file of at most limit bytes once. Raises FileError, OSError."""
    with open_regular(path) as f:
        size = os.fstat(f.fileno()).st_size
        if size > limit:
            raise FileError(f"{path} has {size} bytes, more than {limit}")
        data: Bytes = np.empty(size, np.uint8)
        digest = hashlib.sha256()
        for at in range(0, size, params.HASH_CHUNK):
            part = data[at : at + params.HASH_CHUNK]
            if f.readinto(part.data) != len(part):  # type: ignore[attr-defined]
                raise FileError(f"{path}: the file became shorter while it was read")
            digest.update(part.data)
    return Whole(path, data, digest.hexdigest())


@dataclass(frozen=True)
class _Head:
    """A file's header: its entries, where its data begins, and the file's size."""

    path: Path
    entries: dict[str, Any]
    base: int
    size: int

    def tensors(self) -> dict[str, Tensor]:
        """See read_header."""
        found = {
            name: _entry(self.path, name, e, self.base, self.size)
            for name, e in self.entries.items()
            if name != "__metadata__"
        }
        before: Tensor | None = None
        for t in sorted((t for t in found.values() if t.begin < t.end), key=lambda t: t.begin):
            if before is not None and t.begin < before.end:
                raise FileError(
                    f"{self.path}: {before.name} and {t.name} share bytes: the file is damaged, copy it again"
                )
            before = t
        return found

    def metadata(self) -> dict[str, str]:
        """See read_metadata."""
        found = self.entries.get("__metadata__", {})
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise FileError(f"{self.path}: __metadata__ holds something else than texts")
        return found


def _read_head(f: BinaryIO, size: int, path: Path) -> _Head:
    """Read the header of a file of so many bytes that is open at its start. Nothing is allocated from a number that the
    size does not bear out.
    """
    head = f.read(8)
    if len(head) < 8:
        raise FileError(f"{path}: {size} bytes are no safetensors file")
    length = int.from_bytes(head, "little")
    if length > min(size - 8, params.MAX_HEADER):
        raise FileError(f"{path}: the header claims {length} bytes of a file of {size}")
    entries = parse(f.read(length), f"{path}: header")
    if not isinstance(entries, dict):
        raise FileError(f"{path}: the header is not an object")
    return _Head(path, entries, 8 + length, size)


def _entry(path: Path, name: str, entry: Any, base: int, size: int) -> Tensor:
    try:
        dtype, shape, (a, b) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as e:
        raise FileError(f"{path}: {name}: the entry has no dtype, shape and two data_offsets") from e
    numbers = (*shape, a, b)
    if not isinstance(dtype, str) or not all(type(n) is int and 0 <= n <= MAX_EXTENT for n in numbers):
        raise FileError(f"{path}: {name}: the entry holds something else than sizes")
    if not (a <= b and base + b <= size):
        raise FileError(f"{path}: {name}: bytes [{a},{b}) are not in the file, copy it again")
    want = ELEMENT.get(dtype, 0)
    for n in shape:
        want *= n
    if dtype in ELEMENT and want != b - a:
        raise FileError(f"{path}: {name}: {b - a} bytes for {dtype} {list(shape)}")
    return Tensor(name, dtype, shape, path, base + a, base + b)


@dataclass(frozen=True)
class Array:
    """A tensor to write: its bytes, little-endian and row-major."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes


def encode(arrays: Iterable[tuple[str, Array]], metadata: Mapping[str, str]) -> tuple[list[bytes | memoryview], str]:
    """Return a file's bytes, in parts, and their sha256 in hex. The same arrays and metadata give the same bytes."""
    arrays = list(arrays)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, a in arrays:
        header[name] = {"dtype": a.dtype, "shape": list(a.shape), "data_offsets": [at, at + a.data.nbytes]}
        at += a.data.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    parts += [np.ascontiguousarray(a.data).data for _, a in arrays]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return parts, digest.hexdigest()


def write(path: Path, arrays: Iterable[tuple[str, Array]], metadata: Mapping[str, str]) -> str:
    """Write a file whole or not at all and return the sha256 of its bytes, in hex.

    The file appears under its name when it is complete and on the disk. Raises FileError.
    """
    parts, digest = encode(arrays, metadata)
    with Staging() as staging:
        staging.add(path, parts)
        staging.commit()
    return digest
