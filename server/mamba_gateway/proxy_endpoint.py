"""The proxy endpoint: one relayed request from the client's first header to the last byte of its answer.

Puts the parts together: keys -> admission -> body -> permit -> relay, beside a watch for the client's
disconnect. An ASGI application of its own, because a relay must neither buffer nor parse; errors before the
first byte go up to the request middleware.
"""

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from mamba_edge.api_keys import KeyFile
from mamba_edge.errors import ApiError, InvalidRequest
from mamba_edge.request_body import ClientGone, find_header, read_body
from mamba_edge.request_middleware import CLIENT_GONE
from mamba_edge.sending import while_connected
from mamba_gateway.admission import DRAINING, Admission
from mamba_gateway.errors import Draining
from mamba_gateway.headers import new_traceparent, to_engine
from mamba_gateway.metrics import GatewayMetrics
from mamba_gateway.relay import Relay, ResponseTruncated
from mamba_gateway.upstream import UpstreamRequest

DISCARDED_LIMITS = 4
"""How many times the limit of a body that is too large is read and dropped, at most."""


class RoutingFields(msgspec.Struct, frozen=True):
    """The fields that are read here; everything else is skipped, not decoded, and passed on as it came."""

    model: str | None = None
    stream: bool | None = None


def routing_fields(body: bytes) -> RoutingFields:
    """Read them. Raises `InvalidRequest`, which names the field or where the JSON breaks."""
    try:
        return msgspec.json.decode(body, type=RoutingFields)
    except msgspec.ValidationError as error:
        complaint, _, field = str(error).replace("`", "").partition(" - at $.")
        complaint = complaint[0].lower() + complaint[1:]
        raise InvalidRequest(
            f"{field or 'the body'}: {complaint}", param=field or None, code="invalid_type"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None


@dataclass(slots=True)
class ClientResponse:
    """The sending side of one request: what has been sent to the client so far."""

    send: Send
    status: int = 0
    first_byte: float | None = None

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message and remember it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body") and self.first_byte is None:
            self.first_byte = time.monotonic()
        await self.send(message)


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point below the request middleware. Raises `ApiError` and `ClientGone` for it."""
        response, fields = ClientResponse(send), RoutingFields()
        try:
            if self._keys:
                self._keys.check(find_header(scope["headers"], b"authorization"))
            with self._admission.admit():
                body = await self._body(scope, receive)
                fields = routing_fields(body)
                await self._relayed(self._upstream_request(scope, body, fields), receive, response)
        except ClientGone:
            self._metrics.cancelled.inc()
            response.status = CLIENT_GONE
            raise
        except ResponseTruncated:
            pass  # returning without the end of the body makes the server close the connection
        except ApiError as error:
            if not response.status:  # a stream that has begun has told it already
                response.status = error.status
                raise
        except Exception:
            response.status = response.status or 500  # what the middleware makes of it
            raise
        finally:
            scope["log_fields"]["model"] = fields.model
            self._record(scope, fields, response)

    def cancel_running(self) -> int:
        """End what still runs; streams get an error event. Returns how many were cancelled."""
        self._relay.cancelling = True
        for task in self._running:
            task.cancel()
        return len(self._running)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        # A task of its own, so that `cancel_running` ends a client that is still sending, too.
        limit = self._max_body_bytes
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

    def _upstream_request(self, scope: Scope, body: bytes, fields: RoutingFields) -> UpstreamRequest:
        trace = scope["traceparent"] or new_traceparent(self._rng)
        return UpstreamRequest(
            path=scope["path"],
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=to_engine(scope["headers"], scope["request_id"], trace),
            body=body,
            model=fields.model,
        )

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
            if not response.status:
                raise Draining(DRAINING) from None
        finally:
            self._running.discard(work)

    async def _work(self, request: UpstreamRequest, response: ClientResponse) -> None:
        async with self._admission.permit():
            await self._relay.run(request, response)

    def _record(self, scope: Scope, fields: RoutingFields, response: ClientResponse) -> None:
        begin, now, metrics = scope["arrival"], time.monotonic(), self._metrics
        model = metrics.model_label(fields.model)
        metrics.requests.labels(scope["path"], model, str(response.status)).inc()
        metrics.duration.labels(model).observe(now - begin)
        if response.first_byte is not None:
            metrics.first_byte.labels(model).observe(response.first_byte - begin)
