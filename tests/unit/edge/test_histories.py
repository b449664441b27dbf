"""Kept responses in memory and in Redis: their life, their budget, and whose they are."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from mamba_edge.history.entries import ids_of
from mamba_edge.history.memory_history import ALL_CLIENTS, MemoryHistory
from mamba_gateway.redis_history import RedisHistory
from mamba_prefix.redis_client import make_client
from redis_server import RedisServer

BUDGET = 4000
Store = MemoryHistory | RedisHistory


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryHistory(1000, BUDGET, lambda: 0.0)
    else:
        redis: RedisServer = request.getfixturevalue("redis_server")
        made = RedisHistory(make_client(redis.url), "ns/m", 1000, BUDGET)
    yield made
    await made.close()


async def kept(store: Store, client: str, *ids: str) -> list[bool]:
    return [entry is not None for entry in await store.load(client, ids)]


@pytest.mark.slow
async def test_an_entry_is_found_by_its_client_until_it_is_deleted(store: Store) -> None:
    assert await store.save("a", "resp_1", b"\n{}")
    assert await store.load("a", ["resp_1", "resp_2"]) == [b"\n{}", None]
    assert await store.load("b", ["resp_1"]) == [None]
    assert not await store.delete("b", "resp_1")
    assert await store.delete("a", "resp_1")
    assert not await store.delete("a", "resp_1")
    assert await store.load("a", ["resp_1"]) == [None]


async def test_a_client_loses_what_it_has_not_used_for_longest(store: Store) -> None:
    for name in "123":
        assert await store.save("a", f"resp_{name}", b"\n" + b"x" * 1000)
    assert await store.save("b", "resp_1", b"\n" + b"x" * 1000)
    await store.load("a", ["resp_1"])
    assert await store.save("a", "resp_4", b"\n" + b"x" * 1000)
    assert await kept(store, "a", "resp_1", "resp_2", "resp_3", "resp_4") == [True, False, True, True]
    assert await kept(store, "b", "resp_1") == [True]


async def test_an_entry_larger_than_the_budget_is_not_kept_and_drives_nothing_out(store: Store) -> None:
    assert await store.save("a", "resp_1", b"\n{}")
    assert not await store.save("a", "resp_2", b"\n" + b"x" * BUDGET)
    assert await kept(store, "a", "resp_1", "resp_2") == [True, False]


async def test_a_conversation_has_its_turns_in_their_order(store: Store) -> None:
    assert await store.save("a", "conv_1", b"\n{}")
    for name in "321":
        assert await store.save("a", f"resp_{name}", b"\n{}", "conv_1")
    (entry,) = await store.load("a", ["conv_1"])
    assert entry is not None
    assert ids_of(entry) == ["resp_3", "resp_2", "resp_1"]
    assert entry.endswith(b"\n{}")
    assert not await store.save("a", "resp_4", b"\n{}", "conv_2")
    assert not await store.save("b", "resp_4", b"\n{}", "conv_1")
    assert await kept(store, "a", "resp_4") == [False]


async def test_new_content_leaves_the_turns_of_a_conversation(store: Store) -> None:
    assert not await store.replace("a", "conv_1", b"{}")
    await store.save("a", "conv_1", b"\n{}")
    await store.save("a", "resp_1", b"\n{}", "conv_1")
    assert await store.replace("a", "conv_1", b'{"x": 1}\n')
    assert await store.load("a", ["conv_1"]) == [b'resp_1\n{"x": 1}\n']
    assert not await store.replace("a", "conv_1", b"x" * BUDGET)
    assert not await store.replace("b", "conv_1", b"{}")
    assert await store.load("a", ["conv_1"]) == [b'resp_1\n{"x": 1}\n']
    assert await store.replace("a", "conv_1", b"x" * (BUDGET - 230))
    assert await kept(store, "a", "conv_1", "resp_1") == [True, False]


async def test_many_at_once_all_reach_the_conversation(store: Store) -> None:
    await store.save("a", "conv_1", b"\n{}")
    await asyncio.gather(*(store.save("a", f"resp_{n}", b"\n", "conv_1") for n in range(10)))
    (entry,) = await store.load("a", ["conv_1"])
    assert entry is not None
    assert sorted(ids_of(entry)) == sorted(f"resp_{n}" for n in range(10))


async def test_an_entry_lives_from_its_last_use() -> None:
    now = [0.0]
    store = MemoryHistory(10, BUDGET, lambda: now[0])
    for name in "12":
        await store.save("a", f"resp_{name}", b"\n{}")
    now[0] = 6
    await store.load("a", ["resp_1"])
    now[0] = 12
    assert await kept(store, "a", "resp_1", "resp_2") == [True, False]
    now[0] = 30
    assert await kept(store, "a", "resp_1") == [False]
    assert store.held == 0


@pytest.mark.redis
async def test_redis_is_empty_when_the_time_to_live_has_ended(redis_server: RedisServer) -> None:
    store = RedisHistory(make_client(redis_server.url), "ns/m", 0.05, BUDGET)
    await store.save("a", "resp_1", b"\n{}")
    while await store._client.keys():  # noqa: ASYNC110 - no event says it
        await asyncio.sleep(0)
    await store.close()


async def test_all_clients_together_have_a_budget_in_memory() -> None:
    store = MemoryHistory(10, BUDGET, lambda: 0.0)
    for number in range(100):
        await store.save(f"c{number}", "resp_1", b"\n" + b"x" * 1000)
    assert store.held <= ALL_CLIENTS * BUDGET
    assert await kept(store, "c99", "resp_1") == [True]
    assert await kept(store, "c0", "resp_1") == [False]
