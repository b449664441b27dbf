"""The source of the gateway's prefix index: Redis if the settings name one, otherwise the engines."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import aiohttp

from mamba_edge.api_keys import KeyFile
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.prefix_index.direct_feed import DirectFeed
from mamba_gateway.settings import GatewaySettings
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_url import url_from

Sink = Callable[[Iterable[Target]], None]


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """Holds what other parts of the gateway use of the running source of the prefix index."""

    set_targets: Sink
    """Called with all engines whenever they change."""
    trouble: Callable[[], str | None] | None = None
    """Returns why the Redis of the index cannot be used now, None if it can; absent without Redis."""


@contextlib.asynccontextmanager
async def prefixes_followed(
    settings: GatewaySettings,
    session: aiohttp.ClientSession,
    index: PrefixIndex,
    keys: KeyFile | None,
) -> AsyncIterator[PrefixSource]:
    """Keep `index` up to date for the duration of the block. Raises BadRedisUrl for an unusable file."""
    url = url_from(settings.redis_url, settings.redis_url_file)
    feed = DirectFeed(session, index, (lambda: keys.first) if keys else None)
    if url is None:
        try:
            yield PrefixSource(feed.set_targets)
        finally:
            await feed.close()
        return
    # The client of Redis is large, so it is imported only where it is used.
    from mamba_gateway.prefix_index.redis_source import RedisSource
    from mamba_prefix.redis_client import make_client
    from mamba_prefix.redis_store import RedisStore

    source = RedisSource(index, RedisStore(make_client(url), RedisKeys(settings.index_scope)), feed)
    try:
        yield PrefixSource(source.set_targets, source.trouble)
    finally:
        await source.close()
