"""The proxy endpoint: one relayed request from the client's first header to the last byte of its answer.

Puts the parts together: keys -> admission -> body -> permit -> relay, beside a watch for the client's
disconnect. An ASGI application of its own, because a relay must neither buffer nor parse; errors before the
first byte go up to the request middleware.
"""

import asyncio
import time
from contextlib import nullcontext
from typing import Any

import msgspec
from pydantic_core import from_json
from starlette.types import Receive, Scope, Send

from mamba_edge.api_keys import KeyFile
from mamba_edge.errors import ApiError, InvalidRequest, as_api_error
from mamba_edge.request_body import ClientGone, find_header, read_body
from mamba_edge.request_middleware import CLIENT_GONE, FAILED_FROM
from mamba_edge.sending import while_connected
from mamba_gateway.admission import DRAINING, Admission
from mamba_gateway.client_response import ClientResponse
from mamba_gateway.errors import Draining, UpstreamLost
from mamba_gateway.explanation import REQUEST_HEADER
from mamba_gateway.headers import to_engine
from mamba_gateway.metrics import UNKNOWN_MODEL, GatewayMetrics
from mamba_gateway.relay import Relay, ResponseTruncated
from mamba_gateway.upstream import UpstreamRequest
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import RequestTrace

DISCARDED_LIMITS = 4
"""How many times the limit of a body that is too large is read and dropped, at most."""
WORDED_BODY = 64 * 1024
"""Largest body that is read again to say where it breaks."""
LOGGED_MODEL = 128
"""Most characters of a model's name in a log line: it is the client's text."""
_WANTED = {"model": "must be a valid string", "stream": "must be a valid boolean"}


class RoutingFields(msgspec.Struct, frozen=True):
    """The fields that are read here; everything else is skipped, not decoded, and passed on as it came."""

    model: str | None = None
    stream: bool | None = None


def routing_fields(body: bytes) -> RoutingFields:
    """Read them. Raises `InvalidRequest`, in the words of an engine that gets the same body."""
    try:
        return msgspec.json.decode(body, type=RoutingFields)
    except msgspec.ValidationError as error:
        field = str(error).replace("`", "").partition(" - at $.")[2]
        if field in _WANTED:
            raise InvalidRequest(f"{field}: {_WANTED[field]}", param=field, code="invalid_type") from None
        broken = _where_it_breaks(body)
        message = f"the body is not valid JSON: {broken}" if broken else "the body must be a JSON object"
        raise InvalidRequest(message, code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the body is not valid JSON: {_where_it_breaks(body) or error}"
        raise InvalidRequest(message, code="invalid_json") from None


def _where_it_breaks(body: bytes) -> str:
    # The engine's parser, which makes objects of all that it reads: for small bodies alone.
    if len(body) <= WORDED_BODY:
        try:
            from_json(body, allow_inf_nan=False)
        except ValueError as error:
            return str(error)
    return ""


class ProxyEndpoint:
    """The relayed POST routes of one gateway."""

    def __init__(
        self,
        relay: Relay,
        admission: Admission,
        metrics: GatewayMetrics,
        keys: KeyFile | None,
        *,
        max_body_bytes: int,
        body_timeout: float,
        comment_interval: float,
        backend_keys: KeyFile | None = None,
    ) -> None:
        self._relay, self._admission, self._metrics, self._keys = relay, admission, metrics, keys
        self._max_body_bytes, self._body_timeout = max_body_bytes, body_timeout
        self._comment_interval, self._backend_keys = comment_interval, backend_keys
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point below the request middleware. Raises `ApiError` and `ClientGone` for it."""
        response, fields = ClientResponse(send), RoutingFields()
        try:
            if self._keys:
                self._keys.check(find_header(scope["headers"], b"authorization"))
            with self._admission.admit():
                request, fields = await self._request(scope, receive)
                # What waits may be streamed to a client behind a balancer with little patience.
                patient = bool(fields.stream) and self._comment_interval > 0
                with response.kept_alive(self._comment_interval) if patient else nullcontext():
                    await self._relayed(request, receive, response)
        except ClientGone:
            self._metrics.cancelled.inc()
            response.status = CLIENT_GONE
            raise
        except ResponseTruncated:
            # Elsewhere, returning without the end of the body makes the server close the connection.
            await response.fail(
                UpstreamLost("the engine closed the connection before its answer was complete")
            )
        except ApiError as error:
            # A stream that has begun has told it already.
            if not (await response.fail(error) or response.status):
                response.status = error.status
                raise
        except Exception as error:
            await response.fail(as_api_error(error))
            response.status = response.status or 500  # what the middleware makes of it
            raise
        finally:
            scope["log_fields"]["model"] = fields.model and fields.model[:LOGGED_MODEL]
            self._record(scope, fields, response)

    def cancel_running(self) -> int:
        """End what still runs; streams get an error event. Returns how many were cancelled."""
        self._relay.cancelling = True
        for task in self._running:
            task.cancel()
        return len(self._running)

    async def _request(self, scope: Scope, receive: Receive) -> tuple[UpstreamRequest, RoutingFields]:
        body = await self._body(scope, receive)
        fields = routing_fields(body)
        key = self._backend_keys.first if self._backend_keys else None
        request = UpstreamRequest(
            path=scope["path"],
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=to_engine(
                scope["headers"], scope["request_id"], traced=scope["trace"].caller.is_valid, key=key
            ),
            body=body,
            model=fields.model,
            body_share=scope.get("body_share"),
            request_id=scope["request_id"],
            explain=find_header(scope["headers"], REQUEST_HEADER) == b"1",
            trace=scope["trace"],
        )
        return request, fields

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limit = self._max_body_bytes
        # A task of its own, so that `cancel_running` ends a client that is still sending, too.
        reading = asyncio.create_task(
            read_body(
                scope["headers"],
                receive,
                limit,
                self._body_timeout,
                discard=DISCARDED_LIMITS * limit,
                share=scope.get("body_share"),
            )
        )
        self._running.add(reading)
        try:
            await asyncio.wait((reading,))
            if reading.cancelled():
                raise Draining(DRAINING)
            return reading.result()
        finally:
            self._running.discard(reading)
            reading.cancel()

    async def _relayed(self, request: UpstreamRequest, receive: Receive, response: ClientResponse) -> None:
        work = asyncio.create_task(self._work(request, response))
        self._running.add(work)
        try:
            await while_connected(receive, work)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            # `cancel_running` cancelled the work. A stream has said so itself by now; an answer without room
            # for an error stays unfinished, and the server closes the connection.
            if not response.answering:
                raise Draining(DRAINING) from None
        finally:
            self._running.discard(work)

    async def _work(self, request: UpstreamRequest, response: ClientResponse) -> None:
        waiting = request.trace.begin(names.GATEWAY_QUEUE)
        try:
            async with self._admission.permit():
                request.trace.end(waiting)
                await self._relay.run(request, response)
        finally:
            request.trace.end(waiting)

    def _record(self, scope: Scope, fields: RoutingFields, response: ClientResponse) -> None:
        begin, now, metrics = scope["arrival"], time.monotonic(), self._metrics
        model = metrics.model_label(fields.model)
        metrics.requests.labels(scope["path"], model, str(response.status)).inc()
        trace: RequestTrace = scope["trace"]
        # Comments that kept the stream alive meanwhile are no answer.
        trace.answered_at = response.first_byte
        if response.status >= FAILED_FROM:
            trace.root.fail(str(response.status))
        if model != UNKNOWN_MODEL:
            trace.root.set(names.REQUEST_MODEL, model)
        trace.root.set(names.REQUEST_STREAM, bool(fields.stream))
        exemplar = trace.exemplar()
        metrics.duration.labels(model).observe(now - begin, exemplar)
        if response.first_byte is not None:
            metrics.first_byte.labels(model).observe(response.first_byte - begin, exemplar)
