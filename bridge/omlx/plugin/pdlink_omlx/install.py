"""Adds the endpoints to the decoder's app."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from . import __version__, seam
from .api import Endpoints
from .errors import Refusal

PREFIX = "/pdlink/v1"

log = logging.getLogger("pdlink_omlx")

Endpoint = Callable[[Any], Awaitable[dict[str, Any]]]


def install(server: Any) -> None:
    """Add the endpoints to a server module, once; a Refusal says why that cannot be done.

    They are added only where the decoder's own key guards them.
    """
    what = "install the endpoints"
    app = seam.need(server, "app", what)
    guard = seam.need_call(server, "verify_api_key", what)
    add = seam.need_call(app, "add_api_route", what)
    state = seam.need(app, "state", what)
    if getattr(state, "pdlink_omlx", None) is not None:
        return
    from fastapi import Depends

    endpoints = Endpoints(server)
    for path, method, endpoint in (
        ("/info", "GET", endpoints.info),
        ("/plan", "POST", endpoints.plan),
        ("/adopt", "POST", endpoints.adopt),
        ("/evict", "POST", endpoints.evict),
    ):
        handler, guards = answering(endpoint, endpoints.watch), [Depends(guard)]
        add(PREFIX + path, handler, methods=[method], dependencies=guards, include_in_schema=False)
    state.pdlink_omlx = __version__
    log.info("pdlink-omlx %s: endpoints under %s", __version__, PREFIX)


def answering(endpoint: Endpoint, before: Callable[[], None]) -> Callable[[Any], Awaitable[Any]]:
    """The endpoint as a handler: refusals become answers, and so does everything that should not happen.

    `before` is called first, on the event loop.
    """
    from fastapi.responses import Response
    from starlette.requests import Request

    def answer(content: dict[str, Any], status: int = 200) -> Any:
        # As ASCII: texts of the decoder and of files may have halves of characters, which UTF-8 cannot say.
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        return Response(text, status, media_type="application/json")

    def fault(code: str, message: str, status: int) -> Any:
        return answer({"error": {"code": code, "message": message}}, status)

    async def handler(request: Any) -> Any:
        before()
        try:
            return answer(await endpoint(request))
        except Refusal as err:
            return fault(err.code, err.message, err.status)
        except Exception as err:
            status = getattr(err, "status_code", None)
            if isinstance(status, int):  # the decoder's own refusal, of a model for example
                message = str(getattr(err, "detail", err))
                return fault("decoder", message[:500], status)
            log.exception("pdlink-omlx: %s failed", getattr(endpoint, "__name__", "an endpoint"))
            return fault("failed", f"{type(err).__name__}: {err}"[:500], 500)

    handler.__annotations__["request"] = Request  # the framework reads it; this module's annotations are texts
    return handler
