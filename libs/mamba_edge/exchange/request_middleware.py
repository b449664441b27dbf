"""The ASGI application around each server's own: request id, trace, one log line, one count, one error style.

Every exception that reaches it becomes the error envelope of the path, unless bytes were sent already.
Endpoints find a `RequestContext` in the scope.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mamba_edge.connection.connection_room import PROBES
from mamba_edge.connection.direct_exchange import DIRECT, DirectExchange
from mamba_edge.error_forms import form_of
from mamba_edge.errors import ApiError, as_api_error
from mamba_edge.exchange.asgi_responses import send_error
from mamba_edge.exchange.request_body import BodyBudget, BodyShare, ClientGone, first_values
from mamba_edge.exchange.request_context import CONTEXT, RequestContext
from mamba_telemetry import conventions as names
from mamba_telemetry.logs import LogContext, get_logger, log_request
from mamba_telemetry.request_trace import RequestTrace, error_code
from mamba_telemetry.tracing import OFF, Tracing

log = get_logger(__name__)
_levels = logging.getLogger(__name__)

CLIENT_GONE = 499
FAILED_FROM = 500
"""Lowest status that counts as a failure of the server. A lower status is no failure, or the client's."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")
_QUIET = PROBES | {"/v1/status"}


_NEW_IDS = 64
"""Number of new ids that are generated at once: each draw of random bytes is a system call."""
_new_ids: list[str] = []
os.register_at_fork(after_in_child=_new_ids.clear)  # otherwise two processes would use the same ids


def request_id_of(caller_id: str | None) -> str:
    """Return the caller's id without characters that break a log line, or a new id if none is left."""
    return (caller_id and _UNSAFE.sub("", caller_id)[:128]) or _new_id()


def _new_id() -> str:
    if not _new_ids:
        digits = os.urandom(16 * _NEW_IDS).hex()
        _new_ids.extend(digits[start : start + 32] for start in range(0, len(digits), 32))
    return _new_ids.pop()


class RequestMiddleware:
    """The middleware around one application.

    Each request has a line in the log at level info; the requests of probes have it at level debug.

    Args:
        app: the application.
        route_of: returns the label that counters use for a path, one of few.
        answered: called with route and status of each answer, to count it.
        bodies: budget of the bytes of the bodies of all requests together; None = no limit.
        tracing: tracing of the process.
        traced: the routes whose requests have spans.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        route_of: Callable[[str], str],
        answered: Callable[[str, int], None],
        bodies: BodyBudget | None = None,
        tracing: Tracing = OFF,
        traced: frozenset[str] = frozenset(),
    ) -> None:
        self._tracing, self._traced = tracing, traced
        self._app = app
        self._route_of = route_of
        self._answered = answered
        self._bodies = bodies or BodyBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; the entry point of ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        values = first_values(scope["headers"])
        caller_id = values.get(b"x-request-id")
        request_id = request_id_of(caller_id.decode("latin-1") if caller_id else None)
        own = (b"x-request-id", request_id.encode())
        route = self._route_of(scope["path"])
        fields: dict[str, Any] = {}
        form = form_of(scope["path"])
        more_headers: list[tuple[bytes, bytes]] = []
        if form.id_header is not None:
            more_headers.append((form.id_header, own[1]))
        status = 0
        complete = False
        arrival = time.monotonic()
        share = BodyShare(self._bodies)

        async def send_marked(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], own, *more_headers]
            else:
                complete = not message.get("more_body", False)
                if trace.answered_at is None and message.get("body"):
                    trace.answered_at = time.monotonic()
            await send(message)

        direct: DirectExchange | None = scope.get(DIRECT)

        def begin(code: int, headers: Sequence[tuple[bytes, bytes]], part: bytes, more: bool) -> bool:
            nonlocal status, complete
            if direct is None or not direct.begin(code, (*headers, own, *more_headers), part, more):
                return False
            status, complete = code, not more
            if trace.answered_at is None and part:
                trace.answered_at = time.monotonic()
            return True

        trace = self._tracing.begin(
            f"{scope['method']} {route}",
            Headers(scope=scope) if b"traceparent" in values else {},
            at=arrival,
            record=route in self._traced and scope["method"] == "POST",
        )
        context = {"request_id": request_id, "trace_id": trace.id}
        with LogContext(context):
            scope[CONTEXT] = RequestContext(
                request_id, arrival, values, trace, share, fields, more_headers, direct,
                None if direct is None else begin,
            )  # fmt: skip
            try:
                await self._app(scope, receive, send_marked)
            except ClientGone:
                status = CLIENT_GONE
            except Exception as error:
                if not isinstance(error, ApiError):
                    log.error("unexpected_error", exc_info=error)
                trace.root.fail(error_code(error))
                if status and not complete:
                    # Too late for a status: a missing last chunk shows the failure.
                    raise
                if not status:
                    await send_error(send_marked, as_api_error(error), form, request_id)
            finally:
                share.release()
                seconds = time.monotonic() - arrival
                self._end(trace, scope, route, status, request_id)
                self._answered(route, status)
                level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
                if _levels.isEnabledFor(level):  # checked here, since structlog builds the whole line first
                    line = {"route": route, "status": status, **fields}
                    log_request(log, __name__, level, line, round(seconds, 4), context)

    def _end(self, trace: RequestTrace, scope: Scope, route: str, status: int, request_id: str) -> None:
        if not trace.recording:
            return
        span = trace.root
        span.set(names.HTTP_METHOD, scope["method"])
        span.set(names.HTTP_ROUTE, route)
        span.set(names.HTTP_STATUS, status)
        span.set(names.REQUEST_ID, request_id)
        if trace.answered_at is not None:
            span.event(names.FIRST_BYTE, trace.answered_at)
            span.set(names.TIME_TO_FIRST_CHUNK, trace.answered_at - span.begin)
        if status >= FAILED_FROM:
            span.fail(str(status))
        self._tracing.end(trace)
