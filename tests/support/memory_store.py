"""A Redis in memory for the prefix index, by the event loop's clock, that can fail in every way that one can.

It keeps the promises that `RedisStore` relies on: order, expiry, one stream. `tests/integration/prefix` runs
the same tests with a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from mamba_prefix.errors import RedisAway
from mamba_prefix.store import HEARTBEAT_SECONDS, MOST_NAMES, SNAPSHOT_SECONDS, Batch


def place(where: str) -> tuple[int, int]:
    first, _, second = where.partition("-")
    return int(first), int(second)


class MemoryRedis:
    """Redis data that several stores share."""

    def __init__(self, length: int = 1000) -> None:
        self.length = length
        self.stream: list[tuple[str, bytes]] = []
        self.values: dict[str, tuple[bytes, float]] = {}
        self.engines: set[str] = set()
        self.away = False
        self.full = False
        """True if reads work and writes are refused."""
        self.slow = 0.0
        self.loses = 0
        """So many of the next batches are acknowledged and lost, as by a failover."""
        self.clock_back = 0
        self.calls = 0
        self._last = (0, 0)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def flush(self) -> None:
        """Delete everything, like FLUSHALL or a restart without a disk."""
        self.stream, self.values, self.engines, self._last = [], {}, set(), (0, 0)

    def get(self, key: str) -> bytes | None:
        value, until = self.values.get(key, (None, 0.0))
        return value if value is not None and self.now < until else None

    def add(self, raw: bytes) -> str:
        milliseconds = 1_000_000 + int(self.now * 1000) - self.clock_back
        self._last = max((milliseconds, 0), (self._last[0], self._last[1] + 1))
        where = f"{self._last[0]}-{self._last[1]}"
        if self.loses:
            self.loses -= 1
        else:
            self.stream.append((where, raw))
            del self.stream[: -self.length]
        return where


class MemoryStore:
    """One client of it."""

    def __init__(self, redis: MemoryRedis) -> None:
        self.redis = redis

    async def _reach(self) -> MemoryRedis:
        self.redis.calls += 1
        await asyncio.sleep(self.redis.slow)
        if self.redis.away:
            raise RedisAway("connection refused")
        return self.redis

    async def _reach_to_write(self) -> MemoryRedis:
        redis = await self._reach()
        if redis.full:
            raise RedisAway("OOM command not allowed when used memory > 'maxmemory'.")
        return redis

    async def append(self, batches: Sequence[bytes]) -> str:
        redis = await self._reach_to_write()
        return [redis.add(raw) for raw in batches][-1]

    async def beat(self, engine: str, raw: bytes) -> tuple[bytes | None, bool]:
        redis = await self._reach_to_write()
        before = redis.get(f"beat {engine}")
        redis.values[f"beat {engine}"] = raw, redis.now + HEARTBEAT_SECONDS
        redis.engines.add(engine)
        requested = redis.values.pop(f"want {engine}", None) is not None
        if (kept := redis.get(f"snapshot {engine}")) is not None:
            redis.values[f"snapshot {engine}"] = kept, redis.now + SNAPSHOT_SECONDS
        return before, requested

    async def put_snapshot(self, engine: str, raw: bytes) -> None:
        redis = await self._reach_to_write()
        redis.values[f"snapshot {engine}"] = raw, redis.now + SNAPSHOT_SECONDS

    async def heartbeats(self, engines: Collection[str]) -> dict[str, bytes | None]:
        redis = await self._reach()
        names = {*sorted(redis.engines)[: MOST_NAMES + 1], *engines}
        return {each: redis.get(f"beat {each}") for each in sorted(names)}

    async def snapshots(self, engines: Sequence[str]) -> dict[str, bytes | int | None]:
        redis = await self._reach()
        return {each: redis.get(f"snapshot {each}") for each in engines}

    async def read(self, after: str, most: int, block: float) -> list[Batch]:
        redis = await self._reach()
        until = redis.now + block
        while True:
            entries = [(where, raw) for where, raw in redis.stream if place(where) > place(after)][:most]
            if entries or redis.now >= until or redis.away:
                return entries
            await asyncio.sleep(min(0.05, block))

    async def between(self, after: str, last: str) -> list[Batch]:
        redis = await self._reach()
        return [each for each in redis.stream if place(after) < place(each[0]) <= place(last)]

    async def want(self, engine: str) -> None:
        redis = await self._reach_to_write()
        redis.values[f"want {engine}"] = b"1", redis.now + HEARTBEAT_SECONDS

    async def check_writes(self) -> None:
        await self._reach_to_write()

    async def forget(self, engine: str) -> None:
        redis = await self._reach()
        redis.engines.discard(engine)

    async def close(self) -> None:
        pass
