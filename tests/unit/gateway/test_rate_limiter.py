"""Limits of keys as one gateway counts them: who is refused, until when, and what requests cost."""

import asyncio
import contextlib
from typing import Any

import pytest

from mamba_edge.errors import TooManyRequests
from mamba_gateway.admission.allowance import AllowanceResult
from mamba_gateway.admission.rate_limiter import AWAY_SECONDS, RateLimiter, duration
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_prefix.errors import RedisAway


def limiter(default: KeyLimits | None = None, shared: Any = None, **entries: KeyLimits) -> RateLimiter:
    table = KeyLimitTable(default or KeyLimits(), entries)
    clock = asyncio.get_running_loop().time
    return RateLimiter(table, GatewayMetrics(lambda: ()), clock, shared)


async def used(
    made: RateLimiter, key: str = "a", cost: float = 1.0, used: float | None = None
) -> dict[str, str]:
    headers: list[tuple[bytes, bytes]] = []
    async with made.entered(key, cost, headers) as entry:
        entry.used = cost if used is None else used
    return {name.decode(): value.decode() for name, value in headers}


async def wait_of(made: RateLimiter, key: str = "a", cost: float = 1.0) -> float:
    """Return the wait of a refused request; fail if the request is admitted."""
    with pytest.raises(TooManyRequests) as refused:
        await used(made, key, cost)
    assert refused.value.retry_after is not None
    return refused.value.retry_after


async def test_requests_beyond_the_limit_are_refused_until_they_would_pass() -> None:
    made = limiter(KeyLimits(requests_per_minute=4))
    for left in (3, 2, 1, 0):
        headers = await used(made)
        assert headers["x-ratelimit-limit-requests"] == "4"
        assert headers["x-ratelimit-remaining-requests"] == str(left)
    assert headers["x-ratelimit-reset-requests"] == "1m0s"
    wait = await wait_of(made)
    assert wait == pytest.approx(15)
    await asyncio.sleep(wait - 0.01)
    await wait_of(made)
    await asyncio.sleep(0.02)
    await used(made)


async def test_what_a_request_used_beyond_its_estimate_is_a_debt_of_the_next() -> None:
    made = limiter(KeyLimits(tokens_per_minute=600))
    await used(made, cost=100, used=900)
    wait = await wait_of(made, cost=50)
    assert wait == pytest.approx(35)  # 300 of debt and 50, at 10 a second
    await asyncio.sleep(wait)
    headers = await used(made, cost=50, used=50)
    assert headers["x-ratelimit-remaining-tokens"] == "0"


async def test_what_a_request_did_not_use_comes_back() -> None:
    made = limiter(KeyLimits(tokens_per_minute=600))
    for _ in range(5):
        await used(made, cost=600, used=0)


async def test_a_request_larger_than_a_minute_s_tokens_passes_when_all_are_there() -> None:
    made = limiter(KeyLimits(tokens_per_minute=60))
    await used(made, cost=1)
    assert await wait_of(made, cost=100) == pytest.approx(1)
    await asyncio.sleep(1)
    await used(made, cost=100)
    assert await wait_of(made) == pytest.approx(41)


async def test_no_more_are_under_way_at_once_than_may() -> None:
    made = limiter(KeyLimits(concurrent_requests=2))
    async with contextlib.AsyncExitStack() as both:
        for _ in range(2):
            await both.enter_async_context(made.entered("a", 1, []))
        await wait_of(made)
        await used(made, "b")
    with pytest.raises(RuntimeError):
        async with made.entered("a", 1, []):
            raise RuntimeError
    async with contextlib.AsyncExitStack() as both:
        for _ in range(2):
            await both.enter_async_context(made.entered("a", 1, []))


async def test_a_key_with_an_entry_has_limits_of_its_own() -> None:
    made = limiter(KeyLimits(requests_per_minute=1), rich=KeyLimits(requests_per_minute=3), free=KeyLimits())
    for key, may in (("a", 1), ("b", 1), ("rich", 3)):
        for _ in range(may):
            await used(made, key)
        await wait_of(made, key)
    for _ in range(10):
        assert await used(made, "free") == {}


async def test_a_refused_request_takes_nothing() -> None:
    made = limiter(KeyLimits(requests_per_minute=60, tokens_per_minute=60))
    await used(made, cost=60)
    for _ in range(100):
        await wait_of(made, cost=10)
    await asyncio.sleep(10)
    headers = await used(made, cost=10)
    assert headers["x-ratelimit-remaining-requests"] == "59"


class Shared:
    """In the place of Redis: says what it is told to, and remembers."""

    def __init__(self) -> None:
        self.away = False
        self.verdict = AllowanceResult("", 5, 50)
        self.asked: list[str] = []
        self.left: list[float] = []
        self.answer = asyncio.Event()
        self.answer.set()

    async def enter(self, name: str, lease: str, cost: float, limits: KeyLimits) -> AllowanceResult:
        self.asked.append(lease)
        await self.answer.wait()
        if self.away:
            raise RedisAway("gone")
        return self.verdict

    async def leave(self, name: str, lease: str, more: float, limits: KeyLimits) -> AllowanceResult:
        self.left.append(more)
        return self.verdict

    async def close(self) -> None:
        pass


async def test_the_count_of_all_gateways_decides_while_it_can_be_asked() -> None:
    shared = Shared()
    made = limiter(KeyLimits(requests_per_minute=10), shared)
    shared.verdict = AllowanceResult("requests", 0, 50)
    assert await wait_of(made) == pytest.approx(6)
    shared.verdict = AllowanceResult("", 5, 50)
    await used(made, cost=3, used=10)
    await made.close()
    assert shared.left == [7]


async def test_without_redis_counting_goes_on_here_from_what_was_known_last() -> None:
    shared = Shared()
    made = limiter(KeyLimits(requests_per_minute=10), shared)
    shared.verdict = AllowanceResult("", 2, 50)
    await used(made)
    await asyncio.sleep(0)
    shared.away = True
    await used(made)
    await used(made)
    await wait_of(made)
    assert len(shared.asked) == 2  # it is left alone after it did not answer
    await asyncio.sleep(AWAY_SECONDS)
    shared.away = False
    await used(made)
    assert len(shared.asked) == 3


async def test_a_client_that_leaves_while_redis_is_asked_holds_nothing_there() -> None:
    shared = Shared()
    made = limiter(KeyLimits(concurrent_requests=1), shared)
    shared.answer.clear()
    leaving = asyncio.create_task(used(made, cost=5))
    await asyncio.sleep(1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    shared.answer.set()
    await made.close()
    assert shared.left == [-5]


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0ms"),
        (0.0201, "21ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (60, "1m0s"),
        (90.25, "1m30.3s"),
        (3600, "60m0s"),
    ],
)
def test_times_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert duration(seconds) == written


@pytest.mark.parametrize(
    "entry",
    ["", "a", "a:", ":requests=1", "a:requests=0", "a:requests=1,requests=2", "a:tokens=x", "a:tokens=\u0661",
     "a:weight=1001", "a b:requests=1", "a:requests=-1", "a:other=1", "a:requests=9999999999999"],
)  # fmt: skip
def test_an_entry_that_says_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"NUMBER|NAME|range"):
        KeyLimitTable.parsed(KeyLimits(), [entry])
