"""An `IndexWorld` over a real Redis: every engine and the gateway with a client of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from eventually import PATIENCE
from index_world import IndexWorld
from mamba_prefix.redis_client import make_client
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_store import RedisStore
from mamba_prefix.store import Store

SCOPE = "ns/model"


@asynccontextmanager
async def real_world(url: str, seed: int = 0, answer_seconds: float = 1.5) -> AsyncIterator[IndexWorld]:
    stores: list[Store] = []

    def connect() -> Store:
        stores.append(RedisStore(make_client(url, answer_seconds=answer_seconds), RedisKeys(SCOPE)))
        return stores[-1]

    world = IndexWorld(connect, Random(seed))
    try:
        yield world
    finally:
        # Whatever Redis does: who ends it waits no longer than a gateway's pod may.
        async with asyncio.timeout(PATIENCE):
            await world.close()
            await asyncio.gather(*(store.close() for store in stores))
