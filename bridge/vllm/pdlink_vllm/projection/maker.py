"""Keeps a handle for what the decoder wants, made beside the engine: until there is one, rows go to the sidecar."""

from __future__ import annotations

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

    def __init__(self, options: Options, log: logging.Logger, lib: abi.Library | None = None) -> None:
        """Begin with what the options say. lib stands for the library in tests."""
        self._o, self._log, self._lib = options, log, lib
        self._changed = threading.Condition()
        self._handle: Handle | None = None
        self._made: Key | None = None  # what the handle is, or is to be, for
        self._wanted: Key | None = None
        self.failed = ""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pdlink-projection", daemon=True)
        self._thread.start()

    def open(self) -> Carry | None:
        """Begin a prompt; None while there is no handle, or no place in it: its rows stay rows."""
        handle = self._handle
        if handle is None or self._wanted is not None:
            return None
        try:
            return handle.open()
        except ProjectionError as e:
            self._fail(str(e))
            return None

    def learn(self, block_tokens: int, first: int, end: int) -> bool:
        """Hear what the sidecar wants. False: the handle is for something else; one for that is made."""
        return self._want(lambda key: Key(block_tokens, first, end, key.previous if key else True))

    def without_previous(self) -> None:
        """Hear that the decoder's blocks do not hold the window before."""
        self._want(lambda key: replace(key, previous=False) if key else None)

    def fits(self, widest: int) -> bool:
        """Whether a slot with room for so many bytes takes what a block has of any layer."""
        handle = self._handle
        return handle is not None and handle.shape.widest <= widest

    def quiet(self) -> None:
        """Wait until no call writes to a ring any more."""
        handle = self._handle
        if handle is not None:
            handle.quiet()

    def _want(self, change: Change) -> bool:
        with self._changed:
            want = change(self._made)
            if self.failed or want is None or want == self._made:
                return True
            if want.first < want.end:
                last = want.end - 1
                self._log.info("pdlink: projecting blocks of %d tokens, layers %d to %d", want.block, want.first, last)
                self._made = self._wanted = want
                self._changed.notify_all()
            return False

    def wait(self, seconds: float) -> bool:
        """Wait for a handle, or until there will be none; for tests. Returns whether there is one."""
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self.failed) or (self._handle is not None and self._wanted is None), seconds
            )
            return self._handle is not None and not self.failed

    def close(self) -> None:
        """Free the device's memory. What is still under way keeps it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(params.DEVICE_WAIT)
        handle, self._handle = self._handle, None
        if handle is not None and not handle.retire(params.DEVICE_WAIT):
            self._log.warning("pdlink: the projection is still in use, its memory stays taken")

    # The maker's thread.

    def _run(self) -> None:
        try:
            lib = self._lib or abi.load(self._o.library)
            weights = Weights(self._o.weights, self._o.sha256)
            self._begin(weights)
            while (key := self._next()) is not None:
                self._make(lib, weights, key)
        except ProjectionError as e:
            self._fail(str(e))
        except Exception as e:
            self._log.exception("pdlink: an error while the projection was made")
            self._fail(f"{type(e).__name__}: {e}")

    def _begin(self, weights: Weights) -> None:
        g, o = weights.geometry, self._o
        if g.hidden != o.hidden or o.layers[1] > len(g.ratios):
            raise ProjectionError(
                f"the weights are for {len(g.ratios)} layers of width {g.hidden}, the engine's are not"
            )
        with self._changed:
            if self._made is None:
                first, end = share(g.ratios, *o.layers, o.rank, o.ranks)
                if first < end:
                    self._made = self._wanted = Key(o.block_tokens, first, end)

    def _next(self) -> Key | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._wanted is not None)
            return None if self._closed else self._wanted

    def _make(self, lib: abi.Library, weights: Weights, key: Key) -> None:
        old, self._handle = self._handle, None
        if old is not None and not old.retire(params.DEVICE_WAIT):
            raise ProjectionError("prompts that use an earlier one do not end")
        o = self._o
        shape = Shape(weights.geometry, key)
        handle = Handle(lib, weights, shape, o.device, Limits(o.tokens, o.requests))
        if o.x and o.tokens >= key.block:  # the calls of full steps, which begin with a block as often as not
            for layer in range(key.first, key.end):
                handle.prepare(layer, o.x, o.tokens, 0)
        with self._changed:
            self._handle = handle
            if self._wanted == key:
                self._wanted = None
            self._changed.notify_all()
        taken = handle.bytes >> 20
        self._log.info("pdlink: layers %d to %d are projected here, in %d MB of the GPU", key.first, key.end - 1, taken)

    def _fail(self, why: str) -> None:
        with self._changed:
            if not self.failed:
                self._log.warning("pdlink: nothing is projected here, rows go to the sidecar: %s", why)
            self.failed = self.failed or why
            self._wanted = None
            self._changed.notify_all()
