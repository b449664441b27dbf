"""The copy of the index without a Redis: from engines that change, fail, restart and are somebody else's."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from eventually import until
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.prefix_index.direct_feed import FORGET_SECONDS, UNSUPPORTED_SECONDS, DirectFeed
from mamba_prefix.backoff import LONGEST_PAUSE
from mamba_prefix.change_log import ChangeLog
from mamba_prefix.engine_banks import MAX_ENGINES
from mamba_prefix.messages import Snapshot, pack_entries, pack_hashes
from mamba_prefix.page_chain import PageChain
from mamba_prefix.page_rungs import rungs
from mamba_prefix.prefix_index import PrefixIndex
from mamba_server.api.prefix_feed import PrefixFeed


class Engine:
    """An engine's log behind HTTP."""

    def __init__(self) -> None:
        count = itertools.count()
        self.log = ChangeLog("its own name", wall=lambda: 0.0, new_incarnation=lambda: f"i{next(count)}")
        self.log.start("model", 4)
        self.status = 200
        self.body: bytes | None = None
        self.requests = 0
        self.keys: list[str | None] = []
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/prefix_changes", self._answer)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.Response(status=self.status)
        if self.body is not None:
            return web.Response(body=self.body)
        query = request.query
        made = await PrefixFeed(self.log).prefix_changes(
            query.get("incarnation", ""), int(query.get("since", 0)), float(query["wait"])
        )
        return web.Response(body=made.body)

    def change(self, gained: dict[int, int], lost: set[int] | None = None) -> None:
        self.log.take(
            self.log.epoch, cleared=False, gained=pack_entries(gained), lost=pack_hashes(lost or set())
        )


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    await made.start()
    yield made
    await made.stop()


class Following:
    """A feed, its copy, and whether both agree with an engine."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.index = PrefixIndex(wall=lambda: 0.0)
        self.feed = DirectFeed(session, self.index, lambda: b"key")

    def has(self, engine: Engine, name: str = "pod") -> bool:
        return (
            self.index.state == "following"
            and name in self.index.engines()
            and set(self.index.hashes_of(name).tolist()) == set(engine.log.depths)
        )


@pytest.fixture
async def following() -> AsyncIterator[Following]:
    async with aiohttp.ClientSession() as session:
        made = Following(session)
        yield made
        await made.feed.close()


async def test_a_change_is_known_a_moment_later_under_the_name_of_the_target(
    engine: Engine, following: Following
) -> None:
    following.feed.set_targets([Target(engine.url, "pod")])
    engine.change({1: 4, 2: 8})
    await until(lambda: following.has(engine), 5)
    engine.change({3: 12}, {1})
    await until(lambda: following.has(engine), 0.5)
    assert engine.keys[0] == "Bearer key"
    assert following.index.snapshots == 1


async def test_it_follows_from_the_first_answer_on(engine: Engine, following: Following) -> None:
    following.feed.set_targets([Target(engine.url, "pod")])
    assert following.index.state == "unavailable"
    await until(lambda: following.index.state == "following", 5)
    assert following.index.engines().keys() == {"pod"}


async def test_an_idle_engine_is_asked_a_few_times_a_minute(engine: Engine, following: Following) -> None:
    following.feed.set_targets([Target(engine.url, "pod")])
    await until(lambda: following.has(engine), 5)
    before = engine.requests
    await asyncio.sleep(60)
    assert engine.requests - before <= 4


async def test_what_can_be_resumed_is_said_in_tokens_and_never_the_whole_prompt(
    engine: Engine, following: Following
) -> None:
    text = np.arange(40, dtype=np.int32)
    hashes = PageChain(4, "model").hashes(text, "s").tolist()
    engine.change({hashes[1]: 8, hashes[6]: 28})
    following.feed.set_targets([Target(engine.url, "pod")])
    await until(lambda: following.has(engine), 5)
    index = following.index
    assert index.depths(text, "s").resumable == {"pod": 28}
    assert index.depths(text[:29], "s").resumable == {"pod": 28}
    assert index.depths(text[:28], "s").resumable == {"pod": 8}
    assert index.depths(text[:8], "s").resumable == {}
    assert index.depths(text, "other").resumable == {}
    assert index.depths(text[:0], "s").resumable == {}


async def test_pages_are_known_up_to_their_last_rung_whatever_can_be_resumed(
    engine: Engine, following: Following
) -> None:
    text = np.arange(100, dtype=np.int32)
    hashes = PageChain(4, "model").hashes(text, "s")
    pages = pack_hashes(set(hashes[rungs(0, 21) - 1].tolist()))  # of 21 pages: the rungs before are 20 and 18
    following.feed.set_targets([Target(engine.url, "pod")])
    engine.log.take(1, cleared=False, gained=pack_entries({int(hashes[1]): 8}), lost=b"", pages_gained=pages)
    await until(lambda: following.has(engine) and following.index.pages, 5)
    parting = np.where(np.arange(100) < 75, text, text + 1).astype(np.int32)
    for asked, depth in ((text, 80), (text[:80], 72), (text[:33], 32), (parting, 72)):
        found = following.index.depths(asked, "s")
        assert (found.resumable, found.pages) == ({"pod": 8}, {"pod": depth})
    assert following.index.engines()["pod"].pages == 18
    engine.log.take(1, cleared=False, gained=b"", lost=b"", pages_lost=pages)
    await until(lambda: not following.index.pages, 5)
    assert following.index.depths(text, "s").pages == {}


async def test_a_restarted_engine_has_what_it_has_now(engine: Engine, following: Following) -> None:
    following.feed.set_targets([Target(engine.url, "pod")])
    engine.change({1: 4})
    await until(lambda: following.has(engine), 5)
    engine.log.lose()
    await until(lambda: following.has(engine) and not following.index.hashes_of("pod").size, 1)


async def test_an_engine_that_is_away_keeps_its_part_a_while_and_loses_it_then(
    engine: Engine, following: Following
) -> None:
    following.feed.set_targets([Target(engine.url, "pod")])
    engine.change({1: 4})
    await until(lambda: following.has(engine), 5)
    engine.status = 500
    engine.change({2: 4})
    await asyncio.sleep(FORGET_SECONDS / 2)
    assert following.index.state == "unavailable"
    assert not following.index.engines()["pod"].fresh
    assert following.index.hashes_of("pod").size
    await asyncio.sleep(FORGET_SECONDS / 2 + LONGEST_PAUSE)
    assert not following.index.engines()
    engine.status = 200
    await asyncio.sleep(LONGEST_PAUSE)
    assert following.has(engine)
    assert following.index.failures > 1


async def test_one_engine_that_is_away_makes_the_others_no_worse(
    engine: Engine, following: Following
) -> None:
    following.feed.set_targets([Target(engine.url, "pod"), Target("http://127.0.0.1:1", "gone")])
    engine.change({1: 4})
    await until(lambda: following.index.hashes_of("pod").size == 1, 5)
    assert following.index.state == "stale"
    following.feed.set_targets([Target(engine.url, "pod")])
    assert following.has(engine)


async def test_a_target_that_goes_takes_its_part_along(engine: Engine, following: Following) -> None:
    following.feed.set_targets([Target(engine.url, "pod")])
    engine.change({1: 4})
    await until(lambda: following.has(engine), 5)
    following.feed.set_targets([])
    assert not following.index.engines()
    assert following.index.entries == 0


@pytest.mark.parametrize("status", [401, 404, 405])
async def test_an_engine_of_another_make_is_asked_once_a_minute(
    engine: Engine, following: Following, status: int
) -> None:
    engine.status = status
    following.feed.set_targets([Target(engine.url, "pod")])
    await asyncio.sleep(UNSUPPORTED_SECONDS * 2.5)
    assert engine.requests == 3
    # Guesses are not to be taken for what engines tell.
    assert following.index.state == "off"


async def test_an_engine_more_than_there_are_places_for_is_no_trouble_for_the_others(
    engine: Engine, following: Following
) -> None:
    engine.change({7: 1})
    for number in range(MAX_ENGINES - 1):
        following.index.take_snapshot(Snapshot(f"e{number}", "i", 1, 1, "f", 4, pack_entries({1: 1})))
    following.feed.set_targets([Target(engine.url, "pod")])
    await until(lambda: following.has(engine))
    one_more = Engine()
    await one_more.start()
    following.feed.set_targets([Target(engine.url, "pod"), Target(one_more.url, "more")])
    await asyncio.sleep(5)
    assert one_more.requests == 0
    assert following.has(engine)
    await one_more.stop()


@pytest.mark.parametrize("body", [b"", b"<html>", b"\x95"])
async def test_an_answer_that_is_none_is_not_taken(engine: Engine, following: Following, body: bytes) -> None:
    engine.body = body
    following.feed.set_targets([Target(engine.url, "pod")])
    await asyncio.sleep(2)
    assert following.index.failures > 2
    engine.body = None
    await asyncio.sleep(LONGEST_PAUSE)
    assert following.has(engine)
