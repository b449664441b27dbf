"""`RateLimiter`: admits a request within the limits of its API key or refuses it, and counts its tokens.

The limits are counted in Redis if there is one. While Redis cannot be reached, this gateway counts alone,
from the last known numbers. A request under way has a lease in Redis, which its gateway renews. Used by the
proxy endpoint and the endpoint picker. Knows the names of keys, never the keys.
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
    # This is for type checkers alone: the module imports the client of Redis, which is large.
    from mamba_gateway.admission.shared_allowance import SharedAllowances

log = structlog.get_logger("mambaserve.gateway")

AWAY_SECONDS = 2.0
"""Seconds for which Redis is not used after it has failed to answer."""
SERVICE_SHARE = 0.1
"""Weight of the newest request in the running average of the duration of its key's requests."""
_LIMIT_NAMES = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrent": "requests at once",
}


@dataclass(slots=True)
class RequestCharge:
    """Tokens that one request takes from the allowance of its key."""

    cost: float
    """Number of tokens that were subtracted in advance."""
    used: float = 0.0
    """Number of tokens that the request used; set before the request ends."""


class _UnlimitedScope(AbstractAsyncContextManager[RequestCharge]):
    """Takes the place of counting for a request whose key has no limits."""

    def __init__(self, cost: float) -> None:
        self._entry = RequestCharge(cost)

    async def __aenter__(self) -> RequestCharge:
        return self._entry

    async def __aexit__(self, *_: object) -> None:
        return


class RateLimiter:
    """Admits or refuses requests by the limits of their API keys, and counts their tokens.

    It counts in `shared`, which is Redis; without `shared`, or while Redis is away, for this gateway alone.
    """

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
        """Running average of the duration of requests in seconds, by name of their key."""
        self._settling: set[asyncio.Task[None]] = set()

    def entered(
        self, name: str, cost: float, headers: list[tuple[bytes, bytes]]
    ) -> AbstractAsyncContextManager[RequestCharge]:
        """Count a request of the key `name` with about `cost` tokens as under way in the block.

        The rate-limit headers of the answer, or of the refusal, are added to `headers`. Raises KeyOverLimit,
        which says when the request would be within the limits.
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
        """Renew the leases of the requests under way until the task is cancelled."""
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
        """Wait at most `LEAVE_SECONDS` for the pending writes to Redis, and close its client."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=LEAVE_SECONDS)
        if self._shared is not None:
            await self._shared.close()

    @property
    def idle(self) -> bool:
        """Whether the tokens of every ended request have been written."""
        return not self._settling

    @property
    def away(self) -> bool:
        """Whether Redis failed to answer within the last `AWAY_SECONDS`."""
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
