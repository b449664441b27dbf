"""The attempts of one relayed request: what has come of them so far, and what limits further ones.

Limits are a budget, a comparison of rejections, and the memory of requests that end engines. Used by the
relay alone. Nothing here sends or waits.
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
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.hand_over import HandOver
from mamba_gateway.metrics.gateway_metrics import RetryReason
from mamba_gateway.routing.decision import RoutingRecord
from mamba_gateway.upstream.connection import Pair, UpstreamResponse
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_gateway.upstream.deadlines import Interrupt
from mamba_gateway.upstream.silence import SilenceWatch
from mamba_telemetry.request_trace import SpanNote

REFUSED_HERE = frozenset((401, 403, 404, 429))
"""Statuses that rather speak of the engine than of the request, and are compared with another engine's."""
NO_LIVENESS = "it was silent and did not say at /livez that it lives"
"""Why an engine is given up that no connection and no answer speaks for."""
WINDOW_SECONDS = 10.0
"""Period over which requests and retries are counted."""
RETRY_RATIO = 0.2
"""Retries allowed per request in the window."""
MIN_RETRIES = 10
"""Retries allowed in the window whatever the number of requests, so that an idle gateway can retry."""
REMEMBERED_SECONDS = 600.0
"""Time for which a request on which an engine ended is refused."""
MAX_REMEMBERED = 1024
"""Largest number of such requests that are remembered; the oldest is dropped first."""


class RetryBudget:
    """Limits the retries of one gateway to a share of its recent requests plus a constant.

    Without a limit, a fleet that fails everything would get each request several times, and the load would
    keep it failing.
    """

    def __init__(self, clock: Callable[[], float], requests: deque[float] | None = None) -> None:
        """Share `requests`, the times that another budget records, or record them if `requests` is None."""
        self._clock = clock
        self._requests: deque[float] = deque() if requests is None else requests
        self._retries: deque[float] = deque()

    def sharing_requests(self) -> "RetryBudget":
        """Return a budget of its own for other retries of the same requests, which this one records."""
        return RetryBudget(self._clock, self._requests)

    def record_request(self) -> None:
        """Count a request that has arrived."""
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
    """A request that one engine rejected and that another engine has: its answer tells whose fault it was.

    The engine that rejected the request gets no other one meanwhile, so `end` follows, however the request
    ends.
    """

    __slots__ = ("_pool", "_url")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._url = ""
        """Base URL of the engine that rejected the request; "" = there is nothing to compare."""

    def begin(self, url: str) -> None:
        """Record that this engine rejected the request, which another one gets."""
        self.end(took=False)
        self._url = url
        self._pool.begin_comparison(url)

    def end(self, *, took: bool | None) -> None:
        """Record whether the other engine took the request; None = it failed."""
        if self._url:
            url, self._url = self._url, ""
            self._pool.end_comparison(url, took=took)


class LostForms:
    """The requests with a form on which an engine ended, by the digests of their bodies.

    Native code reads a form, so such a request is the first suspect. It is not sent to the next engine, nor
    when it comes again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: OrderedDict[bytes, float] = OrderedDict()

    def add(self, body: bytes) -> None:
        """Record that an engine ended on the request with this body."""
        self._ended[hashlib.sha256(body).digest()] = self._clock()
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def __contains__(self, body: bytes) -> bool:
        if not self._ended:
            return False
        ended_at = self._ended.get(hashlib.sha256(body).digest())
        return ended_at is not None and self._clock() - ended_at < REMEMBERED_SECONDS


class RelayProgress(msgspec.Struct, eq=False):
    """One request under way in the relay, with what its attempts have come to so far."""

    request: UpstreamRequest
    send: Send
    """The client's side, which gets the answer."""
    task: asyncio.Task[Any]
    """The task that runs the request."""
    lifetime: Interrupt
    """Ends the request at its longest life."""
    comparison: Comparison
    hold_until: float
    """Time of the loop until which the request may wait for an engine, in seconds."""
    number: int = 0
    """Number of the attempt that runs, from 1."""
    lost_engines: tuple[str, ...] = ()
    """URL of the engine that died or fell silent on the request; at most one."""
    rejecting_engines: tuple[str, ...] = ()
    """URLs of the engines that rejected the request."""
    prefill_over: bool = False
    """Whether no prefill engine gets the prompt any more."""
    handed_over: "HandedOver | None" = None
    """The state that a prefill engine holds; None = the engine that answers computes the prompt."""

    @property
    def tried(self) -> tuple[str, ...]:
        """URLs of the engines that get no further attempt."""
        return self.lost_engines + self.rejecting_engines


class HandedOver(msgspec.Struct):
    """The state of a prompt that a prefill engine holds for the engine that will answer."""

    hand_over: HandOver
    first_choice: RoutingRecord
    """The choice of a decode engine before the prompt was computed."""
    prefill: RoutingRecord
    """The choice of the prefill engine."""
    until: float
    """Time of the loop at which the lease of the export ends, in seconds."""
    read: bool = False
    """Whether an engine that died may have read the export, so that it is gone."""
    named: bool = False
    """Whether the client gets the answer of an engine that was given the export, and reads or releases it."""

    def header(self, now: float) -> Pair:
        """Return the header for the engine that answers: the export, or the engine that has the state."""
        alive = not self.read and now < self.until
        return self.hand_over.header() if alive else self.hand_over.peer_header()


class Attempt(msgspec.Struct, eq=False):
    """One attempt: the request at one engine."""

    record: RoutingRecord
    """The decision for the engine."""
    endpoint: Endpoint
    """The engine."""
    ticket: int
    """The request's ticket in the pool."""
    sent_at: float
    """Time of the loop, in seconds."""
    last: bool
    """Whether no retry may follow."""
    watch: SilenceWatch
    span: SpanNote
    response: UpstreamResponse | None = None
    """The engine's response; None = it has not begun."""
    begun: bool = False
    """Whether the client gets this engine's answer."""
    source: tuple[Pair, ...] = ()
    """The header that names where the engine can fetch the state of the prompt."""
    fetchable: int = 0
    """Tokens that it covers."""
    failed: bool | None = None
    """Whether the engine failed the request; None = unknown, or a mistake of the client."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The request is to be tried again."""

    endpoint: Endpoint
    """The engine that failed it."""
    reason: RetryReason
    detail: str
    waits: bool = False
    """Whether the request first waits until some engine has a place, and then begins again."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request has failed, and its client gets an error."""

    error: ApiError
    cause: Exception


Failure = Retry | GiveUp
