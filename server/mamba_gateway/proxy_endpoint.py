"""The proxy endpoint: one relayed request from the client's first header to the last byte of its response.

Puts the parts together: keys -> admission -> body -> permit -> relay, beside a watch for the client's
disconnect. An ASGI application of its own, because a relay must neither buffer nor parse.
"""

import asyncio
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from random import Random
from typing import Any

import structlog

from mamba_gateway.admission import Admission
from mamba_gateway.auth import KeyFile
from mamba_gateway.body import ClientGone, Receive, RoutingFields, read_body, routing_fields
from mamba_gateway.errors import Draining, GatewayError, WrongMethod
from mamba_gateway.headers import RawHeaders, request_id, to_engine, traceparent
from mamba_gateway.metrics import GatewayMetrics
from mamba_gateway.relay import Relay, ResponseTruncated, Send
from mamba_gateway.upstream import UpstreamRequest

log = structlog.get_logger("mambaserve.gateway")
DRAINING = "the gateway is shutting down; send the request again"
Message = MutableMapping[str, Any]


@dataclass(slots=True)
class ClientResponse:
    """The sending side of one request: what has been sent to the client so far."""

    send: Send
    status: int = 0
    first_byte: float | None = None
    complete: bool = False

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message and remember it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body") and self.first_byte is None:
            self.first_byte = time.monotonic()
        await self.send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True


def error_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """Headers of an error response."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after))))
    if error.status in (408, 413) or isinstance(error, Draining):
        # What is left of the body must not be taken for the next request; and a drain wants no idle clients.
        headers.append((b"connection", b"close"))
    if isinstance(error, WrongMethod) and error.allow:
        headers.append((b"allow", error.allow.encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


class ProxyEndpoint:
    """The relayed POST routes of one gateway."""

    def __init__(
        self,
        relay: Relay,
        admission: Admission,
        metrics: GatewayMetrics,
        keys: KeyFile | None,
        rng: Random,
        *,
        max_body_bytes: int,
        body_timeout: float,
    ) -> None:
        self._relay, self._admission, self._metrics, self._keys = relay, admission, metrics, keys
        self._rng, self._max_body_bytes, self._body_timeout = rng, max_body_bytes, body_timeout
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        begin, response, fields = time.monotonic(), ClientResponse(send), RoutingFields()
        try:
            if self._keys:
                self._keys.check(scope["headers"])
            with self._admission.admit():
                body = await self._body(scope["headers"], receive)
                fields = routing_fields(body)
                await self._relayed(self._upstream_request(scope, body, fields), receive, response)
        except ClientGone:
            self._metrics.cancelled.inc()
            response.status = 499
        except ResponseTruncated:
            pass  # returning without the end of the body makes the server close the connection
        except GatewayError as error:
            if not response.status:
                headers = error_headers(error)
                await response({"type": "http.response.start", "status": error.status, "headers": headers})
                await response({"type": "http.response.body", "body": error.envelope()})
        except Exception:
            response.status = response.status or 500  # what the application makes of it
            raise
        finally:
            self._record(scope["path"], fields, response, begin)

    def cancel_running(self) -> int:
        """End what still runs; streams get an error event. Returns how many were cut."""
        self._relay.cancelling = True
        for task in self._running:
            task.cancel()
        return len(self._running)

    async def _body(self, headers: RawHeaders, receive: Receive) -> bytes:
        # A task of its own, so that `cancel_running` ends a client that is still sending, too.
        reading = asyncio.create_task(read_body(headers, receive, self._max_body_bytes, self._body_timeout))
        self._running.add(reading)
        try:
            await asyncio.wait((reading,))
            if reading.cancelled():
                raise Draining(DRAINING, retry_after=1)
            return reading.result()
        finally:
            self._running.discard(reading)
            reading.cancel()

    def _upstream_request(
        self, scope: MutableMapping[str, Any], body: bytes, fields: RoutingFields
    ) -> UpstreamRequest:
        headers = scope["headers"]
        identifier = scope.get("request_id") or request_id(headers, self._rng)
        trace = traceparent(headers, self._rng)
        return UpstreamRequest(
            path=scope["path"],
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=to_engine(headers, identifier, trace),
            body=body,
            model=fields.model,
        )

    async def _relayed(self, request: UpstreamRequest, receive: Receive, response: ClientResponse) -> None:
        work = asyncio.create_task(self._work(request, response))
        disconnected = asyncio.create_task(_disconnected(receive))
        self._running.add(work)
        try:
            await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            await _result(work, response)
        finally:
            self._running.discard(work)
            work.cancel()
            disconnected.cancel()
            await asyncio.gather(work, disconnected, return_exceptions=True)

    async def _work(self, request: UpstreamRequest, response: ClientResponse) -> None:
        async with self._admission.permit():
            await self._relay.run(request, response)

    def _record(self, path: str, fields: RoutingFields, response: ClientResponse, begin: float) -> None:
        now, metrics = time.monotonic(), self._metrics
        model = metrics.model_label(fields.model)
        metrics.requests.labels(path, model, str(response.status)).inc()
        metrics.duration.labels(model).observe(now - begin)
        if response.first_byte is not None:
            metrics.first_byte.labels(model).observe(response.first_byte - begin)
        log.debug(
            "request", path=path, model=fields.model, status=response.status, seconds=round(now - begin, 4)
        )


async def _result(work: asyncio.Task[None], response: ClientResponse) -> None:
    try:
        await work
    except asyncio.CancelledError:
        # Only `cancel_running` cancels a running one; a stream has said so itself by now.
        if response.complete:
            return
        if response.status:
            raise ResponseTruncated from None
        raise Draining(DRAINING, retry_after=1) from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
