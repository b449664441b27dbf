"""The index as it lies in Redis: what the publisher writes and the follower reads, one method a round trip.

Every failure of Redis, whatever it is, is a RedisAway. Knows bytes and keys, not what they mean.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from redis.exceptions import RedisError

from mamba_prefix.errors import RedisAway
from mamba_prefix.redis_client import ANSWER_SECONDS, Client
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
"""Batches that the stream keeps, about."""
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
    async def heartbeats(self, known: Collection[str]) -> dict[str, bytes | None]:
        """Read the last heartbeat of each engine; None: it is silent.

        Where others have put in more names than are looked at, those of a look are chosen anew each time, and
        the engines in `known` are always among them. What is longer than a heartbeat is cut.
        """
        members = await self._client.srandmember(self._keys.engines, MOST_NAMES + 1)
        names = sorted({_text(each) for each in members if len(each) <= MOST_NAME_BYTES}.union(known))
        if not names:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for each in names:
            pipe.getrange(self._keys.heartbeat(each), 0, MOST_HEARTBEAT_BYTES)
        found = await pipe.execute()
        return {name: raw or None for name, raw in zip(names, found, strict=True)}

    @_or_away
    async def snapshots(self, engines: Sequence[str]) -> dict[str, bytes | int | None]:
        """Read the snapshots of at most `SNAPSHOTS_AT_ONCE` engines; of one that is too large its size."""
        keys = [self._keys.snapshot(each) for each in engines]
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.strlen(key)
        sizes = await pipe.execute()
        out: dict[str, bytes | int | None] = dict.fromkeys(engines)
        out |= {name: size for name, size in zip(engines, sizes, strict=True) if size > MOST_MESSAGE_BYTES}
        wanted = [name for name, size in zip(engines, sizes, strict=True) if 0 < size <= MOST_MESSAGE_BYTES]
        if wanted:
            pipe = self._client.pipeline(transaction=False)
            for name in wanted:
                # One that grew meanwhile is cut, and too large all the same.
                pipe.getrange(self._keys.snapshot(name), 0, MOST_MESSAGE_BYTES)
            out |= {name: raw or None for name, raw in zip(wanted, await pipe.execute(), strict=True)}
        return out

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
