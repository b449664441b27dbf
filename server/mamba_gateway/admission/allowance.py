"""What is left to one key: two buckets that fill up evenly over a minute, and the requests under way.

One arithmetic in two places: here for one gateway alone, in `shared_allowance` as a script of Redis. A
request takes its place in the first bucket and the tokens of its prompt in the second at once; what it turns
out to have used is taken off at its end, so the second may run into debt, which the next ones wait for.
"""

import math
from dataclasses import dataclass, field

from mamba_gateway.key_limits import KeyLimits

MINUTE = 60.0
LONGEST_DEBT = 86_400.0
"""Seconds that a key waits at most for what it used beyond its tokens; what it owes beyond is forgotten."""
REFUSALS = frozenset(("", "requests", "tokens", "concurrent"))
LEAVE_SECONDS = 2.0
"""Longest wait for Redis where no request waits for it."""
LEASE_SECONDS = 30
"""How long a request counts as under way at a gateway that is not heard of any more."""


@dataclass(frozen=True, slots=True)
class AllowanceResult:
    """On one request."""

    refused: str = ""
    """What there is too little of: requests, tokens or concurrent; "" = it may go."""
    requests: float = 0.0
    """Left in the bucket, as of now."""
    tokens: float = 0.0
    """The same; below 0 = debt."""


@dataclass(slots=True)
class KeyAllowance:
    """Of one key at one gateway. Times are monotonic seconds."""

    updated_at: float
    requests: float = math.inf
    """Full at first: cut to the bucket's size at the first look."""
    tokens: float = math.inf
    leases: set[str] = field(default_factory=set)
    """Requests under way."""

    def enter(self, lease: str, cost: float, limits: KeyLimits, now: float) -> AllowanceResult:
        """Take what a request needs, or nothing."""
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
        """The request goes."""
        self.requests -= 1
        self.tokens -= cost
        self.leases.add(lease)

    def leave(self, lease: str, more: float, limits: KeyLimits, now: float) -> None:
        """It has ended, and used so many tokens more than was taken for it."""
        self.refill(limits, now)
        self.leases.discard(lease)
        self.tokens -= more
        self.refill(limits, now)

    def follow(self, verdict: AllowanceResult, lease: str | None, now: float) -> None:
        """Take over what is left by the count of all; `lease` is under way now."""
        self.updated_at, self.requests, self.tokens = now, verdict.requests, verdict.tokens
        if lease is not None:
            self.leases.add(lease)

    def refill(self, limits: KeyLimits, now: float) -> None:
        """Up to now."""
        passed, self.updated_at = max(0.0, now - self.updated_at), now
        self.requests = _filled(self.requests, limits.requests_per_minute, passed)
        self.tokens = _filled(self.tokens, limits.tokens_per_minute, passed)


def _filled(level: float, limit: int | None, passed: float) -> float:
    return math.inf if limit is None else bounded(level + passed * limit / MINUTE, limit)


def bounded(level: float, limit: int) -> float:
    """Cut a level to what a bucket of this size can have: no more than fits, no longer a debt than counts."""
    return min(float(limit), max(level, -limit * LONGEST_DEBT / MINUTE))


def seconds_until(level: float, target: float, limit: int) -> float:
    """Seconds until a bucket is refilled from `level` to `target`, at `limit` per minute."""
    return max(0.0, (target - level) * MINUTE / limit)
