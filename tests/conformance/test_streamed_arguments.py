"""Arguments of calls, streamed token by token to the official clients in all three dialects."""

import asyncio
import json
from typing import Any

import anthropic
import httpx2
import openai

from eventually import until
from responses_client import client_of, served
from scripted_engine import Api

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
WRITTEN = [
    "</think>",
    '<tool_call>{"name": "add", "arg',
    'uments": {"a": "one',
    " two",
    ' three"}',
    "}</tool_call>",
]
ARGUMENTS = {"a": "one two three"}
LEAST = 4
"""Pieces of the arguments that come one after another."""


async def write_in_steps(api: Api) -> None:
    """Write the answer in as many steps of the engine as it has parts."""
    await until(lambda: api.engine.has_requests(1))
    for part in WRITTEN:
        api.engine.delta(part, finish_reason="stop" if part is WRITTEN[-1] else None)
        for _ in range(20):
            await asyncio.sleep(0)


async def events_of(api: Api, stream: Any) -> list[Any]:
    writing = asyncio.create_task(write_in_steps(api))
    events = [event async for event in await stream]
    await writing
    return events


async def test_chats() -> None:
    api = served()
    async with client_of(api) as client:
        tools: Any = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
        messages: Any = [{"role": "user", "content": "x"}]
        stream = client.chat.completions.create(model="tiny", messages=messages, tools=tools, stream=True)
        chunks = await events_of(api, stream)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [(call.index, call.id is not None, call.function.name) for call in calls][:2] == [
        (0, True, "add"), (0, False, None),
    ]  # fmt: skip
    pieces = [call.function.arguments for call in calls]
    assert len([piece for piece in pieces if piece]) >= LEAST - 1
    assert json.loads("".join(pieces)) == ARGUMENTS
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_responses() -> None:
    api = served()
    async with client_of(api) as client:
        tools: Any = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
        stream = client.responses.create(model="tiny", input="x", tools=tools, stream=True)
        events = await events_of(api, stream)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) >= LEAST - 1
    assert json.loads("".join(deltas)) == ARGUMENTS
    (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
    assert done.arguments == "".join(deltas)
    (item,) = (item for item in events[-1].response.output if item.type == "function_call")
    assert (item.status, item.arguments) == ("completed", done.arguments)


async def test_messages() -> None:
    api = served()
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api.app))
    async with anthropic.AsyncAnthropic(
        base_url="http://engine", api_key="any", max_retries=0, http_client=transport
    ) as client:
        writing = asyncio.create_task(write_in_steps(api))
        async with client.messages.stream(
            model="tiny", max_tokens=200, messages=[{"role": "user", "content": "x"}],
            tools=[{"name": "add", "input_schema": SCHEMA}],
        ) as stream:  # fmt: skip
            pieces = [event.partial_json async for event in stream if event.type == "input_json"]
            message = await stream.get_final_message()
        await writing
    assert len([piece for piece in pieces if piece]) >= LEAST - 1
    (block,) = (block for block in message.content if block.type == "tool_use")
    assert block.input == ARGUMENTS
    assert message.stop_reason == "tool_use"


async def test_a_call_that_the_limit_cuts_has_what_was_written() -> None:
    api = served()
    async with client_of(api) as client:
        tools: Any = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
        stream = client.responses.create(model="tiny", input="x", tools=tools, stream=True)
        writing = asyncio.create_task(api.write(*WRITTEN[:4], finish="length"))
        final: Any = [event async for event in await stream][-1]
        await writing
    assert isinstance(final, openai.types.responses.ResponseIncompleteEvent)
    (item,) = (item for item in final.response.output if item.type == "function_call")
    assert (item.status, item.arguments) == ("incomplete", '{"a": "one two')
