"""Looks at a shared library before the loader maps it: of a file that was cut short the loader finds pages that are not
there, and the kernel ends the process for it (SIGBUS). The names are those of elf(5).
"""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path
from typing import BinaryIO

from pdlink_vllm.weights.files import FileError, open_regular

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_SECTION = 64  # bytes of an Elf64_Shdr
_IDENT = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_DYN = 3  # e_type of a shared library
_LOAD = 1  # p_type of what is mapped

# e_machine by the machine's name, of those that the library is built for.
MACHINES = {"x86_64": 62, "aarch64": 183}


def check(path: Path, machine: str = "") -> None:
    """Refuse what is no whole shared library for this machine (a name as of uname, for tests): every segment that is
    loaded, and the table of sections, must lie within the file. Raises FileError, OSError.
    """
    with open_regular(path) as f:
        why = _wrong(f, machine or platform.machine())
    if why:
        raise FileError(f"{path} {why}: build it (make cuda) or copy it again")


def _wrong(f: BinaryIO, machine: str) -> str:
    """Say what is wrong with a file; empty where nothing is."""
    size = os.fstat(f.fileno()).st_size
    head = f.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_IDENT):
        return "is no shared library of 64 bits"
    _, kind, made_for, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = _HEADER.unpack(head)
    if kind != _DYN:
        return f"is no shared library, but of ELF type {kind}"
    if machine in MACHINES and made_for != MACHINES[machine]:
        names = {number: name for name, number in MACHINES.items()}
        return f"is for {names.get(made_for, f'ELF machine {made_for}')}, and this machine is {machine}"
    if phentsize != _SEGMENT.size or (shnum and shentsize != _SECTION):
        return f"has tables with entries of {phentsize} and {shentsize} bytes, which none has"
    ends = [phoff + phnum * phentsize, shoff + shnum * shentsize]
    if ends[0] <= size:
        f.seek(phoff)
        table = f.read(phnum * phentsize)
        if len(table) == phnum * phentsize:
            ends += [at + n for kind, _, at, _, _, n, _, _ in _SEGMENT.iter_unpack(table) if kind == _LOAD]
    return f"was cut short, it has {size} of {max(ends)} bytes" if max(ends) > size else ""
