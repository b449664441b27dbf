"""Limits of keys that several gateways count in one Redis."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from eventually import PATIENCE, until
from faulty_port import FaultyPort
from mamba_edge.errors import TooManyRequests
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.admission.shared_allowance import LEASE_SECONDS, SharedAllowances
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_prefix.redis_client import make_client
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
