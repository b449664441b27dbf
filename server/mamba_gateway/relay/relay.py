"""Relay: choose an engine, send the request, pass its answer on; elsewhere again while nothing has been sent.

JSON and server-sent events pass through unparsed and unbuffered: a slow client slows the engine's socket.
Called by the proxy endpoint under a permit; cancelling it closes the connection to the engine.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import structlog
from opentelemetry.trace import SpanKind
from starlette.types import Send

from mamba_edge.errors import TooManyRequests
from mamba_edge.exchange.engine_limit import is_full, is_over_own_limit
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.outlier_ejection import SUSPICIOUS
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.errors import (
    ENDED_AN_ENGINE,
    NO_ANSWER,
    SILENT,
    GatewayDraining,
    NoEndpoint,
    RequestTimedOut,
    UpstreamIdleTimeout,
    UpstreamLost,
)
from mamba_gateway.headers import is_event_stream, to_client
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics, RetryReason
from mamba_gateway.relay.comparison import Comparison
from mamba_gateway.relay.engine_response import (
    ResponseTruncated,
    end_broken_stream,
    record_chunk,
    send_whole,
    upstream_error,
)
from mamba_gateway.relay.events import EventAligner
from mamba_gateway.relay.lost_forms import LostForms
from mamba_gateway.relay.retry_budget import RetryBudget
from mamba_gateway.routing.decision import NoCandidate
from mamba_gateway.routing.endpoint_wait import EndpointWait
from mamba_gateway.routing.router import Router
from mamba_gateway.routing.routing_record import RESPONSE_HEADER, RoutingRecord
from mamba_gateway.upstream.connection import EngineUnreachable
from mamba_gateway.upstream.connector import UpstreamConnector
from mamba_gateway.upstream.deadlines import Deadlines
from mamba_gateway.upstream.interrupt import Interrupt
from mamba_gateway.upstream.request import UpstreamRequest, ask
from mamba_gateway.upstream.response import ConnectionLost, IdleTimeout, UpstreamResponse
from mamba_gateway.upstream.silence import LivenessChecks, SilenceWatch
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import SpanNote

log = structlog.get_logger("mambaserve.gateway")

RETRIED_STATUSES = frozenset((502, 503))
"""Statuses with which an engine says that another one may do better."""
ENGINE_LOST = b'"engine_lost"'
"""What the answer of an engine has whose own process ended on a request."""
REFUSED_HERE = frozenset((401, 403, 404, 429))
"""Statuses that rather speak of the engine than of the request, and are compared with another engine's."""


class Relay:
    """The relay of one gateway."""

    def __init__(
        self,
        connector: UpstreamConnector,
        pool: Pool,
        metrics: GatewayMetrics,
        router: Router,
        *,
        hold_timeout: float,
        max_attempts: int,
        request_timeout: float,
        silence_timeout: float,
        probe_timeout: float,
        wake: Callable[[], None],
    ) -> None:
        self._connector, self._pool, self._metrics, self._router = connector, pool, metrics, router
        self.loop = connector.loop
        """That its requests are served on."""
        self._hold_timeout, self._max_attempts = hold_timeout, max_attempts
        self._deadlines = Deadlines(self.loop, request_timeout)
        self._liveness = LivenessChecks(connector, probe_timeout, silence_timeout)
        self._budget = RetryBudget(time.monotonic)
        self._lost_forms = LostForms(time.monotonic)
        # Apart, or clients that make mistakes would leave nothing for requests that an engine failed.
        self._comparisons = RetryBudget(time.monotonic)
        self._hold = EndpointWait(pool, metrics, wake)
        self.cancelling = False
        """The drain's time is over: a cancelled stream still ends with an error event."""

    @property
    def has_choice(self) -> bool:
        """There is more than one engine, and what a prompt is decides between them."""
        return self._pool.has_choice

    def doubt(self, url: str, since: float) -> None:
        """The engine has not answered somebody who asked it at `since`, by the loop's clock: requests that
        have heard nothing of it since then find out whether it lives."""
        self._liveness.doubt(url, since)

    async def run(self, request: UpstreamRequest, send: Send) -> None:
        """Answer the request through `send`, within its longest life.

        Raises an `ApiError` for the client (a stream that has begun carries it already),
        `ResponseTruncated` if a non-stream answer broke off.
        """
        task = asyncio.current_task(self.loop)
        assert task is not None
        lifetime = Interrupt(task)
        self._deadlines.begin(lifetime)
        try:
            with lifetime, Comparison(self._pool) as comparison:
                await self._attempts(request, send, lifetime, task, comparison)
        except TimeoutError:
            raise self._timed_out() from None
        finally:
            self._deadlines.end(lifetime)

    async def _attempts(
        self,
        request: UpstreamRequest,
        send: Send,
        lifetime: Interrupt,
        task: asyncio.Task[Any],
        comparison: Comparison,
    ) -> None:
        lost_engines: tuple[str, ...] = ()
        rejected: tuple[str, ...] = ()
        if request.has_form and request.body in self._lost_forms:
            raise UpstreamLost(ENDED_AN_ENGINE)
        recording = request.trace.recording
        self._budget.record_request()
        self._comparisons.record_request()
        deadline = self.loop.time() + self._hold_timeout
        number = 0
        while True:
            number += 1
            tried = lost_engines + rejected
            with request.trace.span(names.GATEWAY_ROUTE) as routing:
                decided = self._decide(request, tried)
                record = self._hold.decided(decided)
                if record is None:
                    decide = functools.partial(self._decide, request, tried)
                    record = await self._hold.wait(decided, decide, request.model, deadline, request.permit)
                if recording:
                    record.describe(routing)
            last = number >= self._max_attempts or not self._budget.available
            endpoint = record.decision.endpoint
            sent_at = self.loop.time()
            ticket = self._router.sent(record, request.prompt)
            if request.permit is not None:
                request.permit.sent()
            begun = False
            failed: bool | None = None
            reason: RetryReason
            put_back = False
            span = request.trace.begin(names.GATEWAY_ATTEMPT, kind=SpanKind.CLIENT)
            if recording:
                span.set(names.ENDPOINT, endpoint.name)
                span.set(names.HTTP_RESEND_COUNT, number - 1 or None)
            watch = SilenceWatch(self._liveness, endpoint.url, task)
            try:
                with watch:
                    response, first = await ask(self._connector, endpoint.url, request, span)
                    try:
                        span.set(names.HTTP_STATUS, response.status)
                        status = response.status
                        full, another = is_full(status, response.headers), False
                        over_own_limit = is_over_own_limit(status, response.headers)
                        if 400 <= status < 500 and not over_own_limit:
                            another = self._another_may_take(
                                request, endpoint, status, tried, number, full=full
                            )
                            put_back = full and not another and self._may_wait(request, deadline)
                        if another and not full:
                            comparison.begin(endpoint.url)
                        ended = request.has_form and ENGINE_LOST in first
                        if ended:
                            self._lost_forms.add(request.body)
                        is_final = status not in RETRIED_STATUSES or last or ended
                        if is_final and not (another or put_back):
                            self._pool.response_started(endpoint.url, ticket, well=status < 400)
                            comparison.end(took=None if status >= 500 or over_own_limit else status < 400)
                            request.release_body()
                            begun = True
                            added = ((RESPONSE_HEADER, record.header()),) if request.explain else ()
                            if send_whole(response, first, send, added):
                                spoiled = record_chunk(first, request, response, span)
                            else:
                                spoiled = await self._forward(
                                    response, first, send, request, endpoint, lifetime, watch, added, span
                                )
                            if not 400 <= response.status < 500:
                                failed = True if response.status >= 500 else spoiled
                            usage = request.meter.usage if request.meter is not None else None
                            if usage is not None:
                                self._router.answered(record, request.prompt, usage)
                            return
                    finally:
                        response.close()
                detail = f"it answered {response.status}"
                if another or put_back:
                    reason, failed = "rejected", None
                else:
                    reason, failed = "refused", True
                span.fail(reason)
            except EngineUnreachable as error:
                reason, detail, failed = "unreachable", str(error), True
                self.doubt(endpoint.url, sent_at)
                span.fail(reason)
                if number >= self._max_attempts:
                    raise NoEndpoint("no engine could be reached", retry_after=2) from error
            except ConnectionLost as error:
                reason, detail, failed = "died", str(error), True
                span.fail(reason)
                if last or lost_engines:
                    # A request that takes engines down with it must not go round the whole pool.
                    self._pool.fail(endpoint.url, detail)
                    raise UpstreamLost(NO_ANSWER) from error
                if request.has_form and not await self._liveness.check(endpoint.url):
                    self._lost_forms.add(request.body)
                    self._pool.fail(endpoint.url, detail)
                    raise UpstreamLost(ENDED_AN_ENGINE) from error
                lost_engines = (endpoint.url,)
            except IdleTimeout as error:
                failed = True
                span.fail("idle_timeout")
                self._pool.fail(endpoint.url, SILENT)
                raise UpstreamIdleTimeout(SILENT) from error
            except TimeoutError as error:
                if not watch.fired:
                    raise
                failed = True
                span.fail("silent")
                reason, detail = "silent", "it was silent and did not say at /livez that it lives"
                if last or lost_engines or begun:
                    self._pool.fail(endpoint.url, detail)
                    raise UpstreamIdleTimeout(SILENT) from error
                lost_engines = (endpoint.url,)
            except ResponseTruncated as error:
                # Not where the gateway itself cut it: at its end, or after the longest life of a request.
                failed = True if isinstance(error.__cause__, UpstreamLost | UpstreamIdleTimeout) else None
                raise
            finally:
                self._pool.end(endpoint.url, ticket, failed=failed)
                request.trace.end(span)
            if put_back:
                number, rejected = 0, ()
                await self._wait_for_place(request, deadline)
            elif reason == "rejected":
                rejected = (*rejected, endpoint.url)
                self._comparisons.record_retry()
            else:
                self._pool.suspect(endpoint.url, detail)
                if reason != "unreachable":  # which is no load for anybody
                    self._budget.record_retry()
            self._metrics.retries.labels(reason).inc()
            log.warning(
                "attempt failed", endpoint=endpoint.name, reason=reason, detail=detail, attempt=number
            )

    def _another_may_take(
        self,
        request: UpstreamRequest,
        endpoint: Endpoint,
        status: int,
        tried: tuple[str, ...],
        number: int,
        *,
        full: bool,
    ) -> bool:
        """Whether a request that the engine rejected with this status is to go to another one, which is
        there. Most rejections are mistakes of clients, so all engines would say the same: those are compared
        from an engine that has rejected several in a row."""
        in_a_row = self._pool.reject(endpoint.url, full=full)
        if status not in REFUSED_HERE and in_a_row < SUSPICIOUS:
            return False
        if number >= self._max_attempts or not self._comparisons.available:
            return False
        other = self._decide(request, (*tried, endpoint.url))
        return isinstance(other, RoutingRecord) and not other.decision.endpoint.full

    def _may_wait(self, request: UpstreamRequest, deadline: float) -> bool:
        """Whether a request that waited for an engine, which is full, goes on waiting."""
        permit = request.permit
        return permit is not None and permit.was_held and self.loop.time() < deadline

    async def _wait_for_place(self, request: UpstreamRequest, deadline: float) -> None:
        assert request.permit is not None
        try:
            async with asyncio.timeout_at(deadline):
                await request.permit.while_held(self._pool.changed())
        except TimeoutError:
            message = "every engine has as many requests as it takes; retry later"
            raise TooManyRequests(message, retry_after=2) from None
        await request.permit.resume(max(0.0, deadline - self.loop.time()))

    def _decide(self, request: UpstreamRequest, tried: tuple[str, ...]) -> RoutingRecord | NoCandidate:
        return self._router.decide(
            request.model, request.prompt,
            body_bytes=len(request.body), tried=tried, request_id=request.request_id,
        )  # fmt: skip

    async def _forward(
        self,
        response: UpstreamResponse,
        first: bytes,
        send: Send,
        request: UpstreamRequest,
        endpoint: Endpoint,
        lifetime: Interrupt,
        watch: SilenceWatch,
        extra_headers: tuple[tuple[bytes, bytes], ...],
        span: SpanNote,
    ) -> bool | None:
        """Pass the answer on. Returns whether it failed on the way; None = by a mistake of the client."""
        headers = [*to_client(response.headers), *extra_headers]
        events = is_event_stream(response.headers)
        aligner = EventAligner() if events else None
        if events:  # a declared length would leave no room for an error event
            headers = [pair for pair in headers if pair[0] != b"content-length"]
        spoiled: bool | None = False

        def passed(chunk: bytes) -> bytes:
            nonlocal spoiled
            watch.record_activity()
            if (found := record_chunk(chunk, request, response, span)) is not False:
                spoiled = found
            return aligner.feed(chunk) if aligner else chunk

        # Where the client's side can, what is here already goes out in one piece, and what comes at once.
        begin, write = getattr(send, "begin", None), getattr(send, "write", None)

        def take(chunk: bytes) -> bytes:
            out = passed(chunk)
            return b"" if out and write is not None and write(out) else out

        out = passed(first) if first else b""
        whole = response.complete
        if whole and aligner:
            out += aligner.flush()
        if begin is not None and begin(response.status, headers, out, not whole):
            if whole:
                return spoiled
            out = b""
        else:
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
        try:
            if out:
                await send({"type": "http.response.body", "body": out, "more_body": True})
            while out := await response.consume(take):
                await send({"type": "http.response.body", "body": out, "more_body": True})
        except (ConnectionLost, EngineUnreachable, IdleTimeout) as error:
            self._metrics.broken.inc()
            self._pool.fail(endpoint.url, str(error))
            span.fail("broke_off")
            log.warning("answer broke off", endpoint=endpoint.name, detail=str(error))
            await end_broken_stream(aligner, upstream_error(error), send)
            return True
        except asyncio.CancelledError:
            if lifetime.fired:
                await end_broken_stream(aligner, self._timed_out(), send)
            elif watch.fired:
                self._metrics.broken.inc()
                span.fail("silent")
                await end_broken_stream(aligner, UpstreamIdleTimeout(SILENT), send)
            elif self.cancelling:
                await end_broken_stream(
                    aligner, GatewayDraining("the gateway stopped before the answer was complete"), send
                )
            raise
        else:
            rest = aligner.flush() if aligner else b""
            await send({"type": "http.response.body", "body": rest, "more_body": False})
            return spoiled

    def _timed_out(self) -> RequestTimedOut:
        return RequestTimedOut(f"the request took longer than {self._deadlines.seconds:g} s")
