"""A device that lags behind, so that a test says when its copies are done."""

from __future__ import annotations

import threading
from typing import Any

from pdlink_vllm.device import Cpu


class Held(Cpu):
    """A device that is behind: slots are handed over when two wait for that, or when it is released."""

    def __init__(self) -> None:
        """Nothing waits."""
        self.jobs: list[Any] = []
        self.changed, self.released = threading.Condition(), False
        self.later = self._later
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _later(self, job: Any) -> None:
        with self.changed:
            self.jobs.append(job)
            self.changed.notify_all()

    def release(self) -> None:
        """Hold nothing back any more."""
        with self.changed:
            self.released = True
            self.changed.notify_all()

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: len(self.jobs) >= 2 or self.released)
                if not self.jobs:
                    return
                job = self.jobs.pop(0)
            job()
