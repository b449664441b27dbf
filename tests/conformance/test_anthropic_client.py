"""The official anthropic client, unmodified, against the API of a scripted engine."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest

from asgi import Asked
from eventually import until
from mamba_api.dialects.messages_answer import MessagesEvent, MessagesResponse
from mamba_edge.api_keys import KeyFile
from mamba_server.api.answers import answer_bytes
from scripted_engine import READY, TOKENIZER, Api

PATH = "/v1/messages"
TEMPLATE = (
    "{% if tools %}tools {{ tools | tojson }} call <tool_call>{...}</tool_call> {% endif %}"
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments.a }}]"
    "{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and enable_thinking %}<think>{% else %}<think></think>{% endif %}"
    "{% endif %}"
)
USER: list[Any] = [{"role": "user", "content": "x"}]
ADD: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def served(**options: Any) -> Api:
    """Return a server whose context has room for tools."""
    api = Api(template=TEMPLATE, **options)
    if options.get("ready", True):
        api.engine.send(msgspec.structs.replace(READY, max_model_len=2048))
    return api


@asynccontextmanager
async def client_of(api: Api, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api.app))
    options.setdefault("api_key", "any")
    async with anthropic.AsyncAnthropic(
        base_url="http://engine", max_retries=0, http_client=transport, **options
    ) as client:
        yield client


async def whole(*parts: str, finish: str = "stop", **fields: Any) -> anthropic.types.Message:
    api = served()
    async with client_of(api) as client:
        body = {"model": "tiny", "messages": USER, "max_tokens": 200, **fields}
        answer, _ = await asyncio.gather(client.messages.create(**body), api.write(*parts, finish=finish))
    MessagesResponse.model_validate(answer.model_dump(exclude_none=False))
    return answer


async def streamed(*parts: str, **fields: Any) -> tuple[list[Any], anthropic.types.Message]:
    """Return the events and the message that the client puts together from them."""
    api = served()
    async with client_of(api) as client:
        body = {"model": "tiny", "messages": USER, "max_tokens": 200, **fields}
        writing = asyncio.create_task(api.write(*parts))
        async with client.messages.stream(**body) as stream:
            events = [event async for event in stream]
            message = await stream.get_final_message()
        await writing
    return events, message


def prompt_of(api: Api) -> str:
    return TOKENIZER.decode(list(api.engine.requests[0].token_ids))


async def test_an_answer_has_blocks_reason_and_usage() -> None:
    answer = await whole("for", "ty-two")
    assert [(block.type, block.text) for block in answer.content] == [("text", "forty-two")]  # type: ignore[union-attr]
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == ("assistant", "end_turn", None)
    assert answer.usage.output_tokens > 0
    assert answer.id.startswith("msg_")


async def test_tokens_from_the_cache_are_told_apart_from_those_that_were_computed() -> None:
    api = served()
    async with client_of(api) as client:
        answer, _ = await asyncio.gather(
            client.messages.create(model="tiny", messages=USER, max_tokens=9),
            api.write("y", cached_tokens=3),
        )
    usage, tokens = answer.usage, len(api.engine.requests[0].token_ids)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (3, 0)
    assert usage.input_tokens == tokens - 3


@pytest.mark.parametrize(
    ("parts", "finish", "reason", "sequence"),
    [(("a",), "length", "max_tokens", None), (("a EN", "D b"), "stop", "stop_sequence", "END")],
)
async def test_the_cause_of_the_end_is_named(
    parts: Sequence[str], finish: str, reason: str, sequence: str | None
) -> None:
    answer = await whole(*parts, finish=finish, stop_sequences=["STOP", "END"])
    assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)


async def test_thinking_is_a_block_of_its_own() -> None:
    enabled: Any = {"type": "enabled"}
    answer = await whole("Let me ", "see.</think>", "42", thinking=enabled)
    thinking, text = answer.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking == "Let me see."  # type: ignore[union-attr]


async def test_a_tool_makes_the_round_trip() -> None:
    answer = await whole("Let me. ", CALL, tools=[ADD])
    assert answer.stop_reason == "tool_use"
    _, call = answer.content
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("add", {"a": 1})

    api = served()
    blocks: Any = [block.model_dump(exclude_none=True) for block in answer.content]
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "2"}
    failed: Any = {**result, "content": [{"type": "text", "text": "too large"}], "is_error": True}
    turns: list[Any] = [
        *USER,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, *blocks]},
        {"role": "user", "content": [result, failed, {"type": "text", "text": "go on"}]},
    ]
    async with client_of(api) as client:
        await asyncio.gather(
            client.messages.create(
                model="tiny", messages=turns, max_tokens=9, tools=[ADD],
                system=[{"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}}],
            ),
            api.write("3"),
        )  # fmt: skip
    told = prompt_of(api)
    assert "system: brief user: x assistant: (hm)" in told
    assert "[add 1] tool: 2 tool: Error: too large user: go on assistant: " in told


@pytest.mark.parametrize(
    ("choice", "offered", "calls"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, True, 1),
        ({"type": "auto"}, True, 2),
        ({"type": "none"}, False, 0),
    ],
)
async def test_the_choice_of_tools_is_followed(choice: Any, offered: bool, calls: int) -> None:
    api = served()
    async with client_of(api) as client:
        answer, _ = await asyncio.gather(
            client.messages.create(
                model="tiny", messages=USER, max_tokens=99, tools=[ADD], tool_choice=choice
            ),
            api.write(CALL, CALL),
        )
    assert ("tools" in prompt_of(api)) == offered
    assert sum(block.type == "tool_use" for block in answer.content) == calls


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
async def test_a_forced_call_constrains_the_answer(choice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def can_be_followed(*_: Any) -> str:
        return ""

    api = served()
    monkeypatch.setattr(type(api.serving), "check_grammar", can_be_followed)
    async with client_of(api) as client:
        await asyncio.gather(
            client.messages.create(
                model="tiny", messages=USER, max_tokens=99, tools=[ADD], tool_choice=choice
            ),
            api.write(CALL),
        )
    assert "add" in api.engine.requests[0].params.grammar


async def test_a_stream_has_the_events_of_each_block_in_their_order() -> None:
    events, message = await streamed(
        "Hm", "m.</think>", "Let ", "me. ", CALL, tools=[ADD], thinking={"type": "enabled"}
    )
    kinds = [
        event.type if event.type != "content_block_delta" else event.delta.type
        for event in events
        if event.type in MessagesEvent.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
    ]
    once = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    assert once == [
        "message_start",
        "content_block_start", "thinking_delta", "content_block_stop",
        "content_block_start", "text_delta", "content_block_stop",
        "content_block_start", "input_json_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    thinking, text, call = message.content
    assert thinking.thinking == "Hmm."  # type: ignore[union-attr]
    assert text.text.strip() == "Let me."  # type: ignore[union-attr]
    assert call.input == {"a": 1}  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens > 5


GOLDEN = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_X","type":"message",'
    b'"role":"assistant","model":"tiny","content":[],"stop_reason":null,"stop_sequence":null,"usage":'
    b'{"input_tokens":PP,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":0}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
    b'{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
    b'{"type":"text_delta","text":"a"}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
    b'{"type":"text_delta","text":"b"}}\n\n'
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
    b'"stop_sequence":null},"usage":{"input_tokens":PP,"cache_creation_input_tokens":0,'
    b'"cache_read_input_tokens":2,"output_tokens":2}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


async def raw(api: Api, body: dict[str, Any] | bytes, *headers: tuple[str, str], path: str = PATH) -> Asked:
    fields = {"messages": USER, "max_tokens": 9, **body} if isinstance(body, dict) else body
    return Asked(api.app, "POST", path, headers=headers).whole(fields)


async def paced(api: Api, asked: Asked, *parts: str, **more: Any) -> None:
    """Write the parts of an answer, each when the one before has been sent."""
    await until(lambda: api.engine.has_requests(1))
    for place, part in enumerate(parts):
        sent = len(asked.messages)
        finish = "stop" if place == len(parts) - 1 else None
        api.engine.delta(part, finish_reason=finish, **(more if place == 0 else {}))
        await until(lambda sent=sent: len(asked.messages) > sent)  # type: ignore[misc]


async def test_a_stream_is_exactly_this() -> None:
    api = served()
    asked = await raw(api, {"stream": True}, ("anthropic-version", "2023-06-01"))
    await paced(api, asked, "a", "b", cached_tokens=2)
    await asked.done()
    computed = str(len(api.engine.requests[0].token_ids) - 2).encode()
    normal = re.sub(rb"msg_[0-9a-f]{32}", b"msg_X", asked.body)
    assert normal == GOLDEN.replace(b"PP", computed)


async def test_a_silent_stream_carries_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_bytes, "QUIET_SECONDS", 0.0)
    api = served()
    asked = await raw(api, {"stream": True, "tools": [ADD]})
    await paced(api, asked, "a", CALL[:20], CALL[20:])
    assert b'event: ping\ndata: {"type":"ping"}\n\n' in (await asked.done()).body


async def test_an_error_within_a_stream_is_its_last_event() -> None:
    api = served()
    asked = await raw(api, {"stream": True}, ("x-request-id", "r1"))
    await until(lambda: api.engine.has_requests(1))
    api.engine.delta("a")
    await until(lambda: asked.messages)
    api.engine.dies()
    last = (await asked.done()).body.split(b"\n\n")[-2].decode()
    assert last.startswith("event: error\ndata: ")
    error = json.loads(last.partition("data: ")[2])
    MessagesEvent.model_validate(error)
    assert (error["type"], error["error"]["type"], error["request_id"]) == ("error", "overloaded_error", "r1")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "type 'image'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "type 'document'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}]}, "type 'tool_use'"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tool_choice": {"type": "tool", "name": "unknown"}, "tools": [ADD]}, "unknown"),
        ({"tool_choice": {"type": "tool"}, "tools": [ADD]}, "name"),
        ({"tool_choice": {"type": "any"}}, "tools"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)
async def test_a_wrong_request_is_refused_in_the_form_of_this_api(fields: Any, words: str) -> None:
    asked = await (await raw(served(), fields, ("x-request-id", "r2"))).done()
    assert asked.status == 400
    error = asked.json
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["request_id"] == asked.headers["request-id"] == "r2"
    assert words in error["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages":' + b"[" * 10000, b"\xff", b"null"])
@pytest.mark.parametrize("path", [PATH, PATH + "/count_tokens"])
async def test_a_broken_body_is_refused(body: bytes, path: str) -> None:
    asked = await (await raw(served(), body, path=path)).done()
    assert (asked.status, asked.json["type"]) == (400, "error")


async def test_errors_reach_the_client_by_their_status(tmp_path: Path) -> None:
    async def fails(api: Api, kind: type[anthropic.APIStatusError], **options: Any) -> str:
        async with client_of(api, **options) as client:
            with pytest.raises(kind) as caught:
                await client.messages.create(model=options.pop("model", "tiny"), messages=USER, max_tokens=9)
        body: Any = caught.value.body
        return str(body["error"]["type"])

    assert await fails(served(ready=False), anthropic.APIStatusError) == "overloaded_error"
    busy = served(waiting=1)
    busy.serving.preparing = 1
    assert await fails(busy, anthropic.RateLimitError) == "rate_limit_error"
    path = tmp_path / "keys"
    path.write_text("sk-a team-a\n")
    keys = KeyFile(path, "--api-key-file")
    assert await fails(served(keys=keys), anthropic.AuthenticationError) == "authentication_error"


@pytest.mark.parametrize("option", [{"api_key": "sk-a"}, {"api_key": None, "auth_token": "sk-a"}])
async def test_a_key_is_accepted_in_either_header(tmp_path: Path, option: dict[str, Any]) -> None:
    path = tmp_path / "keys"
    path.write_text("sk-a team-a\n")
    api = served(keys=KeyFile(path, "--api-key-file"))
    async with client_of(api, **option) as client:
        counted = await client.messages.count_tokens(model="tiny", messages=USER)
    assert counted.input_tokens > 0


async def test_counted_tokens_are_those_of_the_prompt() -> None:
    api = served()
    body: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": [ADD], "system": "brief"}
    async with client_of(api) as client:
        counted = await client.messages.count_tokens(**body)
        await asyncio.gather(client.messages.create(**body, max_tokens=9), api.write("y"))
    assert counted.input_tokens == len(api.engine.requests[0].token_ids)


async def test_another_model_is_not_found() -> None:
    async with client_of(served()) as client:
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="claude-9", messages=USER, max_tokens=9)


async def test_an_answer_continues_the_last_message_of_the_assistant() -> None:
    api = served()
    async with client_of(api) as client:
        turns: list[Any] = [*USER, {"role": "assistant", "content": "The answer is"}]
        await asyncio.gather(
            client.messages.create(model="tiny", messages=turns, max_tokens=9), api.write(" 42")
        )
    assert prompt_of(api).endswith("assistant: The answer is")


async def test_messages_without_content_are_refused_also_where_they_were_to_be_cached() -> None:
    async with client_of(served()) as client:
        with pytest.raises(anthropic.BadRequestError, match="must not be empty"):
            await client.messages.create(
                model="tiny", messages=[{"role": "user", "content": []}], max_tokens=5,
                extra_body={"cache_control": {"type": "ephemeral"}},
            )  # fmt: skip
