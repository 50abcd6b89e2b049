"""The C interface of libpdproj as ctypes: what kernels/cuda/pdproj.h says, and nothing else."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from pdlink_vllm.filling import Done
from pdlink_vllm.projection import elf
from pdlink_vllm.weights.files import FileError

ABI = 2
TEXT = 256
ARRAYS = 8
PACKED = 8  # flag of Config
# Codes.
CUDA = 5  # the device reports a failure
STATE = 6  # rows that do not continue the request
FULL = 7  # as many requests, or graphs, as there can be
LOST = 9  # the handle takes no more work, of any prompt


class ProjectionError(Exception):
    """libpdproj, its weights or a call of it cannot be used. The text names the reason, and the cure where there is
    one.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        """code is the library's, 0 where it was not asked. pending: of a failed call that may have begun to write, what
        to wait for until nothing that its handle was given writes any more.
        """
        super().__init__(text)
        self.code = code
        self.pending: Done | None = None


class Error(Structure):
    """pdproj_error."""

    _fields_: ClassVar = [("code", c_int32), ("text", c_char * TEXT)]


class Layer(Structure):
    """pdproj_layer."""

    _fields_: ClassVar = [
        ("ratio", c_int32),
        ("reserved", c_int32),
        ("kv", c_void_p),
        ("kv_norm", c_void_p),
        ("comp_kv", c_void_p),
        ("comp_gate", c_void_p),
        ("comp_norm", c_void_p),
        ("idx_kv", c_void_p),
        ("idx_gate", c_void_p),
        ("idx_norm", c_void_p),
        ("comp_ape", c_void_p),
        ("idx_ape", c_void_p),
        ("offset", c_int64 * ARRAYS),
    ]


class Config(Structure):
    """pdproj_config."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("device", c_int32),
        ("layers", c_int32),
        ("layer", c_void_p),
        ("hidden", c_int32),
        ("head_dim", c_int32),
        ("index_dim", c_int32),
        ("rope_dim", c_int32),
        ("window", c_int32),
        ("block_tokens", c_int32),
        ("max_tokens", c_int32),
        ("max_requests", c_int32),
        ("max_positions", c_int64),
        ("norm_eps", c_double),
        ("rope_theta", c_double),
        ("compress_rope_theta", c_double),
        ("yarn_factor", c_double),
        ("yarn_original", c_double),
        ("yarn_beta_fast", c_double),
        ("yarn_beta_slow", c_double),
        ("staging", c_uint64),
        ("cublaslt", c_char_p),
    ]


class Facts(Structure):
    """pdproj_facts."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("abi", c_int32),
        ("runtime", c_int32),
        ("driver", c_int32),
        ("sm", c_int32),
        ("processors", c_int32),
        ("integrated", c_int32),
        ("reserved", c_int32),
        ("memory", c_uint64),
        ("memory_free", c_uint64),
        ("name", c_char * 64),
    ]


class Usage(Structure):
    """pdproj_usage."""

    _fields_: ClassVar = [
        ("size", c_uint32),
        ("direct", c_int32),
        ("weights", c_uint64),
        ("carries", c_uint64),
        ("workspace", c_uint64),
        ("staging", c_uint64),
        ("cublaslt", c_uint64),
        ("gemm", c_char * 512),
    ]


class PieceOf(Structure):
    """pdproj_piece."""

    _fields_: ClassVar = [("block", c_int64), ("offset", c_int64), ("length", c_int64), ("at", c_void_p)]


_ERR = POINTER(Error)

# What is called of the library: result, and arguments in order.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "pdproj_abi": (c_int32, []),
    "pdproj_query": (c_int, [c_int32, POINTER(Facts), _ERR]),
    "pdproj_create": (c_int, [POINTER(Config), POINTER(c_void_p), _ERR]),
    "pdproj_destroy": (None, [c_void_p]),
    "pdproj_used": (c_int, [c_void_p, POINTER(Usage), _ERR]),
    "pdproj_request_create": (c_int, [c_void_p, POINTER(c_void_p), _ERR]),
    "pdproj_request_free": (None, [c_void_p, c_void_p]),
    "pdproj_project": (
        c_int,
        [
            c_void_p,
            c_void_p,
            c_int32,
            c_void_p,
            c_int32,
            c_int64,
            POINTER(c_void_p),
            c_int32,
            POINTER(PieceOf),
            c_int32,
            POINTER(c_int32),
            POINTER(c_uint64),
            c_void_p,
            _ERR,
        ],
    ),
    "pdproj_seed": (
        c_int,
        [c_void_p, c_void_p, c_int32, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, _ERR],
    ),
    "pdproj_prepare": (c_int, [c_void_p, c_int32, c_void_p, c_int32, c_int64, _ERR]),
    "pdproj_wait": (c_int, [c_void_p, c_uint64, _ERR]),
}


# What ctypes.byref returns, or None; the type has no public name.
Reference = Any


class Handles(Protocol):
    """What the library does with handles. Results are codes, 0 for success; err has the text."""

    def pdproj_create(self, config: Reference, out: Reference, err: Reference, /) -> int:
        """Make a handle."""

    def pdproj_destroy(self, h: c_void_p, /) -> None:
        """Free a handle."""

    def pdproj_used(self, h: c_void_p, out: Reference, err: Reference, /) -> int:
        """Say what memory it took."""

    def pdproj_prepare(self, h: c_void_p, layer: int, x: int, n: int, first: int, err: Reference, /) -> int:
        """Ready a call."""

    def pdproj_wait(self, h: c_void_p, ticket: int, err: Reference, /) -> int:
        """Wait for a call."""


class Requests(Protocol):
    """What the library does with prompts; results as above."""

    def pdproj_request_create(self, h: c_void_p, out: Reference, err: Reference, /) -> int:
        """Begin a prompt."""

    def pdproj_request_free(self, h: c_void_p, r: c_void_p, /) -> None:
        """End a prompt."""

    def pdproj_seed(
        self,
        h: c_void_p,
        r: c_void_p,
        layer: int,
        position: int,
        kv: Reference,
        gate: Reference,
        idx_kv: Reference,
        idx_gate: Reference,
        stream: int,
        err: Reference,
        /,
    ) -> int:
        """Begin a layer in the middle of a prompt."""

    def pdproj_project(
        self,
        h: c_void_p,
        r: c_void_p,
        layer: int,
        x: int,
        n: int,
        first: int,
        dst: Any,
        dsts: int,
        pieces: Reference,
        most: int,
        count: Reference,
        ticket: Reference,
        stream: int,
        err: Reference,
        /,
    ) -> int:
        """Enqueue rows."""


class Library(Handles, Requests, Protocol):
    """The library as this package calls it."""


def load(path: Path) -> Library:
    """Open the library, a file, and check that it is of this interface. Raises ProjectionError."""
    try:
        elf.check(path)
        lib = ctypes.CDLL(str(path.absolute()))  # a bare name would be looked for elsewhere
        for name, (result, arguments) in FUNCTIONS.items():
            f = getattr(lib, name)
            f.restype, f.argtypes = result, arguments
    except FileError as e:
        raise ProjectionError(str(e)) from e
    except (OSError, AttributeError) as e:
        raise ProjectionError(f"{path}: {e}") from e
    if lib.pdproj_abi() != ABI:
        raise ProjectionError(
            f"{path} has interface {lib.pdproj_abi()}, this package needs {ABI}: build both of one source"
        )
    return cast(Library, lib)


def check(code: int, err: Error, doing: str) -> None:
    """Turn a call's code into an exception. Raises ProjectionError."""
    if code != 0:
        raise ProjectionError(f"{doing}: {err.text.decode('utf-8', 'replace')}", code)
