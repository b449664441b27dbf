"""Limits of keys that several gateways count in one Redis."""

import asyncio
import re
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from eventually import PATIENCE, until
from faulty_port import FaultyPort
from mamba_edge.errors import TooManyRequests
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.admission.shared_allowance import LEASE_SECONDS, SharedAllowances
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_prefix.errors import RedisAway
from mamba_prefix.redis_client import make_client
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_store import RedisStore
from redis_server import RedisServer

pytestmark = pytest.mark.redis


@asynccontextmanager
async def gateways(redis: RedisServer, limits: KeyLimits, count: int = 2) -> AsyncIterator[list[RateLimiter]]:
    made = [
        RateLimiter(
            KeyLimitTable(limits, {}), GatewayMetrics(lambda: ()), time.monotonic,
            SharedAllowances(make_client(redis.url), "ns/model", enter_seconds=10),
        )
        for _ in range(count)
    ]  # fmt: skip
    yield made
    for one in made:
        await one.close()


async def passes(gateway: RateLimiter, key: str = "a", cost: float = 0, used: float = 0) -> bool:
    try:
        async with gateway.entered(key, cost, []) as entry:
            entry.used = used
    except TooManyRequests:
        return False
    return True


async def test_gateways_together_let_no_more_in_than_the_limit(redis_server: RedisServer) -> None:
    async with gateways(redis_server, KeyLimits(requests_per_minute=5), 3) as three:
        went = await asyncio.gather(*(passes(one) for one in three for _ in range(10)))
        # A twelfth of a minute makes room for another one.
        assert 5 <= sum(went) <= 7
        assert await passes(three[0], "b")


async def test_what_one_gateway_s_request_used_the_other_s_keys_have_not(redis_server: RedisServer) -> None:
    async with gateways(redis_server, KeyLimits(tokens_per_minute=1000)) as (one, two):
        assert await passes(one, cost=10, used=50_000)
        await until(lambda: one.idle)
        assert not await passes(two, cost=1)
        headers: list[tuple[bytes, bytes]] = []
        with pytest.raises(TooManyRequests) as refused:
            async with two.entered("a", 1, headers):
                pass
        assert refused.value.retry_after == pytest.approx(49_001 * 60 / 1000, rel=0.1)
        assert dict(headers)[b"x-ratelimit-remaining-tokens"] == b"0"


async def test_requests_at_once_are_counted_over_gateways_and_one_that_was_killed_is_forgotten(
    redis_server: RedisServer,
) -> None:
    async with (
        gateways(redis_server, KeyLimits(concurrent_requests=2)) as (one, two),
        AsyncExitStack() as held,
    ):
        await held.enter_async_context(one.entered("a", 0, []))
        await held.enter_async_context(two.entered("a", 0, []))
        assert not await passes(one)
        assert not await passes(two)
        [leases] = [key for key in keys(redis_server) if key.endswith(":running")]
        # As after so long without a word from them.
        redis_server.command("ZADD", leases, "1", "dead-1", "1", "dead-2")
        assert int(redis_server.command("ZCARD", leases)[1:]) == 4
        assert not await passes(one)
        assert int(redis_server.command("ZCARD", leases)[1:]) == 2
        assert 0 < int(redis_server.command("TTL", leases)[1:]) <= LEASE_SECONDS
        await held.aclose()
        await until(lambda: int(redis_server.command("ZCARD", leases)[1:]) == 0)
        assert await passes(two)


async def test_a_renewed_lease_lives_on(redis_server: RedisServer) -> None:
    shared = SharedAllowances(make_client(redis_server.url), "ns/model", enter_seconds=10)
    limits = KeyLimits(concurrent_requests=1)
    assert not (await shared.enter("a", "lease", 0, limits)).refused
    [leases] = [key for key in keys(redis_server) if key.endswith(":running")]
    redis_server.command("ZADD", leases, "1", "lease")
    await shared.renew("a", ["lease", "one that has left"])
    assert (await shared.enter("a", "other", 0, limits)).refused == "concurrent"
    assert int(redis_server.command("ZCARD", leases)[1:]) == 1
    await shared.close()


async def test_while_redis_is_away_each_gateway_counts_and_afterwards_all_together(
    redis_server: RedisServer,
) -> None:
    async with gateways(redis_server, KeyLimits(requests_per_minute=3)) as (one, two):
        redis_server.stop()
        went = await asyncio.gather(*(passes(each) for each in (one, two) for _ in range(6)))
        assert 6 <= sum(went) <= 8
        redis_server.start()
        await until(lambda: not (one.away or two.away))
        assert sum([await passes(each) for each in (one, two) for _ in range(3)]) in (3, 4)


async def test_a_redis_that_is_too_slow_is_not_waited_for_and_each_gateway_counts(
    redis_server: RedisServer,
) -> None:
    async with FaultyPort(redis_server.port) as port:
        shared = SharedAllowances(make_client(f"redis://127.0.0.1:{port.port}/0"), "ns/model")
        table = KeyLimitTable(KeyLimits(requests_per_minute=3), {})
        one = RateLimiter(table, GatewayMetrics(lambda: ()), time.monotonic, shared)
        assert await passes(one)
        await until(lambda: one.idle)
        port.delay = PATIENCE
        # Whoever waited for an answer would wait longer than this test may.
        went = [await passes(one) for _ in range(5)]
        assert 2 <= sum(went) <= 4
        assert one.away
        port.delay = 0
        await one.close()


async def test_a_full_redis_goes_on_counting_and_nobody_who_left_is_counted(
    redis_server: RedisServer,
) -> None:
    limits = KeyLimits(requests_per_minute=4, concurrent_requests=2)
    async with gateways(redis_server, limits) as (one, two):
        assert await passes(one)
        await until(lambda: one.idle)
        redis_server.command("CONFIG", "SET", "maxmemory", "1")
        try:
            for each in (one, two, one):
                assert await passes(each)
                await until(lambda: one.idle and two.idle)
            assert (one.away, two.away) == (False, False)
            assert not await passes(two)
            async with gateways(redis_server, KeyLimits(concurrent_requests=1)) as (third, fourth):
                async with third.entered("b", 0, []):
                    assert not await passes(fourth, "b")
                await until(lambda: third.idle)
                assert await passes(fourth, "b")
        finally:
            redis_server.command("CONFIG", "SET", "maxmemory", "0")


async def test_a_full_redis_renews_leases(redis_server: RedisServer) -> None:
    shared = SharedAllowances(make_client(redis_server.url), "ns/model", enter_seconds=10)
    assert not (await shared.enter("a", "lease", 0, KeyLimits(concurrent_requests=1))).refused
    redis_server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await shared.renew("a", ["lease"])
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory", "0")
        await shared.close()


def keys(redis: RedisServer) -> list[str]:
    return [
        word for word in redis.command("KEYS", "*").decode().split("\r\n") if word.startswith("mambaserve")
    ]


@pytest.mark.parametrize("level", ["-100000000", "-inf", "1e300", "nan", "inf", "-9e999"])
async def test_numbers_that_no_gateway_wrote_neither_lock_a_key_out_for_months_nor_lift_its_limit(
    redis_server: RedisServer, level: str
) -> None:
    async with gateways(redis_server, KeyLimits(requests_per_minute=3, tokens_per_minute=600), 1) as (one,):
        assert await passes(one)
        await until(lambda: one.idle)
        [left] = [key for key in keys(redis_server) if key.endswith(":left")]
        redis_server.command("HSET", left, "t", level, "r", level)
        waits = []
        for _ in range(4):
            try:
                async with one.entered("a", 600, []) as entry:
                    entry.used = 600
            except TooManyRequests as refused:
                waits.append(refused.retry_after)
        assert len(waits) >= 3
        assert max(waits) <= 86_400 + 60


async def test_leases_that_end_later_than_any_does_take_no_place(redis_server: RedisServer) -> None:
    async with gateways(redis_server, KeyLimits(concurrent_requests=2), 1) as (one,), one.entered("a", 0, []):
        [leases] = [key for key in keys(redis_server) if key.endswith(":running")]
        redis_server.command("ZADD", leases, "9e99", "forged-1", "inf", "forged-2")
        assert await passes(one)


async def test_a_user_of_one_namespace_counts_and_cannot_touch_the_keys_of_another(
    redis_server: RedisServer,
) -> None:
    page = Path(__file__).parents[2] / "docs/howto/share-a-redis.md"
    [rule] = re.findall(r"```\n(ACL SETUSER team-a .*?)```", page.read_text(), re.DOTALL)
    rule = rule.replace("\\\n", " ")
    redis_server.command(*shlex.split(rule.replace(">PASSWORD", ">secret")))
    url = redis_server.url.replace("redis://", "redis://team-a:secret@")
    limits = KeyLimits(requests_per_minute=5, tokens_per_minute=1000, concurrent_requests=5)
    own, other = (SharedAllowances(make_client(url), f"{ns}/model", 10) for ns in ("team-a", "team-b"))
    store = RedisStore(make_client(url), RedisKeys("team-a/model"))
    foreign = RedisStore(make_client(url), RedisKeys("team-b/model"))
    try:
        assert (await own.enter("web", "one", 10, limits)).requests == 4
        await own.renew("web", ["one"])
        assert (await own.leave("web", "one", 5, limits)).tokens == pytest.approx(985, abs=5)
        for outside in (other.enter("web", "one", 10, limits), other.renew("web", ["one"])):
            with pytest.raises(RedisAway, match=r"(?i)perm"):
                await outside
        position = await store.append([b"x"])
        await store.beat("e", b"beat")
        await store.put_snapshot("e", b"all")
        await store.check_writes()
        await store.want("e")
        assert await store.heartbeats(()) == {"e": b"beat"}
        assert await store.snapshots(["e"]) == {"e": b"all"}
        assert await store.read("0", 5, 0.01) == [(position, b"x")]
        assert await store.between("0", position) == [(position, b"x")]
        await store.forget("e")
        for forbidden in (foreign.append([b"x"]), foreign.heartbeats(()), foreign.put_snapshot("e", b"")):
            with pytest.raises(RedisAway, match=r"(?i)perm"):
                await forbidden
        with pytest.raises(ResponseError, match=r"(?i)perm"):
            await (emptying := make_client(url)).flushall()
        await emptying.aclose()
    finally:
        await own.close()
        await other.close()
        await store.close()
        await foreign.close()
