"""The ids of a request's prompt, by the decoder's own way from request to ids.

The decoder's handler of the request's path is run on the request, with an engine that takes the prompt and goes no
further. So templates, tools, reasoning settings, profiles and whatever the next version adds are the decoder's; nothing
of it is imitated here, nothing of the decoder is changed, and other requests are not touched:

- The handler is a copy of the function with the same code. In its globals one name is another: the one by which it gets
  its engine. Where a handler does not get its engine by that name, it is not run.
- The engine is of the real one's class and has its attributes, but for the core, which takes requests: that one stops
  here.
"""

from __future__ import annotations

import array
import asyncio
import inspect
import types
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from . import jsontext, seam
from .errors import Refusal

GETTER = "get_engine_for_model"
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")

# Content that is turned into something else than text tokens.
OTHER_CONTENT = ("image", "audio", "video", "file", "document")


@dataclass
class Seen:
    """What the run has seen so far."""

    engine: Any = None
    prompt: Any = None
    why: str | None = None
    texts: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A request's prompt and the loaded model that will get it. `packed` is the ids as unsigned 32-bit numbers."""

    live: seam.Live
    ids: list[int]
    packed: array.array[int]


class _Planned(asyncio.CancelledError):
    """Ends the handler where its engine would begin: as a cancellation, which the decoder neither logs nor counts."""


async def prompt_of(server: Any, path: str, body: bytes, http_request: Any) -> Prompt:
    """Run the handler of `path` on a request's body; loads the model as the request would.

    A Refusal says why the request has no prompt that can be planned.
    """
    request = _parsed(body)
    handler = handler_of(server, path)
    arguments = _arguments(handler, request, http_request)
    seen = Seen()
    run = asyncio.ensure_future(_drive(_copy(handler, seen), arguments))
    try:
        await asyncio.wait({run})
    except BaseException:
        run.cancel()
        raise
    if seen.why is not None:
        raise Refusal("unplannable", seen.why)
    if seen.prompt is None:
        raise _refused(run)
    live = seam.live_of(seen.engine, seam.id_of(server, seen.engine))
    ids = _ids(live, seen)
    try:
        return Prompt(live, ids, array.array("I", ids))
    except (TypeError, OverflowError) as err:
        raise Refusal("moved", f"plan: the decoder's prompt is no list of ids: {err}") from err


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        request = jsontext.parse(body)
    except ValueError as err:
        raise Refusal("unplannable", "the body is no JSON") from err
    if not isinstance(request, dict):
        raise Refusal("unplannable", "the body is no object")
    prompt = request.get("prompt")
    if isinstance(prompt, list) and len(prompt) != 1:
        raise Refusal("unplannable", "the request has several prompts")
    kind = _other_content(request.get("messages")) or _other_content(request.get("input"))
    if kind is not None:
        raise Refusal("unplannable", f"the request has content of type {kind}")
    return request


def _other_content(value: Any) -> str | None:
    """The type of the first part of a conversation that is no text; parts hold parts (tool results)."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, dict):
            kind = item.get("type")
            if isinstance(kind, str) and any(word in kind for word in OTHER_CONTENT):
                return kind
            todo.append(item.get("content"))
    return None


def handler_of(server: Any, path: str) -> types.FunctionType:
    """The function that serves a path; a Refusal where there is none that can be run for a plan."""
    if path not in PATHS:
        raise Refusal("unplannable", f"{path} takes no prompts that can be planned")
    routes = seam.need(server, "app.routes", "find the handler")
    found = [r for r in routes if getattr(r, "path", None) == path and "POST" in (getattr(r, "methods", None) or ())]
    if len(found) != 1:
        raise Refusal("moved", f"find the handler: the decoder has {len(found)} for {path}")
    function = seam.need(found[0], "endpoint", "find the handler")
    if not inspect.iscoroutinefunction(function) or not isinstance(function, types.FunctionType):
        raise Refusal("moved", f"find the handler: that of {path} is no coroutine function")
    if GETTER not in _names(function.__code__) or not callable(function.__globals__.get(GETTER)):
        raise Refusal("moved", f"find the handler: that of {path} does not get its engine by {GETTER}")
    return function


def _names(code: types.CodeType) -> set[str]:
    """Global and attribute names in a function and the functions inside it."""
    out = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            out |= _names(constant)
    return out


def _arguments(function: types.FunctionType, request: dict[str, Any], http_request: Any) -> dict[str, Any]:
    """The handler's arguments: its request model, the HTTP request, and True for what the framework checked before."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError) as err:
        raise Refusal("moved", f"call the handler: its parameters' types are not known here: {err}") from err
    out: dict[str, Any] = {}
    models = 0
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        validate = getattr(hint, "model_validate", None)
        if validate is not None:
            models += 1
            try:
                out[name] = validate(request)
            except (ValueError, RecursionError) as err:  # pydantic's errors are ValueErrors
                raise Refusal("unplannable", "the decoder's request model refuses the body") from err
        elif isinstance(hint, type) and isinstance(http_request, hint):
            out[name] = http_request
        elif hint is bool and parameter.default is not inspect.Parameter.empty:
            out[name] = True
        elif parameter.default is inspect.Parameter.empty or "Depends" in type(parameter.default).__name__:
            raise Refusal("moved", f"call the handler: it wants {name}, which is not known here")
    if models != 1:
        raise Refusal("moved", f"call the handler: it has {models} request models")
    return out


def _copy(function: types.FunctionType, seen: Seen) -> Callable[..., Awaitable[Any]]:
    """The same code with another way to its engine."""
    real = function.__globals__[GETTER]

    async def getter(*args: Any, **kwargs: Any) -> Any:
        engine = await real(*args, **kwargs)
        seen.engine = engine
        return stand_in(engine, seen)

    names = {**function.__globals__, GETTER: getter}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


async def _drive(handler: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> None:
    """Call the handler and take its answer, which generates while it is sent, until the prompt has been seen.

    The answer's end releases what the handler holds.
    """
    answer = await handler(**arguments)
    parts = getattr(answer, "body_iterator", None)
    if parts is None:
        return
    try:
        async for _ in parts:
            pass
    finally:
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()


def _refused(run: asyncio.Future[None]) -> Refusal:
    """Why the handler ended before it had a prompt."""
    err = None if run.cancelled() else run.exception()
    if isinstance(err, Refusal):
        return err
    if err is None:
        return Refusal("unplannable", "the decoder answers the request without its engine")
    detail = getattr(err, "detail", None) or str(err) or type(err).__name__
    return Refusal("unplannable", f"the decoder refuses the request: {str(detail)[:300]}")


def stand_in(engine: Any, seen: Seen) -> Any:
    """An engine of the real one's class that takes a prompt and generates nothing."""
    what = "stand in for the engine"
    kind = type(engine)
    core = vars(engine).get("_engine")
    if core is None:
        raise Refusal("moved", f"{what}: this decoder's {kind.__name__} has no _engine")

    async def nothing(*_: Any, **__: Any) -> None:
        """The request itself will be checked, and has the engine started, when it comes."""

    def keep(_: Any, name: str, value: Any) -> None:
        """What the engine's code makes once and keeps belongs to the real engine too."""
        vars(out)[name] = value
        if name not in ("_engine", "_tokenizer"):
            setattr(engine, name, value)

    overrides: dict[str, Any] = dict.fromkeys(("start", "stop", "preflight_chat", "preflight_completion"), nothing)
    cls = type("Planned" + kind.__name__, (kind,), {**overrides, "__setattr__": keep})
    out: Any = object.__new__(cls)
    vars(out).update(vars(engine))
    vars(out)["_engine"] = _Core(core, seen)
    tokenizer = vars(engine).get("_tokenizer")
    if tokenizer is not None:
        vars(out)["_tokenizer"] = _remembering(tokenizer, seen)
    return out


class _Core:
    """The engine's core for a plan: what it is asked to generate is noted, everything else is the real core's."""

    def __init__(self, core: Any, seen: Seen) -> None:
        self._core = core
        self._seen = seen

    async def generate(self, prompt: Any = None, *_: Any, **more: Any) -> None:
        """Note the prompt and end the run."""
        self._take(prompt, more)

    async def add_request(self, prompt: Any = None, *_: Any, **more: Any) -> None:
        """Note the prompt and end the run."""
        self._take(prompt, more)

    def _take(self, prompt: Any, more: dict[str, Any]) -> None:
        for name, value in more.items():
            other = name.startswith("vlm_") or name in ("images", "videos", "audios")
            if other and name != "vlm_cache_key_start" and value is not None and _filled(value):
                self._seen.why = f"the request carries more than text ({name})"
        self._seen.prompt = prompt
        raise _Planned

    def __getattr__(self, name: str) -> Any:
        if name in ("stream_outputs", "stop", "close", "generate_batch_sync"):
            raise AttributeError(name)
        return getattr(self._core, name)


def _filled(value: Any) -> bool:
    """Whether a value says something; arrays do."""
    try:
        return len(value) > 0
    except TypeError:
        return True


def _remembering(tokenizer: Any, seen: Seen) -> Any:
    """The tokenizer with a memory for this run: handlers count a text's tokens before they hand it to the engine.

    It is of the real one's class and shares its attributes; where that cannot be made, it is the real one.
    """
    kind = type(tokenizer)

    def encode(_: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not isinstance(text, str):
            return tokenizer.encode(text, *args, **kwargs)
        if text not in seen.texts:
            seen.texts[text] = list(tokenizer.encode(text))
        return list(seen.texts[text])

    try:
        out: Any = object.__new__(type(kind.__name__, (kind,), {"encode": encode}))
        object.__setattr__(out, "__dict__", vars(tokenizer))
    except TypeError:
        return tokenizer
    return out


def _ids(live: seam.Live, seen: Seen) -> list[int]:
    """The prompt as ids, as the scheduler makes them."""
    prompt = seen.prompt
    if isinstance(prompt, str):
        found = seen.texts.get(prompt)
        if found is None:
            # The engine's, not the scheduler's copy of it, which another thread may be using.
            tokenizer = getattr(live.engine, "_tokenizer", None) or seam.need(live.engine, "tokenizer", "encode")
            found = list(tokenizer.encode(prompt))
        prompt = found
    if not isinstance(prompt, list):
        raise Refusal("moved", f"plan: the decoder's prompt is neither text nor ids but {type(prompt).__name__}")
    return prompt
