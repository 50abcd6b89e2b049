"""Copies rows into the ring: at once on a CPU, beside the engine on a GPU."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from pdlink_vllm import params
from pdlink_vllm.filling import Done, Later
from pdlink_vllm.ring import Ring


class Copies(Protocol):
    """Brings rows into a ring: what a capture needs of rows that are sent as they are."""

    def copy(self, source: Any, ring: Ring, at: int, check: Any) -> Done | None:
        """Copy a tensor, of any strides, to a ring from offset at on, contiguous in the order of its dimensions.

        check is a tensor of one bool on the same device, or None: copies count only if it is true. On a CPU the tensor
        may be written again when this returns; on a device it must be memory that was gathered for the purpose.
        """


class Computes(Protocol):
    """Gives others what they need to compute on the device and write into a ring by themselves: what a projection
    needs.
    """

    def rows(self, x: Any, index: Any) -> Any:
        """Return rows of x in memory that stays where it is from call to call, as the room that was reserved allows.
        What was there before is written over behind what the engine's stream has to do.
        """

    def address(self, ring: Ring, at: int) -> int:
        """Return where an offset of a ring is for whoever writes there by itself."""

    def stream(self) -> int:
        """Return the handle of the stream that the engine computes on; 0 on a CPU."""

    def after(self, wait: Callable[[], bool], check: Any) -> Done:
        """Return what is done when wait has returned true, and check was. wait is for work that the engine's stream had
        been given when this was called, or is given later.
        """


class Kept(Protocol):
    """What a worker has to see to, from its start to its end."""

    later: Later | None
    """Runs what must wait for copies; None where none is ever waited for."""

    def before_detach(self, quiet: Callable[[], None]) -> None:
        """Have quiet called before a ring's memory is let go: nobody may write there when it returns."""

    def close(self) -> None:
        """Finish what runs and let the ring go."""


class Target(Copies, Computes, Protocol):
    """Where the engine's tensors are, for a capture."""


class Device(Target, Kept, Protocol):
    """The same for a worker, who keeps it."""


class Cpu:
    """Tensors in ordinary memory. Copies are made by numpy, in the calling thread: torch would share even small ones
    among its threads, and one of those that the system has put aside for a moment holds up the engine.
    """

    later: Later | None = None

    def rows(self, x: Any, index: Any) -> Any:
        """See Computes."""
        return x.index_select(0, index).contiguous()

    def address(self, ring: Ring, at: int) -> int:
        """See Computes."""
        return int(np.frombuffer(ring.memory, np.uint8, 1, at).ctypes.data)

    def stream(self) -> int:
        """See Computes."""
        return 0

    def after(self, wait: Callable[[], bool], check: Any) -> Done:
        """See Computes."""
        return _After(wait, None)

    def before_detach(self, quiet: Callable[[], None]) -> None:
        """See Kept."""

    def copy(self, source: Any, ring: Ring, at: int, check: Any) -> Done | None:
        """See Copies. check was looked at by the caller, who can do so without waiting."""
        kind, same = (torch.int32, np.int32) if source.element_size() == 4 else (torch.int16, np.int16)
        window = np.ndarray(tuple(source.shape), same, ring.memory, at)
        np.copyto(window, source.detach().view(kind).numpy())  # numpy has no bfloat16: bits are bits
        return None

    def close(self) -> None:
        """See Kept."""


class _After:
    """Work that somebody else enqueued, and the flag that came with it."""

    def __init__(self, wait: Callable[[], bool], flag: Any) -> None:
        self._wait, self._flag = wait, flag

    def wait(self, seconds: float) -> bool:
        """See Done; of seconds the same holds as for copies."""
        return self._wait() and (self._flag is None or bool(self._flag[0]))


class _Copied:
    """A copy on the side stream: the event after it, and the flag that came with it."""

    def __init__(self, event: Any, flag: Any) -> None:
        self._event, self._flag = event, flag

    def wait(self, seconds: float) -> bool:
        """See Done. The event blocks without spinning and without the interpreter's lock; seconds cannot be kept for a
        device that hangs, which ends the engine's process anyway.
        """
        self._event.synchronize()
        return self._flag is None or bool(self._flag[0])


class Cuda:
    """Tensors of a CUDA device. Rows are put in order on the engine's stream, which is all that the engine pays; the
    way to the ring, page-locked once, is on a stream of its own, and a thread waits for it.
    """

    def __init__(self, device: Any, log: logging.Logger) -> None:
        """Make the stream and the thread, whose device this is too: on another one CUDA would take memory for it."""
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._log = log
        self._stream = torch.cuda.Stream(device=self._device)
        self._memory: Any = None
        self._ring: Ring | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._flags: dict[int, tuple[Any, Any]] = {}
        self._rows: Any = None
        self._quiet: Callable[[], None] = lambda: None
        self.later: Later | None = self._jobs.put
        self._jobs.put(self.enter)
        self._thread = threading.Thread(target=self._run, name="pdlink-commit", daemon=True)
        self._thread.start()

    @property
    def index(self) -> int:
        """The device's ordinal."""
        return int(self._device.index)

    def enter(self) -> None:
        """Make this the calling thread's device: a thread's is 0 until somebody says so."""
        torch.cuda.set_device(self._device)

    def _attach(self, ring: Ring) -> None:
        """Page-lock a ring, before the first copy. One that cannot be works too, but its copies hold up the engine."""
        self._detach()
        self._ring, self._memory = ring, torch.frombuffer(ring.memory, dtype=torch.uint8)
        code = torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)
        if int(code) != 0:
            self._log.warning("pdlink: CUDA cannot page-lock the ring (error %s), raise the memlock limit", int(code))

    def _detach(self) -> None:
        if self._memory is not None:
            self._quiet()
            self._stream.synchronize()
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        self._memory = self._ring = None

    def copy(self, source: Any, ring: Ring, at: int, check: Any) -> Done | None:
        """See Copies."""
        self._attached(ring)
        size = source.numel() * source.element_size()
        window = self._memory[at : at + size].view(source.dtype).view(source.shape)
        staged = source.contiguous()
        made = torch.cuda.Event()
        made.record()
        done = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(made)
            window.copy_(staged, non_blocking=True)
            flag = self._flag(check)
            done.record(self._stream)
        staged.record_stream(self._stream)
        return _Copied(done, flag)

    def _attached(self, ring: Ring) -> None:
        if ring is not self._ring:
            self._attach(ring)

    def reserve(self, tokens: int, width: int) -> int:
        """Make room for rows of bfloat16 and return its address on the device; 0 where there is none to be had."""
        try:
            self._rows = torch.empty(tokens, width, dtype=torch.bfloat16, device=self._device)
        except torch.OutOfMemoryError as e:
            self._log.warning("pdlink: %s", e)
            return 0
        return int(self._rows.data_ptr())

    def rows(self, x: Any, index: Any) -> Any:
        """See Computes."""
        if self._rows is None or len(index) > len(self._rows):
            return x.index_select(0, index)
        return torch.index_select(x, 0, index, out=self._rows[: len(index)])

    def address(self, ring: Ring, at: int) -> int:
        """See Computes."""
        self._attached(ring)
        return int(self._memory.data_ptr()) + at

    def stream(self) -> int:
        """See Computes."""
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def after(self, wait: Callable[[], bool], check: Any) -> Done:
        """See Computes. The flag is fetched on the engine's stream, so it comes before what is enqueued next."""
        return _After(wait, self._flag(check))

    def before_detach(self, quiet: Callable[[], None]) -> None:
        """See Kept."""
        self._quiet = quiet

    def _flag(self, check: Any) -> Any:
        """Bring a check's bool to memory of the host, once for each check."""
        if check is None:
            return None
        held = self._flags.get(id(check))
        if held is None:
            host = torch.empty(1, dtype=torch.bool, pin_memory=True)
            host.copy_(check.view(1), non_blocking=True)
            check.record_stream(self._stream)
            self._flags = {id(check): (check, host)}  # the checks of one step come one after the other
            return host
        return held[1]

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                self._log.exception("pdlink: handing over a slot failed")

    def close(self) -> None:
        """See Kept."""
        self._jobs.put(None)
        self._thread.join(params.CLOSE_WAIT)
        self._detach()
