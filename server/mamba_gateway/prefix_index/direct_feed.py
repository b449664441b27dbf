"""`DirectFeed`: keeps the gateway's prefix index up to date by long polls of the engines, without Redis.

Each engine has a task of its own, so that one that cannot be reached or has no such endpoint does not affect
others. No request waits for a poll.
"""

import asyncio
from collections.abc import Callable, Iterable

import aiohttp
import msgspec
import structlog

from mamba_gateway.endpoints.pool import Target
from mamba_gateway.headers import bearer
from mamba_prefix.backoff import LONGEST_PAUSE, Backoff
from mamba_prefix.errors import ForeignMessage
from mamba_prefix.messages import Feed, unpack
from mamba_prefix.prefix_index import PrefixIndex

log = structlog.get_logger("mambaserve.gateway")

WAIT_SECONDS = 20.0
"""Seconds after which an engine answers a poll even if nothing has changed."""
MARGIN_SECONDS = 10.0
PAUSE_SECONDS = 0.05
"""Seconds between two polls of an engine, so that one poll returns several changes."""
FORGET_SECONDS = 10.0
"""Seconds without an answer after which the entries of an engine are dropped, because it may have
restarted."""
UNSUPPORTED_SECONDS = 60.0
"""Seconds until an engine that lacks the endpoint is polled again."""


class FeedUnavailable(Exception):
    """The engine has no changes of prefixes to read, or the index has no room for another engine."""


class DirectFeed:
    """Asks every engine for changes of its cached prefixes, and applies these to the index.

    The name of a target is the engine's name in the index. `key` returns the API key for engines; None = they
    need none.
    """

    def __init__(
        self, session: aiohttp.ClientSession, index: PrefixIndex, key: Callable[[], bytes] | None = None
    ) -> None:
        self._session, self._index, self._key = session, index, key
        self._timeout = aiohttp.ClientTimeout(total=WAIT_SECONDS + MARGIN_SECONDS)
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """Name and task of each engine, by URL."""
        self._healthy: dict[str, bool] = {}
        """Whether the last poll succeeded, by URL of each engine that has the endpoint."""
        self._polled: set[str] = set()
        """URLs that were polled at least once, whether or not successfully."""
        self._cancelled: set[asyncio.Task[None]] = set()
        """Tasks that were cancelled and have not ended."""

    def set_targets(self, targets: Iterable[Target]) -> None:
        """Poll exactly these engines from now on."""
        names = {target.url: target.name or target.url for target in targets}
        for url in [url for url, (name, _) in self._tasks.items() if names.get(url) != name]:
            name, task = self._tasks.pop(url)
            task.cancel()
            self._healthy.pop(url, None)
            self._polled.discard(url)
            self._index.drop(name)
        for url in names.keys() - self._tasks.keys():
            name = names[url]
            self._tasks[url] = name, asyncio.create_task(self._follow(url, name), name=f"prefixes {url}")
        self._update_state()

    def pause(self) -> None:
        """Stop polling; the entries remain in the index for the source that continues."""
        for _, task in self._tasks.values():
            task.cancel()
        self._cancelled.update(task for _, task in self._tasks.values())
        for task in self._cancelled:
            task.add_done_callback(self._cancelled.discard)
        self._tasks.clear()
        self._healthy.clear()
        self._polled.clear()

    async def close(self) -> None:
        """Stop polling."""
        self.pause()
        await asyncio.gather(*self._cancelled, return_exceptions=True)

    def _update_state(self) -> None:
        fresh = all(engine.fresh for engine in self._index.engines().values())
        none_polled = bool(self._tasks) and not self._polled
        if self._tasks and not self._healthy and self._polled >= self._tasks.keys():
            self._index.state = "off"  # no engine has the endpoint, so none has failed either
        elif none_polled or (self._healthy and not any(self._healthy.values())):
            self._index.state = "unavailable"
        else:
            self._index.state = "following" if fresh and all(self._healthy.values()) else "stale"

    async def _follow(self, url: str, name: str) -> None:
        loop = asyncio.get_running_loop()
        backoff, answered = Backoff(), loop.time()
        while True:
            try:
                self._apply(name, await self._fetch(url, name))
            except FeedUnavailable as error:
                self._index.drop(name)
                if self._healthy.pop(url, True):
                    log.info("no prefixes told", engine=name, reason=str(error))
                pause = UNSUPPORTED_SECONDS
            except (aiohttp.ClientError, OSError, TimeoutError, ForeignMessage) as error:
                if self._healthy.get(url):
                    log.info("prefixes not followed", engine=name, reason=str(error) or type(error).__name__)
                self._fail(url, name)
                if loop.time() - answered > FORGET_SECONDS:
                    self._index.drop(name)
                pause = backoff.record_failure()
            except Exception:
                # If the task ended, the entries of its engine would stay in the index for ever.
                log.exception("prefixes not followed", engine=name)
                self._fail(url, name)
                self._index.drop(name)
                pause = LONGEST_PAUSE
            else:
                self._healthy[url] = True
                backoff.record_success()
                pause, answered = PAUSE_SECONDS, loop.time()
            self._polled.add(url)
            self._update_state()
            await asyncio.sleep(pause)

    def _fail(self, url: str, name: str) -> None:
        self._index.failures += 1
        self._healthy[url] = False
        self._index.doubt(name, again=True)

    async def _fetch(self, url: str, name: str) -> Feed:
        if not self._index.admits(name):
            raise FeedUnavailable("the index is full of other engines")
        view = self._index.engines().get(name)
        query = {"wait": f"{WAIT_SECONDS:g}"}
        if view is not None and view.fresh:
            query |= {"incarnation": view.incarnation, "since": str(view.seq)}
        headers = {"Authorization": bearer(self._key())} if self._key else {}
        async with self._session.get(
            f"{url}/v1/prefix_changes", params=query, headers=headers, timeout=self._timeout
        ) as answer:
            if answer.status in (401, 403, 404, 405):
                raise FeedUnavailable(f"/v1/prefix_changes says {answer.status}")
            if answer.status != 200:
                raise ForeignMessage(f"/v1/prefix_changes says {answer.status}")
            message = unpack(await answer.read())
        if not isinstance(message, Feed):
            raise ForeignMessage("is not a feed of prefix changes")
        return message

    def _apply(self, name: str, feed: Feed) -> None:
        """Apply the changes in an answer to the index. Raises ForeignMessage if changes are missing."""
        if feed.snapshot is not None:
            self._index.take_snapshot(msgspec.structs.replace(feed.snapshot, engine=name))
        for change in feed.changes:
            if self._index.take_change(msgspec.structs.replace(change, engine=name)) == "gap":
                raise ForeignMessage("a batch is missing")
