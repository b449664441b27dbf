"""Allowances of API keys in Redis: all gateways of one scope count together, each request in one atomic step.

Redis holds names of keys and numbers, never a key. A request counts as under way by a lease, which its
gateway renews; the leases of a gateway that was killed expire. Anybody with the password of Redis could write
there. So numbers that no gateway can have written are limited to what a bucket can hold, and leases that end
later than any lease does are removed: a key has its full allowance again within a day. Every failure raises
RedisAway.
"""

import math
from collections.abc import Iterable
from typing import Any

from redis.exceptions import RedisError

from mamba_gateway.admission.allowance import (
    LEASE_SECONDS,
    LEAVE_SECONDS,
    REFUSALS,
    AllowanceResult,
    bounded,
)
from mamba_gateway.key_limits import KeyLimits
from mamba_prefix.errors import RedisAway
from mamba_prefix.redis_client import Client, answers_within

ENTER_SECONDS = 0.2
"""Longest time, in seconds, that a request waits for Redis before this gateway counts alone."""

_FILL = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local limits = {r = tonumber(ARGV[1]), t = tonumber(ARGV[2])}
local had = redis.call('HMGET', KEYS[1], 'r', 't', 'at')
local passed = math.max(0, now - (tonumber(had[3]) or now))
local function bounded(name, level)
  if level ~= level then return limits[name] end
  return math.min(limits[name], math.max(-limits[name] * 1440, level))
end
local function filled(name, level)
  return bounded(name, (tonumber(level) or limits[name]) + passed * limits[name] / 60)
end
local r, t = filled('r', had[1]), filled('t', had[2])
local function keep()
  t = bounded('t', t)
  redis.call('HSET', KEYS[1], 'r', tostring(r), 't', tostring(t), 'at', string.format('%.6f', now))
  local debt = limits.t > 0 and math.max(0, -t * 60 / limits.t) or 0
  redis.call('PEXPIRE', KEYS[1], math.ceil(debt + 120) * 1000)
end
"""
_ENTER = (
    _FILL
    + """
local most, cost, lease, life = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], now + 2 * life, '+inf')
local refused = ''
if most > 0 and redis.call('ZCARD', KEYS[2]) >= most then refused = 'concurrent'
elseif limits.r > 0 and r < 1 then refused = 'requests'
elseif limits.t > 0 and t < math.min(cost, limits.t) then refused = 'tokens'
else
  r, t = r - 1, t - cost
  if most > 0 then
    redis.call('ZADD', KEYS[2], now + life, lease)
    redis.call('PEXPIRE', KEYS[2], life * 1000)
  end
end
keep()
return {refused, tostring(r), tostring(t)}
"""
)
# A Redis that is full lets a script write on that has begun with what needs no memory. So each of them does.
_LEAVE = (
    "redis.call('ZREM', KEYS[2], ARGV[4])"
    + _FILL
    + """
t = math.min(limits.t, t - tonumber(ARGV[3]))
keep()
return {'', tostring(r), tostring(t)}
"""
)
_RENEW = """
local time = redis.call('TIME')
local life = tonumber(ARGV[1])
redis.call('PEXPIRE', KEYS[1], life * 1000)
for at = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', tonumber(time[1]) + life, ARGV[at]) end
return 0
"""


class SharedAllowances:
    """Counts in Redis what API keys have used, for all gateways of one `scope` together.

    Redis has `enter_seconds` to answer whether a request is within the limits.
    """

    def __init__(self, client: Client, scope: str, enter_seconds: float = ENTER_SECONDS) -> None:
        self._client, self._enter_seconds = client, enter_seconds
        self._scope = scope.replace("{", "(").replace("}", ")")

    async def enter(self, name: str, lease: str, cost: float, limits: KeyLimits) -> AllowanceResult:
        """Count a request with `cost` tokens if it is within all limits. Raises RedisAway."""
        most = limits.concurrent_requests or 0
        arguments = (*_bucket_sizes(limits), most, f"{cost:.0f}", lease, LEASE_SECONDS)
        return _verdict(await self._eval(self._enter_seconds, _ENTER, self._keys(name), arguments), limits)

    async def leave(self, name: str, lease: str, more: float, limits: KeyLimits) -> AllowanceResult:
        """Record the end of a request that used `more` tokens beyond its cost. Raises RedisAway."""
        arguments = (*_bucket_sizes(limits), f"{more:.0f}", lease)
        return _verdict(await self._eval(LEAVE_SECONDS, _LEAVE, self._keys(name), arguments), limits)

    async def renew(self, name: str, leases: Iterable[str]) -> None:
        """Renew the leases of requests under way. Raises RedisAway."""
        await self._eval(LEAVE_SECONDS, _RENEW, self._keys(name)[1:], (LEASE_SECONDS, *leases))

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._client.aclose()

    def _keys(self, name: str) -> tuple[str, str]:
        # The common hash tag keeps both keys on one node of a Redis cluster.
        tagged = f"mambaserve:limits:1:{{{self._scope}:{name}}}"
        return f"{tagged}:left", f"{tagged}:running"

    async def _eval(
        self, seconds: float, script: str, keys: tuple[str, ...], arguments: tuple[Any, ...]
    ) -> Any:
        try:
            async with answers_within(seconds):
                return await self._client.eval(script, len(keys), *keys, *arguments)
        except (RedisError, OSError, TimeoutError, ValueError, IndexError) as error:
            raise RedisAway(f"{type(error).__name__}: {error}") from error


def _bucket_sizes(limits: KeyLimits) -> tuple[int, int]:
    return limits.requests_per_minute or 0, limits.tokens_per_minute or 0


def _verdict(answer: Any, limits: KeyLimits) -> AllowanceResult:
    try:
        refused, requests, tokens = (part.decode() for part in answer)
        if refused not in REFUSALS:
            raise ValueError(f"refused for {refused[:40]!r}")
        return AllowanceResult(
            refused, _level(requests, limits.requests_per_minute), _level(tokens, limits.tokens_per_minute)
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise RedisAway(f"Redis did not give the answer of the script that counts: {error}") from error


def _level(text: str, limit: int | None) -> float:
    if limit is None:
        return math.inf
    level = float(text)
    if math.isnan(level):
        raise ValueError("the level is not a number")
    return bounded(level, limit)
