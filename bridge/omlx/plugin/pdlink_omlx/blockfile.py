"""Block files, read without the decoder: the safetensors header, strictly, and samples of the values."""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import params

# Bytes of a value, of the types that block files may have.
SIZES = {"BOOL": 1, "I8": 1, "U8": 1, "BF16": 2, "F16": 2, "I16": 2, "U16": 2, "F32": 4, "I32": 4, "U32": 4}
SIZES |= {"I64": 8, "U64": 8}

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


def read(path: Path) -> Header:
    """Read a file's header; every value must lie in the file, one tensor after the other and nothing behind the last.

    Raises Damaged, or OSError where the file cannot be read.
    """
    with path.open("rb") as f:
        size = os.fstat(f.fileno()).st_size
        head = f.read(8)
        if len(head) < 8:
            raise Damaged(f"{size} bytes are no block file")
        (length,) = struct.unpack("<Q", head)
        if length < 2 or length > params.MAX_HEADER or 8 + length > size:
            raise Damaged(f"a header of {length} bytes in a file of {size}")
        raw = f.read(length)
    try:
        text = raw.decode("utf-8").rstrip(" ")
        parsed = json.loads(text)
    except ValueError as err:
        raise Damaged(f"the header is no JSON: {err}") from err
    return parse(text, parsed, 8 + length, size)


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
    numbers = [*shape, begin, end] if isinstance(shape, list) else [None]
    described = isinstance(dtype, str) and dtype in SIZES
    if not described or not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers):
        raise Damaged(f"tensor {name} is not described")
    if end - begin != SIZES[dtype] * math.prod(shape):
        raise Damaged(f"tensor {name} has {end - begin} bytes for {dtype} {shape}")
    return Tensor(dtype, tuple(shape), begin, end)


def not_finite(path: Path, header: Header) -> str | None:
    """The first tensor with NaN or infinity among the sampled values; None when there is none."""
    with path.open("rb") as f:
        fd = f.fileno()
        for name, t in header.tensors.items():
            if t.dtype not in EXPONENTS:
                continue
            kind, mask = EXPONENTS[t.dtype]
            for begin, length in _windows(t, SIZES[t.dtype]):
                raw = os.pread(fd, length, header.data + begin)
                if len(raw) != length:
                    raise Damaged(f"tensor {name} is cut short")
                if bool(np.any((np.frombuffer(raw, kind) & mask) == mask)):
                    return name
    return None


def _windows(t: Tensor, item: int) -> list[tuple[int, int]]:
    """Byte ranges that are sampled, evenly from the tensor's first value to its last."""
    length, span = t.end - t.begin, params.SAMPLE_VALUES * item
    if length <= span * params.SAMPLE_WINDOWS:
        return [(t.begin, length)] if length else []
    step = (length - span) // (params.SAMPLE_WINDOWS - 1)
    return [(t.begin + k * step // item * item, span) for k in range(params.SAMPLE_WINDOWS)]


def integers(path: Path, header: Header, name: str) -> list[int]:
    """All values of an I64 tensor."""
    t = header.tensors[name]
    with path.open("rb") as f:
        raw = os.pread(f.fileno(), t.end - t.begin, header.data + t.begin)
    return [int(v) for v in np.frombuffer(raw, "<i8")]
