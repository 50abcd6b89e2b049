"""Block files, read without the decoder: the safetensors header, strictly, and samples of the values."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from . import jsontext, params

# Bytes of a value, of the types that block files may have.
SIZES = {"BOOL": 1, "I8": 1, "U8": 1, "BF16": 2, "F16": 2, "I16": 2, "U16": 2, "F32": 4, "I32": 4, "U32": 4}
SIZES |= {"I64": 8, "U64": 8}

# Where a header's metadata begin; the decoder writes them behind the tensors.
METADATA = '"__metadata__":'

# Values that are not finite have all bits of the exponent set.
EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000)}


class Damaged(Exception):
    """A file that is no complete block file; the text says why."""


@dataclass(frozen=True)
class Tensor:
    """A tensor's place: `begin` and `end` count from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A file's header. `text` is its JSON without padding, `data` the offset of the first value, `size` the file's."""

    text: str
    tensors: dict[str, Tensor]
    meta: dict[str, str]
    data: int
    size: int

    @cached_property
    def windows(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """By dtype, the byte ranges of the data that are sampled, of the types that can have values that are none."""
        found: dict[str, list[tuple[int, int]]] = {}
        for t in self.tensors.values():
            if t.dtype in EXPONENTS:
                found.setdefault(t.dtype, []).extend(_windows(t, SIZES[t.dtype]))
        return list(found.items())


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A regular file, open for reading: anybody who may write into a store can lay something else under a block's name.

    A pipe is not waited for, and a link not followed. Raises Damaged for both, or OSError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as err:
        if err.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise Damaged("it is no regular file") from err
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Damaged("it is no regular file")
        yield fd
    finally:
        os.close(fd)


def read(path: Path) -> Header:
    """Read a file's header; every value must lie in the file, one tensor after the other and nothing behind the last.

    Raises Damaged, or OSError where the file cannot be read.
    """
    with opened(path) as fd:
        return read_from(fd)


def read_from(fd: int, like: Header | None = None) -> Header:
    """As read, of an open file. One with the tensors of `like`, which most have, is read the sooner and shares them."""
    size = os.fstat(fd).st_size
    head = os.pread(fd, 8, 0)
    if len(head) < 8:
        raise Damaged(f"{size} bytes are no block file")
    (length,) = struct.unpack("<Q", head)
    if length < 2 or length > params.MAX_HEADER or 8 + length > size:
        raise Damaged(f"a header of {length} bytes in a file of {size}")
    raw = os.pread(fd, length, 8)
    try:
        text = raw.decode("utf-8").rstrip(" ")
        if like is not None and size - 8 - length == like.size - like.data:
            meta = _alike(text, like)
            if meta is not None:
                return Header(text, like.tensors, meta, 8 + length, size)
        parsed = jsontext.parse(text)
    except ValueError as err:
        raise Damaged(f"the header is no JSON: {err}") from err
    return parse(text, parsed, 8 + length, size)


def _alike(text: str, like: Header) -> dict[str, str] | None:
    """The metadata of a header whose tensors are written as those of another one; None for one that must be parsed."""
    at = like.text.find(METADATA)
    if at < 0 or text[: at + len(METADATA)] != like.text[: at + len(METADATA)]:
        return None
    try:
        parsed = jsontext.parse("{" + text[at:])
    except ValueError:
        return None
    meta = parsed.pop("__metadata__")
    if parsed or not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
        return None
    return meta


def parse(text: str, parsed: Any, data: int, size: int) -> Header:
    """Verify a parsed header against the file's size."""
    if not isinstance(parsed, dict):
        raise Damaged("the header is no object")
    meta = parsed.pop("__metadata__", {})
    if not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
        raise Damaged("the metadata are no texts")
    tensors = {name: _tensor(name, entry) for name, entry in parsed.items()}
    end = 0
    for name, t in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if t.begin != end:
            raise Damaged(f"tensor {name} begins at {t.begin}, not {end}")
        end = t.end
    if data + end != size:
        raise Damaged(f"{data + end} bytes wanted, the file has {size}")
    return Header(text, tensors, meta, data, size)


def _tensor(name: str, entry: Any) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as err:
        raise Damaged(f"tensor {name} is not described") from err
    numbers = [*shape, begin, end] if isinstance(shape, list) and len(shape) <= params.MAX_AXES else [None]
    described = isinstance(dtype, str) and dtype in SIZES
    if not described or not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers):
        raise Damaged(f"tensor {name} is not described")
    if end - begin != SIZES[dtype] * math.prod(shape):
        raise Damaged(f"tensor {name} has {end - begin} bytes for {dtype} {shape}")
    return Tensor(dtype, tuple(shape), begin, end)


def not_finite(fd: int, header: Header, windows: list[tuple[str, list[tuple[int, int]]]]) -> str | None:
    """The first tensor with NaN or infinity among the sampled values; None when there is none.

    The windows are those of a header with the same tensors.
    """
    for dtype, places in windows:
        kind, mask = EXPONENTS[dtype]
        parts = [os.pread(fd, length, header.data + begin) for begin, length in places]
        for (begin, length), part in zip(places, parts, strict=True):
            if len(part) != length:
                raise Damaged(f"tensor {_at(header, begin)} is cut short")
        if bool(np.any((np.frombuffer(b"".join(parts), kind) & mask) == mask)):
            return next(
                _at(header, begin)
                for (begin, _), part in zip(places, parts, strict=True)
                if np.any((np.frombuffer(part, kind) & mask) == mask)
            )
    return None


def _at(header: Header, begin: int) -> str:
    """The tensor that has a byte of the data."""
    return next(name for name, t in header.tensors.items() if t.begin <= begin < t.end)


def _windows(t: Tensor, item: int) -> list[tuple[int, int]]:
    """Byte ranges that are sampled, evenly from the tensor's first value to its last."""
    length, span = t.end - t.begin, params.SAMPLE_VALUES * item
    if length <= span * params.SAMPLE_WINDOWS:
        return [(t.begin, length)] if length else []
    step = (length - span) // (params.SAMPLE_WINDOWS - 1)
    return [(t.begin + k * step // item * item, span) for k in range(params.SAMPLE_WINDOWS)]


def integers(fd: int, header: Header, name: str) -> list[int]:
    """All values of an I64 tensor."""
    t = header.tensors[name]
    raw = os.pread(fd, t.end - t.begin, header.data + t.begin)
    if len(raw) != t.end - t.begin:
        raise Damaged(f"tensor {name} is cut short")
    return [v for (v,) in struct.iter_unpack("<q", raw)]
