"""Reads and writes the files of an export: only regular ones, whole or not at all, and JSON that may be anything."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from pdlink_vllm import params


class FileError(ValueError):
    """A file is not what it should be, or cannot be written. The text names the file, what is wrong, and mostly what
    to do.
    """


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; the caller closes it. Whatever would block or never end is refused: a pipe, a device, a
    directory. Raises FileError, OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileError(f"{path} is no regular file")
    return os.fdopen(fd, "rb")


def read_json(path: Path) -> Any:
    """Read a small file of JSON. Raises FileError, OSError."""
    with open_regular(path) as f:
        text = f.read(params.MAX_HEADER + 1)
    if len(text) > params.MAX_HEADER:
        raise FileError(f"{path}: more than {params.MAX_HEADER} bytes are no JSON file of a checkpoint or an export")
    return parse(text, str(path))


def parse(text: bytes | str, what: str) -> Any:
    """Parse JSON that somebody else wrote; what begins the message. Raises FileError."""
    try:
        return json.loads(text)
    except ValueError as e:
        raise FileError(f"{what}: {e}") from e
    except RecursionError as e:
        raise FileError(f"{what}: nested too deeply") from e


class Staging:
    """Files that appear together. Each is written under a temporary name beside its place; commit renames them in the
    order in which they were added. Leaving the context removes what was not renamed. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Path, Path]] = []

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        for part, _ in self._parts:
            part.unlink(missing_ok=True)

    def add(self, path: Path, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a file's bytes to the disk, not yet under its name. Raises FileError."""
        part = path.with_name(f".pdlink-{secrets.token_hex(8)}.part")
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            self._parts.append((part, path))
            with os.fdopen(fd, "wb") as f:
                for chunk in chunks:
                    f.write(chunk)
                f.flush()
                os.fsync(f.fileno())
        except OSError as e:
            raise FileError(f"{path} cannot be written: {e.strerror}") from e

    def commit(self) -> None:
        """Give all files their names, replacing what has them. Raises FileError; those before the one that it names are
        in place then.
        """
        folders: dict[Path, None] = {}
        while self._parts:
            part, path = self._parts[0]
            try:
                part.replace(path)
            except OSError as e:
                raise FileError(f"{path} cannot be written: {e.strerror}") from e
            del self._parts[0]
            folders[path.parent] = None
        for folder in folders:
            _sync(folder)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
