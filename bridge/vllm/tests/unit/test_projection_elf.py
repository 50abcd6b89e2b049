"""Libraries that the loader must not be given: it would be the kernel that says so, to the whole process."""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path

import fakeproj
import pytest
from pdlink_vllm.projection import abi, elf
from pdlink_vllm.projection.abi import ProjectionError

MACHINE = elf.MACHINES.get(platform.machine(), 62)


def library(segments: list[tuple[int, int, int]], kind: int = 3, machine: int = MACHINE, shnum: int = 2) -> bytes:
    """A file of 4096 bytes with segments (type, offset, size); its section headers come last."""
    tables = (64, 4096 - 128, 0, 64, 56, len(segments), 64, shnum, 0)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", kind, machine, 1, 0, *tables)
    table = b"".join(struct.pack("<IIQQQQQQ", t, 5, at, at, at, n, n + 64, 4096) for t, at, n in segments)
    return (head + table).ljust(4096, b"\0")


def test_whole_libraries(tmp_path: Path) -> None:
    elf.check(fakeproj.libc())
    path = tmp_path / "l.so"
    path.write_bytes(library([(1, 0, 2000), (1, 2000, 1968), (2, 1 << 40, 8)]))  # only what is loaded is mapped
    elf.check(path)


@pytest.mark.parametrize("size", [0, 3, 63, 64, 119, 120, 3967, 4000, 4095])
def test_libraries_that_were_cut_short(tmp_path: Path, size: int) -> None:
    path = tmp_path / "l.so"
    path.write_bytes(library([(1, 0, 2000), (1, 2000, 1968)])[:size])
    with pytest.raises(ProjectionError, match=r"(was cut short|is no shared library)[^:]*: build it \(make cuda\)"):
        abi.load(path)


def test_a_real_library_that_was_cut_short(tmp_path: Path) -> None:
    """At every length the answer is a refusal; the loader, given the half of it, ends the process."""
    whole, path = fakeproj.libc().read_bytes(), tmp_path / "l.so"
    path.write_bytes(whole)
    for size in range(len(whole) - 1, 4096, -(len(whole) // 40)):
        os.truncate(path, size)
        with pytest.raises(ProjectionError, match=rf"was cut short, it has {size} of"):
            abi.load(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (library([(1, 4000, 97)]), "4096 of 4097"),
        (library([(1, 1 << 63, 1 << 63)]), "was cut short"),
        (library([], shnum=3), "4096 of 4160"),
        (library([], kind=2), "ELF type 2"),
        (library([], machine=243), "is for ELF machine 243"),
        (b"#!/bin/sh\n" * 10, "no shared library"),
    ],
)
def test_libraries_that_are_none(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "l.so"
    path.write_bytes(data)
    with pytest.raises(ProjectionError, match=words):
        abi.load(path)


def test_places_without_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("none.so", "No such file"), ("pipe", "no regular file"), (".", "no regular file")):
        with pytest.raises(ProjectionError, match=words):
            abi.load(tmp_path / name)
