"""The official openai client's Responses API, unmodified, against the API of a scripted engine."""

import asyncio
import json
from typing import Any

import pytest

from asgi import Asked
from eventually import until
from mamba_api.dialects.responses_answer import ResponsesEvent, ResponsesResponse
from responses_client import client_of, served
from scripted_engine import TOKENIZER, Api

PATH = "/v1/responses"
ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


async def whole(*parts: str, finish: str = "stop", **fields: Any) -> Any:
    api = served()
    async with client_of(api) as client:
        body = {"model": "tiny", "input": "x", "max_output_tokens": 200, **fields}
        answer, _ = await asyncio.gather(client.responses.create(**body), api.write(*parts, finish=finish))
    ResponsesResponse.model_validate(as_sent(answer))
    return answer


def as_sent(model: Any) -> dict[str, Any]:
    """Return the JSON that a model of the client was read from; the client reads times as floats."""
    fields: dict[str, Any] = model.model_dump(exclude_unset=True)
    for response in (fields, fields.get("response", {})):
        if "created_at" in response:
            response["created_at"] = int(response["created_at"])
    return fields


def prompt_of(api: Api) -> str:
    return TOKENIZER.decode(list(api.engine.requests[0].token_ids))


async def test_an_answer_has_items_status_and_usage() -> None:
    answer = await whole("Let me see.</think>", "forty-two", metadata={"a": "b"})
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].content[0].text == "Let me see."
    assert answer.output_text == "forty-two"
    assert (answer.status, answer.store, answer.metadata) == ("completed", True, {"a": "b"})
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details.reasoning_tokens > 0


async def test_an_answer_that_reaches_the_limit_is_incomplete() -> None:
    answer = await whole("a</think>b", finish="length")
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[-1].status == "incomplete"


async def test_a_tool_makes_the_round_trip() -> None:
    answer = await whole("hm</think>", "Let me. ", CALL, tools=[ADD])
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    call = answer.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})
    items = [item.model_dump(exclude_none=True) for item in answer.output]
    api = served()
    async with client_of(api) as client:
        await asyncio.gather(
            client.responses.create(
                model="tiny", instructions="brief", tools=[ADD], reasoning={"effort": "low"}, store=False,
                include=["reasoning.encrypted_content"],
                input=[
                    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                    *items,
                    {"type": "function_call_output", "call_id": call.call_id, "output": "2"},
                ],
            ),
            api.write("3"),
        )  # fmt: skip
    told = prompt_of(api)
    assert "system: brief user: x assistant: (hm)Let me." in told
    assert told.endswith("[add 1] tool: 2 assistant: <think>low")


async def test_a_stream_has_the_typed_events_in_their_order() -> None:
    api = served()
    async with client_of(api) as client:
        writing = asyncio.create_task(api.write("hm</think>", "Let me. ", CALL))
        stream = await client.responses.create(
            model="tiny", input="x", max_output_tokens=200, tools=[ADD], stream=True
        )
        events = [event async for event in stream]
        await writing
    for event in events:
        ResponsesEvent.model_validate(as_sent(event))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip
    final: Any = events[-1]
    assert [item.type for item in final.response.output] == ["reasoning", "message", "function_call"]
    assert final.response.usage.output_tokens > 5
    added: Any = [event for event in events if event.type == "response.output_item.added"]
    assert [event.output_index for event in added] == [0, 1, 2]


async def raw(api: Api, body: dict[str, Any] | bytes) -> Asked:
    fields = {"input": "x", **body} if isinstance(body, dict) else body
    return Asked(api.app, "POST", PATH).whole(fields)


async def test_an_error_within_a_stream_fails_the_response() -> None:
    api = served()
    asked = await raw(api, {"stream": True})
    await until(lambda: api.engine.has_requests(1))
    api.engine.delta("a</think>")
    await until(lambda: asked.messages)
    api.engine.dies()
    last = (await asked.done()).body.split(b"\n\n")[-2].decode()
    assert last.startswith("event: response.failed\ndata: ")
    failed = json.loads(last.partition("data: ")[2])["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "engine_lost")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": [ADD]}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
async def test_a_wrong_request_is_refused_by_the_name_of_its_field(fields: Any, param: str) -> None:
    asked = await (await raw(served(), fields)).done()
    assert (asked.status, asked.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"input":' + b"[" * 10000, b"\xff", b"null"])
async def test_a_broken_body_is_refused(body: bytes) -> None:
    asked = await (await raw(served(), body)).done()
    assert (asked.status, asked.json["error"]["code"]) == (400, "invalid_json")


async def test_a_schema_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def can_be_followed(*_: Any) -> str:
        return ""

    api = served()
    monkeypatch.setattr(type(api.serving), "check_grammar", can_be_followed)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    async with client_of(api) as client:
        answer, _ = await asyncio.gather(
            client.responses.create(
                model="tiny",
                input="x",
                text={"format": {"type": "json_schema", "name": "place", "schema": schema}},
            ),
            api.write('</think>{"city": "Oslo"}'),
        )
    assert "city" in api.engine.requests[0].params.grammar
    assert json.loads(answer.output_text) == {"city": "Oslo"}
