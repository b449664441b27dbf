"""A gateway's copy follows the engines through a Redis that fails in every way, in virtual time."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import numpy as np
import pytest

from eventually import until
from index_world import IndexWorld
from mamba_prefix.engine_banks import MAX_ENGINES
from mamba_prefix.messages import Change, Heartbeat, pack
from memory_store import MemoryRedis, MemoryStore
from virtual_time import in_virtual_time


@asynccontextmanager
async def world(
    seed: int = 0, length: int = 1000, most_engines: int = MAX_ENGINES
) -> AsyncIterator[tuple[IndexWorld, MemoryRedis]]:
    redis = MemoryRedis(length)
    made = IndexWorld(lambda: MemoryStore(redis), Random(seed), most_engines)
    try:
        yield made, redis
    finally:
        await made.close()


@in_virtual_time
async def test_a_change_is_known_a_moment_later_and_redis_is_not_asked_in_between() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        await until(lambda: made.agrees, 5)
        for _ in range(20):
            engine.change(5)
            await asyncio.sleep(0.06)
            assert made.agrees
        calls = redis.calls
        made.index.depths(np.arange(100, dtype=np.int32), "")
        assert redis.calls == calls


@in_virtual_time
async def test_a_new_gateway_is_warm_with_one_read_of_snapshots() -> None:
    async with world() as (made, redis):
        for name in "abc":
            made.start(name)
        await until(lambda: made.agrees, 5)
        for _ in range(300):
            for engine in made.engines.values():
                engine.change(3)
            await asyncio.sleep(0.05)
        made.new_gateway()
        before = redis.calls
        await until(lambda: made.agrees, 0.4)
        assert made.index.gaps == 0
        # Heartbeats, snapshots, what the stream had since, and the publishers' own.
        assert redis.calls - before < 12


@in_virtual_time
async def test_a_lost_batch_is_a_gap_that_the_next_snapshot_fills() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        await until(lambda: made.agrees, 5)
        engine.change(5)
        await asyncio.sleep(0.1)
        redis.loses = 1
        engine.change(5)
        await asyncio.sleep(0.1)
        engine.change(5)
        await asyncio.sleep(0.1)
        assert not made.index.engines()["a"].fresh
        assert made.index.gaps == 1
        await until(lambda: made.agrees, 3)


@in_virtual_time
async def test_a_lost_batch_is_noticed_though_none_comes_after_it() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        await until(lambda: made.agrees, 5)
        redis.loses = 1
        engine.change(5)
        await until(lambda: made.agrees, 5)


@in_virtual_time
async def test_what_is_doubted_is_read_anew_though_nothing_is_missing_by_its_number() -> None:
    async with world() as (made, _):
        made.start("a").change(20)
        await until(lambda: made.agrees, 5)
        # As when the connection breaks while a gap is filled, and the engine comes back after the gateway.
        made.index.doubt("a", again=True)
        await until(lambda: made.agrees and made.index.engines()["a"].fresh, 10)
        await asyncio.sleep(3)
        assert made.agrees


@in_virtual_time
async def test_who_dies_is_forgotten_within_seconds_and_leaves_nothing_in_redis() -> None:
    async with world() as (made, redis):
        made.start("a").change(50)
        made.start("b").change(50)
        await until(lambda: made.agrees, 5)
        await made.engines.pop("b").kill()
        await until(lambda: made.agrees, 10)
        assert redis.engines == {"a"}


@in_virtual_time
async def test_while_redis_is_away_the_last_copy_stays_and_then_heals() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        engine.change(100)
        await until(lambda: made.agrees, 5)
        known = set(made.index.hashes_of("a").tolist())
        redis.away = True
        for _ in range(100):
            engine.change(5)
            await asyncio.sleep(1)
        assert made.index.state == "unavailable"
        assert set(made.index.hashes_of("a").tolist()) == known
        assert not engine.publisher.connected
        redis.away = False
        await until(lambda: made.agrees, 12)


@in_virtual_time
async def test_what_could_not_be_written_for_a_moment_is_written_then_and_nothing_is_missing() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        engine.change(100)
        await until(lambda: made.agrees, 5)
        snapshots = engine.publisher.snapshots
        redis.away = True
        for _ in range(10):
            engine.change(5)
            await asyncio.sleep(0.15)
        redis.away = False
        await until(lambda: made.agrees, 3)
        assert (made.index.gaps, engine.publisher.snapshots) == (0, snapshots)


@pytest.mark.parametrize("clock_back", [0, 500_000])
@in_virtual_time
async def test_an_emptied_redis_is_full_again_within_seconds(clock_back: int) -> None:
    async with world() as (made, redis):
        for name in "abc":
            made.start(name).change(100)
        await until(lambda: made.agrees, 5)
        redis.flush()
        redis.clock_back = clock_back
        for engine in made.engines.values():
            engine.change(3)
        await until(lambda: made.agrees, 4)
        # Later changes come by the stream again, not by snapshots alone.
        await asyncio.sleep(3)
        made.engines["a"].change(5)
        await asyncio.sleep(0.2)
        assert made.agrees
        # And a new gateway finds snapshots without asking for them.
        made.new_gateway()
        await until(lambda: made.agrees, 0.4)


@in_virtual_time
async def test_a_slow_redis_delays_no_engine_and_is_caught_up_with() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        await until(lambda: made.agrees, 5)
        redis.slow = 1.5
        for _ in range(3000):
            engine.change(1)
            await asyncio.sleep(0.01)
        redis.slow = 0
        await until(lambda: made.agrees, 10)


@in_virtual_time
async def test_what_others_write_there_is_left_alone_and_counted() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        await until(lambda: made.agrees, 5)
        for raw in (b"", b"\x00", b"no", pack(Change("a", "x", 1, 1, False, b"", b"", version=9))):
            redis.add(raw)
        redis.add(pack(Change("stranger", "x", 1, 7, False, b"", b"")))
        redis.engines.add("ghost")
        engine.change(5)
        await until(lambda: made.agrees, 8)
        assert made.follower.foreign == 4


@in_virtual_time
async def test_what_is_larger_than_any_engine_writes_is_refused_and_the_others_are_followed() -> None:
    async with world() as (made, redis):
        engine = made.start("a")
        await until(lambda: made.agrees, 5)
        beat = redis.get("beat a")
        assert beat is not None
        forged = pack(Heartbeat("b", "x", 1, 7, "", 16))
        for name, raw in (
            ("beat b", forged),
            ("beat c", beat + bytes(5 << 10)),
            ("snapshot b", bytes(9 << 20)),
        ):
            redis.values[name] = raw, redis.now + 1e6
        redis.engines |= {"b", "c", *(f"ghost-{number:05}" for number in range(2000))}
        redis.add(bytes(9 << 20))
        engine.change(5)
        await asyncio.sleep(2)
        await until(lambda: made.agrees, 8)
        refused = made.index.refused_messages
        assert min(refused[kind] for kind in ("engine", "heartbeat", "snapshot", "batch")) > 0
        assert made.index.state == "following"
        engine.change(5)
        await until(lambda: made.agrees, 8)


@in_virtual_time
async def test_engines_beyond_the_first_table_are_followed_like_any_other() -> None:
    async with world() as (made, _):
        for number in range(130):
            made.start(f"e{number:03}").change(3)
        await until(lambda: made.agrees, 5)
        for name in ("e000", "e064", "e129"):
            await made.engines.pop(name).kill()
        made.start("new").change(3)
        await until(lambda: made.agrees, 15)
        assert not made.index.refused_engines


@in_virtual_time
async def test_with_more_engines_than_there_are_places_those_that_fit_are_followed() -> None:
    async with world(most_engines=64) as (made, _):
        for number in range(66):
            made.start(f"e{number:02}").change(3)
        await until(lambda: len(made.index.engines()) == 64 and len(made.index.refused_engines) == 2, 5)
        snapshots = made.index.snapshots
        await asyncio.sleep(20)
        assert made.index.snapshots == snapshots
        assert made.index.state == "following"  # what is known of those that fit is no worse
        gone = next(iter(made.index.engines()))
        await made.engines.pop(gone).kill()
        await until(lambda: not made.index.refused_engines or len(made.index.engines()) == 64, 15)


Happening = Callable[[IndexWorld, MemoryRedis], Awaitable[None]]
OPERATIONS = 100_000 if os.environ.get("MAMBASERVE_PROPS") == "large" else 3000


@pytest.mark.parametrize("seed", range(2))
@in_virtual_time
async def test_after_random_changes_and_failures_the_copy_equals_the_trees(seed: int) -> None:
    rng = Random(seed)
    async with world(seed, length=40) as (made, redis):
        names = "abcdefgh"
        for name in names[:4]:
            made.start(name)
        done = 0
        while done < OPERATIONS:
            engines = list(made.engines.values())
            kind = rng.random()
            if kind < 0.90 and engines:
                done += rng.choice(engines).change(rng.choice((1, 3, 30)))
            elif kind < 0.92 and engines:
                rng.choice(engines).flush()
            elif kind < 0.94 and engines:
                rng.choice(engines).restart_process()
            elif kind < 0.95 and engines:
                await made.engines.pop(rng.choice(engines).name).kill()
            elif kind < 0.96 and len(engines) < len(names):
                # Also under the name of one that just died: its heartbeat and snapshot are still there.
                made.start(rng.choice([each for each in names if each not in made.engines]))
            elif kind < 0.97:
                redis.loses = rng.randrange(1, 4)
            elif kind < 0.975:
                redis.away = not redis.away
            elif kind < 0.98:
                redis.flush()
                redis.clock_back = rng.choice((0, 100_000))
            elif kind < 0.985:
                redis.slow = rng.choice((0, 0, 0.3, 2.0))
            elif kind < 0.99:
                made.new_gateway()
            await asyncio.sleep(rng.choice((0, 0.01, 0.2, 0.2, 1.5)))
        redis.away, redis.slow, redis.loses = False, 0, 0
        await until(lambda: made.agrees, 30)
        for engine in made.engines.values():
            assert engine.tree == engine.log.depths
