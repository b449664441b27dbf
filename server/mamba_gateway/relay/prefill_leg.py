"""`PrefillLeg`: the part of a request at prefill engines, which compute its prompt for a decode engine.

The relay calls it before the first attempt at a decode engine. A failure here costs time, but not the answer:
the decode engine then computes the prompt itself. Only a mistake of the client ends the request here.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import structlog
from opentelemetry.trace import SpanKind

from mamba_api.dialects.paths import GENERATING
from mamba_edge.exchange.asgi_responses import is_full, is_over_own_limit
from mamba_gateway.endpoints.endpoint import SUSPICIOUS
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.errors import SILENT
from mamba_gateway.hand_over import EXPORT_HEADERS, MAX_ANSWER_BYTES, HandOver, hand_over_of
from mamba_gateway.metrics.gateway_metrics import (
    DecodeReason,
    GatewayMetrics,
    HandOverOutcome,
    RetryReason,
)
from mamba_gateway.relay.attempts import (
    NO_LIVENESS,
    REFUSED_HERE,
    Attempt,
    HandedOver,
    RelayProgress,
    RetryBudget,
)
from mamba_gateway.routing.decision import RoutingRecord
from mamba_gateway.routing.router import Router
from mamba_gateway.upstream.connection import ConnectionLost, EngineUnreachable, IdleTimeout, UpstreamResponse
from mamba_gateway.upstream.connector import UpstreamConnector, ask
from mamba_gateway.upstream.silence import LivenessChecks, SilenceWatch
from mamba_telemetry import conventions as names

log = structlog.get_logger("mambaserve.gateway")

PassOn = Callable[[RelayProgress, Attempt, UpstreamResponse, bytes], Awaitable[None]]
MOST_DEATHS = 2
"""Number of prefill engines that may die on one request before it is sent to no further engine."""
Leg = Literal["skipped", "over", "answered"]
"""Result of the prefill leg. skipped: no prefill engine was used; over: the leg has ended, with a state that
was handed over or without; answered: the client has received the refusal of a request that no engine can
serve."""


@dataclass(frozen=True, slots=True)
class PrefillFailure:
    """Says why a prefill engine did not compute a prompt."""

    outcome: HandOverOutcome
    reason: RetryReason
    detail: str
    """Cause in words, for log and trace."""
    elsewhere: bool = True
    """Whether another prefill engine should be tried."""


class PrefillLeg:
    """Has prefill engines compute long prompts, before the relay sends the request to a decode engine."""

    def __init__(
        self,
        connector: UpstreamConnector,
        pool: Pool,
        metrics: GatewayMetrics,
        router: Router,
        liveness: LivenessChecks,
        *,
        least_tokens: int,
        max_attempts: int,
        budget: RetryBudget,
        comparisons: RetryBudget,
        pass_on: PassOn,
    ) -> None:
        """Create the leg.

        Args:
            connector: connections to engines.
            pool: the engines.
            metrics: metrics of the gateway.
            router: chooses the engines.
            liveness: checks of engines that are silent.
            least_tokens: number of tokens to compute from which a prefill engine is used.
            max_attempts: largest number of prefill engines that are tried for a request.
            budget: limit on retries.
            comparisons: limit on requests that are compared because a prefill engine has rejected them.
            pass_on: sends the answer of a prefill engine to the client.
        """
        self._connector, self._pool, self._metrics, self._router = connector, pool, metrics, router
        self._liveness, self._loop = liveness, connector.loop
        self._least_tokens, self._max_attempts = least_tokens, max_attempts
        self._budget, self._comparisons, self._pass_on = budget, comparisons, pass_on
        self._without_engine = False
        """Whether the last long prompt found no prefill engine."""

    async def run(self, progress: RelayProgress, record: RoutingRecord) -> Leg:
        """Have a prefill engine compute the prompt, if the prompt is long enough and such an engine is ready.

        Afterwards `progress.handed_over` is the state; if it is None, the decode engine computes the prompt.

        Args:
            progress: the request.
            record: the choice of a decode engine, as it stands before the prompt is computed.
        """
        if progress.prefill_over:
            return "skipped"
        progress.prefill_over = True
        if not self._is_long(progress, record):
            self._metrics.prefilled_by_decode.labels("short").inc()
            return "skipped"
        first = self._router.decide_prefill(record, ())
        self._report_engine(ready=isinstance(first, RoutingRecord))
        if not isinstance(first, RoutingRecord):
            self._metrics.prefilled_by_decode.labels("no_engine").inc()
            return "skipped"
        self._router.log.drop(record)
        began = self._loop.time()
        outcome = await self._compute(progress, record, first)
        seconds = self._loop.time() - began
        self._metrics.prefill_seconds.observe(seconds)
        progress.request.log_fields["prefill_seconds"] = round(seconds, 4)
        if outcome == "answered":
            return "answered"
        if outcome != "computed":
            self._metrics.prefilled_by_decode.labels(outcome).inc()
        return "over"

    def _is_long(self, progress: RelayProgress, record: RoutingRecord) -> bool:
        """Return whether the decode engine would have to compute at least `least_tokens` of the prompt."""
        prompt, tokens = progress.request.prompt, record.request.prompt_tokens
        if progress.request.path not in GENERATING or (prompt is not None and prompt.computed_whole):
            return False
        resumable = record.decision.resumable
        if tokens - resumable < self._least_tokens:
            return False
        # The tokens that another engine has cached can be fetched from it, without a prefill engine.
        peer = self._router.peer_of(record, self._least_tokens)
        return peer is None or tokens - peer[1] >= self._least_tokens

    async def _compute(
        self, progress: RelayProgress, record: RoutingRecord, first: RoutingRecord
    ) -> DecodeReason | Literal["answered", "computed"]:
        """Try prefill engines, beginning with the choice `first`.

        Return "answered" if the client has its answer, "computed" if an engine has the prompt's state for the
        decode engine, and otherwise the reason why the decode engine has to compute the prompt.
        """
        tried: tuple[str, ...] = ()
        deaths = 0
        for number in range(1, self._max_attempts + 1):
            choice = self._router.decide_prefill(record, tried) if tried else first
            if not isinstance(choice, RoutingRecord):
                break
            outcome = await self._attempt(progress, choice, number)
            if outcome is None:
                return "answered"
            if isinstance(outcome, HandOver):
                return self._keep(progress, record, choice, outcome)
            tried = (*tried, choice.decision.endpoint.url)
            deaths += outcome.reason in ("died", "silent")
            if deaths >= MOST_DEATHS:
                progress.lost_engines = (choice.decision.endpoint.url,)
            if not outcome.elsewhere or deaths >= MOST_DEATHS or not self._budget.available:
                break
        return "failed"

    def _keep(
        self, progress: RelayProgress, record: RoutingRecord, choice: RoutingRecord, hand_over: HandOver
    ) -> Literal["computed", "nothing"]:
        """Record the state, if there is one, for the decode engine."""
        endpoint = choice.decision.endpoint
        progress.request.log_fields["prefill"] = endpoint.name
        progress.request.log_fields["handed_over"] = hand_over.depth
        self._metrics.hand_overs.labels("computed" if hand_over.depth else "nothing").inc()
        if not hand_over.depth:
            return "nothing"
        self._router.answered(choice, progress.request.prompt, hand_over)
        until = self._loop.time() + hand_over.lease_seconds
        progress.handed_over = HandedOver(hand_over, record, choice, until)
        return "computed"

    def _begin(self, progress: RelayProgress, record: RoutingRecord, number: int) -> Attempt:
        request, endpoint = progress.request, record.decision.endpoint
        ticket = self._router.sent(record, request.prompt)
        if request.permit is not None:
            request.permit.computing()
        span = request.trace.begin(names.GATEWAY_PREFILL, kind=SpanKind.CLIENT)
        if request.trace.recording:
            record.describe(span)
            span.set(names.HTTP_RESEND_COUNT, number - 1 or None)
        watch = SilenceWatch(self._liveness, endpoint.url, progress.task)
        return Attempt(record, endpoint, ticket, self._loop.time(), True, watch, span, source=EXPORT_HEADERS)

    async def _attempt(
        self, progress: RelayProgress, record: RoutingRecord, number: int
    ) -> HandOver | PrefillFailure | None:
        """Send the prompt to one prefill engine. None means that the client has received its answer."""
        attempt = self._begin(progress, record, number)
        url, request = attempt.endpoint.url, progress.request
        outcome: HandOver | PrefillFailure | None = None
        try:
            with attempt.watch:
                response, first = await ask(self._connector, url, request, attempt.span, attempt.source)
                attempt.response = response
                outcome = await self._judge(progress, attempt, response, first)
        except EngineUnreachable as error:
            self._liveness.doubt(url, attempt.sent_at)
            outcome = PrefillFailure("failed", "unreachable", str(error))
        except ConnectionLost as error:
            outcome = PrefillFailure("failed", "died", str(error))
        except IdleTimeout:
            outcome = PrefillFailure("failed", "silent", SILENT)
        except TimeoutError:
            if not attempt.watch.fired:
                raise
            outcome = PrefillFailure("failed", "silent", NO_LIVENESS)
        finally:
            if attempt.response is not None:
                attempt.response.close()
            if isinstance(outcome, PrefillFailure):
                self._record_failure(attempt, outcome, number)
            self._pool.end(url, attempt.ticket, failed=attempt.failed)
            request.trace.end(attempt.span)
        return outcome

    async def _judge(
        self, progress: RelayProgress, attempt: Attempt, response: UpstreamResponse, first: bytes
    ) -> HandOver | PrefillFailure | None:
        """Read the answer of a prefill engine. None means that it was sent to the client, as its mistake."""
        status = response.status
        attempt.span.set(names.HTTP_STATUS, status)
        if status == 200:
            hand_over = hand_over_of(await self._body(response, first))
            if hand_over is None:
                return PrefillFailure("failed", "refused", "it answered 200 without a hand-over")
            self._pool.response_started(attempt.endpoint.url, attempt.ticket)
            attempt.failed = False
            attempt.span.set(names.TOKENS_TO, hand_over.depth)
            return hand_over
        if not 400 <= status < 500:
            return PrefillFailure("failed", "refused", f"it answered {status}")
        if (failure := self._rejection(progress, attempt, response)) is not None:
            return failure
        self._metrics.hand_overs.labels("rejected").inc()
        await self._pass_on(progress, attempt, response, first)
        return None

    def _rejection(
        self, progress: RelayProgress, attempt: Attempt, response: UpstreamResponse
    ) -> PrefillFailure | None:
        """Return a failure if the rejection may be the engine's fault; None = it is the client's."""
        status, url = response.status, attempt.endpoint.url
        if is_over_own_limit(status, response.headers):
            return None
        full = is_full(status, response.headers)
        in_a_row = self._pool.reject(url, full=full)
        if full:
            return PrefillFailure("full", "rejected", f"it answered {status}")
        if status not in REFUSED_HERE and (in_a_row < SUSPICIOUS or not self._comparisons.available):
            return None
        # The answer of the decode engine shows whether the request or the engine was wrong.
        if self._comparisons.available:
            self._comparisons.record_retry()
            progress.comparison.begin(url)
        return PrefillFailure("rejected", "rejected", f"it answered {status}", elsewhere=False)

    async def _body(self, response: UpstreamResponse, first: bytes) -> bytes:
        """Return the body of the answer; empty if it is larger than a hand-over can be."""
        body = bytearray(first)
        while not response.complete and len(body) <= MAX_ANSWER_BYTES:
            part = await response.read()
            if not part:
                break
            body += part
        return bytes(body) if len(body) <= MAX_ANSWER_BYTES else b""

    def _record_failure(self, attempt: Attempt, failure: PrefillFailure, number: int) -> None:
        endpoint = attempt.endpoint
        attempt.span.fail(failure.reason)
        self._metrics.hand_overs.labels(failure.outcome).inc()
        self._metrics.retries.labels(failure.reason).inc()
        if failure.outcome == "failed":
            attempt.failed = True
            self._pool.suspect(endpoint.url, failure.detail)
            if failure.reason != "unreachable":
                self._budget.record_retry()
        log.warning(
            "prefill failed", endpoint=endpoint.name, reason=failure.reason, detail=failure.detail,
            attempt=number,
        )  # fmt: skip

    def _report_engine(self, *, ready: bool) -> None:
        """Log when no prefill engine is ready any more, and when one is ready again."""
        if self._without_engine == (not ready):
            return
        self._without_engine = not ready
        if ready:
            log.info("prefill engines are back")
        else:
            log.warning("no prefill engine is ready: decode engines compute the prompts")
