"""Keeps a handle for what the decoder wants, made beside the engine. Until there is one rows go to the sidecar, and for
good once it shows that nothing can be projected here.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pdlink_vllm import params
from pdlink_vllm.projection import abi
from pdlink_vllm.projection.abi import ProjectionError
from pdlink_vllm.projection.handle import Carry, Handle, Limits, Weights
from pdlink_vllm.projection.shape import Key, Shape, share

# Says what a handle is to be for, given what the last one is for, if there is one; None: nothing else.
Change = Callable[[Key | None], Key | None]

# Codes of failures that another prompt may not have: of the device for a moment, or of how one prompt's rows came.
# All others are of the library, its arguments or the machine, and would come again.
PASSING = (abi.CUDA, abi.STATE)

# Prompts in a row that may fail that way before no more are projected. Each has its answer
# late, which is the price of a wrong hope; one or two can be chance.
FAILURES = 3


class State(enum.Enum):
    """Life of a Maker: IDLE to READY as often as wanted; STOPPED and CLOSED from any, and only from STOPPED to CLOSED
    after that.
    """

    IDLE = 1  # nothing is known to be wanted of this process
    MAKING = 2  # the thread makes a handle, or will
    READY = 3  # there is one
    STOPPED = 4  # nothing is projected any more, for the reason in `failed`
    CLOSED = 5


@dataclass(frozen=True)
class Options:
    """library and weights are files, sha256 pins the weights (hex). block_tokens are those of the decoder's blocks as
    far as anybody knows; layers [first, end) are the process's, of which rank of ranks has a share. tokens is the
    longest run of rows that a step has, hidden the width of a row. x is where rows will lie on the device, 0 where that
    changes.
    """

    library: Path
    weights: Path
    sha256: str
    device: int
    block_tokens: int
    layers: tuple[int, int]
    rank: int
    ranks: int
    hidden: int
    tokens: int
    x: int = 0
    requests: int = params.PROJECTED_REQUESTS


class Maker:
    """Makes handles in a thread of its own. open and learn are the engine's, and neither wait nor raise."""

    def __init__(
        self,
        options: Options,
        log: logging.Logger,
        lib: abi.Library | None = None,
        enter: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin with what the options say. lib stands for the library in tests. enter is called first in the thread,
        and makes the options' device its own: else CUDA takes memory of another one for it, too.
        """
        self._o, self._log, self._lib, self._enter = options, log, lib, enter
        self._changed = threading.Condition()  # guards what follows; only the thread sets the handle
        self._state = State.IDLE
        self._key: Key | None = None  # what the handle is for, or is to be
        # Also one that is no longer to be used, until it is freed: it may still write.
        self._handle: Handle | None = None
        self._failures = 0  # prompts in a row
        self.failed = ""
        self._thread = threading.Thread(target=self._run, name="pdlink-projection", daemon=True)
        self._thread.start()

    def open(self) -> Carry | None:
        """Begin a prompt; None while there is no handle, or no place in it: its rows stay rows."""
        with self._changed:  # so that the handle is not freed before the prompt counts as its user
            if self._state is not State.READY or self._handle is None:
                return None
            try:
                return self._handle.open()
            except ProjectionError as e:
                self._heard(e)
                if self._state is State.READY:
                    self._log.warning("pdlink: the rows of one prompt go to the sidecar: %s", e)
                return None

    def learn(self, block_tokens: int, first: int, end: int) -> bool:
        """Hear what the sidecar wants. False: the handle is for something else; one for that is made. True as well once
        none is made any more.
        """
        return self._want(lambda key: Key(block_tokens, first, end, key.previous if key else True))

    def without_previous(self) -> None:
        """Hear that the decoder's blocks do not hold the window before."""
        self._want(lambda key: replace(key, previous=False) if key else None)

    def fits(self, widest: int) -> bool:
        """Whether there is a handle, and a slot with room for so many bytes takes what a block has of any layer."""
        with self._changed:
            return self._state is State.READY and self._handle is not None and self._handle.shape.widest <= widest

    def quiet(self) -> None:
        """Wait until no call writes to a ring any more."""
        handle = self._handle
        if handle is not None:
            handle.quiet()

    def wait(self, seconds: float) -> bool:
        """Wait for a handle, or until there will be none; for tests. Returns whether there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._state not in (State.IDLE, State.MAKING), seconds)
            return self._state is State.READY

    def close(self) -> None:
        """Free the device's memory. What is still under way keeps it: a handle that is being made until it is made, one
        that a prompt uses until the process ends.
        """
        self._to(State.CLOSED)
        self._thread.join(2 * params.DEVICE_WAIT)  # it may wait for prompts twice
        if self._thread.is_alive() or self._handle is not None:
            self._log.warning("pdlink: the projection is still in use, its memory stays taken")

    # Transitions.

    def _want(self, change: Change) -> bool:
        """From IDLE, MAKING or READY to MAKING, if something else is wanted than there is."""
        with self._changed:
            want = change(self._key)
            if not self._goes_on() or want is None or want == self._key:
                return True
            if want.first < want.end:
                last = want.end - 1
                self._log.info("pdlink: projecting blocks of %d tokens, layers %d to %d", want.block, want.first, last)
                self._key = want
                self._to(State.MAKING)
            return False

    def _keep(self, handle: Handle, key: Key) -> bool:
        """From MAKING to READY. False: meanwhile this handle is not wanted any more, and is the caller's."""
        with self._changed:
            if self._state is not State.MAKING or self._key != key:
                return False
            self._handle, self._failures = handle, 0
            self._to(State.READY)
            return True

    def _stop(self, why: str) -> None:
        """From IDLE, MAKING or READY to STOPPED."""
        with self._changed:
            if self._goes_on():
                self._log.warning("pdlink: nothing is projected here, rows go to the sidecar: %s", why)
                self.failed = why
                self._to(State.STOPPED)

    def _to(self, state: State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _goes_on(self) -> bool:
        return self._state not in (State.STOPPED, State.CLOSED)

    def _heard(self, e: ProjectionError | None) -> None:
        """See Heard. Whose prompt it was has said why it ended; here it counts whether others can be expected to."""
        with self._changed:
            self._failures = 0 if e is None else self._failures + 1
            if e is not None and (e.code not in PASSING or self._failures >= FAILURES):
                self._stop(str(e))

    # The maker's thread.

    def _run(self) -> None:
        try:
            self._enter()
            self._work(self._lib or abi.load(self._o.library))
        except ProjectionError as e:
            self._stop(str(e))
        except Exception as e:
            self._log.exception("pdlink: an error while the projection was made")
            self._stop(f"{type(e).__name__}: {e}")
        while not self._free() and self._state is not State.CLOSED:
            pass  # a prompt that began before may take long

    def _work(self, lib: abi.Library) -> None:
        """Make what is wanted until nothing is any more. Raises ProjectionError."""
        weights: Weights | None = self._begin()
        while True:
            if self._state is State.IDLE:
                weights = None  # this process has no share; they are read again should one be wanted
            key = self._next()
            if key is None:
                return
            if self._vacated(key):
                weights = weights or self._weights()
                if self._make(lib, weights, key):
                    weights = None  # on the device; the memory is the engine's until something else is wanted

    def _weights(self) -> Weights:
        return Weights(self._o.weights, self._o.sha256)

    def _begin(self) -> Weights:
        """Read the weights, and make what this process is expected to need: from IDLE to MAKING."""
        weights, o = self._weights(), self._o
        g = weights.geometry
        if g.hidden != o.hidden or o.layers[1] > len(g.ratios):
            raise ProjectionError(
                f"the weights are for {len(g.ratios)} layers of width {g.hidden}, the engine's are not"
            )
        with self._changed:
            if self._state is State.IDLE:
                first, end = share(g.ratios, *o.layers, o.rank, o.ranks)
                if first < end:
                    self._key = Key(o.block_tokens, first, end)
                    self._to(State.MAKING)
        return weights

    def _next(self) -> Key | None:
        with self._changed:
            self._changed.wait_for(lambda: self._state not in (State.IDLE, State.READY))
            return self._key if self._state is State.MAKING else None

    def _vacated(self, key: Key) -> bool:
        """Free the handle that was for something else, however long its prompts take: they end when their users want.
        False: meanwhile none is wanted, or one for something else again.
        """
        said = False
        while True:
            freed = self._free()
            with self._changed:  # what is wanted may have changed in a wait that ended well, too
                if self._state is not State.MAKING or self._key != key:
                    return False
            if freed:
                return True
            if not said:
                self._log.warning("pdlink: prompts use the projection of before, rows go to the sidecar until they end")
            said = True

    def _make(self, lib: abi.Library, weights: Weights, key: Key) -> bool:
        """Make a handle. False: meanwhile it is not wanted any more, and is freed. Raises ProjectionError."""
        o = self._o
        handle = Handle(lib, weights, Shape(weights.geometry, key), o.device, Limits(o.tokens, o.requests), self._heard)
        kept = False
        try:
            self._prepare(handle, key)
            taken = self._taken(handle)
            kept = self._keep(handle, key)
        finally:
            if not kept:
                handle.retire(0)  # nobody else has seen it
        if kept:
            self._log.info("pdlink: layers %d to %d are projected here, in %s", key.first, key.end - 1, taken)
        return kept

    def _prepare(self, handle: Handle, key: Key) -> None:
        """Ready the calls of full steps, which begin with a block as often as not. Without that they cost the host
        more, and are as good.
        """
        o = self._o
        if not o.x or o.tokens < key.block:
            return
        try:
            for layer in range(key.first, key.end):
                handle.prepare(layer, o.x, o.tokens, 0)
        except ProjectionError as e:
            self._log.warning("pdlink: the projection's calls cost the host more than they need to: %s", e)

    def _taken(self, handle: Handle) -> str:
        """Say what memory a handle takes, for the log."""
        try:
            return f"{handle.bytes >> 20} MB of the GPU"
        except ProjectionError as e:
            return f"memory of unknown size ({e})"

    def _free(self) -> bool:
        """Free the handle that there is, if any. False: prompts use it for too long."""
        handle = self._handle
        if handle is not None and not handle.retire(params.DEVICE_WAIT):
            return False
        with self._changed:
            self._handle = None
        return True
