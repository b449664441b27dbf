"""The copy of the index by a Redis that goes and comes back: engines are asked meanwhile, nobody after."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from eventually import until
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.prefix_index.direct_feed import WAIT_SECONDS, DirectFeed
from mamba_gateway.prefix_index.redis_source import RedisSource
from mamba_prefix.change_log import ChangeLog
from mamba_prefix.messages import Feed, pack_entries, pack_hashes, unpack
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.publisher import Publisher
from mamba_server.api.prefix_feed import PrefixFeed
from memory_store import MemoryRedis, MemoryStore
from virtual_time import in_virtual_time

POD = Target("http://pod", "pod")


class Asking(DirectFeed):
    """Asks the handler of one engine without a network, which `test_direct_feed` has."""

    def __init__(self, index: PrefixIndex, log: ChangeLog) -> None:
        none: Any = None
        super().__init__(none, index)
        self._handler = PrefixFeed(log)
        self.asked = 0

    async def _fetch(self, url: str, name: str) -> Feed:
        self.asked += 1
        view = self._index.engines().get(name)
        known = (view.incarnation, view.seq) if view is not None and view.fresh else ("", 0)
        message = unpack(bytes((await self._handler.prefix_changes(*known, WAIT_SECONDS)).body))
        assert isinstance(message, Feed)
        return message


class World:
    """One engine that publishes, one gateway's copy, and the Redis between them."""

    def __init__(self) -> None:
        self.log = ChangeLog("pod", wall=lambda: 0.0, new_incarnation=lambda: "i")
        self.log.start("model", 4)
        self.redis = MemoryRedis()
        self.index = PrefixIndex(wall=lambda: 0.0)
        self.feed = Asking(self.index, self.log)
        self.source = RedisSource(self.index, MemoryStore(self.redis), self.feed, lambda: 1.0)
        self.source.set_targets([POD])
        self.publishing = asyncio.create_task(Publisher(self.log, MemoryStore(self.redis), lambda: 1.0).run())

    def change(self, gained: dict[int, int], lost: set[int] | None = None) -> None:
        self.log.take(
            self.log.epoch, cleared=False, gained=pack_entries(gained), lost=pack_hashes(lost or set())
        )

    def keep_dropped(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Record the engines that are forgotten from now on."""
        dropped: list[str] = []
        monkeypatch.setattr(self.index, "drop", dropped.append)
        return dropped

    @property
    def agrees(self) -> bool:
        return self.index.state == "following" and set(self.index.hashes_of("pod").tolist()) == set(
            self.log.depths
        )


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.publishing.cancel()
        await asyncio.gather(made.publishing, return_exceptions=True)
        await made.source.close()


@in_virtual_time
async def test_while_redis_is_away_engines_are_asked_for_what_is_new_and_then_left_alone() -> None:
    async with world() as made:
        made.change({1: 4, 2: 8})
        await until(lambda: made.agrees, 5)
        assert made.index.redis_up
        assert not made.feed.asked
        snapshots = made.index.snapshots

        made.redis.away = True
        await until(lambda: made.index.redis_up is False, 5)
        made.change({3: 12}, {1})
        await until(lambda: made.agrees, 5)
        # What was known is gone on from: nothing was sent twice.
        assert made.index.snapshots == snapshots
        for number in range(10, 20):
            made.change({number: 4})
            await asyncio.sleep(1)
            assert made.agrees
            assert made.index.redis_up is False
        assert "cannot use Redis" in (made.source.trouble() or "")

        made.redis.away = False
        await until(lambda: made.index.redis_up is True and made.agrees, 10)
        assert made.source.trouble() is None
        asked = made.feed.asked
        made.change({30: 4}, {2})
        await until(lambda: made.agrees, 5)
        await asyncio.sleep(60)
        assert made.feed.asked == asked
        assert made.agrees


@in_virtual_time
async def test_an_engine_that_dies_while_redis_is_away_is_forgotten() -> None:
    async with world() as made:
        made.change({1: 4})
        await until(lambda: made.agrees, 5)
        made.redis.away = True
        await until(lambda: made.feed.asked > 0, 10)
        made.source.set_targets([])
        assert not made.index.engines()


@in_virtual_time
async def test_a_failure_of_a_moment_asks_nobody() -> None:
    async with world() as made:
        made.change({1: 4})
        await until(lambda: made.agrees, 5)
        made.redis.away = True
        await until(lambda: made.index.redis_up is False, 5)
        made.redis.away = False
        await until(lambda: made.index.redis_up is True and made.agrees, 5)
        assert not made.feed.asked


@in_virtual_time
async def test_of_a_full_redis_no_engine_dies_and_engines_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as made:
        made.change({1: 4, 2: 8})
        await until(lambda: made.agrees, 5)
        dropped = made.keep_dropped(monkeypatch)
        made.redis.full = True
        await until(lambda: made.index.redis_up is False, 10)
        for number in range(10, 40):
            made.change({number: 4})
            await asyncio.sleep(1)
            if number > 15:
                assert made.agrees
        assert "OOM" in (made.source.trouble() or "")
        made.redis.full = False
        await until(lambda: made.index.redis_up is True and made.agrees, 15)
        await asyncio.sleep(30)
        assert made.agrees
        assert made.source.trouble() is None
        assert not dropped


@in_virtual_time
async def test_a_gateway_that_starts_beside_a_full_redis_asks_the_engines() -> None:
    async with world() as made:
        made.redis.full = True
        made.redis.flush()
        made.change({1: 4})
        await until(lambda: made.agrees and made.index.hashes_of("pod").size == 1, 5)
        assert made.index.redis_up is False


@in_virtual_time
async def test_nobody_counts_as_dead_who_has_not_had_the_time_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as made:
        made.change({1: 4})
        await until(lambda: made.agrees, 5)
        made.redis.away = True
        await asyncio.sleep(60)
        dropped = made.keep_dropped(monkeypatch)
        made.redis.flush()
        for _ in range(20):
            # Whenever it is back: a gateway may find it at once, and an engine after its longest pause.
            made.redis.away = False
            await until(lambda: made.index.redis_up is True and made.agrees, 15)
            made.redis.away = True
            await asyncio.sleep(20.3)
        assert not dropped


@in_virtual_time
async def test_engines_that_publish_nothing_there_are_named() -> None:
    async with world() as made:
        await until(lambda: made.agrees and "pod" in made.index.engines(), 5)
        targets = [
            Target("http://127.0.0.1:1", "silent"),
            Target("http://127.0.0.1:2", "loading", ready=False),
        ]
        made.source.set_targets([POD, *targets])
        trouble = made.source.trouble()
        assert trouble is not None
        assert "1, such as silent" in trouble


@pytest.mark.parametrize("away", [True, False])
@in_virtual_time
async def test_closing_ends_all_of_it(away: bool) -> None:
    async with world() as made:
        made.redis.away = away
        await asyncio.sleep(3)
        await made.source.close()
        before = made.feed.asked, made.redis.calls
        made.publishing.cancel()
        await asyncio.sleep(30)
        assert (made.feed.asked, made.redis.calls) == before
