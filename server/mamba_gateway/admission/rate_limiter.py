"""`RateLimiter`: admits a request within the limits of its key, or refuses it, and counts its usage.

Limits are counted in Redis if there is one, and locally, from the last known state, while it is unreachable.
Used by the proxy endpoint and the endpoint picker. Knows names of keys, never the keys.
"""

import asyncio
import itertools
import math
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from mamba_gateway.admission.allowance import (
    LEASE_SECONDS,
    LEAVE_SECONDS,
    AllowanceResult,
    KeyAllowance,
    seconds_until,
)
from mamba_gateway.errors import KeyOverLimit
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_prefix.errors import RedisAway

if TYPE_CHECKING:
    # The module imports the client of Redis, which is large.
    from mamba_gateway.admission.shared_allowance import SharedAllowances

log = structlog.get_logger("mambaserve.gateway")

AWAY_SECONDS = 2.0
"""Time for which Redis is left alone after it did not answer."""
SERVICE_SHARE = 0.1
"""Share of the difference by which a request moves the mean time of its key's requests."""
_LIMIT_NAMES = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrent": "requests at once",
}


@dataclass(slots=True)
class RequestCharge:
    """The charge of one request that was admitted to the limits of its key."""

    cost: float
    """Tokens that were taken for the request in advance."""
    used: float = 0.0
    """Tokens that the request used; set before the end."""


class _UnlimitedScope(AbstractAsyncContextManager[RequestCharge]):
    """The block of a request of a key without limits: nothing is counted."""

    def __init__(self, cost: float) -> None:
        self._entry = RequestCharge(cost)

    async def __aenter__(self) -> RequestCharge:
        return self._entry

    async def __aexit__(self, *_: object) -> None:
        return


class RateLimiter:
    """The rate limiter of one gateway."""

    def __init__(
        self,
        table: KeyLimitTable,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        shared: "SharedAllowances | None" = None,
    ) -> None:
        self._table, self._metrics, self._clock, self._shared = table, metrics, clock, shared
        self._allowances: dict[str, KeyAllowance] = {}
        self._gateway = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._away_until = -math.inf
        self._seconds: dict[str, float] = {}
        """Recent mean time of a request in seconds, by name of its key."""
        self._settling: set[asyncio.Task[None]] = set()

    def entered(
        self, name: str, cost: float, headers: list[tuple[bytes, bytes]]
    ) -> AbstractAsyncContextManager[RequestCharge]:
        """Count a request of the key `name` that needs about `cost` tokens as under way in the block.

        `headers` gets the rate-limit headers of every answer, of a refusal too. Raises KeyOverLimit, with the
        time after which the request would pass.
        """
        limits = self._table.limits_of(name)
        return self._counted(name, cost, headers, limits) if limits.limited else _UnlimitedScope(cost)

    @asynccontextmanager
    async def _counted(
        self, name: str, cost: float, headers: list[tuple[bytes, bytes]], limits: KeyLimits
    ) -> AsyncIterator[RequestCharge]:
        entry = RequestCharge(cost)
        lease = f"{self._gateway}-{next(self._numbers)}"
        verdict = await self._verdict(name, lease, cost, limits)
        headers += _headers(verdict, limits)
        if verdict.refused:
            self._metrics.refused.labels(verdict.refused, name).inc()
            raise self._refusal(name, verdict, cost, limits)
        begin = self._clock()
        try:
            yield entry
        finally:
            now = self._clock()
            usual = self._seconds.get(name, 1.0)
            self._seconds[name] = usual + SERVICE_SHARE * (now - begin - usual)
            self._leave(name, lease, entry.used - cost, limits, now)

    def limits_of(self, name: str) -> KeyLimits:
        """Return the limits of a key."""
        return self._table.limits_of(name)

    async def work(self) -> None:
        """Renew the leases of the requests under way, for ever; ends only by cancellation."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            for name, allowance in list(self._allowances.items()):
                counted = self._table.limits_of(name).concurrent_requests is not None
                if self._shared is None or not counted or not allowance.leases or self.away:
                    continue
                try:
                    await self._shared.renew(name, tuple(allowance.leases))
                except RedisAway as error:
                    self._on_away(error)

    async def close(self) -> None:
        """Finish the writes to Redis that are under way, and close its client."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=LEAVE_SECONDS)
        if self._shared is not None:
            await self._shared.close()

    @property
    def idle(self) -> bool:
        """Whether the usage of every request that ended is written."""
        return not self._settling

    @property
    def away(self) -> bool:
        """Whether Redis did not answer a moment ago."""
        return self._clock() < self._away_until

    async def _verdict(self, name: str, lease: str, cost: float, limits: KeyLimits) -> AllowanceResult:
        now = self._clock()
        local = self._allowances.setdefault(name, KeyAllowance(now))
        if self._shared is not None:
            if not self.away:
                entering = asyncio.create_task(self._shared.enter(name, lease, cost, limits))
                try:
                    verdict = await asyncio.shield(entering)
                except RedisAway as error:
                    self._on_away(error)
                except asyncio.CancelledError:
                    # The request may have been admitted by then, and nothing else records that it left.
                    self._settle(self._undo(entering, name, lease, cost, limits))
                    raise
                else:
                    local.follow(verdict, None if verdict.refused else lease, self._clock())
                    return verdict
            self._metrics.counted_here.inc()
        return local.enter(lease, cost, limits, self._clock())

    async def _undo(
        self, entering: "asyncio.Task[AllowanceResult]", name: str, lease: str, cost: float, limits: KeyLimits
    ) -> None:
        try:
            if not (await entering).refused and self._shared is not None:
                await self._shared.leave(name, lease, -cost, limits)
        except RedisAway as error:
            self._on_away(error)

    def _leave(self, name: str, lease: str, more: float, limits: KeyLimits, now: float) -> None:
        self._allowances[name].leave(lease, more, limits, now)
        if self._shared is not None and not self.away:
            self._settle(self._report_leave(name, lease, more, limits))

    async def _report_leave(self, name: str, lease: str, more: float, limits: KeyLimits) -> None:
        if self._shared is None:
            return
        try:
            verdict = await self._shared.leave(name, lease, more, limits)
        except RedisAway as error:
            self._on_away(error)
        else:
            self._allowances[name].follow(verdict, None, self._clock())

    def _settle(self, work: Coroutine[Any, Any, None]) -> None:
        # No request waits for this write.
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _on_away(self, error: RedisAway) -> None:
        if not self.away:
            log.warning("limits are counted by this gateway alone", reason=str(error))
        self._away_until = self._clock() + AWAY_SECONDS

    def _refusal(self, name: str, verdict: AllowanceResult, cost: float, limits: KeyLimits) -> KeyOverLimit:
        what = verdict.refused
        if what == "concurrent":
            limit = limits.concurrent_requests or 1
            wait = self._seconds.get(name, 1.0) / limit
        elif what == "requests":
            limit = limits.requests_per_minute or 1
            wait = seconds_until(verdict.requests, 1.0, limit)
        else:
            limit = limits.tokens_per_minute or 1
            wait = seconds_until(verdict.tokens, min(cost, limit), limit)
        return KeyOverLimit(
            f"this key may have {limit} {_LIMIT_NAMES[what]}; try again in {max(1, math.ceil(wait))} s",
            retry_after=wait,
        )


def _headers(verdict: AllowanceResult, limits: KeyLimits) -> Iterator[tuple[bytes, bytes]]:
    for of, level, limit in (
        ("requests", verdict.requests, limits.requests_per_minute),
        ("tokens", verdict.tokens, limits.tokens_per_minute),
    ):
        if limit is not None:
            values = (str(limit), str(max(0, int(level))), duration(seconds_until(level, limit, limit)))
            for what, value in zip(("limit", "remaining", "reset"), values, strict=True):
                yield f"x-ratelimit-{what}-{of}".encode(), value.encode()


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: 20ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds * 10) / 10, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{round(rest, 1):g}s"
