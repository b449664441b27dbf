"""Relay: chooses an engine, sends the request, and passes the answer on.

If an attempt fails before anything was sent to the client, another engine is tried. JSON and server-sent
events are passed on unparsed and unbuffered, so that a slow client slows down the engine's socket. The proxy
endpoint calls the relay under a permit. A cancellation closes the connection to the engine.
"""

import asyncio
import functools
import time
from collections.abc import Callable

import structlog
from opentelemetry.trace import SpanKind
from starlette.types import Send

from mamba_edge.error_forms import form_of
from mamba_edge.errors import ApiError, TooManyRequests
from mamba_edge.exchange.asgi_responses import is_full, is_over_own_limit
from mamba_gateway.conversation import conversation_of
from mamba_gateway.endpoints.endpoint import SUSPICIOUS
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
from mamba_gateway.hand_over import peer_header
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.relay.answer import EngineAnswer, ResponseTruncated, upstream_error
from mamba_gateway.relay.attempts import (
    NO_LIVENESS,
    REFUSED_HERE,
    Attempt,
    Comparison,
    Failure,
    GiveUp,
    LostForms,
    RelayProgress,
    Retry,
    RetryBudget,
)
from mamba_gateway.relay.prefill_leg import PrefillLeg
from mamba_gateway.relay.unread_exports import UnreadExports
from mamba_gateway.routing.decision import RESPONSE_HEADER, NoCandidate, RoutingRecord
from mamba_gateway.routing.router import EndpointWait, Router
from mamba_gateway.shadow.shadow_copies import ShadowCopies
from mamba_gateway.upstream.connection import ConnectionLost, EngineUnreachable, IdleTimeout, UpstreamResponse
from mamba_gateway.upstream.connector import UpstreamConnector, UpstreamRequest, ask
from mamba_gateway.upstream.deadlines import Deadlines, Interrupt
from mamba_gateway.upstream.silence import LivenessChecks, SilenceWatch
from mamba_telemetry import conventions as names

log = structlog.get_logger("mambaserve.gateway")

RETRIED_STATUSES = frozenset((502, 503))
"""Statuses with which an engine indicates that another one should be tried."""
ENGINE_LOST = b'"engine_lost"'
"""Part of the error of an API process whose engine process has died on the request."""
STOPPED = "the gateway stopped before the answer was complete"


class Relay:
    """Sends each request of one model to an engine, tries again after failures, and passes on the answer.

    A request waits at most `hold_timeout` seconds for an engine, is sent to at most `max_attempts` engines,
    and takes at most `request_timeout` seconds. `wake` asks for an engine. Prompts with at least
    `hand_over_tokens` tokens to compute go to prefill engines first. `texts` are the tokenizers by which
    copies are compared.
    """

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
        liveness: LivenessChecks,
        wake: Callable[[], None],
        hand_over_tokens: int,
        deployment: str = "",
        texts: TextProcessors | None = None,
    ) -> None:
        self._connector, self._pool, self._metrics, self._router = connector, pool, metrics, router
        self.loop = connector.loop
        """Event loop that serves the requests."""
        self._hold_timeout, self._max_attempts = hold_timeout, max_attempts
        self._deadlines = Deadlines(self.loop, request_timeout)
        self._liveness = liveness
        self._budget = RetryBudget(time.monotonic)
        self._lost_forms = LostForms(time.monotonic)
        # Comparisons have a separate budget: otherwise clients that make mistakes would use up the budget of
        # requests that engines fail.
        self._comparisons = self._budget.sharing_requests()
        self._hold = EndpointWait(pool, metrics, wake)
        self._prefill = PrefillLeg(
            connector, pool, metrics, router, liveness,
            least_tokens=hand_over_tokens, max_attempts=max_attempts,
            budget=self._budget, comparisons=self._comparisons, pass_on=self._pass_on,
        )  # fmt: skip
        self._hand_over_tokens, self._deployment = hand_over_tokens, deployment
        self._exports = UnreadExports(connector)
        self._copies = ShadowCopies(connector, pool, metrics, deployment, request_timeout, texts)
        self.cancelling = False
        """Whether the drain time is over. Streams that are cancelled then end with an error event."""

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one engine, so that reading the prompt can improve the choice."""
        return self._pool.has_choice

    async def close(self) -> None:
        """End the copies of requests that are under way."""
        await self._copies.close()

    async def run(self, request: UpstreamRequest, send: Send) -> None:
        """Answer the request through `send`, within the longest time that a request may take.

        Raises an `ApiError` for the client (a stream that has begun contains it already), `ResponseTruncated`
        if an answer that is no stream broke off.
        """
        if request.has_form and request.body in self._lost_forms:
            raise UpstreamLost(ENDED_AN_ENGINE)
        task = asyncio.current_task(self.loop)
        assert task is not None
        self._budget.record_request()
        lifetime, comparison = Interrupt(task), Comparison(self._pool)
        hold_until = self._deadlines.begin(lifetime) + self._hold_timeout
        progress = RelayProgress(request, send, task, lifetime, comparison, hold_until)
        try:
            with lifetime:
                while (failure := await self._attempt(progress)) is not None:
                    if isinstance(failure, GiveUp):
                        raise failure.error from failure.cause
                    await self._prepare_retry(progress, failure)
        except TimeoutError:
            raise self._timed_out() from None
        finally:
            comparison.end(took=None)
            self._deadlines.end(lifetime)
            if progress.copy is not None:
                progress.copy.leave()
            if (state := progress.handed_over) is not None and not state.named:
                self._exports.release(state, request)

    def _decide(self, progress: RelayProgress, *more_tried: str) -> RoutingRecord | NoCandidate:
        request, tried = progress.request, progress.tried
        if more_tried:
            tried += more_tried
        if (state := progress.handed_over) is not None:
            return self._router.decide_answer(
                state.first_choice, state.prefill, state.hand_over.depth, request.prompt, tried
            )
        if request.conversation is None and self._pool.candidate_share is not None:
            request.conversation = conversation_of(request.path, request.body)
        return self._router.decide(
            request.model, request.prompt,
            body_bytes=len(request.body), tried=tried, request_id=request.request_id,
            conversation=request.conversation,
        )  # fmt: skip

    def _begin(self, progress: RelayProgress, record: RoutingRecord) -> Attempt:
        """Record that the request is sent to the chosen engine; return the attempt."""
        request, endpoint = progress.request, record.decision.endpoint
        progress.number += 1
        last = progress.number >= self._max_attempts or not self._budget.available
        if self._pool.shadow is not None and progress.copy is None and not endpoint.candidate:
            # A further attempt finds the copy of the first one, or another moment in which there is room.
            progress.copy = self._copies.begin(request)
        sent_at = self.loop.time()
        ticket = self._router.sent(record, request.prompt)
        if request.permit is not None:
            request.permit.sent()
        span = request.trace.begin(names.GATEWAY_ATTEMPT, kind=SpanKind.CLIENT)
        if request.trace.recording:
            span.set(names.ENDPOINT, endpoint.name)
            span.set(names.HTTP_RESEND_COUNT, progress.number - 1 or None)
        watch = SilenceWatch(self._liveness, endpoint.url, progress.task)
        attempt = Attempt(record, endpoint, ticket, sent_at, last, watch, span)
        if endpoint.transfer is not None:
            self._name_source(progress, attempt)
        return attempt

    def _name_source(self, progress: RelayProgress, attempt: Attempt) -> None:
        """Add the header that names an engine from which the state of the prompt can be fetched, if any."""
        if (state := progress.handed_over) is not None:
            attempt.source = (state.header(self.loop.time()),)
            attempt.fetchable = state.hand_over.depth
        elif (peer := self._router.peer_of(attempt.record, self._hand_over_tokens)) is not None:
            attempt.source, attempt.fetchable = (peer_header(*peer),), peer[1]
            self._metrics.peer_hints.inc()

    async def _attempt(self, progress: RelayProgress) -> Failure | None:
        """Send the request to an engine, and pass its answer on unless another engine should be tried.

        None means that the client has received the answer, or that its stream has ended with an error event.
        """
        request = progress.request
        with request.trace.span(names.GATEWAY_ROUTE) as span:
            decision = self._decide(progress)
            record = self._hold.decided(decision) or await self._wait_for_engine(progress, decision)
            if request.trace.recording:
                record.describe(span)
        if record.decision.endpoint.role == "decode":
            leg = await self._prefill.run(progress, record)
            if leg != "skipped":  # the state of the engines has changed, so the engine is chosen again
                return None if leg == "answered" else await self._attempt(progress)
        attempt = self._begin(progress, record)
        url = attempt.endpoint.url
        failure: Failure | None
        try:
            # Each coroutine on this way costs every request, so the steps of an answer are plain calls.
            with attempt.watch:
                added = attempt.added_headers(explain=request.explain)
                response, first = await ask(self._connector, url, request, attempt.span, added)
                attempt.response = response
                failure = self._refusal(progress, attempt, response, first)
                if failure is None:
                    answer = self._begin_answer(progress, attempt, response)
                    if not answer.send_whole(first):
                        await self._forward(progress, attempt, response, first, answer)
                    self._end_answer(progress, attempt, answer)
        except EngineUnreachable as error:
            failure = self._on_unreachable(progress, attempt, error)
        except ConnectionLost as error:
            failure = await self._on_connection_lost(progress, attempt, error)
        except IdleTimeout as error:
            failure = self._on_idle_timeout(attempt, error)
        except TimeoutError as error:
            if not attempt.watch.fired:
                raise
            failure = self._on_silence(progress, attempt, error)
        except ResponseTruncated as error:
            # The engine is not to blame where the gateway cut the answer: at its own end, or after the
            # longest life of a request.
            attempt.failed = True if isinstance(error.__cause__, UpstreamLost | UpstreamIdleTimeout) else None
            raise
        finally:
            if attempt.response is not None:
                attempt.response.close()
            self._pool.end(url, attempt.ticket, failed=attempt.failed)
            request.trace.end(attempt.span)
        return failure

    async def _wait_for_engine(
        self, progress: RelayProgress, decision: RoutingRecord | NoCandidate
    ) -> RoutingRecord:
        """Wait for an engine that has not failed the request, if there is none now."""
        request = progress.request
        decide = functools.partial(self._decide, progress)
        return await self._hold.wait(decision, decide, request.model, progress.hold_until, request.permit)

    def _refusal(
        self, progress: RelayProgress, attempt: Attempt, response: UpstreamResponse, first: bytes
    ) -> Retry | None:
        """Return a retry if another engine should be tried; None = the answer is passed to the client."""
        request, status = progress.request, response.status
        attempt.span.set(names.HTTP_STATUS, status)
        lost_form = request.has_form and ENGINE_LOST in first
        if lost_form:
            self._lost_forms.add(request.body)
        if 400 <= status < 500 and not is_over_own_limit(status, response.headers):
            full = is_full(status, response.headers)
            if self._another_may_take(progress, attempt, status, full=full):
                if not full:
                    progress.comparison.begin(attempt.endpoint.url)
                attempt.span.fail("rejected")
                return Retry(attempt.endpoint, "rejected", f"it answered {status}")
            if full and self._may_wait(progress):
                attempt.span.fail("rejected")
                return Retry(attempt.endpoint, "rejected", f"it answered {status}", waits=True)
        if status in RETRIED_STATUSES and not (attempt.last or lost_form):
            attempt.failed = True
            attempt.span.fail("refused")
            return Retry(attempt.endpoint, "refused", f"it answered {status}")
        return None

    def _another_may_take(
        self, progress: RelayProgress, attempt: Attempt, status: int, *, full: bool
    ) -> bool:
        """Record the rejection, and return whether to try another engine.

        Most rejections are mistakes of clients, with which every engine would agree. They are compared with
        another engine only if the engine has rejected several requests in a row.
        """
        url = attempt.endpoint.url
        in_a_row = self._pool.reject(url, full=full)
        if status not in REFUSED_HERE and in_a_row < SUSPICIOUS:
            return False
        if progress.number >= self._max_attempts or not self._comparisons.available:
            return False
        other = self._decide(progress, url)
        return isinstance(other, RoutingRecord) and not other.decision.endpoint.full

    def _may_wait(self, progress: RelayProgress) -> bool:
        """Return whether a request that an engine has rejected as full waits for an engine again.

        It does if it has waited for an engine before and `hold_until` has not passed. Otherwise the client
        gets the rejection.
        """
        permit = progress.request.permit
        return permit is not None and permit.was_held and self.loop.time() < progress.hold_until

    def _begin_answer(
        self, progress: RelayProgress, attempt: Attempt, response: UpstreamResponse
    ) -> EngineAnswer:
        """Record that this engine's answer is passed to the client, so that no other attempt follows."""
        request, status = progress.request, response.status
        well = status < 400
        self._pool.response_started(attempt.endpoint.url, attempt.ticket, well=well)
        unclear = not well and (status >= 500 or is_over_own_limit(status, response.headers))
        progress.comparison.end(took=None if unclear else well)
        request.release_body()
        attempt.begun, attempt.answered_at = True, self.loop.time()
        if well and (state := progress.handed_over) is not None:
            state.named = attempt.source == (state.hand_over.header(),)
        added = ((RESPONSE_HEADER, attempt.record.header()),) if request.explain else ()
        return EngineAnswer(
            response, progress.send, request.meter, attempt.span, attempt.watch, added, form_of(request.path),
            request.request_id, progress.copy.original if progress.copy is not None else None,
        )  # fmt: skip

    def _end_answer(self, progress: RelayProgress, attempt: Attempt, answer: EngineAnswer) -> None:
        """Record how the answer ended, and how many prompt tokens the engine took from its cache."""
        request = progress.request
        if not 400 <= answer.status < 500:
            attempt.failed = True if answer.status >= 500 else answer.failed
        if self._pool.candidate_share is not None and answer.status == 200 and answer.failed is False:
            self._time(request, attempt, answer)
        if progress.copy is not None and attempt.response is not None:
            progress.copy.compare(answer.status, attempt.response.headers, failed=answer.failed)
        usage = request.meter.usage if request.meter is not None else None
        if usage is not None:
            self._router.answered(attempt.record, request.prompt, usage, fetched=attempt.fetchable)

    def _time(self, request: UpstreamRequest, attempt: Attempt, answer: EngineAnswer) -> None:
        """Record how long a streamed answer of a revision took, by which a canary is judged."""
        begun = attempt.answered_at
        if not answer.streamed or begun is None:
            return
        self._metrics.time_answer(
            self._deployment,
            candidate=attempt.endpoint.candidate,
            first=begun - attempt.sent_at,
            rest=self.loop.time() - begun,
            tokens=request.meter.answer_tokens if request.meter is not None else 0,
        )

    async def _pass_on(
        self, progress: RelayProgress, attempt: Attempt, response: UpstreamResponse, first: bytes
    ) -> None:
        """Pass on the answer of a prefill engine that refuses the request as a mistake of the client."""
        answer = self._begin_answer(progress, attempt, response)
        if not answer.send_whole(first):
            await self._forward(progress, attempt, response, first, answer)
        self._end_answer(progress, attempt, answer)

    async def _forward(
        self,
        progress: RelayProgress,
        attempt: Attempt,
        response: UpstreamResponse,
        first: bytes,
        answer: EngineAnswer,
    ) -> None:
        """Pass on an answer that is a stream, or that has not arrived completely.

        `first` are the bytes of its body that have arrived.
        """
        send, span = progress.send, attempt.span
        # Bytes that have arrived go out in one piece, where the client's side can; later ones at once.
        part, whole = answer.take(first) if first else b"", response.complete
        if whole:
            part += answer.rest()
        if answer.begin_now(part, more=not whole):
            if whole:
                return
            part = b""
        else:
            await answer.begin()
        try:
            if part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            while part := await response.consume(answer.pass_on):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except (ConnectionLost, EngineUnreachable, IdleTimeout) as error:
            self._metrics.broken.inc()
            self._pool.fail(attempt.endpoint.url, str(error))
            span.fail("broke_off")
            log.warning("answer broke off", endpoint=attempt.endpoint.name, detail=str(error))
            await answer.break_off(upstream_error(error))
            answer.failed = True
            return
        except asyncio.CancelledError:
            if (reason := self._why_cut(progress, attempt)) is not None:
                await answer.break_off(reason)
            raise
        await send({"type": "http.response.body", "body": answer.rest(), "more_body": False})

    def _why_cut(self, progress: RelayProgress, attempt: Attempt) -> ApiError | None:
        """Return the error with which an aborted answer ends; None = the client has disconnected."""
        if progress.lifetime.fired:
            return self._timed_out()
        if attempt.watch.fired:
            self._metrics.broken.inc()
            attempt.span.fail("silent")
            return UpstreamIdleTimeout(SILENT)
        return GatewayDraining(STOPPED) if self.cancelling else None

    def _on_unreachable(
        self, progress: RelayProgress, attempt: Attempt, error: EngineUnreachable
    ) -> Retry | GiveUp:
        attempt.failed = True
        self._liveness.doubt(attempt.endpoint.url, attempt.sent_at)
        attempt.span.fail("unreachable")
        if progress.number >= self._max_attempts:
            return GiveUp(NoEndpoint("no engine could be reached", retry_after=2), error)
        return Retry(attempt.endpoint, "unreachable", str(error))

    async def _on_connection_lost(
        self, progress: RelayProgress, attempt: Attempt, error: ConnectionLost
    ) -> Retry | GiveUp:
        request, url, detail = progress.request, attempt.endpoint.url, str(error)
        attempt.failed = True
        attempt.span.fail("died")
        # A request on which engines die must not be sent to all engines one after the other.
        if attempt.last or progress.lost_engines:
            self._pool.fail(url, detail)
            return GiveUp(UpstreamLost(NO_ANSWER), error)
        if request.has_form and not await self._liveness.check(url):
            self._lost_forms.add(request.body)
            self._pool.fail(url, detail)
            return GiveUp(UpstreamLost(ENDED_AN_ENGINE), error)
        return Retry(attempt.endpoint, "died", detail)

    def _on_idle_timeout(self, attempt: Attempt, error: IdleTimeout) -> GiveUp:
        attempt.failed = True
        attempt.span.fail("idle_timeout")
        self._pool.fail(attempt.endpoint.url, SILENT)
        return GiveUp(UpstreamIdleTimeout(SILENT), error)

    def _on_silence(self, progress: RelayProgress, attempt: Attempt, error: TimeoutError) -> Retry | GiveUp:
        attempt.failed = True
        attempt.span.fail("silent")
        if attempt.last or progress.lost_engines or attempt.begun:
            self._pool.fail(attempt.endpoint.url, NO_LIVENESS)
            return GiveUp(UpstreamIdleTimeout(SILENT), error)
        return Retry(attempt.endpoint, "silent", NO_LIVENESS)

    async def _prepare_retry(self, progress: RelayProgress, retry: Retry) -> None:
        """Record a failed attempt, so that the next one uses another engine."""
        endpoint, number = retry.endpoint, progress.number
        if retry.waits:
            progress.number, progress.rejecting_engines = 0, ()
            await self._wait_for_place(progress)
        elif retry.reason == "rejected":
            progress.rejecting_engines = (*progress.rejecting_engines, endpoint.url)
            self._comparisons.record_retry()
        else:
            self._pool.suspect(endpoint.url, retry.detail)
            if retry.reason in ("died", "silent"):
                progress.lost_engines = (endpoint.url,)
                if progress.handed_over is not None:
                    progress.handed_over.read = True
            if retry.reason != "unreachable":  # an engine that was not reached has no load by the request
                self._budget.record_retry()
        self._metrics.retries.labels(retry.reason).inc()
        log.warning(
            "attempt failed", endpoint=endpoint.name, reason=retry.reason, detail=retry.detail, attempt=number
        )

    async def _wait_for_place(self, progress: RelayProgress) -> None:
        """Wait without a permit until an engine may have room. Raises `TooManyRequests`."""
        permit, until = progress.request.permit, progress.hold_until
        assert permit is not None
        try:
            async with asyncio.timeout_at(until):
                await permit.while_held(self._pool.changed())
        except TimeoutError:
            message = "every engine has as many requests as it takes; retry later"
            raise TooManyRequests(message, retry_after=2) from None
        await permit.resume(max(0.0, until - self.loop.time()))

    def _timed_out(self) -> RequestTimedOut:
        return RequestTimedOut(f"the request took longer than {self._deadlines.seconds:g} s")
