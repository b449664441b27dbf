"""The attempts of one relayed request: the results so far, and the limits on further attempts.

The limits are a budget of retries, comparisons of rejections, and the memory of requests on which engines
have died. Used by the relay alone. Nothing here sends or waits.
"""

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from mamba_edge.errors import ApiError
from mamba_edge.exchange.explain_header import elsewhere_header
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.hand_over import HandOver
from mamba_gateway.metrics.gateway_metrics import RetryReason
from mamba_gateway.routing.decision import RoutingRecord
from mamba_gateway.shadow.shadow_copies import ShadowCopy
from mamba_gateway.upstream.connection import Pair, UpstreamResponse
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_gateway.upstream.deadlines import Interrupt
from mamba_gateway.upstream.silence import SilenceWatch
from mamba_telemetry.request_trace import SpanNote

REFUSED_HERE = frozenset((401, 403, 404, 429))
"""Statuses that may be caused by the engine rather than by the request, so that another engine is tried."""
NO_LIVENESS = "it was silent and did not say at /livez that it lives"
"""Reason in the log why an engine is given up that is silent and does not answer at `/livez`."""
WINDOW_SECONDS = 10.0
"""Seconds over which requests and retries are counted."""
RETRY_RATIO = 0.2
"""Allowed number of retries per request within the window."""
MIN_RETRIES = 10
"""Number of retries that are always allowed within the window, so that a gateway with few requests can
retry."""
REMEMBERED_SECONDS = 600.0
"""Seconds for which a request on which an engine has died is refused."""
MAX_REMEMBERED = 1024
"""Maximum number of such requests that are remembered; the oldest is dropped first."""


class RetryBudget:
    """Limit on the retries of one gateway: a share of its recent requests, plus a constant.

    Without it, engines that fail under load would get every request several times, and the additional load
    would keep them failing.
    """

    def __init__(self, clock: Callable[[], float], requests: deque[float] | None = None) -> None:
        """Create a budget. `requests`: times that another budget records; None = this one records them."""
        self._clock = clock
        self._requests: deque[float] = deque() if requests is None else requests
        self._retries: deque[float] = deque()

    def sharing_requests(self) -> "RetryBudget":
        """Return a separate budget for another kind of retries of the same requests."""
        return RetryBudget(self._clock, self._requests)

    def record_request(self) -> None:
        """Count a request that has arrived, of which a share may be tried again."""
        now, times = self._clock(), self._requests
        times.append(now)
        while times[0] <= now - WINDOW_SECONDS:
            times.popleft()

    def record_retry(self) -> None:
        """Count a retry."""
        self._retries.append(self._clock())

    @property
    def available(self) -> bool:
        """Whether one more retry is allowed."""
        if len(self._retries) < MIN_RETRIES:
            return True
        self._expire()
        return len(self._retries) < MIN_RETRIES + RETRY_RATIO * len(self._requests)

    def _expire(self) -> None:
        since = self._clock() - WINDOW_SECONDS
        for times in (self._requests, self._retries):
            while times and times[0] <= since:
                times.popleft()


class Comparison:
    """Comparison of one request that an engine rejected with the answer of another engine.

    The answer of the second engine shows whether the request or the first engine was wrong. The first engine
    gets no other request until `end` is called, which must happen however the request ends.
    """

    __slots__ = ("_pool", "_url")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._url = ""
        """Base URL of the engine that rejected the request; "" = there is nothing to compare."""

    def begin(self, url: str) -> None:
        """Record that the engine at `url` rejected the request, which is then sent to another engine."""
        self.end(took=False)
        self._url = url
        self._pool.begin_comparison(url)

    def end(self, *, took: bool | None) -> None:
        """Record whether the other engine accepted the request (`took`); None = it failed, no answer."""
        if self._url:
            url, self._url = self._url, ""
            self._pool.end_comparison(url, took=took)


class LostForms:
    """Requests with a prescribed form (such as a schema) on which an engine died, by digests of their bodies.

    Native code of the engine reads the form, so such a request is the likely cause. It is not sent to another
    engine, and is refused when it arrives again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: OrderedDict[bytes, float] = OrderedDict()

    def add(self, body: bytes) -> None:
        """Record that an engine died on the request with this body."""
        self._ended[hashlib.sha256(body).digest()] = self._clock()
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def __contains__(self, body: bytes) -> bool:
        if not self._ended:
            return False
        ended_at = self._ended.get(hashlib.sha256(body).digest())
        return ended_at is not None and self._clock() - ended_at < REMEMBERED_SECONDS


class RelayProgress(msgspec.Struct, eq=False):
    """Holds what the relay knows of one request: its limits, and the results of its attempts so far."""

    request: UpstreamRequest
    send: Send
    """ASGI function that sends the answer to the client."""
    task: asyncio.Task[Any]
    """The task that runs the request."""
    lifetime: Interrupt
    """Interrupt that ends the request when it has taken too long."""
    comparison: Comparison
    hold_until: float
    """Time of the event loop, in seconds, until which the request may wait for an engine."""
    number: int = 0
    """Number of the current attempt, from 1."""
    lost_engines: tuple[str, ...] = ()
    """URL of the engine that died or became silent on the request; at most one."""
    rejecting_engines: tuple[str, ...] = ()
    """URLs of the engines that rejected the request."""
    copy: ShadowCopy | None = None
    """Copy of the request that the candidate of a canary answers; None = there is none."""
    prefill_over: bool = False
    """Whether the prompt is sent to no further prefill engine."""
    handed_over: "HandedOver | None" = None
    """State that a prefill engine keeps for the request; None = the decode engine computes the prompt."""

    @property
    def tried(self) -> tuple[str, ...]:
        """URLs of the engines to which the request is not sent again."""
        return self.lost_engines + self.rejecting_engines


class HandedOver(msgspec.Struct):
    """Says where the state of a prompt is that a prefill engine has computed for the decode engine."""

    hand_over: HandOver
    first_choice: RoutingRecord
    """Choice of a decode engine that was made before the prompt was computed."""
    prefill: RoutingRecord
    """Choice of the prefill engine."""
    until: float
    """Time of the event loop, in seconds, at which the lease of the export ends."""
    read: bool = False
    """Whether an engine that died may have read the export, so that it is gone."""
    named: bool = False
    """Whether the client gets the answer of an engine that was given the export, and reads or releases it."""

    def header(self, now: float) -> Pair:
        """Return the header for the decode engine: it names the export, or the engine that has the state.

        `now` is the time of the event loop in seconds.
        """
        alive = not self.read and now < self.until
        return self.hand_over.header() if alive else self.hand_over.peer_header()


class Attempt(msgspec.Struct, eq=False):
    """One attempt to have one engine answer a request."""

    record: RoutingRecord
    """Decision by which the engine was chosen."""
    endpoint: Endpoint
    """The engine."""
    ticket: int
    """The request's ticket in the pool."""
    sent_at: float
    """Time of the event loop, in seconds, at which the request was sent."""
    last: bool
    """Whether no retry may follow."""
    watch: SilenceWatch
    span: SpanNote
    response: UpstreamResponse | None = None
    """Answer of the engine; None = it has not begun."""
    begun: bool = False
    """Whether the answer of this engine is being passed on to the client."""
    answered_at: float | None = None
    """Time of the event loop, in seconds, at which that began; None = it has not."""
    source: tuple[Pair, ...] = ()
    """Header that names the engine from which the state of the prompt can be fetched; empty = there is
    none."""
    fetchable: int = 0
    """Number of prompt tokens that this state covers."""
    failed: bool | None = None
    """Whether the engine failed the request; None = unknown, or a mistake of the client."""

    def added_headers(self, *, explain: bool) -> tuple[Pair, ...]:
        """Return the headers for this engine only. `explain`: also one that names a better engine, if any."""
        if explain and (elsewhere := self.record.elsewhere()) is not None:
            return (*self.source, elsewhere_header(elsewhere))
        return self.source


@dataclass(frozen=True, slots=True)
class Retry:
    """Tells the relay to try the request again, and how."""

    endpoint: Endpoint
    """Engine at which the attempt failed."""
    reason: RetryReason
    detail: str
    """Cause in words, for log and trace."""
    waits: bool = False
    """Whether the request first waits until an engine has room, and then starts again with all engines."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tells the relay to answer the client with an error."""

    error: ApiError
    cause: Exception


Failure = Retry | GiveUp
