"""Two real engines of the shipped model and one real Redis: what a gateway knows is what the engines have."""

import asyncio
from collections.abc import Iterator
from random import Random

import aiohttp
import numpy as np
import pytest

from eventually import until
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.prefix_index.direct_feed import DirectFeed
from mamba_prefix.follower import Follower
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_client import make_client
from mamba_prefix.redis_keys import RedisKeys
from mamba_prefix.redis_store import RedisStore
from redis_server import RedisServer
from servers import Server, call

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def engines(redis_server: RedisServer) -> Iterator[list[Server]]:
    made: list[Server] = []
    try:
        while len(made) < 2:
            made.append(Server("builtin://tiny-recall", "--redis-url", redis_server.url))
        yield made
    finally:
        for each in made:
            each.close()


def name_of(engine: Server) -> str:
    return engine.url.removeprefix("http://")


async def complete(engine: Server, prompt: list[int], tokens: int = 2) -> int:
    """Serve a prompt of token ids; the prompt tokens that were resumed."""
    body = {"model": engine.model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    status, answer = await asyncio.to_thread(call, f"{engine.url}/v1/completions", body)
    assert status == 200, answer
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def admin(engine: Server, verb: str, **body: object) -> dict[str, object]:
    method = "PUT" if verb == "strategy" else "POST" if verb == "flush_cache" else "GET"
    status, answer = await asyncio.to_thread(
        call, f"{engine.admin}/admin/{verb}", body or None, method=method
    )
    assert status == 200, answer
    return answer


async def test_a_gateway_knows_what_engines_have_by_redis_and_by_asking(
    engines: list[Server], redis_server: RedisServer
) -> None:
    first, second = engines
    store = RedisStore(make_client(redis_server.url), RedisKeys(first.model))
    shared, asked = PrefixIndex(), PrefixIndex()
    following = asyncio.create_task(Follower(shared, store).run())
    rng = Random(0)
    prompts = [[rng.randrange(5, 200) for _ in range(64 + 32 * turn)] for turn in range(4)]
    try:
        async with aiohttp.ClientSession() as session:
            feed = DirectFeed(session, asked)
            feed.set_targets([Target(each.url, name_of(each)) for each in engines])

            async def agrees() -> bool:
                counts = {name_of(each): (await admin(each, "ledger"))["checkpoints"] for each in engines}
                return all(
                    {name: view.entries for name, view in index.engines().items()} == counts
                    and index.state == "following"
                    for index in (shared, asked)
                )

            async def until_both_agree() -> None:
                async with asyncio.timeout(60):
                    while not await agrees():  # noqa: ASYNC110 - the engines are other processes
                        await asyncio.sleep(0.05)

            for prompt in prompts:
                await complete(first, prompt)
            await complete(second, prompts[0])
            await until_both_agree()
            assert shared.engines()[name_of(first)].entries >= len(prompts)
            assert shared.engines()[name_of(first)].pages > shared.engines()[name_of(second)].pages > 0
            for prompt in prompts:
                again = np.array([*prompt, 7, 8, 9], np.int32)
                expected = dict(shared.depths(again, "").resumable)
                assert shared.depths(again, "") == asked.depths(again, "")
                # What the index says is what the engine does.
                assert (name_of(second) in expected) == (prompt is prompts[0])
                assert await complete(first, again.tolist()) == expected[name_of(first)] > 0

            await admin(first, "strategy", strategy="NoBuffer")
            await until_both_agree()
            assert shared.engines()[name_of(first)].epoch == 1
            assert shared.engines()[name_of(first)].entries > 0

            await admin(first, "flush_cache")
            await until(lambda: all(one.engines()[name_of(first)].epoch == 2 for one in (shared, asked)))
            await until_both_agree()
            assert shared.engines()[name_of(first)].entries == 0
            assert shared.engines()[name_of(first)].pages == 0

            redis_server.command("FLUSHALL")
            await complete(first, prompts[1])
            await until_both_agree()
            await feed.close()

            # A copy that hears nothing any more promises what is gone, until an answer tells.
            again = np.array([*prompts[1], 7, 8, 9], np.int32)
            said, before = asked.depths(again, ""), shared.depths(again, "")
            epoch = shared.engines()[name_of(first)].epoch
            await admin(first, "flush_cache")
            resumed = await complete(first, again.tolist())
            assert resumed == 0 < said.resumable[name_of(first)]
            assert asked.withdraw(name_of(first), again, "", resumed, said)
            assert name_of(first) not in asked.depths(again, "").resumable
            # The one that follows has heard of the flush, and of what the request left.
            await until(
                lambda: (
                    shared.engines()[name_of(first)].epoch > epoch
                    and name_of(first) in shared.depths(again, "").resumable
                )
            )
            told = shared.depths(again, "")
            assert not shared.withdraw(name_of(first), again, "", resumed, before)
            assert shared.depths(again, "") == told
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await store.close()
