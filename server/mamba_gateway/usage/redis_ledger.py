"""`RedisLedger`: the entries of a ledger in Redis, shared by all gateways of one scope.

One hash for each day, whose fields name an engine process, model, key and adapter. A script compares the
revisions, so two gateways that report the same engine at once leave the newer entry. Redis holds names of
keys and numbers, never a key. A day expires by itself. Anybody with the password of Redis could write there,
so fields that no gateway can have written are left out. Every failure is a LedgerAway.
"""

from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any, cast

import msgspec
from redis.exceptions import RedisError

from mamba_edge.usage.usage_sum import UsageFeed, UsageSum
from mamba_gateway.errors import LedgerAway
from mamba_gateway.usage.ledger_store import LedgerEntry, field_of
from mamba_prefix.redis_client import Client, answers_within

LEDGER_SECONDS = 2.0
"""Longest wait for Redis."""
DAY_SECONDS = 86_400
_PUT = """
local function revision(value) return tonumber(string.match(value, '^%d+')) or 0 end
for at = 2, #ARGV, 2 do
  local before = redis.call('HGET', KEYS[1], ARGV[at])
  if not before or revision(before) < revision(ARGV[at + 1]) then
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 0
"""


class RedisLedger:
    """Entries of one `scope`. `days`: number of days that are kept."""

    def __init__(self, client: Client, scope: str, days: int) -> None:
        self._client, self._seconds = client, (days + 1) * DAY_SECONDS
        self._scope = scope.replace("{", "(").replace("}", ")")

    async def put(self, feed: UsageFeed) -> None:
        """Keep the entries that an engine reports, where they are newer. Raises LedgerAway."""
        by_day: defaultdict[str, list[str]] = defaultdict(list)
        for entry in feed.entries:
            named = LedgerEntry(feed.incarnation, feed.model, entry.key, entry.adapter, 0, entry.total)
            numbers = (entry.revision, *msgspec.structs.astuple(entry.total))
            by_day[entry.day] += [field_of(named), " ".join(map(str, numbers))]
        for day, pairs in by_day.items():
            await self._answer(self._client.eval(_PUT, 1, self._key(day), self._seconds, *pairs))

    async def entries(self, days: Sequence[str]) -> list[tuple[str, LedgerEntry]]:
        """Return the entries of these days, each with its day. Raises LedgerAway."""
        entries = []
        for day in days:
            fields = await self._answer(cast("Awaitable[Any]", self._client.hgetall(self._key(day))))
            for name, value in fields.items():
                entry = _entry(name, value)
                if entry is not None:
                    entries.append((day, entry))
        return entries

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._client.aclose()

    def _key(self, day: str) -> str:
        return f"mambaserve:usage:1:{{{self._scope}}}:{day}"

    async def _answer(self, call: Awaitable[Any]) -> Any:
        try:
            async with answers_within(LEDGER_SECONDS):
                return await call
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            raise LedgerAway(
                f"the Redis of the ledger does not answer ({type(error).__name__}); try again later"
            ) from error


def _entry(name: bytes, value: bytes) -> LedgerEntry | None:
    """Return the entry of one field; None = no gateway has written it."""
    try:
        names = msgspec.json.decode(name, type=tuple[str, str, str, str])
        revision, *numbers = (int(word) for word in value.split())
        return LedgerEntry(*names, revision, msgspec.convert(numbers, UsageSum))
    except (ValueError, msgspec.MsgspecError):
        return None
