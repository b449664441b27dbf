"""The attempts of one relayed request and their outcomes: the values that the loop of the relay reads."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from mamba_edge.errors import ApiError
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.metrics.gateway_metrics import RetryReason
from mamba_gateway.relay.retry_limits import Comparison
from mamba_gateway.routing.routing_record import RoutingRecord
from mamba_gateway.upstream.deadlines import Interrupt
from mamba_gateway.upstream.request import UpstreamRequest
from mamba_gateway.upstream.response import UpstreamResponse
from mamba_gateway.upstream.silence import SilenceWatch
from mamba_telemetry.request_trace import SpanNote


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

    @property
    def tried(self) -> tuple[str, ...]:
        """URLs of the engines that get no further attempt."""
        return self.lost_engines + self.rejecting_engines


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
