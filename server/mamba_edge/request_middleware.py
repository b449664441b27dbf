"""The outermost ASGI application: request id, trace, one log line, one count and one error style.

Wraps the application of each server. Whatever reaches it becomes the OpenAI envelope, unless bytes were sent
already. Endpoints find in the scope: `request_id`, `arrival` (monotonic seconds), `traceparent` ("" outside
of any trace), `log_fields`, to which they may add, and `answer_headers`, which every answer gets.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mamba_edge.body_budget import BodyBudget, BodyShare
from mamba_edge.errors import ApiError, as_api_error
from mamba_edge.request_body import ClientGone
from mamba_edge.sending import send_error
from mamba_telemetry import traces
from mamba_telemetry.logs import get_logger, log_context

log = get_logger(__name__)
_levels = logging.getLogger(__name__)
_tracer = trace.get_tracer("mambaserve")

CLIENT_GONE = 499
_FOREIGN = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_QUIET = frozenset({"/livez", "/readyz", "/health", "/metrics"})


def request_id_of(given: str | None) -> str:
    """The caller's id without anything that could break a log line or a header; a new one if none is left."""
    return _FOREIGN.sub("", given or "")[:128] or uuid.uuid4().hex


class RequestMiddleware:
    """`route_of` bounds the route label of a path; `answered` counts each answer by route and status.

    Each request has a line in the log at level info; those of probes are for debugging. `bodies` bounds what
    all requests together hold; each finds its `body_share` in the scope.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        route_of: Callable[[str], str],
        answered: Callable[[str, int], None],
        bodies: BodyBudget | None = None,
    ) -> None:
        self._app = app
        self._route_of = route_of
        self._answered = answered
        self._bodies = bodies or BodyBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        headers = Headers(scope=scope)
        request_id = request_id_of(headers.get("x-request-id"))
        route = self._route_of(scope["path"])
        fields: dict[str, Any] = {}
        more_headers: list[tuple[bytes, bytes]] = []
        status = 0
        complete = False
        arrival = time.monotonic()
        share = BodyShare(self._bodies)

        async def send_marked(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                own = (b"x-request-id", request_id.encode())
                message["headers"] = [*message["headers"], own, *more_headers]
            else:
                complete = not message.get("more_body", False)
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
            scope.update(
                request_id=request_id,
                log_fields=fields,
                answer_headers=more_headers,
                arrival=arrival,
                traceparent=traces.traceparent(span),
                body_share=share,
            )
            try:
                await self._app(scope, receive, send_marked)
            except ClientGone:
                status = CLIENT_GONE
            except Exception as error:
                if not isinstance(error, ApiError):
                    log.error("unexpected_error", exc_info=error)
                if status and not complete:
                    # Too late for a status: closing without the last chunk tells that something is missing.
                    raise
                if not status:
                    await send_error(send_marked, as_api_error(error))
            finally:
                share.release()
                seconds = time.monotonic() - arrival
                span.set_attribute("http.response.status_code", status)
                self._answered(route, status)
                level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
                if _levels.isEnabledFor(level):  # asked here, since structlog makes the whole line first
                    log.log(level, "request", route=route, status=status, seconds=round(seconds, 4), **fields)
