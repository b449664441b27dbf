"""Stores in Redis over a client that behaves badly: each call ends, failures as Redis being away."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mamba_edge.usage.usage_sum import UsageEntry, UsageFeed, UsageSum
from mamba_gateway.admission.shared_allowance import SharedAllowances
from mamba_gateway.key_limits import KeyLimits
from mamba_gateway.redis_history import RedisHistory
from mamba_gateway.usage.redis_ledger import RedisLedger
from mamba_prefix.errors import RedisAway
from mamba_prefix.follower import Follower
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_store import RedisStore
from virtual_time import in_virtual_time

Answer = Callable[[], Coroutine[Any, Any, Any]]


class Client:
    """Answers every question as `answer` does."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def srandmember(self, key: str, number: int) -> Any:
        return await self.answer()

    async def eval(self, script: str, keys: int, *arguments: Any) -> Any:
        return await self.answer()

    async def aclose(self) -> None:
        await self.answer()


async def deaf() -> set[bytes]:
    """Lose a cancellation, as `asyncio.wait_for` of Python 3.11 may."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0)
    return set()


async def fails_when_cancelled() -> set[bytes]:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ConnectionError("closed") from None
    return set()


def store(answer: Answer) -> RedisStore:
    return RedisStore(Client(answer), RedisKeys("ns/model"))


@pytest.mark.parametrize("answer", [deaf, fails_when_cancelled])
@in_virtual_time
async def test_a_follower_that_is_cancelled_ends_whatever_the_client_makes_of_it(answer: Answer) -> None:
    following = asyncio.create_task(Follower(PrefixIndex(), store(answer)).run())
    await asyncio.sleep(0.5)
    following.cancel()
    done, _ = await asyncio.wait([following], timeout=5)
    assert done
    assert following.cancelled()


FEED = UsageFeed("one", "model", 1, [UsageEntry("2026-11-30", "team", "", 1, UsageSum())])
WRITES: dict[str, Callable[[Client], Coroutine[Any, Any, Any]]] = {
    "ledger": lambda client: RedisLedger(client, "ns", 1).put(FEED),
    "history": lambda client: RedisHistory(client, "ns", 60, 1000).delete("team", "id"),
    "allowances": lambda client: SharedAllowances(client, "ns").leave("team", "lease", 1, KeyLimits()),
}


@pytest.mark.parametrize("answer", [deaf, fails_when_cancelled])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@in_virtual_time
async def test_a_writer_that_is_cancelled_ends_whatever_the_client_makes_of_it(
    write: Callable[[Client], Coroutine[Any, Any, Any]], answer: Answer
) -> None:
    """A gateway that ends would wait for it for ever."""
    writing = asyncio.create_task(write(Client(answer)))
    await asyncio.sleep(0.1)
    writing.cancel()
    await asyncio.wait([writing], timeout=5)
    assert writing.cancelled()


@in_virtual_time
async def test_an_answer_that_takes_too_long_is_redis_being_away_and_no_cancelling() -> None:
    async def slow() -> set[bytes]:
        await asyncio.sleep(60)
        return set()

    with pytest.raises(RedisAway):
        await store(slow).heartbeats(())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@in_virtual_time
async def test_closing_waits_for_no_redis_that_does_not_answer() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(5):
        await store(never).close()
