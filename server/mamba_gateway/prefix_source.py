"""What keeps the gateway's copy of the prefix index up to date: Redis if there is one, else the engines."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

import aiohttp

from mamba_edge.api_keys import KeyFile
from mamba_gateway.direct_feed import DirectFeed
from mamba_gateway.endpoints import Target
from mamba_gateway.settings import GatewaySettings
from mamba_prefix.follower import Follower
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_url import url_from

Sink = Callable[[Iterable[Target]], None]


@contextlib.asynccontextmanager
async def prefixes_followed(
    settings: GatewaySettings,
    session: aiohttp.ClientSession,
    index: PrefixIndex,
    keys: KeyFile | None,
) -> AsyncIterator[Sink]:
    """Follow for the length of the block; yields who has to be told of the engines.

    Raises BadRedisUrl for a file that holds no address.
    """
    url = url_from(settings.redis_url, settings.redis_url_file)
    if url is None:
        feed = DirectFeed(session, index, (lambda: keys.first) if keys else None)
        try:
            yield feed.set_targets
        finally:
            await feed.close()
        return
    # The client is large, and only this source needs it.
    from mamba_prefix.redis_client import make_client
    from mamba_prefix.redis_store import RedisStore

    store = RedisStore(make_client(url), RedisKeys(settings.index_scope))
    follower = Follower(index, store)
    task = asyncio.create_task(follower.run(), name="prefix index")
    try:
        yield lambda _: None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()
