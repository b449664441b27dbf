"""`Store`: the operations on a Redis that publisher and follower need; `redis_store` implements them."""

from collections.abc import Collection, Sequence
from typing import Protocol

HEARTBEAT_SECONDS = 5
"""Life of a heartbeat in seconds: an engine that is silent for longer has died."""
SNAPSHOT_SECONDS = 60
"""Life of all other keys in seconds, renewed with each heartbeat: a dead engine leaves nothing behind."""
START = "0-0"
"""Position before the first entry of any stream."""
MOST_NAMES = 1024
"""Number of engine names that one call reads, besides those that are known."""
MOST_NAME_BYTES = 512
MOST_HEARTBEAT_BYTES = 4 << 10
MOST_MESSAGE_BYTES = 8 << 20
"""Largest snapshot or batch of changes: 700,000 checkpoints, and no engine has a tenth of that."""
SNAPSHOTS_AT_ONCE = 16
Batch = tuple[str, bytes]
"""Position in the stream, and bytes of the message."""


class Store(Protocol):
    """Reads and writes the index of one scope, in whatever holds it.

    Each method except `close` takes one or two round trips, and raises RedisAway.
    """

    async def append(self, batches: Sequence[bytes]) -> str: ...
    async def beat(self, engine: str, raw: bytes) -> tuple[bytes | None, bool]: ...
    async def put_snapshot(self, engine: str, raw: bytes) -> None: ...
    async def heartbeats(self, engines: Collection[str]) -> dict[str, bytes | None]: ...
    async def snapshots(self, engines: Sequence[str]) -> dict[str, bytes | int | None]: ...
    async def read(self, after: str, most: int, block: float) -> list[Batch]: ...
    async def between(self, after: str, last: str) -> list[Batch]: ...
    async def want(self, engine: str) -> None: ...
    async def check_writes(self) -> None: ...
    async def forget(self, engine: str) -> None: ...
    async def close(self) -> None: ...
