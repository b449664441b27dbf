"""A real Redis that fails in every way it can: nothing waits for it, all is known again, and closing ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from eventually import PATIENCE, until, wait_until
from faulty_port import FaultyPort
from index_world import IndexWorld
from mamba_gateway.prefix_index.source import prefixes_followed
from mamba_gateway.settings import GatewaySettings
from mamba_prefix.prefix_index import PrefixIndex
from real_index_world import SCOPE, real_world
from redis_server import RedisServer

pytestmark = pytest.mark.redis
ANSWER_SECONDS = 0.7
"""Answer timeout of a client of these tests: above the half second that a read waits for news."""


@asynccontextmanager
async def followed(port: int) -> AsyncIterator[IndexWorld]:
    """Yield two engines whose checkpoints a gateway knows."""
    async with real_world(f"redis://127.0.0.1:{port}/0", answer_seconds=ANSWER_SECONDS) as made:
        for name in "ab":
            made.start(name).change(20)
        await until(lambda: made.agrees)
        yield made


async def is_noticed_and_heals(
    made: IndexWorld, begin: Callable[[], object], end: Callable[[], object]
) -> None:
    """Check one fault: earlier knowledge stays, engines go on, and all is known at the end."""
    known = {name: set(made.index.hashes_of(name).tolist()) for name in made.engines}
    begin()
    try:
        await until(lambda: made.index.state == "unavailable")
        assert {name: set(made.index.hashes_of(name).tolist()) for name in made.engines} == known
        for engine in made.engines.values():
            engine.change(10)
        await until(lambda: not any(each.publisher.connected for each in made.engines.values()))
    finally:
        end()
    await until(lambda: made.agrees)


@pytest.mark.slow
async def test_a_redis_that_hangs_is_waited_for_by_nobody(redis_server: RedisServer) -> None:
    try:
        async with followed(redis_server.port) as made:
            await is_noticed_and_heals(made, redis_server.pause, redis_server.resume)
            # Its connections are open when all is closed.
            redis_server.pause()
    finally:
        redis_server.resume()


async def test_a_network_that_swallows_everything_is_a_redis_that_is_away(redis_server: RedisServer) -> None:
    async with FaultyPort(redis_server.port) as port, followed(port.port) as made:
        await is_noticed_and_heals(
            made, lambda: setattr(port, "cut", True), lambda: setattr(port, "cut", False)
        )
        port.cut = True


async def test_a_redis_that_is_slow_and_answers_is_followed(redis_server: RedisServer) -> None:
    async with FaultyPort(redis_server.port) as port:
        port.delay = 0.1
        async with real_world(f"redis://127.0.0.1:{port.port}/0") as made:
            for name in "ab":
                made.start(name).change(20)
            await until(lambda: made.agrees)
            made.engines["a"].change(10)
            await until(lambda: made.agrees)
            assert made.index.state == "following"


async def test_a_redis_that_takes_no_writes_for_a_while_is_taken_up_again(redis_server: RedisServer) -> None:
    async with followed(redis_server.port) as made:
        engine = made.engines["a"]
        redis_server.command("CLIENT", "PAUSE", "60000", "WRITE")
        try:
            engine.change(10)
            await until(lambda: not engine.publisher.connected)
        finally:
            redis_server.command("CLIENT", "UNPAUSE")
        await until(lambda: made.agrees)


async def test_a_replica_that_is_promoted_is_followed_from_then_on(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    master = start_redis()
    replica = start_redis("--replicaof", "127.0.0.1", str(master.port), "--repl-diskless-sync-delay", "0")
    wait_until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"), "the replica")
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 1000\n"
    )
    sentinel = start_redis()
    sentinel.stop()
    sentinel.options, sentinel.leading = ("--sentinel",), (str(config),)
    sentinel.start()
    wait_until(
        lambda: str(replica.port).encode() in sentinel.command("SENTINEL", "replicas", "main"), "sentinel"
    )
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0"
    async with real_world(url, answer_seconds=ANSWER_SECONDS) as made:
        for name in "ab":
            made.start(name).change(20)
        await until(lambda: made.agrees)
        master.stop()
        for engine in made.engines.values():
            engine.change(10)
        await until(lambda: b"role:master" in replica.command("INFO", "replication"))
        await until(lambda: made.agrees)
        made.engines["a"].change(5)
        await until(lambda: made.agrees)


async def test_a_gateway_that_ends_while_redis_hangs_ends(redis_server: RedisServer) -> None:
    index = PrefixIndex()
    settings = GatewaySettings(
        backend=("http://127.0.0.1:9",), redis_url=redis_server.url, prefix_index_scope=SCOPE
    )
    try:
        async with (
            asyncio.timeout(PATIENCE),
            aiohttp.ClientSession() as session,
            prefixes_followed(settings, session, index, None),
        ):
            await until(lambda: index.redis_up)
            redis_server.pause()
    finally:
        redis_server.resume()
