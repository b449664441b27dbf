"""`UsageReader`: keeps the ledger up to date by long polls of the engines.

Each engine has a task of its own. An engine that has left the list is read until it no longer answers, for
what its last requests have used. No request waits for a poll.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import aiohttp
import msgspec
import structlog

from mamba_edge.usage.usage_sum import UsageFeed
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.errors import LedgerAway
from mamba_gateway.headers import bearer
from mamba_prefix.backoff import LONGEST_PAUSE, Backoff

log = structlog.get_logger("mambaserve.gateway")

TakeUsage = Callable[[UsageFeed], Awaitable[None]]
"""Keeps the report of an engine. Raises LedgerAway."""
WAIT_SECONDS = 20.0
"""Seconds after which an engine answers a poll even if nothing has changed."""
MARGIN_SECONDS = 10.0
READ_PAUSE_SECONDS = 1.0
"""Seconds between two polls of an engine, so that one poll returns the changes of many requests."""
UNSUPPORTED_SECONDS = 60.0
"""Seconds until an engine that lacks the endpoint is polled again."""
LINGER_SECONDS = 300.0
"""Longest time for which an engine that has left the list is still read."""


class FeedUnavailable(Exception):
    """The engine has no totals to read."""


class UsageReader:
    """Reader of all engines of one model. `take` keeps a report.

    `key` returns the API key for engines; None = they need none.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        take: TakeUsage,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        self._session, self._take, self._key = session, take, key
        self._timeout = aiohttp.ClientTimeout(total=WAIT_SECONDS + MARGIN_SECONDS)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._left_at: dict[str, float] = {}
        """Time at which an engine left the list, by URL."""

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Read these engines from now on, and those that have left until they no longer answer."""
        now = asyncio.get_running_loop().time()
        names = {target.url: target.name or target.url for target in targets}
        for url in [url for url, task in self._tasks.items() if task.done()]:
            del self._tasks[url]
            self._left_at.pop(url, None)
        for url in self._tasks.keys() - names.keys():
            self._left_at.setdefault(url, now)
        for url, name in names.items():
            self._left_at.pop(url, None)
            if url not in self._tasks:
                self._tasks[url] = asyncio.create_task(self._follow(url, name), name=f"usage {url}")

    async def close(self) -> None:
        """Stop reading."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _follow(self, url: str, name: str) -> None:
        loop = asyncio.get_running_loop()
        backoff, incarnation, revision, healthy = Backoff(), "", 0, True
        while loop.time() - self._left_at.get(url, loop.time()) < LINGER_SECONDS:
            try:
                feed = await self._fetch(url, incarnation, revision)
                await self._take(feed)
            except FeedUnavailable as error:
                if healthy:
                    log.info("usage not counted", engine=name, reason=str(error))
                healthy, pause = False, UNSUPPORTED_SECONDS
            except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, LedgerAway) as error:
                if healthy:
                    log.info("usage not read", engine=name, reason=str(error) or type(error).__name__)
                healthy, pause = False, backoff.record_failure()
            except Exception:
                # If the task ended, the use of its engine would never be counted again.
                log.exception("usage not read", engine=name)
                healthy, pause = False, LONGEST_PAUSE
            else:
                incarnation, revision, healthy = feed.incarnation, feed.revision, True
                backoff.record_success()
                pause = READ_PAUSE_SECONDS
            if not healthy and url in self._left_at:
                return
            await asyncio.sleep(pause)

    async def _fetch(self, url: str, incarnation: str, revision: int) -> UsageFeed:
        query = {"wait": f"{WAIT_SECONDS:g}", "incarnation": incarnation, "since": str(revision)}
        headers = {"Authorization": bearer(self._key())} if self._key else {}
        async with self._session.get(
            f"{url}/v1/usage_changes", params=query, headers=headers, timeout=self._timeout
        ) as answer:
            if answer.status in (401, 403, 404, 405):
                raise FeedUnavailable(f"/v1/usage_changes says {answer.status}")
            if answer.status != 200:
                raise msgspec.DecodeError(f"/v1/usage_changes says {answer.status}")
            return msgspec.json.decode(await answer.read(), type=UsageFeed)
