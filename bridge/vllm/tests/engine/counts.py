"""A plug-in of pytest: the last line says how many tests passed and failed, and a skipped one is a failure.

A request to end (SIGTERM, a time limit) ends the engines that tests have started, too.
"""

from __future__ import annotations

import signal
from types import FrameType

import pytest

# Outcomes as pytest's reporter names them.
GOOD, BAD = ("passed",), ("failed", "error", "skipped", "xfailed", "xpassed")


class Counts:
    """The counts of a run."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Count, and fail a run that skipped something."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        stats = getattr(reporter, "stats", {})
        self.passed = sum(len(stats.get(k, ())) for k in GOOD)
        self.failed = sum(len(stats.get(k, ())) for k in BAD)
        if session.exitstatus == pytest.ExitCode.OK and self.failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """Say it, after everything else."""
        print(f"{self.passed} passed, {self.failed} failed", flush=True)


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is said more than once, by `make` too, and heard once
        raise KeyboardInterrupt(f"signal {number}")

    signal.signal(signal.SIGTERM, end)
    config.pluginmanager.register(Counts(), "counts-of-run")
