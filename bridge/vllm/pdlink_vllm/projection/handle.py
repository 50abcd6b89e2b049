"""One handle of libpdproj: a layer share's weights on the device, and the carries of the prompts that are computed."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_uint64, c_void_p, sizeof
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pdlink_vllm import params, wire
from pdlink_vllm.projection import abi
from pdlink_vllm.projection.abi import ProjectionError
from pdlink_vllm.projection.shape import Geometry, Shape
from pdlink_vllm.weights.config import check_config
from pdlink_vllm.weights.export import wanted
from pdlink_vllm.weights.files import parse
from pdlink_vllm.weights.safetensors import Tensor, read_whole

# Parts of a layer in the weight file, by field of pdproj_layer.
_PARTS = {
    "kv": "wkv.weight",
    "kv_norm": "kv_norm.weight",
    **{f"{p}_{f}": f"{p}.{t}" for p in ("comp", "idx") for f, t in (("kv", "wkv.weight"), ("gate", "wgate.weight"))},
    **{f"{p}_{f}": f"{p}.{t}" for p in ("comp", "idx") for f, t in (("norm", "norm.weight"), ("ape", "ape"))},
}


class Weights:
    """The exported weights, in memory of this process alone. Belongs to one thread."""

    def __init__(self, path: Path, sha256: str) -> None:
        """Read a file that `weights export` wrote, pinned by its sha256 in hex, once: what is used is what was hashed,
        whatever becomes of the file. Raises ProjectionError.
        """
        try:
            whole = read_whole(path, params.MAX_WEIGHTS)
            if whole.sha256 != sha256.lower():
                raise ProjectionError(f"{path}: its sha256 is {whole.sha256}, not the one that the settings pin")
            self._data, self._tensors = whole.data, whole.header()
            config = parse(whole.metadata().get("config", "null"), f"{path}: config")
            if isinstance(config, dict):
                check_config(config, str(path))
        except (OSError, ValueError) as e:
            raise ProjectionError(f"projection weights: {e}") from e
        if not isinstance(config, dict):
            raise ProjectionError(f"{path} has no configuration in it: export it again with pdlink-vllm weights export")
        self.geometry = Geometry.of(config)
        for name, _, shape in wanted(config):
            t = self._tensors.get(name)
            types = ("F32", "BF16") if name.endswith(".ape") else ("BF16",)
            if t is None or t.shape != shape or t.dtype not in types:
                raise ProjectionError(
                    f"{path}: {name} is not {types[0]} {list(shape)}: weights and configuration differ"
                )

    def layer(self, index: int, shape: Shape, keep: list[Any]) -> abi.Layer:
        """Describe a layer to the library. What it points to lives as long as keep and this object."""
        ratio = self.geometry.ratios[index]
        out = abi.Layer(ratio=ratio)
        for name, part in _PARTS.items():
            t = self._tensors.get(f"layer_{index}.{part}")
            if t is not None:
                setattr(out, name, self._address(t, keep, wide=name.endswith("ape")))
        offsets = shape.offsets(ratio)
        for a in range(abi.ARRAYS):
            out.offset[a] = next((at for array, at in offsets.items() if int(array) - 2 == a), -1)
        return out

    def _address(self, t: Tensor, keep: list[Any], wide: bool) -> int:
        data = self._data[t.begin : t.end]
        if wide:  # a bias: float32, aligned, whatever it was
            raw = np.array(data)
            data = raw if t.dtype == "F32" else (raw.view("<u2").astype(np.uint32) << 16).view(np.uint8)
            keep.append(data)
        return int(data.ctypes.data)


@dataclass(frozen=True)
class Limits:
    """How much a handle takes: rows of one call, prompts at once."""

    tokens: int
    requests: int


# Hears how prompts went: the first failure of one, of a call or of its bytes on their way; None for one that ended
# after calls which all succeeded, with all that they sent in place. Any thread calls it, with no lock of the handle.
Heard = Callable[[ProjectionError | None], None]


class Handle:
    """A created library handle. Any thread may use it; the library orders their calls. It is destroyed when it was
    retired and nobody uses it any more: carries, and calls whose bytes are under way.
    """

    def __init__(
        self,
        lib: abi.Library,
        weights: Weights,
        shape: Shape,
        device: int,
        limits: Limits,
        heard: Heard = lambda _: None,
    ) -> None:
        """Upload the weights and wait for that: seconds, not for the engine's thread. Raises ProjectionError."""
        self.shape, self.limits, self.heard, self._lib = shape, limits, heard, lib
        self._changed = threading.Condition()
        self._users = 0
        self.latest = 0  # ticket
        keep: list[Any] = []
        key, g = shape.key, shape.geometry
        layers = [weights.layer(i, shape, keep) for i in range(key.first, key.end)]
        described = (abi.Layer * len(layers))(*layers)
        factor, original, fast, slow = g.yarn
        config = abi.Config(
            size=sizeof(abi.Config),
            flags=abi.PACKED,
            device=device,
            layers=len(layers),
            layer=ctypes.addressof(described),
            hidden=g.hidden,
            head_dim=g.head,
            index_dim=g.index,
            rope_dim=g.rope,
            window=g.window,
            block_tokens=key.block,
            max_tokens=limits.tokens,
            max_requests=limits.requests,
            max_positions=g.positions,
            norm_eps=g.eps,
            rope_theta=g.theta,
            compress_rope_theta=g.compress_theta,
            yarn_factor=factor,
            yarn_original=original,
            yarn_beta_fast=fast,
            yarn_beta_slow=slow,
            staging=0,
            cublaslt=None,
        )
        self._h = c_void_p()
        err = abi.Error()
        abi.check(lib.pdproj_create(byref(config), byref(self._h), byref(err)), err, "create the projection")

    @property
    def bytes(self) -> int:
        """Memory of the device that the handle took."""
        u, err = abi.Usage(size=sizeof(abi.Usage)), abi.Error()
        abi.check(self._lib.pdproj_used(self._h, byref(u), byref(err)), err, "ask for its memory")
        return int(u.weights + u.carries + u.workspace + u.staging)

    def use(self) -> None:
        """Keep the handle until done."""
        with self._changed:
            self._users += 1

    def done(self) -> None:
        """Give up one use."""
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def used_by(self, waiter: object) -> None:
        """Keep the handle until an object is dropped: who still has to ask whether a call's bytes arrived can do so."""
        self.use()
        weakref.finalize(waiter, self.done).atexit = False

    def open(self) -> Carry | None:
        """Begin a prompt; None when there are as many as the handle was made for. Raises ProjectionError."""
        out, err = c_void_p(), abi.Error()
        code = self._lib.pdproj_request_create(self._h, byref(out), byref(err))
        if code == abi.FULL:
            return None
        abi.check(code, err, "begin a prompt")
        self.use()
        return Carry(self, out)

    def prepare(self, layer: int, x: int, n: int, first: int) -> bool:
        """Ready calls with this input for less work of the host. False where no more can be. Raises ProjectionError."""
        err = abi.Error()
        code = self._lib.pdproj_prepare(self._h, layer - self.shape.key.first, x, n, first, byref(err))
        if code != abi.FULL:
            abi.check(code, err, f"prepare layer {layer}")
        return bool(code == 0)

    def wait(self, ticket: int) -> bool:
        """Wait until a call's bytes are in place; the interpreter's lock is not held. False: none can say that."""
        return self.missed(ticket) is None

    def missed(self, ticket: int) -> ProjectionError | None:
        """Wait, and return why a call's bytes are not in place, with code 0 where none can say whether they are."""
        with self._changed:
            if not self._h:  # whoever freed it waited until nothing is under way, and not whether it arrived
                return ProjectionError("what was projected was given up before anybody asked whether it arrived")
            self._users += 1
        try:
            err = abi.Error()
            abi.check(self._lib.pdproj_wait(self._h, ticket, byref(err)), err, "wait for what was projected")
        except ProjectionError as e:
            return e
        finally:
            self.done()
        return None

    def quiet(self) -> bool:
        """Wait until nothing that was enqueued so far writes any more. False: the device failed."""
        return self.latest == 0 or self.wait(self.latest)

    def retire(self, seconds: float) -> bool:
        """Free everything once nobody uses it. False: somebody did for too long, and the memory stays taken. Who waits
        for a call meanwhile does so until the library, which waits for its copies, has freed the handle.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._users == 0, seconds):
                return False
            h, self._h = self._h, c_void_p()
            if h:
                self._lib.pdproj_destroy(h)
        return True


class _Quiet:
    """The end of all that a handle was given by the time somebody waits for it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def wait(self, seconds: float) -> bool:
        """See Done; a device that hangs ends the engine's process, whatever seconds says."""
        return self._handle.quiet()


@dataclass(frozen=True)
class Run:
    """Rows of a layer that one call takes: tokens [first, first + tokens). sent: what they complete goes to the
    decoder, which otherwise has it already.
    """

    first: int
    tokens: int
    sent: bool


class Carry:
    """One prompt on the device. The engine's thread only, but for wait.

    A layer's rows must come one behind the other. Of a prompt whose first tokens the decoder holds, what those complete
    is not sent, but what follows depends on the last of them: a layer is entered at a block's first token, the last one
    that is early enough. held is the number of those tokens below.
    """

    def __init__(self, handle: Handle, request: c_void_p) -> None:
        """Own a request of the library. doubt holds, by KV cache group, whether the rows of all earlier steps were the
        right ones: a bool on the device, which what is projected next depends on. Whoever projects keeps it.
        """
        self.handle, self._request = handle, request
        self.doubt: dict[int, Any] = {}
        self._compared: wire.Begun | None = None
        self._refused = ""  # what the comparison said
        self._lock = threading.Lock()  # guards what is known of how it went
        self._called = self._closed = self._failed = self._told = False
        self._sent = self._arrived = 0  # latest tickets: of a call whose bytes somebody waits for, and in place

    def refuses(self, begun: wire.Begun, places: Mapping[tuple[int, int], wire.Array]) -> str:
        """Say what of a plan is not what is made here; empty where nothing is. Compared once for each BEGUN, with which
        the places came.
        """
        if self._compared is not begun:
            b = begun
            self._refused = self.handle.shape.differs(b.block_tokens, b.layer_first, b.layer_end, places)
            self._compared = begun
        return self._refused

    def sees(self, layer: int, first: int, end: int, held: int) -> tuple[int, int]:
        """Return the part [a, b) of tokens [first, end) whose rows a layer must see; a >= b where it is none."""
        return max(first, self.handle.shape.enters(layer, held)), end

    def enters(self, layer: int, at: int, held: int) -> bool:
        """Whether a layer is entered at this token, in the middle of the prompt."""
        return at > 0 and at == self.handle.shape.enters(layer, held)

    def runs(self, at: int, end: int, held: int) -> Iterator[Run]:
        """Cut tokens [at, end) into what one call takes, all of it to be sent or none."""
        while at < end:
            n = min(self.handle.limits.tokens, (held if at < held else end) - at, end - at)
            yield Run(at, n, sent=at >= held)
            at += n

    def touched(self, run: Run) -> int:
        """Return the number of blocks that a run's tokens lie in."""
        block = self.handle.shape.key.block
        return (run.first + run.tokens - 1) // block - run.first // block + 1

    def skip(self, layer: int, to: int, stream: int) -> None:
        """Begin a layer at a block's first token instead of the prompt's: nothing before it is known, so its first
        pooled row is not what the decoder has, and must be dropped. Raises ProjectionError.
        """
        h, err = self.handle, abi.Error()
        index = layer - h.shape.key.first
        code = h._lib.pdproj_seed(h._h, self._request, index, to, None, None, None, None, stream, byref(err))
        self._check(code, err, f"begin layer {layer} at token {to}")

    def project(self, layer: int, x: int, n: int, first: int, to: Sequence[int | None], stream: int) -> int:
        """Enqueue the next n rows of a layer, bf16 at address x of the device, and return their ticket. to has an
        address for each block that they touch, where what is completed of it goes; None drops it. Raises
        ProjectionError, whose pending says when those addresses may be used for something else.
        """
        h = self.handle
        ticket, err = c_uint64(), abi.Error()
        index, places = layer - h.shape.key.first, (c_void_p * len(to))(*to)
        # In the header's order: no list of pieces is wanted back, so none is given, no length of one and no count.
        code = h._lib.pdproj_project(
            h._h,
            self._request,
            index,
            x,
            n,
            first,
            places,
            len(to),
            None,
            0,
            None,
            byref(ticket),
            stream,
            byref(err),
        )
        self._check(code, err, f"project layer {layer}")
        h.latest = ticket.value
        if any(at is not None for at in to):
            with self._lock:
                self._sent = ticket.value
        return h.latest

    def wait(self, ticket: int) -> bool:
        """Wait until the bytes of one of the prompt's calls are in place; also after close. Any thread. False: they are
        not.
        """
        e = self.handle.missed(ticket)
        if e is None:
            with self._lock:
                self._arrived = max(self._arrived, ticket)
            self._went_well()
        elif e.code:
            self._went_wrong(e)
        return e is None

    def _check(self, code: int, err: abi.Error, doing: str) -> None:
        """Raise what a call's code says."""
        try:
            abi.check(code, err, doing)
            self._called = True
        except ProjectionError as e:
            e.pending = _Quiet(self.handle)
            self._went_wrong(e)
            raise

    def _went_wrong(self, e: ProjectionError) -> None:
        """Tell the first failure of the prompt, which the others follow from."""
        with self._lock:
            first, self._failed = not self._failed, True
        if first:
            self.handle.heard(e)

    def _went_well(self) -> None:
        """Tell, once the prompt is over and all that was sent has arrived, that nothing failed."""
        with self._lock:
            good = self._closed and self._called and not self._failed and self._arrived >= self._sent
            good, self._told = good and not self._told, self._told or good
        if good:
            self.handle.heard(None)

    def close(self) -> None:
        """Give the prompt's place back. Idempotent; what is under way is not disturbed."""
        if self._request:
            with self._lock:
                self._closed = True
            self._went_well()
            self.handle._lib.pdproj_request_free(self.handle._h, self._request)
            self._request = c_void_p()
            self.handle.done()
