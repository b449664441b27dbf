"""Routes that read bodies by our rules: only from permitted callers, within limits, as strict JSON.

FastAPI would read a body before it resolves any dependency, whatever its size and its sender. A limited route
first asks the guard and enters the drain, then reads within the limits and refuses NaN, invalid UTF-8 and
endless nesting. FastAPI validates the fields against the typed body.
"""

import itertools
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mamba_api.openai_fields import NOT_SUPPORTED
from mamba_edge.app.application import Guard
from mamba_edge.errors import UnsupportedMediaType
from mamba_edge.exchange.request_body import BODY_SECONDS, read_body, require_plain
from mamba_edge.exchange.request_context import context_of
from mamba_server.api.requests.json_fields import JsonFields
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

MAX_WARNED = 256
"""Maximum number of unknown field names that are remembered."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRequest(Request):
    """A request whose body has arrived and is a JSON object."""

    def __init__(self, request: Request, body: bytes, fields: dict[str, Any]) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes = body
        self.fields = fields

    async def body(self) -> bytes:
        """Return the body's bytes."""
        return self._bytes

    async def json(self) -> dict[str, Any]:
        """Return the parsed object."""
        return self.fields


def limited_route(
    limit: int,
    guard: Guard,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
    *,
    seconds: float = BODY_SECONDS,
) -> type[APIRoute]:
    """Return the class of routes whose bodies have at most `limit` bytes and arrive within `seconds`.

    A body is read only for callers that `guard` lets pass, and within the context `around`, which stays open
    until the answer has been sent.
    """

    class LimitedRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            if self.body_field is None or scope["method"] not in (self.methods or ()):
                await super().handle(scope, receive, send)
                return
            await guard(HTTPConnection(scope))
            with around():
                await super().handle(scope, receive, send)

        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()
            if self.body_field is None:
                return handler
            model = self.body_field.field_info.annotation
            assert isinstance(model, type)
            assert issubclass(model, BaseModel)
            refused: frozenset[str] = getattr(model, "REFUSED_FIELDS", frozenset())
            ignored: frozenset[str] = getattr(model, "IGNORED_FIELDS", frozenset())
            names = frozenset(model.model_fields) | frozenset(NOT_SUPPORTED) | refused | ignored
            unknown, reader = UnknownFields(names), JsonFields(names)

            async def handle(request: Request) -> Response:
                require_json(request.headers.get("content-type"), request.headers.get("content-encoding"))
                context = context_of(request.scope)
                body = await read_body(
                    request.scope["headers"],
                    request.receive,
                    limit,
                    seconds,
                    share=context.body_share,
                )
                context.body_bytes = len(body)
                fields = await reader.read(body)
                unknown.warn(fields)
                return await handler(JsonRequest(request, body, fields))

            return handle

    return LimitedRoute


def require_json(content_type: str | None, encoding: str | None = None) -> None:
    """Check that the content type is JSON or missing, and that the body is not compressed.

    Raises UnsupportedMediaType.
    """
    require_plain(encoding)
    kind = ("application/json" if content_type is None else content_type).partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaType(f"the body must be application/json, not {kind[:80]!r}")


class UnknownFields:
    """Logs unknown fields of requests, each name once, because clients repeat them."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._warned: set[str] = set()

    def warn(self, fields: dict[str, Any]) -> None:
        """Log the unknown fields that have not been logged yet."""
        if len(fields) > len(self._names) + MAX_WARNED:
            fields = dict.fromkeys(itertools.islice(fields, len(self._names) + MAX_WARNED))
        unknown = [name[:64] for name in fields if name not in self._names]
        new = [name for name in unknown if name not in self._warned]
        if new and len(self._warned) < MAX_WARNED:
            self._warned.update(new)
            log.warning("unknown_fields_ignored", fields=new[:16], count=len(unknown))
