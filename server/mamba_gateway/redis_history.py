"""`RedisHistory`: kept responses in Redis, shared by all gateways of one scope, and there after a restart.

One hash, one sorted set and one counter for each client hold entries, times of use and bytes; a script
changes all three in one step. Redis holds names of keys and what clients wrote and got, never a key. A client
that is idle for the time to live leaves nothing behind. Every failure is a HistoryAway.
"""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from mamba_edge.history.errors import HistoryAway
from mamba_prefix.redis_client import Client, answers_within

REDIS_SECONDS = 1.0
"""Longest wait for Redis."""
_COMMON = """
local values, used, size = KEYS[1], KEYS[2], KEYS[3]
local life, budget = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local function drop(id)
  local length = redis.call('HSTRLEN', values, id)
  if redis.call('HDEL', values, id) == 1 then redis.call('DECRBY', size, length + 200) end
  redis.call('ZREM', used, id)
end
local function put(id, entry)
  drop(id)
  redis.call('HSET', values, id, entry)
  redis.call('ZADD', used, string.format('%.6f', now), id)
  redis.call('INCRBY', size, #entry + 200)
end
local function keep(id, entry)
  put(id, entry)
  while tonumber(redis.call('GET', size)) > budget do
    local oldest = redis.call('ZRANGE', used, 0, 0)[1]
    if not oldest or oldest == id then break end
    drop(oldest)
  end
end
local function prolong()
  for at = 1, 3 do redis.call('PEXPIRE', KEYS[at], math.ceil(life * 1000)) end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', used, '-inf', now - life, 'LIMIT', 0, 256)) do drop(id) end
"""
_LOAD = (
    _COMMON
    + """
local found = {}
for at = 3, #ARGV do
  local entry = redis.call('HGET', values, ARGV[at])
  if entry then redis.call('ZADD', used, 'XX', string.format('%.6f', now), ARGV[at]) end
  found[at - 2] = entry
end
prolong()
return found
"""
)
_SAVE = (
    _COMMON
    + """
local id, entry, conversation = ARGV[3], ARGV[4], ARGV[5]
if #entry + 200 > budget then return 0 end
if conversation ~= '' then
  local line = redis.call('HGET', values, conversation)
  if not line then return 0 end
  local stop = string.find(line, '\\n', 1, true)
  local ids = string.sub(line, 1, stop - 1)
  if ids ~= '' then ids = ids .. ' ' end
  put(conversation, ids .. id .. string.sub(line, stop))
end
keep(id, entry)
prolong()
return 1
"""
)
_REPLACE = (
    _COMMON
    + """
local entry = redis.call('HGET', values, ARGV[3])
if not entry then return 0 end
local changed = string.sub(entry, 1, string.find(entry, '\\n', 1, true)) .. ARGV[4]
if #changed + 200 > budget then return 0 end
keep(ARGV[3], changed)
prolong()
return 1
"""
)
_DELETE = (
    _COMMON
    + """
local found = redis.call('HEXISTS', values, ARGV[3])
drop(ARGV[3])
return found
"""
)


class RedisHistory:
    """Keeps responses and conversations in Redis for all gateways with the same `scope`."""

    def __init__(self, client: Client, scope: str, seconds: float, budget: int) -> None:
        """Keep entries for `seconds` after their last use, and `budget` bytes of them for each client."""
        self._client, self._limits = client, (f"{seconds:.3f}", budget)
        self._scope = scope.replace("{", "(").replace("}", ")")

    async def load(self, client: str, ids: Sequence[str]) -> list[bytes | None]:
        """Return the entries with the identifiers `ids`, in that order; None in place of one that is missing.

        The lifetime of each entry that is returned begins anew.
        """
        entries: list[bytes | None] = await self._eval(_LOAD, client, *ids)
        return entries

    async def save(self, client: str, id_: str, entry: bytes, conversation: str = "") -> bool:
        """Keep an entry, and add its identifier to the list of `conversation`, if that is not "".

        Return False if the entry alone exceeds the budget of its client, or if the conversation does not
        exist.
        """
        return bool(await self._eval(_SAVE, client, id_, entry, conversation))

    async def replace(self, client: str, id_: str, content: bytes) -> bool:
        """Replace all of an entry but its first line, in one step; the entry's lifetime begins anew.

        Return False, and change nothing, if there is no such entry, or if it would be larger than the budget
        of a client.
        """
        return bool(await self._eval(_REPLACE, client, id_, content))

    async def delete(self, client: str, id_: str) -> bool:
        """Delete an entry; return whether there was one."""
        return bool(await self._eval(_DELETE, client, id_))

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._client.aclose()

    async def _eval(self, script: str, client: str, *arguments: Any) -> Any:
        # One hash tag keeps all three on one node of a cluster.
        tagged = f"mambaserve:history:1:{{{self._scope}:{client}}}"
        keys = (f"{tagged}:entries", f"{tagged}:used", f"{tagged}:bytes")
        try:
            async with answers_within(REDIS_SECONDS):
                return await self._client.eval(script, len(keys), *keys, *self._limits, *arguments)
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            raise HistoryAway(
                "the store of kept responses does not answer; try again later, or send the whole input with "
                f"'store': false ({type(error).__name__})"
            ) from error
