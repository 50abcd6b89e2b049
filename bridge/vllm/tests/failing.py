"""A library that fails where a test says so, and a maker with it."""

from __future__ import annotations

import ctypes
import logging
import threading
from pathlib import Path
from typing import Any

import fakeproj
import pytest
from pdlink_vllm.projection.handle import Carry
from pdlink_vllm.projection.maker import Maker, Options

log = logging.getLogger("test")

LIMIT = 30


class Failing(fakeproj.Library):
    """Fails where a test says so: codes by function, without the prefix. creates is waited for by create."""

    def __init__(self, **codes: int) -> None:
        """See the class."""
        super().__init__()
        self.codes = codes
        self.creates, self.creating = threading.Event(), threading.Event()
        self.creates.set()
        self.waited: list[int] = []  # tickets

    def _code(self, name: str, err: Any) -> int:
        err._obj.text = f"{name} cannot".encode()
        return self.codes.get(name, 0)

    def pdproj_create(self, *a: Any) -> int:
        """Wait until it may."""
        self.creating.set()
        assert self.creates.wait(LIMIT)
        return super().pdproj_create(*a)

    def pdproj_prepare(self, *a: Any) -> int:
        """See the class."""
        return self._code("prepare", a[-1]) or super().pdproj_prepare(*a)

    def pdproj_used(self, *a: Any) -> int:
        """See the class."""
        return self._code("used", a[-1]) or super().pdproj_used(*a)

    def pdproj_request_create(self, *a: Any) -> int:
        """See the class."""
        return self._code("request_create", a[-1]) or super().pdproj_request_create(*a)

    def pdproj_project(self, *a: Any) -> int:
        """See the class."""
        return self._code("project", a[-1]) or super().pdproj_project(*a)

    def pdproj_seed(self, *a: Any) -> int:
        """See the class."""
        return self._code("seed", a[-1]) or super().pdproj_seed(*a)

    def pdproj_wait(self, *a: Any) -> int:
        """See the class."""
        self.waited.append(a[1])
        return self._code("wait", a[-1]) or super().pdproj_wait(*a)


def begin(folder: Path, lib: fakeproj.Library) -> Maker:
    """A maker, whose handle takes two prompts."""
    path, digest = fakeproj.weights(folder)
    return Maker(Options(folder / "lib", path, digest, 0, 256, (0, 4), 0, 1, 64, 512, 4096, 2), log, lib)


def project(carry: Carry | None, at: int = 0, to: int | None = None) -> int:
    """Project 64 rows of layer 0, of which nothing is complete, to nowhere or an address."""
    assert carry is not None
    x = (ctypes.c_uint8 * (2 * 64 * 64))()
    return carry.project(0, ctypes.addressof(x), 64, at, [to], 0)


def ended(m: Maker) -> bool:
    """Whether the maker's thread ends by itself."""
    m._thread.join(LIMIT)
    return not m._thread.is_alive()


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How often a warning with this text was logged."""
    return sum(text in r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
