"""The outermost ASGI application: request id, trace, authentication, one log line and one error style.

Wraps the router of the public and of the admin server. Whatever is raised below becomes the OpenAI envelope
here, unless bytes were sent already.
"""

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mamba_server.api.errors import ApiError, InternalError, InvalidRequest, MethodNotAllowed, NotFound
from mamba_server.api.event_stream import send_json
from mamba_server.api.request_body import ClientGone
from mamba_telemetry import traces
from mamba_telemetry.logs import get_logger, log_context

log = get_logger(__name__)
_tracer = trace.get_tracer("mambaserve")

CLIENT_GONE = 499
_FOREIGN = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_QUIET = frozenset({"/livez", "/readyz", "/health", "/metrics"})


def request_id_of(given: str | None) -> str:
    """The caller's id without anything that could break a log line or a header; a new one if none is left."""
    return _FOREIGN.sub("", given or "")[:128] or uuid.uuid4().hex


def as_api_error(error: Exception) -> ApiError:
    """What the client is told about any exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound("there is nothing at this path; see /openapi.json")
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "")
            return MethodNotAllowed(f"the method is not allowed here; use {allow or 'another'}", allow=allow)
        return InvalidRequest(error.detail)
    return InternalError("an unexpected error occurred; the server's log has the details")


class Front:
    """`guard` raises ApiError for a caller that may not pass; `route_of` bounds the route label."""

    def __init__(
        self,
        inner: ASGIApp,
        *,
        guard: Callable[[str, Headers], None],
        route_of: Callable[[str], str],
        answered: Callable[[str, int], None],
    ) -> None:
        self._inner = inner
        self._guard = guard
        self._route_of = route_of
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        request_id = request_id_of(headers.get("x-request-id"))
        route = self._route_of(scope["path"])
        fields: dict[str, Any] = {}
        status = 0
        arrival = time.monotonic()

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        with (
            _tracer.start_as_current_span(
                f"{scope['method']} {route}",
                context=traces.incoming(headers),
                kind=trace.SpanKind.SERVER,
                record_exception=False,
            ) as span,
            log_context(request_id=request_id, trace_id=traces.trace_id(span)),
        ):
            scope.update(app=self, log_fields=fields, arrival=arrival, traceparent=traces.traceparent(span))
            try:
                self._guard(scope["path"], headers)
                await self._inner(scope, receive, send_marked)
            except ClientGone:
                status = CLIENT_GONE
            except Exception as error:
                status = await self._fail(error, status, send_marked)
            finally:
                seconds = time.monotonic() - arrival
                span.set_attribute("http.response.status_code", status)
                self._answered(route, status)
                level = log.debug if scope["path"] in _QUIET else log.info
                level("request", route=route, status=status, seconds=round(seconds, 4), **fields)

    async def _fail(self, error: Exception, status: int, send: Send) -> int:
        answer = as_api_error(error)
        if isinstance(answer, InternalError) and not isinstance(error, ApiError):
            log.error("unexpected_error", exc_info=error)
        if status:
            # Too late for a status: closing without the last chunk tells that something is missing.
            raise error
        await send_json(send, answer.envelope(), answer.status, answer.headers())
        return answer.status
