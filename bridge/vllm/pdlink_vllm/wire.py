"""The messages of the engine socket and the entries of a slot's record: bytes to values and back.

The specification is bridge/prefill/PROTOCOL.md; section numbers below are its. Every message is one packet of 64 bytes.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, fields
from typing import ClassVar

PACKET = 64
MAGIC = b"PDLE"
VERSION = 1

# Section 5.
RING_MAGIC = b"PDLR"
PAGE = 4096
RECORD = 4096
HEADER_ROOM = 4096
ENTRY = 32
ENTRIES_AT = 64
NOT_SEALED = 2**32 - 1

_HEAD = struct.Struct("<4sBBHII")


class WireError(ValueError):
    """A packet or ring is not what the specification says."""


class Code(enum.IntEnum):
    """Section 6. A code that is not known reads as FAILED."""

    OK = 0
    VERSION = 1
    INVALID = 2
    UNKNOWN = 3
    BUSY = 4
    MEMORY = 5
    LATE = 6
    OVER = 7
    STALE = 8
    PLAN = 9
    DENIED = 10
    FAILED = 11

    @classmethod
    def _missing_(cls, value: object) -> Code:
        return cls.FAILED

    @property
    def meaning(self) -> str:
        """What it means to a person."""
        return _MEANINGS[self]


_MEANINGS = {
    Code.OK: "ok",
    Code.VERSION: "the sidecar speaks another version of the protocol",
    Code.INVALID: "the sidecar could not make sense of a message",
    Code.UNKNOWN: "the sidecar knows no such transfer",
    Code.BUSY: "the sidecar has no room for another worker or request",
    Code.MEMORY: "the host's free memory is below the floor",
    Code.LATE: "no slot of the ring became free in time",
    Code.OVER: "the transfer has ended or was cancelled",
    Code.STALE: "the slot is no longer ours",
    Code.PLAN: "what the engine has does not fit the transfer's plan",
    Code.DENIED: "the sidecar does not accept this user id",
    Code.FAILED: "the sidecar failed",
}


class Kind(enum.IntEnum):
    """What a plan's blocks hold."""

    KV = 1
    DSV4 = 2


class Mode(enum.IntEnum):
    """What the slots of a request hold."""

    PIECES = 1
    ROWS = 2


class DType(enum.IntEnum):
    """Type of an element."""

    BF16 = 1
    F16 = 2
    F32 = 3

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.F32 else 2


class ArrayId(enum.IntEnum):
    """Arrays of a block: plain keys and values, and what DeepSeek-V4 keeps."""

    K = 0
    V = 1
    WINDOW = 2
    POOLED = 3
    PREV_KV = 4
    PREV_GATE = 5
    IDX_POOLED = 6
    IDX_PREV_KV = 7
    IDX_PREV_GATE = 8


class What(enum.IntEnum):
    """What an entry of rows holds."""

    K = 0
    V = 1
    X = 2


HELLO_RING = 1  # flag of HELLO: an earlier sidecar's ring is attached
WELCOME_SAME = 1  # flag of WELCOME: that ring is still the one
WELCOME_FACTS = 2  # flag of WELCOME: FACTS is understood


@dataclass(frozen=True)
class Message:
    """What all messages share. code is why, or flags; handle names the request, or is 0."""

    TYPE: ClassVar[int] = 0
    FORM: ClassVar[struct.Struct] = struct.Struct("")

    code: int = 0
    handle: int = 0

    def encode(self) -> bytes:
        """Return the 64 bytes of the packet."""
        values = [getattr(self, f.name) for f in fields(self)[2:]]
        values = [_text(v) if isinstance(v, str) else v for v in values]
        head = _HEAD.pack(MAGIC, VERSION, self.TYPE, self.code, self.handle, 0)
        return (head + self.FORM.pack(*values)).ljust(PACKET, b"\0")


def _text(text: str) -> bytes:
    return text.encode("ascii", "replace")[:48]


@dataclass(frozen=True)
class Hello(Message):
    """A worker's first message: who it is, and which layers and key/value heads of the model it holds."""

    TYPE = 1
    FORM = struct.Struct("<16sHHHxxIIIII4x")

    instance: bytes = bytes(16)
    tp_rank: int = 0
    tp_size: int = 1
    local_workers: int = 1
    layer_first: int = 0
    layer_end: int = 0
    head_first: int = 0
    head_end: int = 0
    pid: int = 0


@dataclass(frozen=True)
class Welcome(Message):
    """The sidecar's answer, with the ring attached."""

    TYPE = 2
    FORM = struct.Struct("<16sQIIQII")

    ring_id: bytes = bytes(16)
    size: int = 0
    slots: int = 0
    slot_size: int = 0
    first_slot: int = 0
    record_size: int = 0
    max_wait_ms: int = 0


@dataclass(frozen=True)
class Refuse(Message):
    """The sidecar wants nothing to do with this connection."""

    TYPE = 3
    FORM = struct.Struct("<48s")

    text: str = ""


@dataclass(frozen=True)
class Begin(Message):
    """A prompt of a transfer is about to be computed."""

    TYPE = 4
    FORM = struct.Struct("<16sIIBBxxIQ8x")

    transfer: bytes = bytes(16)
    prompt_tokens: int = 0
    first_token: int = 0
    mode: int = 0
    dtype: int = 0
    row_bytes: int = 0
    layout: int = 0


@dataclass(frozen=True)
class Begun(Message):
    """What of it is wanted from this worker."""

    TYPE = 5
    FORM = struct.Struct("<BxxxIIIQIIQII")

    kind: int = 0
    blocks: int = 0
    block_tokens: int = 0
    from_token: int = 0
    block_bytes: int = 0
    layer_first: int = 0
    layer_end: int = 0
    layout: int = 0
    arrays: int = 0
    max_leases: int = 0


@dataclass(frozen=True)
class Array(Message):
    """The place of one array in a block's data."""

    TYPE = 6
    FORM = struct.Struct("<IIQQIIBxxxI8x")

    layer: int = 0
    array: int = 0
    offset: int = 0
    size: int = 0
    row_bytes: int = 0
    rows: int = 0
    dtype: int = 0
    index: int = 0


@dataclass(frozen=True)
class Lease(Message):
    """Ask for a slot for data of blocks from block on."""

    TYPE = 7
    FORM = struct.Struct("<QII32x")

    seq: int = 0
    block: int = 0
    wait_ms: int = 0


@dataclass(frozen=True)
class Leased(Message):
    """A slot, or none and from where on data is dropped."""

    TYPE = 8
    FORM = struct.Struct("<QIIII24x")

    seq: int = 0
    slot: int = 0
    generation: int = 0
    room: int = 0
    sealed: int = NOT_SEALED


@dataclass(frozen=True)
class Commit(Message):
    """A slot is filled and its record lists what is in it."""

    TYPE = 9
    FORM = struct.Struct("<IIII32x")

    slot: int = 0
    generation: int = 0
    entries: int = 0
    payload: int = 0


@dataclass(frozen=True)
class Return(Message):
    """A slot goes back unused."""

    TYPE = 10
    FORM = struct.Struct("<II40x")

    slot: int = 0
    generation: int = 0


@dataclass(frozen=True)
class End(Message):
    """Everything that will ever come of the request was committed."""

    TYPE = 11
    FORM = struct.Struct("<I4xQQQ16x")

    tokens: int = 0
    capture_ns: int = 0
    project_ns: int = 0
    wait_ns: int = 0


@dataclass(frozen=True)
class Abort(Message):
    """The request ends early, at either end's wish."""

    TYPE = 12
    FORM = struct.Struct("<48s")

    text: str = ""


@dataclass(frozen=True)
class Sealed(Message):
    """Data of this block and of later ones is no longer wanted."""

    TYPE = 13
    FORM = struct.Struct("<I44x")

    sealed: int = NOT_SEALED


@dataclass(frozen=True)
class Reclaim(Message):
    """After a restart of the sidecar: this slot was ours and is not done."""

    TYPE = 14
    FORM = struct.Struct("<16sQII16x")

    transfer: bytes = bytes(16)
    seq: int = 0
    slot: int = 0
    generation: int = 0


@dataclass(frozen=True)
class Facts(Message):
    """What model this worker has loaded: the document is in the attached file."""

    TYPE = 15
    FORM = struct.Struct("<II32s8x")

    size: int = 0
    form: int = 1
    sha256: bytes = bytes(32)


_TYPES: dict[int, type[Message]] = {
    t.TYPE: t
    for t in (
        Hello,
        Welcome,
        Refuse,
        Begin,
        Begun,
        Array,
        Lease,
        Leased,
        Commit,
        Return,
        End,
        Abort,
        Sealed,
        Reclaim,
        Facts,
    )
}


def decode(packet: bytes) -> Message:
    """Return the message in a packet. Raises WireError."""
    if len(packet) != PACKET:
        raise WireError(f"packet of {len(packet)} bytes, want {PACKET}")
    magic, version, kind, code, handle, _ = _HEAD.unpack_from(packet)
    if magic != MAGIC or version != VERSION or kind not in _TYPES:
        raise WireError(f"packet of type {kind}, version {version}, magic {magic!r}")
    cls = _TYPES[kind]
    values = cls.FORM.unpack_from(packet, _HEAD.size)
    texts = (
        v.rstrip(b"\0").decode("ascii", "replace") if f.type == "str" else v
        for f, v in zip(fields(cls)[2:], values, strict=True)
    )
    return cls(code, handle, *texts)


_PIECE = struct.Struct("<IIQ16x")
_ROWS = struct.Struct("<IIIIB3xII4x")


@dataclass(frozen=True)
class Piece:
    """Bytes of a block's data: the entry of mode pieces."""

    block: int
    offset: int
    length: int

    def encode(self) -> bytes:
        """Return the 32 bytes of the entry."""
        return _PIECE.pack(self.block, self.length, self.offset)


@dataclass(frozen=True)
class Rows:
    """Consecutive tokens of one layer: the entry of mode rows. heads are 0 for x."""

    layer: int
    length: int
    first: int
    tokens: int
    what: int
    head_first: int = 0
    heads: int = 0

    def encode(self) -> bytes:
        """Return the 32 bytes of the entry."""
        return _ROWS.pack(self.layer, self.length, self.first, self.tokens, self.what, self.head_first, self.heads)


Entry = Piece | Rows


def decode_entry(data: bytes, mode: Mode) -> Entry:
    """Return the entry in 32 bytes of a record. Raises WireError."""
    if len(data) != ENTRY:
        raise WireError(f"entry of {len(data)} bytes, want {ENTRY}")
    if mode is Mode.PIECES:
        block, length, offset = _PIECE.unpack(data)
        return Piece(block, offset, length)
    return Rows(*_ROWS.unpack(data))
