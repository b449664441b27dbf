"""The proxy endpoint: one relayed request from the client's first header to the last byte of its answer.

Puts the parts together: keys -> admission -> body -> the key's limits -> permit -> relay, beside a watch for
the client's disconnect. An ASGI application of its own, because a relay must neither buffer nor parse; errors
before the first byte go up to the request middleware.
"""

import asyncio
import time
from typing import Any

from starlette.types import Receive, Scope, Send

from mamba_edge.api_keys import KeyFile
from mamba_edge.errors import ApiError, as_api_error
from mamba_edge.exchange.asgi_responses import USAGE_HEADER, DisconnectWatch
from mamba_edge.exchange.request_body import ClientGone, read_body, require_plain, whole_body
from mamba_edge.exchange.request_context import CLIENT_HEADER, RequestContext, context_of
from mamba_edge.exchange.request_middleware import CLIENT_GONE, FAILED_FROM
from mamba_gateway.admission.admission import DRAINING, Admission, PermitRequest
from mamba_gateway.admission.rate_limiter import RateLimiter, RequestCharge
from mamba_gateway.admission.usage_meter import UsageMeter
from mamba_gateway.errors import CUT_SHORT, GatewayDraining, KeyOverLimit, UpstreamLost
from mamba_gateway.headers import to_engine
from mamba_gateway.key_limits import ANYONE, KeyLimits
from mamba_gateway.metrics.gateway_metrics import KEY_LIMIT, UNKNOWN_MODEL, GatewayMetrics
from mamba_gateway.prompt_prefix import tokens_of
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.relay.client_response import ClientResponse
from mamba_gateway.relay.engine_response import ResponseTruncated
from mamba_gateway.relay.relay import Relay
from mamba_gateway.routing.routing_fields import NO_FIELDS, RoutingFields, routing_fields
from mamba_gateway.routing.routing_record import REQUEST_HEADER
from mamba_gateway.upstream.request import UpstreamRequest
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import SpanNote

DISCARDED_LIMITS = 4
"""How many times the limit of a body that is too large is read and dropped, at most."""
LOGGED_MODEL = 128
"""Most characters of a model's name in a log line: it is the client's text."""


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
        limiter: RateLimiter,
        prompts: PromptReader | None = None,
        backend_keys: KeyFile | None = None,
    ) -> None:
        self._relay, self._admission, self._metrics, self._keys = relay, admission, metrics, keys
        self._max_body_bytes, self._body_timeout = max_body_bytes, body_timeout
        self._comment_interval, self._backend_keys = comment_interval, backend_keys
        self._limiter, self._prompts = limiter, prompts
        self._running: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        """Those that `cancel_running` cancelled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point below the request middleware. Raises `ApiError` and `ClientGone` for it."""
        context = context_of(scope)
        direct = context.direct
        response = ClientResponse(send, direct.write if direct else None, context.begin)
        fields, key, reason = NO_FIELDS, ANYONE, ""
        try:
            if self._keys:
                key = self._keys.check(context.header_values.get(b"authorization"))
                context.log_fields["key"] = key
            if (coding := context.header_values.get(b"content-encoding")) is not None:
                require_plain(coding.decode("latin-1"))
            self._admission.enter(key)
            try:
                limits, body = self._limiter.limits_of(key), None
                if direct is not None:
                    body = whole_body(self._max_body_bytes, context.body_share, direct)
                if body is None:
                    body = await self._body(scope, context, receive, key)
                fields = routing_fields(body)
                request = self._request(scope, context, body, fields, limits, key)
                del body  # the request lets go of it once an engine answers
                # What waits may be streamed to a client behind a balancer with little patience.
                if fields.stream and self._comment_interval > 0:
                    with response.kept_alive(self._comment_interval):
                        await self._relayed(request, fields, key, limits, context, receive, response)
                else:
                    await self._relayed(request, fields, key, limits, context, receive, response)
            finally:
                self._admission.leave(key)
        except ClientGone:
            self._metrics.cancelled.inc()
            response.status = CLIENT_GONE
            raise
        except ResponseTruncated:
            # Elsewhere, returning without the end of the body makes the server close the connection.
            await response.fail(UpstreamLost(CUT_SHORT))
        except ApiError as error:
            # A stream that has begun has told it already.
            if not (await response.fail(error) or response.status):
                response.status = error.status
                reason = KEY_LIMIT if isinstance(error, KeyOverLimit) else ""
                raise
        except Exception as error:
            await response.fail(as_api_error(error))
            response.status = response.status or 500  # what the middleware makes of it
            raise
        finally:
            context.log_fields["model"] = fields.model and fields.model[:LOGGED_MODEL]
            self._record(scope["path"], context, fields, response, reason)

    def cancel_running(self) -> int:
        """End what still runs; streams get an error event. Returns how many were cancelled."""
        self._relay.cancelling = True
        self._cut |= self._running
        for task in self._running:
            task.cancel()
        return len(self._running)

    def _request(
        self,
        scope: Scope,
        context: RequestContext,
        body: bytes,
        fields: RoutingFields,
        limits: KeyLimits,
        key: str,
    ) -> UpstreamRequest:
        shown = self._backend_keys.first if self._backend_keys else None
        headers = to_engine(
            scope["headers"], context.request_id, traced=context.trace.caller.is_valid, key=shown
        )
        if self._keys:
            headers.append((CLIENT_HEADER, key.encode()))
        if limits.tokens_per_minute is not None:
            headers.append((USAGE_HEADER, b"1"))
        return UpstreamRequest(
            path=scope["path"],
            query=scope.get("query_string", b"").decode("latin-1"),
            headers=headers,
            body=body,
            model=fields.model,
            body_share=context.body_share,
            request_id=context.request_id,
            meter=UsageMeter(),
            explain=context.header_values.get(REQUEST_HEADER) == b"1",
            trace=context.trace,
            has_form=fields.has_form,
        )

    async def _body(self, scope: Scope, context: RequestContext, receive: Receive, key: str) -> bytes:
        limit = self._max_body_bytes
        task = self._started()
        with self._admission.body_arrives(key, task.cancel) as arriving:
            try:
                return await read_body(
                    scope["headers"],
                    receive,
                    limit,
                    self._body_timeout,
                    discard=DISCARDED_LIMITS * limit,
                    share=context.body_share,
                )
            except asyncio.CancelledError:
                if arriving.refusal is None and task not in self._cut:
                    raise
                task.uncancel()
                raise (arriving.refusal or GatewayDraining(DRAINING)) from None
            finally:
                self._ended(task)

    async def _relayed(
        self,
        request: UpstreamRequest,
        fields: RoutingFields,
        key: str,
        limits: KeyLimits,
        context: RequestContext,
        receive: Receive,
        response: ClientResponse,
    ) -> None:
        task = self._started()
        left = False

        def leave() -> None:
            nonlocal left
            left = True
            task.cancel()

        try:
            with DisconnectWatch(context.direct, receive, leave):
                counted = limits.tokens_per_minute is not None
                if self._prompts is not None and (counted or self._relay.has_choice):
                    await self._read_prompt(self._prompts, request)
                tokens = tokens_of(request.prompt, len(request.body))
                claim = PermitRequest(key, fields.rank, tokens + fields.answer_tokens, fields.model)
                if limits.limited:
                    await self._counted(request, claim, tokens, response, context.answer_headers)
                else:
                    waiting = request.trace.begin(names.GATEWAY_QUEUE)
                    await self._permitted(request, claim, tokens, response, waiting, None)
        except asyncio.CancelledError:
            if left:
                task.uncancel()
                raise ClientGone from None
            if task not in self._cut:
                raise
            task.uncancel()
            # A stream has said so itself by now; an answer without room for an error stays unfinished, and
            # the server closes the connection.
            if not response.answering:
                raise GatewayDraining(DRAINING) from None
        finally:
            self._ended(task)

    def _started(self) -> asyncio.Task[Any]:
        """The task of this request, which `cancel_running` cancels from now on; `_ended` follows."""
        task = asyncio.current_task(self._relay.loop)
        assert task is not None
        self._running.add(task)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._cut.discard(task)

    async def _read_prompt(self, prompts: PromptReader, request: UpstreamRequest) -> None:
        with request.trace.span(names.GATEWAY_READ_PROMPT) as reading:
            request.prompt = await prompts.read(request)
            reading.set(names.PROMPT_TOKENS, request.prompt.tokens if request.prompt else None)

    async def _counted(
        self,
        request: UpstreamRequest,
        claim: PermitRequest,
        tokens: float,
        response: ClientResponse,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        waiting = request.trace.begin(names.GATEWAY_QUEUE)
        try:
            async with self._limiter.entered(claim.key, tokens, headers) as entry:
                await self._permitted(request, claim, tokens, response, waiting, entry)
        finally:
            request.trace.end(waiting)

    async def _permitted(
        self,
        request: UpstreamRequest,
        claim: PermitRequest,
        tokens: float,
        response: ClientResponse,
        waiting: SpanNote,
        entry: RequestCharge | None,
    ) -> None:
        meter = request.meter or UsageMeter()
        # What a block would do, without the coroutines of one.
        permit = self._admission.permit(claim)
        try:
            if not permit.try_acquire():
                await permit.acquire()
        finally:
            request.trace.end(waiting)
        try:
            self._metrics.queue_wait.observe(permit.waited)
            request.permit = permit
            given_up = False
            try:
                await self._relay.run(request, response)
            except asyncio.CancelledError:
                # The engine has begun with the prompt, which is most of the work.
                given_up = permit.reached_engine
                raise
            finally:
                used = meter.used(tokens) or (tokens if given_up else 0.0)
                # What an engine rejected is no use of a rate limit, but it had a place: for nothing, a key
                # whose requests are all rejected would have every next place, too.
                permit.used(used or (tokens if permit.reached_engine else 0.0))
                if entry is not None:
                    entry.used = used
        finally:
            permit.release()

    def _record(
        self, path: str, context: RequestContext, fields: RoutingFields, response: ClientResponse, reason: str
    ) -> None:
        begin, now, metrics = context.arrival, time.monotonic(), self._metrics
        reason = KEY_LIMIT if response.over_own_limit else reason
        model = metrics.model_label(fields.model)
        metrics.request(path, model, str(response.status), reason).inc()
        trace = context.trace
        # Comments that kept the stream alive meanwhile are no answer.
        trace.answered_at = response.first_byte
        if trace.recording:
            if response.status >= FAILED_FROM:
                trace.root.fail(str(response.status))
            if model != UNKNOWN_MODEL:
                trace.root.set(names.REQUEST_MODEL, model)
            trace.root.set(names.REQUEST_STREAM, bool(fields.stream))
        exemplar = trace.exemplar() if trace.recording else None
        metrics.duration_of(model).observe(now - begin, exemplar)
        if response.first_byte is not None:
            metrics.first_byte_of(model).observe(response.first_byte - begin, exemplar)
