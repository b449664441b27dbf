"""The index in Redis, which the publisher writes and the follower reads, in one or two round trips a call.

Every failure of Redis becomes a RedisAway. This module handles bytes and keys and does not interpret them.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from redis.exceptions import RedisError

from mamba_prefix.errors import RedisAway
from mamba_prefix.redis_client import ANSWER_SECONDS, Client, answers_within
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.store import (
    HEARTBEAT_SECONDS,
    MOST_HEARTBEAT_BYTES,
    MOST_MESSAGE_BYTES,
    MOST_NAME_BYTES,
    MOST_NAMES,
    SNAPSHOT_SECONDS,
    Batch,
)  # fmt: skip

STREAM_LENGTH = 16_384
"""Approximate number of batches that the stream keeps."""
P = ParamSpec("P")
R = TypeVar("R")


Method = Callable[Concatenate["RedisStore", P], Coroutine[Any, Any, R]]


def _raises_redis_away(method: Method[P, R]) -> Method[P, R]:
    @functools.wraps(method)
    async def guarded(self: "RedisStore", *arguments: P.args, **named: P.kwargs) -> R:
        try:
            async with answers_within(2 * ANSWER_SECONDS):
                return await method(self, *arguments, **named)
        except (RedisError, OSError, TimeoutError, ValueError, IndexError) as error:
            # With the type, since some of the client's messages are empty.
            raise RedisAway(f"{type(error).__name__}: {error}") from error

    return guarded  # type: ignore[return-value] # mypy does not see through `wraps`


class RedisStore:
    """Reads and writes the index of one scope in Redis.

    Each method except `close` takes one or two round trips, and raises RedisAway.
    """

    def __init__(self, client: Client, keys: RedisKeys) -> None:
        self._client = client
        self._keys = keys

    @_raises_redis_away
    async def append(self, batches: Sequence[bytes]) -> str:
        """Append batches to the stream, and return the position of the last one."""
        pipe = self._client.pipeline(transaction=False)
        for raw in batches:
            pipe.xadd(self._keys.stream, {"m": raw}, maxlen=STREAM_LENGTH, approximate=True)
        return _text((await pipe.execute())[-1])

    @_raises_redis_away
    async def beat(self, engine: str, raw: bytes) -> tuple[bytes | None, bool]:
        """Write a heartbeat.

        Return the previous heartbeat, None without one, and whether a gateway wants a snapshot.
        """
        keys, pipe = self._keys, self._client.pipeline(transaction=False)
        pipe.get(keys.heartbeat(engine))
        pipe.set(keys.heartbeat(engine), raw, ex=HEARTBEAT_SECONDS)
        pipe.sadd(keys.engines, engine)
        pipe.delete(keys.wanted(engine))
        for key in (keys.engines, keys.stream, keys.snapshot(engine)):
            pipe.expire(key, SNAPSHOT_SECONDS)
        answers = await pipe.execute()
        return answers[0], bool(answers[3])

    @_raises_redis_away
    async def put_snapshot(self, engine: str, raw: bytes) -> None:
        """Replace the engine's snapshot."""
        await self._client.set(self._keys.snapshot(engine), raw, ex=SNAPSHOT_SECONDS)

    @_raises_redis_away
    async def heartbeats(self, engines: Collection[str]) -> dict[str, bytes | None]:
        """Return the last heartbeat of each engine; None = the engine is silent.

        If more than `MOST_NAMES` engines have been added, each call reads a random choice of them, and always
        the engines in `engines`. A value that is longer than a heartbeat is cut.
        """
        members = await self._client.srandmember(self._keys.engines, MOST_NAMES + 1)
        names = sorted({_text(name) for name in members if len(name) <= MOST_NAME_BYTES}.union(engines))
        if not names:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.getrange(self._keys.heartbeat(name), 0, MOST_HEARTBEAT_BYTES)
        answers = await pipe.execute()
        return {name: raw or None for name, raw in zip(names, answers, strict=True)}

    @_raises_redis_away
    async def snapshots(self, engines: Sequence[str]) -> dict[str, bytes | int | None]:
        """Return the snapshot of each engine in `engines`, None for a missing one.

        A snapshot that is too large is not read: its size in bytes is returned. `engines` are at most
        `SNAPSHOTS_AT_ONCE`.
        """
        keys = [self._keys.snapshot(engine) for engine in engines]
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.strlen(key)
        sizes = await pipe.execute()
        out: dict[str, bytes | int | None] = dict.fromkeys(engines)
        out |= {name: size for name, size in zip(engines, sizes, strict=True) if size > MOST_MESSAGE_BYTES}
        readable = [name for name, size in zip(engines, sizes, strict=True) if 0 < size <= MOST_MESSAGE_BYTES]
        if readable:
            pipe = self._client.pipeline(transaction=False)
            for name in readable:
                # A snapshot that grew in the meantime is cut, and is still too large.
                pipe.getrange(self._keys.snapshot(name), 0, MOST_MESSAGE_BYTES)
            out |= {name: raw or None for name, raw in zip(readable, await pipe.execute(), strict=True)}
        return out

    @_raises_redis_away
    async def read(self, after: str, most: int, block: float) -> list[Batch]:
        """Return at most `most` batches behind `after`; wait up to `block` (<= 1) seconds for the first."""
        answer = await self._client.xread({self._keys.stream: after}, most, max(1, int(block * 1000)))
        return [] if not answer else _batches(_of_one_stream(answer))

    @_raises_redis_away
    async def between(self, after: str, last: str) -> list[Batch]:
        """Return the batches behind `after`, up to and including `last`."""
        return _batches(await self._client.xrange(self._keys.stream, f"({after}", last))

    @_raises_redis_away
    async def want(self, engine: str) -> None:
        """Request a new snapshot from the engine."""
        await self._client.set(self._keys.wanted(engine), b"1", ex=HEARTBEAT_SECONDS)

    @_raises_redis_away
    async def check_writes(self) -> None:
        """Raise RedisAway for a Redis that can only be read: full, or without its disk."""
        await self._client.set(self._keys.written, b"1", ex=SNAPSHOT_SECONDS)

    @_raises_redis_away
    async def forget(self, engine: str) -> None:
        """Remove an engine that is gone."""
        await self._client.srem(self._keys.engines, engine)

    async def close(self) -> None:
        """Close all connections. A connection that does not close in time is dropped."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._client.aclose()
                # Behind Sentinel, this client owns the clients of the sentinels.
                pool = getattr(self._client, "connection_pool", None)
                for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
                    await sentinel.aclose()


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _of_one_stream(answer: Any) -> Any:
    """Return the entries of the only stream in an answer, a list of pairs or a mapping by protocol."""
    if isinstance(answer, dict):
        entries = next(iter(answer.values()))
        # The third protocol wraps the entries in another list.
        return entries[0] if len(entries) == 1 and isinstance(entries[0], list) else entries
    return answer[0][1]


def _batches(entries: Any) -> list[Batch]:
    """Return the batches of stream entries.

    An entry that another client deleted has no fields; an entry of another program has no `m`.
    """
    return [(_text(where), (fields or {}).get(b"m", b"")) for where, fields in entries]
