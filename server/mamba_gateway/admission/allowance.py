"""The allowance of one API key: two buckets that are refilled over a minute, and the requests under way.

This module computes for a gateway alone what a script in `shared_allowance` computes in Redis for several. A
lease is the name under which a request counts as under way until it ends. Each request takes one unit from
the bucket of requests, and the tokens of its prompt from the bucket of tokens. When the request has ended,
the tokens that it used beyond that are subtracted as well, so the bucket of tokens may become negative (a
debt). Later requests of the key wait until the debt is refilled.
"""

import math
from dataclasses import dataclass, field

from mamba_gateway.key_limits import KeyLimits

MINUTE = 60.0
LONGEST_DEBT = 86_400.0
"""Longest time, in seconds, that a key waits for a debt to be refilled. A larger debt is reduced to that."""
REFUSALS = frozenset(("", "requests", "tokens", "concurrent"))
LEAVE_SECONDS = 2.0
"""Longest time, in seconds, to wait for Redis in work that no request waits for."""
LEASE_SECONDS = 30
"""Seconds for which a request still counts as under way after its gateway has stopped renewing it."""


@dataclass(frozen=True, slots=True)
class AllowanceResult:
    """Says whether a request is within the limits of its key, and what is left of these."""

    refused: str = ""
    """Limit that is used up: "requests", "tokens" or "concurrent"; "" = the request is within all limits."""
    requests: float = 0.0
    """Requests left in the bucket."""
    tokens: float = 0.0
    """Tokens left in the bucket; a negative number is a debt."""


@dataclass(slots=True)
class KeyAllowance:
    """Counts what one API key may still use, as far as one gateway knows.

    Times are monotonic, in seconds.
    """

    updated_at: float
    """Time up to which the buckets were refilled."""
    requests: float = math.inf
    """Requests left in the bucket. The initial infinity is reduced to the size of the bucket at the first
    use."""
    tokens: float = math.inf
    """Tokens left in the bucket; negative = a debt. The initial infinity is reduced likewise."""
    leases: set[str] = field(default_factory=set)
    """Identifiers of the requests under way."""

    def enter(self, lease: str, cost: float, limits: KeyLimits, now: float) -> AllowanceResult:
        """Count a request with `cost` tokens if it is within all limits; otherwise change nothing.

        `lease` is the name by which the request ends. `now` is the time of the clock in seconds.
        """
        self.refill(limits, now)
        refused = ""
        if limits.concurrent_requests is not None and len(self.leases) >= limits.concurrent_requests:
            refused = "concurrent"
        elif limits.requests_per_minute is not None and self.requests < 1:
            refused = "requests"
        elif limits.tokens_per_minute is not None and self.tokens < min(cost, limits.tokens_per_minute):
            refused = "tokens"
        else:
            self.take(lease, cost)
        return AllowanceResult(refused, self.requests, self.tokens)

    def take(self, lease: str, cost: float) -> None:
        """Subtract a request and its tokens from the buckets, and record the request as under way."""
        self.requests -= 1
        self.tokens -= cost
        self.leases.add(lease)

    def leave(self, lease: str, more: float, limits: KeyLimits, now: float) -> None:
        """Record the end of a request that used `more` tokens beyond its cost, at `now` seconds."""
        self.refill(limits, now)
        self.leases.discard(lease)
        self.tokens -= more
        self.refill(limits, now)

    def follow(self, verdict: AllowanceResult, lease: str | None, now: float) -> None:
        """Adopt the levels that Redis counts for all gateways at `now` seconds.

        `verdict` is the answer of Redis to a request, and `lease` the request that has just been admitted;
        None if none was.
        """
        self.updated_at, self.requests, self.tokens = now, verdict.requests, verdict.tokens
        if lease is not None:
            self.leases.add(lease)

    def refill(self, limits: KeyLimits, now: float) -> None:
        """Refill the buckets up to `now` seconds."""
        passed, self.updated_at = max(0.0, now - self.updated_at), now
        self.requests = _filled(self.requests, limits.requests_per_minute, passed)
        self.tokens = _filled(self.tokens, limits.tokens_per_minute, passed)


def _filled(level: float, limit: int | None, passed: float) -> float:
    return math.inf if limit is None else bounded(level + passed * limit / MINUTE, limit)


def bounded(level: float, limit: int) -> float:
    """Return the level, limited to the range from the largest debt to a full bucket."""
    return min(float(limit), max(level, -limit * LONGEST_DEBT / MINUTE))


def seconds_until(level: float, target: float, limit: int) -> float:
    """Return the seconds until a bucket is refilled from `level` to `target`, at `limit` per minute."""
    return max(0.0, (target - level) * MINUTE / limit)
