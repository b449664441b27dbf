"""Kept responses and conversations through the official openai client, against an engine alone."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from asgi import Asked
from eventually import until
from mamba_edge.api_keys import KeyFile
from responses_client import client_of, served
from scripted_engine import TOKENIZER, Api


async def turn(api: Api, client: openai.AsyncOpenAI, text: str, **fields: Any) -> Any:
    """Return the response to one turn, in which the model writes `text` after a thought."""
    number = len(api.engine.requests)
    asked = asyncio.create_task(client.responses.create(model="tiny", max_output_tokens=40, **fields))
    await until(lambda: asked.done() or api.engine.has_requests(number + 1))
    if not asked.done():
        api.engine.delta(f"hm</think>{text}", of=number, finish_reason="stop")
    return await asked


def prompts(api: Api) -> list[str]:
    return [TOKENIZER.decode(list(request.token_ids)) for request in api.engine.requests]


async def test_a_turn_goes_on_from_the_whole_conversation_before_it() -> None:
    api = served()
    async with client_of(api) as client:
        first = await turn(api, client, "one", input="a", instructions="brief")
        second = await turn(api, client, "two", input="b", previous_response_id=first.id)
        await turn(
            api, client, "three", input=[{"role": "user", "content": "c"}], previous_response_id=second.id
        )
    assert (first.store, first.previous_response_id) == (True, None)
    assert second.previous_response_id == first.id
    said = "user: a assistant: (hm)one user: b assistant: (hm)two user: c assistant: <think>"
    assert prompts(api)[2] == said  # the instructions are those of each request


async def test_two_turns_may_go_on_from_the_same_response() -> None:
    api = served()
    async with client_of(api) as client:
        first = await turn(api, client, "one", input="a")
        for text in "bc":
            await turn(api, client, text, input=text, previous_response_id=first.id)
    assert [prompt.count("user: ") for prompt in prompts(api)] == [1, 2, 2]


async def test_a_kept_response_is_read_and_its_input_listed_until_it_is_deleted() -> None:
    api = served()
    async with client_of(api) as client:
        answer = await turn(api, client, "one", input="a", metadata={"k": "v"})
        assert await client.responses.retrieve(answer.id) == answer
        (item,) = (await client.responses.input_items.list(answer.id)).data
        assert (item.role, item.content[0].text) == ("user", "a")
        await client.responses.delete(answer.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(answer.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(answer.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await turn(api, client, "two", input="b", previous_response_id=answer.id)
    assert len(api.engine.requests) == 1


async def test_a_stream_is_kept_before_its_client_has_its_end() -> None:
    api = served()
    async with client_of(api) as client:
        writing = asyncio.create_task(api.write("hm</think>", "one"))
        stream = await client.responses.create(model="tiny", input="a", stream=True, max_output_tokens=40)
        events = [event async for event in stream]
        await writing
        final: Any = events[-1]
        assert await client.responses.retrieve(final.response.id) == final.response
        await turn(api, client, "two", input="b", previous_response_id=final.response.id)
    assert "(hm)one user: b" in prompts(api)[1]


async def test_a_response_that_is_not_to_be_kept_is_not() -> None:
    api = served()
    async with client_of(api) as client:
        answer = await turn(api, client, "one", input="a", store=False)
        assert answer.store is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(answer.id)


async def test_a_conversation_takes_up_every_turn_and_item() -> None:
    api = served()
    async with client_of(api) as client:
        conversation = await client.conversations.create(
            metadata={"k": "v"}, items=[{"type": "message", "role": "developer", "content": "brief"}]
        )
        await turn(api, client, "one", input="a", conversation=conversation.id)
        answer = await turn(api, client, "two", input="b", conversation={"id": conversation.id})
        assert answer.conversation is not None
        assert answer.conversation.id == conversation.id
        added = await client.conversations.items.create(
            conversation.id, items=[{"type": "message", "role": "user", "content": "c"}]
        )
        assert [item.content[0].text for item in added.data] == ["c"]  # type: ignore[union-attr]
        await turn(api, client, "three", input="d", conversation=conversation.id)
        assert prompts(api)[-1] == (
            "system: brief user: a assistant: (hm)one user: b assistant: (hm)two user: c user: d "
            "assistant: <think>"
        )
        listed = [
            item async for item in client.conversations.items.list(conversation.id, order="asc", limit=3)
        ]
        assert [item.type for item in listed] == [
            "message", "message", "reasoning", "message", "message", "reasoning", "message", "message",
            "message", "reasoning", "message",
        ]  # fmt: skip
        changed = await client.conversations.update(conversation.id, metadata={"x": "y"})
        assert changed.metadata == {"x": "y"}
        assert (await client.conversations.retrieve(conversation.id)).metadata == {"x": "y"}
        assert (await client.conversations.delete(conversation.id)).deleted
        with pytest.raises(openai.BadRequestError, match="conversation"):
            await turn(api, client, "four", input="e", conversation=conversation.id)


async def test_a_deleted_response_leaves_its_items_in_its_conversation() -> None:
    api = served()
    async with client_of(api) as client:
        conversation = await client.conversations.create()
        first = await turn(api, client, "one", input="a", conversation=conversation.id)
        await client.responses.delete(first.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await gone(first.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await turn(api, client, "two", input="b", previous_response_id=first.id)
        second = await turn(api, client, "two", input="b", conversation=conversation.id)
        assert prompts(api)[-1] == "user: a assistant: (hm)one user: b assistant: <think>"
        await client.conversations.delete(conversation.id)
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)


async def test_a_conversation_with_a_part_missing_takes_no_items() -> None:
    api = served()
    async with client_of(api) as client:
        conversation = await client.conversations.create(
            items=[{"type": "message", "role": "developer", "content": "brief"}]
        )
        (entry,) = [key for key in api.serving.history._store._entries if key[1].startswith("resp_")]  # type: ignore[union-attr]
        await api.serving.history._store.delete(*entry)  # type: ignore[union-attr]
        held = api.serving.history._store.held  # type: ignore[union-attr]
        for _ in range(2):
            with pytest.raises(openai.BadRequestError, match="a part of the conversation"):
                await client.conversations.items.create(
                    conversation.id, items=[{"type": "message", "role": "user", "content": "c"}]
                )
    assert api.serving.history._store.held == held  # type: ignore[union-attr]


async def test_a_conversation_that_is_deleted_leaves_no_items() -> None:
    api = served()
    async with client_of(api) as client:
        conversation = await client.conversations.create(
            items=[{"type": "message", "role": "developer", "content": "brief"}]
        )
        answer = await turn(api, client, "one", input="a", conversation=conversation.id)
        await client.responses.delete(answer.id)
        await client.conversations.delete(conversation.id)
    assert api.serving.history._store.held == 0  # type: ignore[union-attr]


async def test_what_one_key_keeps_no_other_key_finds(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sk-a team-a\nsk-b team-b\nsk-c team-a\n")
    api = served(keys=KeyFile(tmp_path / "keys", "--api-key-file"))
    async with (
        client_of(api, "sk-a") as client,
        client_of(api, "sk-b") as other,
        client_of(api, "sk-c") as same,
    ):
        answer = await turn(api, client, "one", input="a")
        conversation = await client.conversations.create()
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(answer.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.delete(answer.id)
        with pytest.raises(openai.BadRequestError):
            await turn(api, other, "two", input="b", previous_response_id=answer.id)
        with pytest.raises(openai.NotFoundError):
            await other.conversations.retrieve(conversation.id)
        assert await same.responses.retrieve(answer.id) == answer


async def test_a_server_that_keeps_nothing_says_so_and_answers_the_rest() -> None:
    api = served(response_ttl=0)
    async with client_of(api) as client:
        answer = await turn(api, client, "one", input="a")
        assert answer.store is False
        for fields in ({"store": True}, {"previous_response_id": answer.id}, {"conversation": "conv_1"}):
            with pytest.raises(openai.BadRequestError, match=next(iter(fields))):
                await turn(api, client, "two", input="b", **fields)
        with pytest.raises(openai.NotFoundError, match="response-ttl"):
            await client.responses.retrieve(answer.id)


async def test_an_answer_that_fails_is_not_kept() -> None:
    api = served()
    asked = Asked(api.app, "POST", "/v1/responses").whole({"input": "x", "stream": True})
    await until(lambda: api.engine.has_requests(1))
    api.engine.delta("a</think>")
    await until(lambda: asked.messages)
    api.engine.dies()
    await asked.done()
    assert api.serving.history._store.held == 0  # type: ignore[union-attr]
