"""What the tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import sidecar
from pdlink_vllm import params

NOT_RUN = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none: it is not run, and not counted as if it were."""
    away = [] if Path("/dev/nvidiactl").exists() else [i for i in items if i.get_closest_marker("gpu")]
    config.stash[NOT_RUN] = [i.nodeid for i in away]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [i for i in items if i not in away]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List those."""
    for name in config.stash.get(NOT_RUN, []):
        terminalreporter.write_line(f"not run, no GPU here: {name}")


class Place:
    """Where a test's sidecars listen; ends those that it left."""

    def __init__(self, folder: Path) -> None:
        """Use a folder whose path is short enough for a socket's."""
        self.path = folder / "s"
        self._made: list[sidecar.Sidecar] = []

    def sidecar(
        self,
        options: sidecar.Options | None = None,
        after: sidecar.Sidecar | None = None,
        memory: sidecar.Memory | None = None,
    ) -> sidecar.Sidecar:
        """Start a sidecar; after: it takes over from one that was killed."""
        if after is not None:
            s = sidecar.Sidecar(self.path, options, after.memory, after.transfers)
        else:
            s = sidecar.Sidecar(self.path, options, memory)
        self._made.append(s)
        return s

    def close(self) -> None:
        """End all, and fail for what they saw."""
        for s in self._made:
            s.kill()
        breaches = [b for s in self._made for b in s.breaches]
        assert not breaches, breaches


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place for sidecars."""
    p = Place(tmp_path_factory.mktemp("p"))
    yield p
    p.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody give a slot up because this machine is busy; tests of that say how long they wait."""
    monkeypatch.setattr(params, "LEASE_WAIT", sidecar.LIMIT / 2)
