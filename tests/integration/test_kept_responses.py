"""Conversations of the Responses API behind gateways: found whichever engine and gateway answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import openai
import pytest

from eventually import until
from mamba_gateway.process.server import serve
from mamba_gateway.settings import GatewaySettings
from mamba_server import wire
from redis_server import RedisServer
from responses_client import served as scripted_api
from scripted_engine import TOKENIZER, Api, ids_of
from served_app import served


def answering() -> Api:
    """Return an engine that answers each prompt with the number of the user's turns in it."""
    api = scripted_api()

    def react(message: wire.ToEngine) -> None:
        if isinstance(message, wire.AddRequest):
            turns = prompt_of(message).count("user: ")
            delta = wire.SequenceDelta(
                message.request_id, 0, ids_of(f"hm</think>{turns}"), finish_reason="stop"
            )
            asyncio.get_running_loop().call_soon(api.engine.send, wire.Outputs([delta]))

    api.engine.process.react = react
    return api


def prompt_of(request: wire.AddRequest) -> str:
    return TOKENIZER.decode(list(request.token_ids))


@asynccontextmanager
async def gateway(*backends: str, **options: Any) -> AsyncIterator[str]:
    settings = GatewaySettings(backend=backends, port=0, probe_interval=0.05, prefix_weight=0, **options)
    where: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, where.set_result, stop=stop, rng=Random(7)))
    try:
        await asyncio.wait((where, task), return_when=asyncio.FIRST_COMPLETED)
        yield where.result()
    finally:
        stop.set()
        await task


def client(url: str, key: str = "sk-a") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def ask(url: str, text: str, key: str = "sk-a", **fields: Any) -> Any:
    async with client(url, key) as connected:
        if not fields.pop("stream", False):
            return await connected.responses.create(model="tiny", input=text, **fields)
        stream = await connected.responses.create(model="tiny", input=text, stream=True, **fields)
        return [event async for event in stream][-1].response  # type: ignore[union-attr]


@asynccontextmanager
async def engines(count: int = 2) -> AsyncIterator[tuple[list[Api], list[str]]]:
    apis = [answering() for _ in range(count)]
    async with AsyncExitStack() as stack:
        yield apis, [await stack.enter_async_context(served(api.app)) for api in apis]


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "keys").write_text("sk-a team-a\nsk-b team-b\n")
    return str(tmp_path / "keys")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_on_at_whichever_engine(keys: str, stream: bool) -> None:
    async with engines() as (apis, urls), gateway(*urls, api_key_file=keys) as url:
        previous: dict[str, str] = {}
        for turn in range(1, 9):
            answer = await ask(url, f"t{turn}", stream=stream, **previous)
            assert answer.output_text == str(turn)
            assert answer.previous_response_id == previous.get("previous_response_id")
            previous = {"previous_response_id": answer.id}
            if turn == 4:
                busier = max(apis, key=lambda api: len(api.engine.requests))
                busier.serving.drain.draining = True
        assert all(api.engine.requests for api in apis)
        with pytest.raises(openai.BadRequestError):
            await ask(url, "x", "sk-b", **previous)
        async with client(url) as connected:
            assert await connected.responses.retrieve(answer.id) == answer
        # The gateway keeps the responses, and engines none.
        assert not any(api.serving.history._store.held for api in apis)  # type: ignore[union-attr]


async def test_a_client_cannot_make_an_engine_believe_that_its_input_is_whole(keys: str) -> None:
    async with engines(1) as (apis, urls), gateway(*urls, api_key_file=keys) as url:
        first = await ask(url, "one")
        headers = {"x-mambaserve-history": "none"}
        second = await ask(url, "two", previous_response_id=first.id, extra_headers=headers)
        assert (second.output_text, second.store) == ("2", True)
        assert "one" in prompt_of(apis[0].engine.requests[1])


@pytest.mark.redis
async def test_conversations_outlive_gateways_that_have_a_redis(redis_server: RedisServer, keys: str) -> None:
    shared = {"redis_url": redis_server.url, "prefix_index_scope": "ns/m", "api_key_file": keys}
    async with engines() as (_, urls):
        async with gateway(*urls, **shared) as url, client(url) as connected:
            conversation = await connected.conversations.create()
            first = await ask(url, "one")
            for text in ("a", "b"):
                await ask(url, text, conversation=conversation.id, stream=True)
        async with gateway(*urls, **shared) as url, gateway(*urls, **shared) as other:
            second = await ask(url, "two", previous_response_id=first.id)
            third = await ask(other, "three", previous_response_id=second.id)
            assert (second.output_text, third.output_text) == ("2", "3")
            assert (await ask(other, "c", conversation=conversation.id)).output_text == "3"
            with pytest.raises(openai.BadRequestError):
                await ask(other, "x", "sk-b", previous_response_id=third.id)
    assert b"sk-a" not in redis_server.command("KEYS", "*")


@pytest.mark.redis
async def test_items_and_metadata_that_come_at_once_are_all_kept(
    redis_server: RedisServer, keys: str
) -> None:
    shared = {"redis_url": redis_server.url, "prefix_index_scope": "ns/m", "api_key_file": keys}
    async with engines(1) as (_, urls), gateway(*urls, **shared) as url, client(url) as connected:
        conversation = await connected.conversations.create()

        async def add(text: str) -> Any:
            items: Any = [{"type": "message", "role": "user", "content": text}]
            _, added = await asyncio.gather(
                connected.conversations.update(conversation.id, metadata={"last": text}),
                connected.conversations.items.create(conversation.id, items=items),
            )
            return added.data[0]

        texts = [f"text {number}" for number in range(16)]
        added = await asyncio.gather(*map(add, texts))
        assert [item.content[0].text for item in added] == texts
        listed = [item async for item in connected.conversations.items.list(conversation.id)]
        assert sorted(item.id for item in listed) == sorted(item.id for item in added)


@pytest.mark.redis
async def test_without_its_redis_a_gateway_answers_what_needs_no_history(
    redis_server: RedisServer, keys: str
) -> None:
    shared = {"redis_url": redis_server.url, "prefix_index_scope": "ns/m", "api_key_file": keys}
    async with engines(1) as (_, urls), gateway(*urls, **shared) as url:
        first = await ask(url, "one")
        redis_server.stop()
        try:
            assert (await ask(url, "one")).output_text == "1"
            with pytest.raises(openai.InternalServerError) as refused:
                await ask(url, "two", previous_response_id=first.id)
        finally:
            redis_server.start()
        assert (refused.value.status_code, refused.value.code) == (503, "history_unavailable")


async def counted(url: str) -> int:
    """Return the requests of the first key in the ledger."""
    headers = {"authorization": "Bearer sk-a"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{url}/v1/usage?by=model") as answer,
    ):
        assert answer.status == 200
        return int((await answer.json())["total"]["requests"])


def restricted(redis: RedisServer, namespace: str) -> str:
    """Create the user for a namespace as the documentation says; return the address of Redis with it."""
    page = (Path(__file__).parents[2] / "docs/howto/share-a-redis.md").read_text()
    rule = page.partition("```\nACL ")[2].partition("```")[0].replace("\\\n", " ")
    redis.command("ACL", *rule.replace("PASSWORD", "pw").replace("team-a", namespace).split())
    return redis.url.replace("//", f"//{namespace}:pw@")


@pytest.mark.redis
async def test_gateways_of_several_models_share_responses_counts_and_the_ledger(
    redis_server: RedisServer, keys: str, tmp_path: Path
) -> None:
    async with engines(1) as (_, urls):
        own: dict[str, Any] = {"backend": urls, "redis_url": None, "key_limit": ["team-b:requests=1"]}
        models = [{"name": "tiny", "settings": own}]
        (tmp_path / "models").write_text(json.dumps({"models": models}))
        (tmp_path / "redis").write_text(restricted(redis_server, "ns"))
        shared = {
            "models_file": str(tmp_path / "models"), "api_key_file": keys,
            "redis_url_file": str(tmp_path / "redis"), "prefix_index_scope": "ns/team.gateway",
        }  # fmt: skip
        async with gateway(**shared) as one, gateway(**shared) as other:
            first = await ask(one, "one")
            second = await ask(other, "two", previous_response_id=first.id)
            assert second.output_text == "2"
            await ask(one, "x", "sk-b")
            with pytest.raises(openai.RateLimitError):
                await ask(other, "x", "sk-b")
            await until(lambda: b"mambaserve:usage:1:{ns/team.gateway}" in redis_server.command("KEYS", "*"))
        async with gateway(**shared) as restarted:
            third = await ask(restarted, "three", previous_response_id=second.id)
            assert third.output_text == "3"
    # The engine has ended, so Redis alone knows what it counted.
    async with gateway(**shared) as url:
        assert await counted(url)
