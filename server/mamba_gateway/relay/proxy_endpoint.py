"""The proxy endpoint: one relayed request, from its headers to the last byte of its answer.

Its steps are, in this order: the API key of the client, admission, the body, the lane of its model
(`RequestLane`, which serves that model's requests), the rate limits of the key, a permit, the relay. The
endpoint notices meanwhile if the client disconnects. `RelayedRequest` holds what the steps learn about the
request. The endpoint is a plain ASGI application, because a relay must neither buffer nor parse bodies. An
error before the first byte of the answer is raised to the request middleware.
"""

import asyncio
import time
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from mamba_api.dialects.paths import FREE, RESPONSES, TEXT_FIELDS
from mamba_edge.api_keys import KeyFile, credential_of
from mamba_edge.error_forms import form_of
from mamba_edge.errors import ApiError, as_api_error
from mamba_edge.exchange.asgi_responses import USAGE_HEADER, DisconnectWatch
from mamba_edge.exchange.explain_header import EXPLAIN_HEADER, wants_explanation
from mamba_edge.exchange.request_body import ClientGone, RawHeaders, read_body, require_plain, whole_body
from mamba_edge.exchange.request_context import CLIENT_HEADER, RequestContext, context_of
from mamba_edge.exchange.request_middleware import CLIENT_GONE, FAILED_FROM
from mamba_edge.history.kept_answer import HISTORY_HEADER, KEPT, NOT_KEPT, KeptAnswer
from mamba_edge.history.response_history import OpenTurn, ResponseHistory
from mamba_edge.usage.prices import COST_HEADER
from mamba_gateway.admission.admission import DRAINING, Admission, PermitRequest
from mamba_gateway.admission.rate_limiter import RequestCharge
from mamba_gateway.body_fields import NO_FIELDS, RoutingFields, UsageMeter, routing_fields, with_model
from mamba_gateway.errors import CUT_SHORT, GatewayDraining, KeyOverLimit, UpstreamLost
from mamba_gateway.headers import to_engine
from mamba_gateway.key_limits import ANYONE, NO_LIMITS, KeyLimits
from mamba_gateway.metrics.gateway_metrics import KEY_LIMIT, UNKNOWN_MODEL, GatewayMetrics
from mamba_gateway.prompt_prefix import tokens_of
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.relay.answer import ClientResponse, ResponseTruncated
from mamba_gateway.relay.request_lane import Lanes, RequestLane
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import SpanNote


class RelayedRequest(msgspec.Struct, eq=False):
    """One request to be relayed, from its headers to the end of its answer; each step fills in fields."""

    context: RequestContext
    """Facts that the request middleware provides, such as the request id."""
    receive: Receive
    response: ClientResponse
    path: str
    query: str
    headers: RawHeaders
    key: str = ANYONE
    """Name of the API key of the request."""
    limits: KeyLimits = NO_LIMITS
    """Limits of the key."""
    fields: RoutingFields = NO_FIELDS
    lane: RequestLane | None = None
    """Lane that has admitted the request; None = none yet, or the gateway has a single one."""
    model: str | None = None
    """Name under which the request is counted, where that is not the one in its fields."""
    turn: OpenTurn | None = None
    """Turn of a conversation that the request is; None = it has no conversation, and nothing is kept."""
    prompt_tokens: float = 0.0
    """Number of prompt tokens, estimated if the prompt was not tokenized."""
    charge: RequestCharge | None = None
    """Tokens that the request takes from the allowance of its key; None = the key has no limits."""
    client_left: bool = False
    """Whether the client disconnected before the end of its answer."""
    refusal_reason: str = ""
    """Reason of a refusal by the gateway, as a label of metrics."""

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send) -> "RelayedRequest":
        """Read a request from its ASGI scope."""
        context = context_of(scope)
        direct = context.direct
        return cls(
            context,
            receive,
            ClientResponse(
                send,
                direct.write if direct else None,
                context.begin,
                form_of(scope["path"]),
                context.request_id,
            ),
            scope["path"],
            scope.get("query_string", b"").decode("latin-1"),
            scope["headers"],
        )


DISCARDED_LIMITS = 4
"""Number of bytes of a body beyond the limit that are read and discarded, as a multiple of the limit."""
LOGGED_MODEL = 128
"""Maximum number of characters of a model's name in the log, since clients choose that text."""


class ProxyEndpoint:
    """Answers the POST routes whose requests one gateway relays to engines."""

    def __init__(
        self,
        lanes: RequestLane | Lanes,
        admission: Admission,
        metrics: GatewayMetrics,
        keys: KeyFile | None,
        *,
        max_body_bytes: int,
        body_timeout: float,
        comment_interval: float,
        history: ResponseHistory | None = None,
    ) -> None:
        """Create the endpoint. `admission` admits requests before their bodies are read.

        `lanes` is the lane of the only model, or the choice among several.
        """
        self._lane = lanes if isinstance(lanes, RequestLane) else None
        self._lanes = None if isinstance(lanes, RequestLane) else lanes
        self._loop = lanes.relay.loop if isinstance(lanes, RequestLane) else asyncio.get_running_loop()
        self._admission, self._metrics, self._keys = admission, metrics, keys
        self._max_body_bytes, self._body_timeout = max_body_bytes, body_timeout
        self._comment_interval = comment_interval
        self._history = history or ResponseHistory(None, max_body_bytes)
        self._running: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        """Tasks that `cancel_running` has cancelled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as the ASGI application inside the request middleware.

        Raises `ApiError` and `ClientGone`, which the middleware handles.
        """
        client = RelayedRequest.of(scope, receive, send)
        response = client.response
        try:
            self._check_client(client)
            self._admission.enter(client.key)
            try:
                body = self._arrived_body(client)
                if body is None:
                    body = await self._read_body(client)
                if client.path == RESPONSES:
                    body = await self._open_turn(client, body)
                client.fields = routing_fields(body)
                lane = self._lane
                if lane is None:
                    lane, body = self._enter_lane(client, body)
                client.limits = lane.limiter.limits_of(client.key)
                request = self._upstream_request(client, lane, body)
                del body  # the request releases the body once an engine answers
                if client.fields.stream and self._comment_interval > 0:
                    # The client may be behind a load balancer that closes idle connections early.
                    with response.kept_alive(self._comment_interval):
                        await self._relay_while_connected(client, lane, request)
                else:
                    await self._relay_while_connected(client, lane, request)
            finally:
                self._leave(client)
        except ClientGone:
            self._metrics.cancelled.inc()
            response.status = CLIENT_GONE
            raise
        except ResponseTruncated:
            # In other cases the server closes the connection, because the body of the answer has no end.
            await response.fail(UpstreamLost(CUT_SHORT))
        except ApiError as error:
            # The client of a stream that has begun has received the error as an event.
            if not (await response.fail(error) or response.status):
                response.status = error.status
                client.refusal_reason = KEY_LIMIT if isinstance(error, KeyOverLimit) else ""
                raise
        except Exception as error:
            await response.fail(as_api_error(error))
            response.status = response.status or 500  # the status with which the middleware answers
            raise
        finally:
            self._record(client)

    def cancel_running(self) -> int:
        """Abort the running requests, and return their number. Streams end with an error event."""
        if self._lane is not None:
            self._lane.relay.cancelling = True
        if self._lanes is not None:
            self._lanes.cancel()
        self._cut |= self._running
        for task in self._running:
            task.cancel()
        return len(self._running)

    def _check_client(self, client: RelayedRequest) -> None:
        """Determine the API key of the request. Raises an `ApiError` for a wrong key or a compressed body."""
        if self._keys:
            client.key = self._keys.check(credential_of(client.context.header_values))
            client.context.log_fields["key"] = client.key
        if (coding := client.context.header_values.get(b"content-encoding")) is not None:
            require_plain(coding.decode("latin-1"))

    def _arrived_body(self, client: RelayedRequest) -> bytes | None:
        """Return the body if all of it has arrived, and count it against the share of memory for bodies.

        If the result is None, call `_read_body`: the body is incomplete, is too large, or cannot be read
        without waiting.
        """
        context = client.context
        if context.direct is None:
            return None
        return whole_body(self._max_body_bytes, context.body_share, context.direct)

    async def _read_body(self, client: RelayedRequest) -> bytes:
        """Wait for the body. A dismissal, or the end of the drain time, may end that."""
        limit = self._max_body_bytes
        task = self._register_task()
        with self._admission.body_arrives(client.key, task.cancel) as arriving:
            try:
                return await read_body(
                    client.headers,
                    client.receive,
                    limit,
                    self._body_timeout,
                    discard=DISCARDED_LIMITS * limit,
                    share=client.context.body_share,
                )
            except asyncio.CancelledError:
                if arriving.refusal is None and task not in self._cut:
                    raise
                task.uncancel()
                raise (arriving.refusal or GatewayDraining(DRAINING)) from None
            finally:
                self._forget_task(task)

    async def _open_turn(self, client: RelayedRequest, body: bytes) -> bytes:
        """Return the body with the whole conversation that it continues, or unchanged if it continues none.

        Raises InvalidRequest, HistoryAway, and TooManyBodies if the budget of bodies has no room for the
        conversation.
        """
        client.turn = turn = await self._history.open(client.key if self._keys else "", body)
        if turn is None or turn.body is body:
            return body
        client.context.body_share.take(len(turn.body) - len(body))
        return turn.body

    def _enter_lane(self, client: RelayedRequest, body: bytes) -> tuple[RequestLane, bytes]:
        """Choose the lane of the request by its model, and have the lane admit it; return lane and body.

        A lane has the relay, queue and limits of one model. Where the model has another name at its engines,
        the body gets that name. Raises an ApiError.
        """
        assert self._lanes is not None
        fields = client.fields
        choice = self._lanes.choose(fields.model, client.key)
        client.model = choice.model
        if choice.engine_name != fields.model:
            longer = with_model(body, choice.engine_name)
            client.context.body_share.take(max(0, len(longer) - len(body)))
            body = longer
            client.fields = msgspec.structs.replace(fields, model=choice.engine_name)
        choice.lane.admission.enter(client.key)
        client.lane = choice.lane
        client.context.answer_headers += choice.headers
        return choice.lane, body

    def _leave(self, client: RelayedRequest) -> None:
        """Record the end of an admitted request, where several models are served also in its lane."""
        if client.lane is not None:
            client.lane.admission.leave(client.key)
        self._admission.leave(client.key)

    def _upstream_request(self, client: RelayedRequest, lane: RequestLane, body: bytes) -> UpstreamRequest:
        """Return the request in the form in which it is sent to engines."""
        context, fields = client.context, client.fields
        engine_key = lane.backend_keys.first if lane.backend_keys else None
        traced = context.trace.caller.is_valid
        explain = wants_explanation(context.header_values)
        headers = to_engine(client.headers, context.request_id, traced=traced, key=engine_key)
        if self._keys:
            headers.append((CLIENT_HEADER, client.key.encode()))
        if client.limits.tokens_per_minute is not None:
            headers.append((USAGE_HEADER, b"1"))
        if explain:
            headers.append((EXPLAIN_HEADER, b"1"))
        if COST_HEADER in context.header_values and (prices := lane.prices_of(fields.model)).known:
            headers.append(prices.header())
        if client.path == RESPONSES:
            kept = client.turn is not None and client.turn.keeps
            headers.append((HISTORY_HEADER, KEPT if kept else NOT_KEPT))
        return UpstreamRequest(
            path=client.path,
            query=client.query,
            headers=headers,
            body=body,
            model=fields.model,
            body_share=context.body_share,
            request_id=context.request_id,
            meter=UsageMeter(),
            explain=explain,
            trace=context.trace,
            has_form=fields.has_form,
            log_fields=context.log_fields,
        )

    async def _relay_while_connected(
        self, client: RelayedRequest, lane: RequestLane, request: UpstreamRequest
    ) -> None:
        """Relay the request. Raises `ClientGone` if the client leaves, `GatewayDraining` if aborted."""
        task = self._register_task()

        def leave() -> None:
            client.client_left = True
            task.cancel()

        try:
            with DisconnectWatch(client.context.direct, client.receive, leave):
                counted = client.limits.tokens_per_minute is not None
                # A request to count tokens computes nothing: any engine serves it, and no key is charged.
                if client.path not in FREE:
                    prompts = lane.prompts if client.path in TEXT_FIELDS else None
                    if prompts is not None and (counted or lane.relay.has_choice):
                        await self._read_prompt(prompts, request)
                    client.prompt_tokens = tokens_of(request.prompt, len(request.body))
                waiting = request.trace.begin(names.GATEWAY_QUEUE)
                if not client.limits.limited:
                    await self._relay_in_turn(client, lane, request, waiting)
                    return
                try:
                    entered = lane.limiter.entered(
                        client.key, client.prompt_tokens, client.context.answer_headers
                    )
                    async with entered as client.charge:
                        await self._relay_in_turn(client, lane, request, waiting)
                finally:
                    request.trace.end(waiting)
        except asyncio.CancelledError:
            if client.client_left:
                task.uncancel()
                raise ClientGone from None
            if task not in self._cut:
                raise
            task.uncancel()
            # A stream carries the error by now; an answer without room for an error stays unfinished, and
            # the server closes the connection.
            if not client.response.answering:
                raise GatewayDraining(DRAINING) from None
        finally:
            self._forget_task(task)

    def _register_task(self) -> asyncio.Task[Any]:
        """Return the task of this request, which `cancel_running` may cancel until `_forget_task`."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._running.add(task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._cut.discard(task)

    async def _read_prompt(self, prompts: PromptReader, request: UpstreamRequest) -> None:
        with request.trace.span(names.GATEWAY_READ_PROMPT) as span:
            request.prompt = await prompts.read(request)
            span.set(names.PROMPT_TOKENS, request.prompt.tokens if request.prompt else None)

    async def _relay_in_turn(
        self, client: RelayedRequest, lane: RequestLane, request: UpstreamRequest, waiting: SpanNote
    ) -> None:
        """Relay the request under a permit, and charge its key for the tokens that it used."""
        fields, tokens, meter = client.fields, client.prompt_tokens, request.meter or UsageMeter()
        # `async with permit` would do the same with two additional coroutines.
        permit = lane.admission.permit(
            PermitRequest(client.key, fields.rank, tokens + fields.answer_tokens, fields.model)
        )
        try:
            if not permit.try_acquire():
                await permit.acquire()
        finally:
            request.trace.end(waiting)
        abandoned = False
        try:
            self._metrics.queue_wait.observe(permit.waited)
            request.permit = permit
            try:
                turn, send = client.turn, client.response
                kept = turn is not None and turn.keeps
                await lane.relay.run(request, KeptAnswer(send, turn) if turn and kept else send)
            except asyncio.CancelledError:
                # The engine has begun with the prompt, which is most of the work.
                abandoned = permit.reached_engine
                raise
            finally:
                used = meter.used(tokens) or (tokens if abandoned else 0.0)
                # A request that an engine rejected is no use of a rate limit, but it had a place: for
                # nothing, a key whose requests are all rejected would have every next place, too.
                permit.used(used or (tokens if permit.reached_engine else 0.0))
                if client.charge is not None:
                    client.charge.used = used
        finally:
            permit.release()

    def _record(self, client: RelayedRequest) -> None:
        """Record the ended request in metrics, log and trace."""
        now, metrics, response, trace = time.monotonic(), self._metrics, client.response, client.context.trace
        name = client.model or client.fields.model
        client.context.log_fields["model"] = name and name[:LOGGED_MODEL]
        model = metrics.model_label(name)
        reason = KEY_LIMIT if response.over_own_limit else client.refusal_reason
        metrics.request(client.path, model, str(response.status), reason).inc()
        # Comments that kept the connection open do not count as an answer.
        trace.answered_at = response.first_byte
        if trace.recording:
            if response.status >= FAILED_FROM:
                trace.root.fail(str(response.status))
            if model != UNKNOWN_MODEL:
                trace.root.set(names.REQUEST_MODEL, model)
            trace.root.set(names.REQUEST_STREAM, bool(client.fields.stream))
        exemplar = trace.exemplar() if trace.recording else None
        metrics.duration_of(model).observe(now - client.context.arrival, exemplar)
        if response.first_byte is not None:
            metrics.first_byte_of(model).observe(response.first_byte - client.context.arrival, exemplar)
