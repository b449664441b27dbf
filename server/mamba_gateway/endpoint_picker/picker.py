"""Handling of one request of the proxy, from its headers to the last byte of the engine's answer.

The steps are API key, admission, body, rate limits, permit and choice of an engine; then the picker observes
the answer. Knows the messages of external processing and nothing of gRPC. The server calls it once for each
stream.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, islice

import structlog

from mamba_api.dialects.paths import FREE, RELAYED, TEXT_FIELDS
from mamba_edge.api_keys import KeyFile, credential_of
from mamba_edge.error_forms import form_of
from mamba_edge.errors import ApiError, BodyTooLarge, RequestTimeout, as_api_error
from mamba_edge.exchange.asgi_responses import is_full, is_over_own_limit
from mamba_edge.exchange.explain_header import ELSEWHERE_HEADER, EXPLAIN_HEADER
from mamba_edge.exchange.hand_over_headers import HAND_OVER_HEADER, PEER_HEADER
from mamba_edge.exchange.request_body import BodyBudget, BodyShare, first_values, require_plain
from mamba_edge.exchange.request_context import CLIENT_HEADER
from mamba_gateway.admission.admission import Admission, Permit, PermitRequest
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.body_fields import routing_fields
from mamba_gateway.endpoint_picker import messages
from mamba_gateway.endpoint_picker.exchange import OK, Exchange
from mamba_gateway.endpoint_picker.ext_proc import HeaderMutation, ProcessingRequest, ProcessingResponse
from mamba_gateway.endpoint_picker.pick_trace import PickTrace
from mamba_gateway.endpoint_picker.picker_metrics import PickerMetrics
from mamba_gateway.endpoint_picker.request_head import RequestHead, headers_of, served_by
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.headers import bearer, is_credential
from mamba_gateway.key_limits import ANYONE
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import tokens_of
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.relay.proxy_endpoint import LOGGED_MODEL
from mamba_gateway.relay.relay import RETRIED_STATUSES
from mamba_gateway.routing.decision import RESPONSE_HEADER
from mamba_gateway.routing.router import EndpointWait, Router
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_telemetry import conventions as names
from mamba_telemetry.tracing import OFF, Tracing

log = structlog.get_logger("mambaserve.gateway")

Messages = AsyncIterator[ProcessingRequest]
Write = Callable[[ProcessingResponse], Awaitable[None]]


class StreamEnded(Exception):
    """The proxy ended the stream: the client has disconnected, or the proxy needs nothing more."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Parts of one gateway that the relay and the picker share, so that each knows the other's requests."""

    pool: Pool
    metrics: GatewayMetrics
    admission: Admission
    limiter: RateLimiter
    router: Router
    hold: EndpointWait
    prompts: PromptReader | None
    bodies: BodyBudget


class EndpointPicker:
    """Chooses an engine for each request that a proxy of the Gateway API passes through one gateway.

    `keys` are the keys of clients, and `backend_keys` those that engines require; None = none are needed. A
    body has at most `max_body_bytes` bytes, and `body_timeout` seconds to arrive. A request waits
    `hold_timeout` seconds for an engine, and the proxy gets at most `most_addresses` addresses.
    """

    def __init__(
        self,
        parts: SharedParts,
        metrics: PickerMetrics,
        *,
        keys: KeyFile | None,
        backend_keys: KeyFile | None,
        max_body_bytes: int,
        body_timeout: float,
        hold_timeout: float,
        most_addresses: int,
        tracing: Tracing = OFF,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._router, self._admission = parts.pool, parts.router, parts.admission
        self._limiter = parts.limiter
        self._hold, self._prompts, self._bodies = parts.hold, parts.prompts, parts.bodies
        self._metrics = metrics
        self._keys, self._backend_keys, self._tracing = keys, backend_keys, tracing
        self._max_body_bytes, self._body_timeout = max_body_bytes, body_timeout
        self._hold_timeout, self._most_addresses, self._clock = hold_timeout, most_addresses, clock

    async def process(self, incoming: Messages, write: Write) -> None:
        """Handle one stream until the proxy ends it.

        A cancellation releases all that the request has taken.
        """
        first = await anext(incoming, None)
        if first is None or not first.HasField("request_headers"):
            return  # without headers there is no request to choose for
        head, arrival = RequestHead.of(first), self._clock()
        exchange = Exchange(head, arrival, PickTrace(self._tracing, head, arrival), BodyShare(self._bodies))
        try:
            key = (
                self._keys.check(credential_of(first_values(exchange.head.headers))) if self._keys else ANYONE
            )
            exchange.key = key if self._keys else None
            with self._admission.admit(key):
                await self._process(exchange, key, incoming, write)
        except StreamEnded:
            pass
        except ApiError as error:
            await self._refuse(exchange, error, write)
        except Exception as error:
            log.exception("picking failed", request_id=exchange.head.request_id)
            await self._refuse(exchange, as_api_error(error), write)
        finally:
            exchange.share.release()
            exchange.trace.end(exchange.model, streams=bool(exchange.fields.stream))

    async def _process(self, exchange: Exchange, key: str, incoming: Messages, write: Write) -> None:
        head = exchange.head
        if head.path in RELAYED and (coding := head.find(b"content-encoding")):
            require_plain(coding.decode("latin-1"))
        if head.body_mode == "buffered":
            await write(messages.unchanged("request_headers"))
        if head.body_mode != "unseen":
            await self._admitted_body(exchange, key, incoming)
            if head.path in RELAYED:
                exchange.fields = routing_fields(bytes(exchange.body))
        exchange.model = self._metrics.label(exchange.fields.model)
        fields, tokens = exchange.fields, 0.0
        if head.path not in FREE:
            await self._read_prompt(exchange, key)
            tokens = tokens_of(exchange.prompt, len(exchange.body))
        claim = PermitRequest(key, fields.rank, tokens + fields.answer_tokens, fields.model)
        exchange.trace.queue()
        async with (
            self._limiter.entered(key, tokens, exchange.limit_headers) as entry,
            self._admission.permit(claim) as permit,
        ):
            exchange.trace.route()
            await self._choose(exchange, permit)
            permit.sent()
            try:
                await self._send_choice(exchange, write)
                exchange.sent = True
                await self._observe_response(exchange, incoming, write)
            finally:
                self._end(exchange)
                entry.used = exchange.used(tokens)
                permit.used(entry.used)

    async def _read_prompt(self, exchange: Exchange, key: str) -> None:
        counted = self._limiter.limits_of(key).tokens_per_minute is not None
        if self._prompts is None or not exchange.body or not (counted or self._pool.has_choice):
            return
        head = exchange.head
        if head.path in RELAYED and head.path not in TEXT_FIELDS:
            return
        request = UpstreamRequest(
            head.path, "", [], bytes(exchange.body), exchange.fields.model, request_id=head.request_id
        )
        with exchange.trace.request.span(names.GATEWAY_READ_PROMPT):
            exchange.prompt = await self._prompts.read(request)

    async def _admitted_body(self, exchange: Exchange, key: str, incoming: Messages) -> None:
        task = asyncio.current_task()
        assert task is not None
        with self._admission.body_arrives(key, task.cancel) as arriving:
            try:
                await self._read_body(exchange, incoming)
            except asyncio.CancelledError:
                if arriving.refusal is None:
                    raise
                task.uncancel()
                raise arriving.refusal from None

    async def _read_body(self, exchange: Exchange, incoming: Messages) -> None:
        limit, share = self._max_body_bytes, exchange.share
        if exchange.head.announced > limit:
            raise BodyTooLarge(f"the body has {exchange.head.announced} bytes; at most {limit} are accepted")
        share.check(exchange.head.announced)
        try:
            async with asyncio.timeout(self._body_timeout):
                async for message in incoming:
                    kind = message.WhichOneof("request")
                    if kind == "request_trailers":
                        exchange.body_ended = False
                        return
                    if kind != "request_body":
                        raise StreamEnded
                    part = message.request_body
                    if len(exchange.body) + len(part.body) > limit:
                        raise BodyTooLarge(f"the body has more than {limit} bytes; no more are accepted")
                    share.take(len(part.body))
                    exchange.body += part.body
                    # A buffered body arrives in one message, whether or not trailers follow.
                    if part.end_of_stream or exchange.head.body_mode == "buffered":
                        return
        except TimeoutError as error:
            raise RequestTimeout(f"the body did not arrive within {self._body_timeout:g} s") from error
        raise StreamEnded

    async def _choose(self, exchange: Exchange, permit: Permit) -> None:
        head, started, size = exchange.head, self._clock(), len(exchange.body)
        model = exchange.fields.model
        deadline = asyncio.get_running_loop().time() + self._hold_timeout
        exchange.record = await self._hold.until_decided(
            lambda: self._router.decide(
                model,
                exchange.prompt,
                body_bytes=size,
                allowed_addresses=head.allowed_addresses,
                request_id=head.request_id,
            ),
            model,
            deadline,
            permit,
        )
        exchange.cost = exchange.record.decision.cost
        exchange.ticket = self._router.sent(exchange.record, exchange.prompt)
        exchange.trace.picked(exchange.record)
        self._metrics.picked(exchange.model, exchange.cost.endpoint, size, self._clock() - started)

    async def _send_choice(self, exchange: Exchange, write: Write) -> None:
        addresses, mutation = self._addresses(exchange), self._mutation(exchange)
        if exchange.head.body_mode == "buffered":
            await write(messages.picked_by_body(mutation, addresses))
        else:
            await write(messages.picked_by_headers(mutation, addresses))
        if exchange.head.body_mode == "streamed":
            for piece in messages.streamed_request(bytes(exchange.body), ends=exchange.body_ended):
                await write(piece)
            if not exchange.body_ended:
                await write(messages.unchanged("request_trailers"))
        exchange.body.clear()
        exchange.share.release()

    def _addresses(self, exchange: Exchange) -> list[str]:
        """Return the addresses of the chosen engine and, as fallbacks, of the next cheapest engines."""
        assert exchange.record is not None
        decision = exchange.record.decision
        others = decision.comparison.cheapest_first()
        rest = (endpoint.address for endpoint in others if endpoint is not decision.endpoint)
        return list(islice(chain((decision.endpoint.address,), rest), self._most_addresses))

    def _mutation(self, exchange: Exchange) -> HeaderMutation:
        # As for a request that the gateway relays itself, the client's credentials are removed.
        head = exchange.head
        credentials = {
            name.decode("latin-1")
            for name, _ in head.headers
            if is_credential(name) or name in (HAND_OVER_HEADER, PEER_HEADER, ELSEWHERE_HEADER)
        }
        credentials.add(CLIENT_HEADER.decode())
        put = [
            (messages.DESTINATION, ",".join(self._addresses(exchange)).encode()),
            ("x-request-id", head.request_id.encode()),
        ]
        if traceparent := exchange.trace.traceparent:
            put.append(("traceparent", traceparent.encode()))
        if exchange.key is not None:
            put.append((CLIENT_HEADER.decode(), exchange.key.encode()))
            credentials.discard(CLIENT_HEADER.decode())
        if self._backend_keys:
            put.append(("authorization", bearer(self._backend_keys.first).encode()))
            credentials.discard("authorization")
        return messages.header_mutation(put, credentials)

    async def _observe_response(self, exchange: Exchange, incoming: Messages, write: Write) -> None:
        async for message in incoming:
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                self._response_started(exchange, message)
                put = exchange.response_headers()
                if exchange.head.find(EXPLAIN_HEADER) == b"1" and exchange.record is not None:
                    put.append((RESPONSE_HEADER.decode(), exchange.record.header()))
                await write(messages.answer_headers(put))
            elif kind == "response_body":
                if exchange.readable:
                    exchange.answer.feed(message.response_body.body)
                if exchange.head.streams_answer:
                    part = message.response_body
                    for piece in messages.streamed_answer(part.body, ends=part.end_of_stream):
                        await write(piece)
                else:
                    await write(messages.unchanged(kind))
            elif kind in ("request_body", "request_trailers", "response_trailers"):
                await write(messages.unchanged(kind))

    def _response_started(self, exchange: Exchange, message: ProcessingRequest) -> None:
        """Handle the headers of the answer: the prompt is computed, and they name the engine."""
        assert exchange.record is not None
        assert exchange.cost is not None
        pairs = list(headers_of(message.response_headers.headers))
        headers = dict(pairs)
        status = headers.get(b":status", b"")
        exchange.status = int(status) if status.isdigit() else 0
        exchange.readable = headers.get(b"content-encoding", b"identity") == b"identity"
        address = served_by(message)
        other = exchange.record.decision.comparison.cost_behind(address)
        if other is not None and other.endpoint.url != exchange.cost.endpoint.url:
            # The proxy used a fallback, because it could not reach the first engine.
            self._pool.suspect(exchange.cost.endpoint.url, "the proxy could not reach it")
            self._pool.end(exchange.cost.endpoint.url, exchange.ticket, failed=True)
            exchange.cost = other
            exchange.ticket = self._router.sent(exchange.record, exchange.prompt, other)
        url = exchange.cost.endpoint.url
        self._pool.response_started(url, exchange.ticket, well=exchange.status < 400)
        if 400 <= exchange.status < 500 and not is_over_own_limit(exchange.status, pairs):
            self._pool.reject(url, full=is_full(exchange.status, pairs))
        if exchange.status in RETRIED_STATUSES:
            self._pool.suspect(url, f"it answered {exchange.status}")
        now, trace = self._clock(), exchange.trace
        trace.answered(exchange.cost.endpoint, exchange.status, now)
        self._metrics.response_started(
            exchange.model, exchange.status, now - exchange.arrival, trace.exemplar()
        )

    def _end(self, exchange: Exchange) -> None:
        assert exchange.cost is not None
        endpoint, seconds = exchange.cost.endpoint, self._clock() - exchange.arrival
        # Without a status, the client left before the answer began; 4xx are mistakes of clients.
        status = exchange.status
        failed = None if not status or 400 <= status < 500 else status >= 500
        self._pool.end(endpoint.url, exchange.ticket, failed=failed)
        self._metrics.ended(exchange.model)
        if exchange.status:
            size, usage = exchange.answer.size, exchange.answer.usage
            self._metrics.answered(exchange.model, size, usage, seconds, exchange.trace.exemplar())
        if exchange.status == OK and exchange.record is not None:
            self._router.answered(exchange.record, exchange.prompt, exchange.answer.usage, exchange.cost)
        model = exchange.fields.model and exchange.fields.model[:LOGGED_MODEL]
        log.info(
            "picked", request_id=exchange.head.request_id, model=model, endpoint=endpoint.name,
            status=exchange.status, seconds=round(seconds, 4),
        )  # fmt: skip

    async def _refuse(self, exchange: Exchange, error: ApiError, write: Write) -> None:
        code = error.code or error.kind
        exchange.trace.refused(error, error.status)
        self._metrics.refused(exchange.model, code, choosing=error.status in (404, 502, 503))
        log.info("refused", request_id=exchange.head.request_id, status=error.status, code=code)
        head = exchange.head
        more, form = exchange.response_headers(), form_of(head.path)
        await write(messages.refusal(error, head.request_id, more, form))
