"""The threads beside the engine: each must have the engine's device as its own, where torch begins with device 0."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from pdlink_vllm.device import Cuda

log = logging.getLogger("test")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, str]]:
    """What torch.cuda is asked for, of what device, by which thread; the calling thread's device is 1."""
    seen: list[tuple[str, Any, str]] = []

    class Stream:
        """A stream that is never used."""

        def __init__(self, device: Any) -> None:
            seen.append(("Stream", device, threading.current_thread().name))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda d: seen.append(("set_device", d, threading.current_thread().name))
    )
    return seen


@pytest.mark.parametrize("device", [torch.device("cuda", 1), torch.device("cuda")])
def test_the_committing_thread_has_the_device(calls: list[tuple[str, Any, str]], device: Any) -> None:
    """Before the first slot is waited for, or CUDA would take memory of device 0 for rank 1."""
    one, here = torch.device("cuda", 1), threading.current_thread().name
    d = Cuda(device, log)
    assert d.index == 1
    assert d.later is not None
    d.later(lambda: calls.append(("job", None, threading.current_thread().name)))
    d.close()
    assert calls == [("Stream", one, here), ("set_device", one, "pdlink-commit"), ("job", None, "pdlink-commit")]
    d.enter()
    assert calls[3:] == [("set_device", one, here)]


def test_a_device_that_cannot_be_had_is_told(
    calls: list[tuple[str, Any, str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And slots are handed over all the same: what waits for nothing of the device needs none."""

    def gone(_: Any) -> None:
        raise RuntimeError("no device 1")

    monkeypatch.setattr(torch.cuda, "set_device", gone)
    d, done = Cuda(torch.device("cuda", 1), log), []
    assert d.later is not None
    d.later(lambda: done.append(1))
    d.close()
    assert done == [1]
    assert "no device 1" in caplog.text
