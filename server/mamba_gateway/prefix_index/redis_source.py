"""Source of the gateway's prefix index: Redis, and the engines themselves while Redis cannot be reached.

Changes have the same numbers on both ways, so each source continues where the other one stopped: an engine
that is polled sends only what it has published since, and not everything.
"""

import asyncio
import random
from collections.abc import Callable, Iterable

from mamba_gateway.endpoints.pool import Target
from mamba_gateway.prefix_index.direct_feed import DirectFeed
from mamba_prefix.follower import Follower
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.store import Store

PATIENT_FAILURES = 2
"""Number of consecutive failures of Redis after which the engines are polled; a single one may be
temporary."""


class RedisSource:
    """Applies the changes that engines publish in Redis (`store`) to `index`.

    While Redis fails, it lets `feed` ask the engines themselves.
    """

    def __init__(
        self,
        index: PrefixIndex,
        store: Store,
        feed: DirectFeed,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._index, self._store, self._feed = index, store, feed
        self._follower = Follower(index, store, jitter, on_outcome=self._on_outcome)
        self._targets: tuple[Target, ...] = ()
        self._failures = 0
        self._reason: str | None = None
        index.redis_up = False
        self._task = asyncio.create_task(self._follower.run(), name="prefix index")

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Replace the engines that are polled while Redis cannot be reached."""
        self._targets = tuple(targets)
        if self._failures >= PATIENT_FAILURES:
            self._feed.set_targets(self._targets)

    def trouble(self) -> str | None:
        """Return a message that says why the index is incomplete; None = it is not."""
        if self._reason is not None:
            return f"a gateway cannot use Redis: {self._reason}"
        names = self._index.engines().keys() | self._index.refused_engines
        missing = sorted(target.name for target in self._targets if target.ready and target.name not in names)
        if not self._index.redis_up or not missing:
            return None
        return f"Redis answers; engines that publish nothing there: {len(missing)}, such as {missing[0]}"

    def _on_outcome(self, reason: str | None) -> None:
        self._reason, self._index.redis_up = reason, reason is None
        if reason is None:
            self._failures = 0
            self._feed.pause()
            return
        self._failures += 1
        if self._failures >= PATIENT_FAILURES:
            # The engines are set again each time, because the feed now determines the state of the index.
            self._feed.set_targets(self._targets)

    async def close(self) -> None:
        """Stop, without waiting for a Redis that does not answer."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._feed.close()
        await self._store.close()
