"""A real Redis between engines and a gateway's copy: restarted empty, full, with a password, a Cluster."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eventually import until
from index_world import IndexWorld
from mamba_prefix.redis_keys import RedisKeys
from real_index_world import real_world
from redis_server import RedisServer

pytestmark = pytest.mark.redis
OPERATIONS = 100_000 if os.environ.get("MAMBASERVE_PROPS") == "large" else 1500


async def change(made: IndexWorld, operations: int) -> None:
    """Apply `operations` changes over all engines.

    Most are gains and losses; among them are flushes, restarts of an engine process and crashes of a pod,
    whose successor of the same name begins with an empty cache.
    """
    done = 0
    while done < operations:
        engine = made.rng.choice(list(made.engines.values()))
        kind = made.rng.random()
        if kind < 0.02:
            engine.flush()
        elif kind < 0.03:
            engine.restart_process()
        elif kind < 0.033:
            await engine.kill()
            made.start(engine.name)
        else:
            done += engine.change(made.rng.choice((3, 30)))
        await asyncio.sleep(0.002)


async def test_the_copy_equals_the_trees_through_restarts_and_losses_of_redis(
    redis_server: RedisServer,
) -> None:
    async with real_world(redis_server.url) as made:
        for name in "abc":
            made.start(name)
        await until(lambda: made.agrees)
        for failure in ("none", "flush", "restart", "trim"):
            await change(made, OPERATIONS // 8)
            if failure == "flush":
                redis_server.command("FLUSHALL")
            elif failure == "trim":
                redis_server.command("XTRIM", RedisKeys("ns/model").stream, "MAXLEN", "0")
            elif failure == "restart":
                redis_server.stop()
                await change(made, 100)
                await until(lambda: made.index.state == "unavailable")
                redis_server.start()
            await change(made, OPERATIONS // 8)
            print(f"{failure}: {made.false_positives} false positives of {made.index.entries} at the end")
            await until(lambda: made.agrees)
        made.new_gateway()
        await until(lambda: made.agrees)
        assert made.follower.foreign == 0
        assert not made.false_positives


async def test_what_an_engine_wrote_before_it_began_anew_makes_no_gateway_doubt_it(
    redis_server: RedisServer,
) -> None:
    """The engine is idle afterwards: its next batch would hide the doubt."""
    async with real_world(redis_server.url) as made:
        engine = made.start("a")
        await until(lambda: made.agrees)
        # As the stream forgets its first batches, of which one voids all that is older.
        redis_server.command("XTRIM", RedisKeys("ns/model").stream, "MAXLEN", "0")
        engine.change(5)
        await until(lambda: made.agrees)
        await engine.kill()
        made.start("a").change(5)
        await until(lambda: made.agrees)
        made.new_gateway()
        await until(lambda: made.agrees)


async def test_who_dies_leaves_nothing_that_stays(redis_server: RedisServer) -> None:
    async with real_world(redis_server.url) as made:
        made.start("a").change(10)
        await until(lambda: made.agrees)
        keys = RedisKeys("ns/model")
        for key in (keys.stream, keys.engines, keys.heartbeat("a"), keys.snapshot("a")):
            left = int(redis_server.command("TTL", key).removeprefix(b":"))
            assert 0 < left <= 60


async def test_a_full_redis_fails_nothing_and_is_taken_up_again(redis_server: RedisServer) -> None:
    async with real_world(redis_server.url) as made:
        engine = made.start("a")
        engine.change(20)
        await until(lambda: made.agrees)
        redis_server.command("CONFIG", "SET", "maxmemory", "1")
        try:
            await change(made, 50)
            await until(lambda: not engine.publisher.connected)
            # The gateway sees that it is Redis and not the engine, whose checkpoints it goes on knowing.
            await until(lambda: made.index.state == "unavailable")
            assert made.index.engines()["a"].entries
        finally:
            redis_server.command("CONFIG", "SET", "maxmemory", "0")
        await until(lambda: made.agrees)


async def test_a_cluster_keeps_an_index_on_one_node(start_redis: Callable[..., RedisServer]) -> None:
    node = start_redis("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
    node.command("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
    async with real_world(node.url.replace("redis://", "redis+cluster://")) as made:
        made.start("a").change(20)
        made.start("b").change(20)
        await until(lambda: made.agrees)
        made.engines["a"].change(5)
        await until(lambda: made.agrees)


async def test_behind_sentinel_the_master_is_found(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    master = start_redis()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor main 127.0.0.1 {master.port} 1\n")
    sentinel = start_redis()
    sentinel.stop()
    sentinel.options = ("--sentinel",)
    sentinel.leading = (str(config),)
    sentinel.start()
    async with real_world(f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0") as made:
        made.start("a").change(20)
        await until(lambda: made.agrees)


async def test_a_password_that_is_wrong_or_missing_is_redis_being_away(
    start_redis: Callable[..., RedisServer],
) -> None:
    node = start_redis("--requirepass", "secret")
    async with real_world(node.url) as made:
        made.start("a").change(5)
        await until(lambda: made.index.failures > 1 and made.engines["a"].publisher.failures > 1)
    async with real_world(node.url.replace("redis://", "redis://:secret@")) as made:
        made.start("a").change(5)
        await until(lambda: made.agrees)
