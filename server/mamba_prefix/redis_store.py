"""The index as it lies in Redis: what the publisher writes and the follower reads, one method a round trip.

Every failure of Redis, whatever it is, is a RedisAway. Knows bytes and keys, not what they mean.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from redis.exceptions import RedisError

from mamba_prefix.errors import RedisAway
from mamba_prefix.redis_client import ANSWER_SECONDS, Client
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.store import HEARTBEAT_SECONDS, SNAPSHOT_SECONDS, Batch

STREAM_LENGTH = 16_384
"""Batches that the stream keeps, about."""
MANY = 16
"""Snapshots in one answer."""
P = ParamSpec("P")
R = TypeVar("R")


Method = Callable[Concatenate["RedisStore", P], Coroutine[Any, Any, R]]


def _or_away(method: Method[P, R]) -> Method[P, R]:
    @functools.wraps(method)
    async def guarded(self: "RedisStore", *arguments: P.args, **named: P.kwargs) -> R:
        task = asyncio.current_task()
        assert task is not None
        asked_before = task.cancelling()
        try:
            # The client bounds a silence, this the whole: an answer may also come a byte at a time.
            async with asyncio.timeout(2 * ANSWER_SECONDS):
                return await method(self, *arguments, **named)
        except (RedisError, OSError, TimeoutError, ValueError, IndexError) as error:
            # Not the client's words alone: some of them are empty.
            raise RedisAway(f"{type(error).__name__}: {error}") from error
        finally:
            if task.cancelling() > asked_before:
                # The client sends within `asyncio.wait_for`, which before Python 3.12 answers a cancelling
                # with the result if that came in the same turn of the loop. Who cancels waits for the end.
                raise asyncio.CancelledError

    return guarded  # type: ignore[return-value] # mypy does not see through `wraps`


class RedisStore:
    """The index of one scope."""

    def __init__(self, client: Client, keys: RedisKeys) -> None:
        self._client = client
        self._keys = keys

    @_or_away
    async def append(self, batches: Sequence[bytes]) -> str:
        """Put these behind the stream. Returns where the last one stands."""
        pipe = self._client.pipeline(transaction=False)
        for raw in batches:
            pipe.xadd(self._keys.stream, {"m": raw}, maxlen=STREAM_LENGTH, approximate=True)
        return _text((await pipe.execute())[-1])

    @_or_away
    async def beat(self, engine: str, raw: bytes) -> tuple[bytes | None, bool]:
        """The engine lives. Returns the heartbeat before, if it is there, and if a snapshot is wanted."""
        keys, pipe = self._keys, self._client.pipeline(transaction=False)
        pipe.get(keys.heartbeat(engine))
        pipe.set(keys.heartbeat(engine), raw, ex=HEARTBEAT_SECONDS)
        pipe.sadd(keys.engines, engine)
        pipe.delete(keys.wanted(engine))
        for key in (keys.engines, keys.stream, keys.snapshot(engine)):
            pipe.expire(key, SNAPSHOT_SECONDS)
        answers = await pipe.execute()
        return answers[0], bool(answers[3])

    @_or_away
    async def put_snapshot(self, engine: str, raw: bytes) -> None:
        """Replace the engine's snapshot."""
        await self._client.set(self._keys.snapshot(engine), raw, ex=SNAPSHOT_SECONDS)

    @_or_away
    async def heartbeats(self) -> dict[str, bytes | None]:
        """The last heartbeat of each engine; None: it is silent."""
        names = sorted(_text(each) for each in await self._client.smembers(self._keys.engines))
        if not names:
            return {}
        found = await self._client.mget([self._keys.heartbeat(each) for each in names])
        return dict(zip(names, found, strict=True))

    async def snapshots(self, engines: Iterable[str]) -> dict[str, bytes | None]:
        """The snapshots of these engines, as far as they are there."""
        names, out = list(engines), {}
        for at in range(0, len(names), MANY):
            out.update(await self._some_snapshots(names[at : at + MANY]))
        return out

    @_or_away
    async def _some_snapshots(self, names: list[str]) -> dict[str, bytes | None]:
        found = await self._client.mget([self._keys.snapshot(each) for each in names])
        return dict(zip(names, found, strict=True))

    @_or_away
    async def read(self, after: str, most: int, block: float) -> list[Batch]:
        """What stands behind `after`, at most `most`; waits up to `block` (<= 1) seconds for the first."""
        found = await self._client.xread({self._keys.stream: after}, most, max(1, int(block * 1000)))
        return [] if not found else _batches(_of_one_stream(found))

    @_or_away
    async def between(self, after: str, last: str) -> list[Batch]:
        """What stands behind `after`, up to and with `last`."""
        return _batches(await self._client.xrange(self._keys.stream, f"({after}", last))

    @_or_away
    async def want(self, engine: str) -> None:
        """Ask the engine for a new snapshot."""
        await self._client.set(self._keys.wanted(engine), b"1", ex=HEARTBEAT_SECONDS)

    @_or_away
    async def check_writes(self) -> None:
        """Raises RedisAway for a Redis that can be read and not be written to: full, or without its disk."""
        await self._client.set(self._keys.written, b"1", ex=SNAPSHOT_SECONDS)

    @_or_away
    async def forget(self, engine: str) -> None:
        """The engine is gone."""
        await self._client.srem(self._keys.engines, engine)

    async def close(self) -> None:
        """Let go of the connections; of those that do not close in time, without a word."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._client.aclose()
                # Behind Sentinel the clients of the sentinels are its own.
                pool = getattr(self._client, "connection_pool", None)
                for each in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
                    await each.aclose()


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _of_one_stream(found: Any) -> Any:
    """The entries of the only stream asked for: a list of pairs in one protocol, a mapping in the other."""
    if isinstance(found, dict):
        entries = next(iter(found.values()))
        # The third protocol wraps them in one list more.
        return entries[0] if len(entries) == 1 and isinstance(entries[0], list) else entries
    return found[0][1]


def _batches(entries: Any) -> list[Batch]:
    """A place whose entry another one has deleted has no fields; what is not ours has no `m`."""
    return [(_text(where), (fields or {}).get(b"m", b"")) for where, fields in entries]
