"""Fixtures: a decoder without MLX, and the plug-in on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import fakes  # noqa: E402
from pdlink_omlx.api import Endpoints  # noqa: E402


@pytest.fixture(autouse=True)
def mlx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The canary's imports find the stand-ins."""
    for name, module in fakes.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("PDLINK_OMLX_DAILY_BYTES", raising=False)
    yield


@pytest.fixture
def server(tmp_path: Path) -> fakes.Server:
    """A server with one loaded model."""
    return fakes.server(tmp_path / "store")


@pytest.fixture
def endpoints(server: fakes.Server) -> Endpoints:
    """The plug-in's endpoints on it."""
    return Endpoints(server)
