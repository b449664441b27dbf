"""The allowance of one key: two buckets that fill up evenly over a minute, and the requests under way.

The same arithmetic stands here for one gateway alone and in `shared_allowance` as a script of Redis. A
request takes one request from the first bucket and the tokens of its prompt from the second at once. At its
end the tokens that it used beyond that are taken off, so the second bucket may run into debt, for which the
next requests wait.
"""

import math
from dataclasses import dataclass, field

from mamba_gateway.key_limits import KeyLimits

MINUTE = 60.0
LONGEST_DEBT = 86_400.0
"""Longest time that a key waits for tokens that it used beyond its limit; a larger debt is forgotten."""
REFUSALS = frozenset(("", "requests", "tokens", "concurrent"))
LEAVE_SECONDS = 2.0
"""Longest wait for Redis where no request waits for it."""
LEASE_SECONDS = 30
"""Time for which a request counts as under way at a gateway that has gone silent."""


@dataclass(frozen=True, slots=True)
class AllowanceResult:
    """The result of counting one request."""

    refused: str = ""
    """The limit that is used up: requests, tokens or concurrent; "" = the request may go."""
    requests: float = 0.0
    """Level of the bucket of requests."""
    tokens: float = 0.0
    """Level of the bucket of tokens; below 0 = debt."""


@dataclass(slots=True)
class KeyAllowance:
    """The allowance of one key at one gateway. Times are monotonic seconds."""

    updated_at: float
    requests: float = math.inf
    """Level of the bucket of requests, full at first: it is cut to the bucket's size when it is first
    used."""
    tokens: float = math.inf
    leases: set[str] = field(default_factory=set)
    """Leases of the requests under way."""

    def enter(self, lease: str, cost: float, limits: KeyLimits, now: float) -> AllowanceResult:
        """Take the tokens and the place of a request from the buckets, or nothing."""
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
        """Take the tokens and the place of a request that goes."""
        self.requests -= 1
        self.tokens -= cost
        self.leases.add(lease)

    def leave(self, lease: str, more: float, limits: KeyLimits, now: float) -> None:
        """Record the end of a request that used `more` tokens beyond its cost."""
        self.refill(limits, now)
        self.leases.discard(lease)
        self.tokens -= more
        self.refill(limits, now)

    def follow(self, verdict: AllowanceResult, lease: str | None, now: float) -> None:
        """Take over the levels that all gateways count together; `lease` is under way now."""
        self.updated_at, self.requests, self.tokens = now, verdict.requests, verdict.tokens
        if lease is not None:
            self.leases.add(lease)

    def refill(self, limits: KeyLimits, now: float) -> None:
        """Fill the buckets up to the time `now`."""
        passed, self.updated_at = max(0.0, now - self.updated_at), now
        self.requests = _filled(self.requests, limits.requests_per_minute, passed)
        self.tokens = _filled(self.tokens, limits.tokens_per_minute, passed)


def _filled(level: float, limit: int | None, passed: float) -> float:
    return math.inf if limit is None else bounded(level + passed * limit / MINUTE, limit)


def bounded(level: float, limit: int) -> float:
    """Return the level within what a bucket of this size can have, from the largest debt to full."""
    return min(float(limit), max(level, -limit * LONGEST_DEBT / MINUTE))


def seconds_until(level: float, target: float, limit: int) -> float:
    """Return the seconds until a bucket is refilled from `level` to `target`, at `limit` per minute."""
    return max(0.0, (target - level) * MINUTE / limit)
