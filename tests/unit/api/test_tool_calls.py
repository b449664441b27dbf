"""Tools of a chat request reach the model by its template, and the calls it writes reach the client."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from asgi import Asked
from eventually import until
from mamba_api.openai_responses import ChatCompletionChunk as Chunk
from mamba_api.openai_responses import ChatCompletionResponse
from mamba_server.api.answers import answer_bytes
from mamba_text.tool_calls import ToolCallFormat
from scripted_engine import READY, TOKENIZER, Api, ids_of

HERMES = (
    "{% if tools %}tools {{ tools | tojson }} call <tool_call>{...}</tool_call> {% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments.a }}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
USER = [{"role": "user", "content": "x"}]


def calling(template: str = HERMES) -> Api:
    """Return a server whose context has room for tools."""
    api = Api(template=template)
    api.engine.send(msgspec.structs.replace(READY, max_model_len=2048))
    return api


async def answered(api: Api, *parts: str, finish: str = "stop", **fields: Any) -> Asked:
    """Return the answer to a request with a tool, when the model writes `parts`."""
    body = {"messages": USER, "tools": [ADD], "max_tokens": 20, **fields}
    return await api.chat(body, parts, finish)


def prompt_of(api: Api) -> str:
    return TOKENIZER.decode(list(api.engine.requests[0].token_ids))


def chunks(asked: Asked) -> list[dict[str, Any]]:
    blocks = asked.body.decode().split("\n\n")
    return [json.loads(block.removeprefix("data: ")) for block in blocks if block and "[DONE]" not in block]


@pytest.fixture
def api() -> Api:
    return calling()


async def test_a_call_is_answered_as_the_openai_client_expects_it(api: Api) -> None:
    asked = await answered(api, "Let me. ", CALL[:14], CALL[14:])
    ChatCompletionResponse.model_validate(asked.json)
    choice = ChatCompletion.model_validate(asked.json).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me.")
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
    assert call.id.startswith("call_")


async def test_a_stream_gives_each_call_whole_and_ends_with_its_reason(api: Api) -> None:
    asked = await answered(api, "Hm ", CALL[:20], CALL[20:], CALL, stream=True)
    events = chunks(asked)
    for event in events:
        Chunk.model_validate(event)
        ChatCompletionChunk.model_validate(event)
    choices = [event["choices"][0] for event in events]
    calls = [call for one in choices for call in one["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert {call["function"]["arguments"] for call in calls} == {'{"a": 1}'}
    assert "".join(one["delta"].get("content", "") for one in choices) == "Hm"
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["tool_calls"]


async def test_a_stream_that_shows_nothing_of_a_long_call_gets_comments(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_bytes, "QUIET_SECONDS", 0.0)
    body = {"messages": USER, "tools": [ADD], "max_tokens": 20, "stream": True}
    asked = Asked(api.app, "POST", "/v1/chat/completions").whole(body)
    await until(lambda: api.engine.has_requests(1))
    for place, part in enumerate((CALL[:14], CALL[14:20], CALL[20:25])):
        api.engine.delta(part)
        await until(lambda events=place + 1: asked.body.count(b"\n\n") == events)
    api.engine.delta(CALL[25:], finish_reason="stop")
    events = (await asked.done()).body.split(b"\n\n")
    assert events.count(b":") == 2
    assert [b"tool_calls" in event for event in events].count(True) == 1


async def test_a_stream_that_goes_on_has_no_comments(api: Api) -> None:
    asked = await answered(api, CALL[:14], CALL[14:20], CALL[20:25], CALL[25:], stream=True)
    assert b"\n:" not in asked.body


async def test_an_answer_without_a_call_or_cut_short_ends_as_any_other(api: Api) -> None:
    plain = (await answered(api, "no tool")).json["choices"][0]
    assert (plain["finish_reason"], plain["message"]["content"]) == ("stop", "no tool")
    assert "tool_calls" not in plain["message"]
    cut = (await answered(calling(), CALL[:30], finish="length")).json["choices"][0]
    assert (cut["finish_reason"], cut["message"]["content"]) == ("length", CALL[:30])


async def test_calls_alone_leave_no_content(api: Api) -> None:
    message = (await answered(api, f"\n{CALL}\n")).json["choices"][0]["message"]
    assert message["content"] is None


async def test_one_call_is_returned_where_several_are_not_wanted(api: Api) -> None:
    message = (await answered(api, CALL * 2, parallel_tool_calls=False)).json["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1


async def test_the_template_shows_the_tools_and_the_results(api: Api) -> None:
    history = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 41}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]  # fmt: skip
    await answered(api, "ok", messages=history)
    prompt = TOKENIZER.decode(list(api.engine.requests[0].token_ids))
    assert json.dumps([ADD]) in prompt
    assert "assistant: 41" in prompt
    assert "tool: 42" in prompt
    # The next turn resumes before what opens the answer.
    assert 0 < api.engine.requests[0].turn_boundary < len(api.engine.requests[0].token_ids)


async def test_with_tool_choice_none_the_model_sees_no_tool_and_its_text_stays_text(api: Api) -> None:
    choice = (await answered(api, CALL, tool_choice="none")).json["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)
    assert "tools" not in TOKENIZER.decode(list(api.engine.requests[0].token_ids))


RUN = {"type": "custom", "custom": {"name": "run", "description": "Runs a line"}}


async def test_a_call_of_a_custom_tool_has_its_input_as_text(api: Api) -> None:
    written = """<tool_call>{"name": "run", "arguments": {"input": "say \\"hi\\"\\n"}}</tool_call>"""
    asked = await answered(api, written, CALL, tools=[ADD, RUN])
    ChatCompletionResponse.model_validate(asked.json)
    custom, plain = ChatCompletion.model_validate(asked.json).choices[0].message.tool_calls or []
    assert custom.type == "custom"
    assert (custom.custom.name, custom.custom.input) == ("run", 'say "hi"\n')
    assert plain.type == "function"
    streamed = await answered(calling(), written, CALL, tools=[ADD, RUN], stream=True)
    for event in chunks(streamed):
        Chunk.model_validate(event)
    calls = [call for one in chunks(streamed) for call in one["choices"][0]["delta"].get("tool_calls", ())]
    assert [(call["index"], call["type"]) for call in calls] == [(0, "custom"), (1, "function")]
    assert calls[0]["custom"] == {"name": "run", "input": 'say "hi"\n'}


async def test_arguments_that_are_no_input_reach_the_client_as_they_were_written(api: Api) -> None:
    asked = await answered(api, CALL.replace('"add"', '"run"'), tools=[RUN])
    (call,) = asked.json["choices"][0]["message"]["tool_calls"]
    assert call["custom"] == {"name": "run", "input": '{"a": 1}'}


async def test_an_earlier_call_of_a_custom_tool_is_the_functions_that_the_model_was_shown() -> None:
    template = HERMES.replace("call.function.arguments.a", "call.function.arguments.input")
    api = calling(template)
    earlier = {"id": "c", "type": "custom", "custom": {"name": "run", "input": "once"}}
    messages = [*USER, {"role": "assistant", "tool_calls": [earlier]},
                {"role": "tool", "tool_call_id": "c", "content": "done"}]  # fmt: skip
    await answered(api, "x", messages=messages, tools=[RUN])
    shown = prompt_of(api)
    assert "assistant: once tool: done" in shown
    assert '"name": "run"' in shown
    assert "custom" not in shown


async def test_allowed_tools_are_the_ones_that_the_model_is_shown_and_may_call(api: Api) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    named = {"type": "function", "function": {"name": "other"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    asked = await answered(api, CALL, tools=[ADD, other], tool_choice=choice)
    assert '"add"' not in prompt_of(api)
    assert '"other"' in prompt_of(api)
    (answer,) = asked.json["choices"]
    assert (answer["finish_reason"], answer["message"]["content"]) == ("stop", CALL)
    allowed = CALL.replace("add", "other")
    again = await answered(calling(), allowed, tools=[ADD, other], tool_choice=choice)
    assert again.json["choices"][0]["finish_reason"] == "tool_calls"


async def test_arguments_that_are_tags_get_the_types_of_the_functions_parameters() -> None:
    numbers = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": numbers}}
    api = calling(f"{HERMES}{{# <function=… #}}")
    written = "<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>"
    call = f"<tool_call>\n<function=add>\n{written}\n</function>\n</tool_call>"
    (choice,) = (await answered(api, call[:40], call[40:], tools=[tool])).json["choices"]
    (got,) = choice["message"]["tool_calls"]
    assert got["function"] == {"name": "add", "arguments": '{"a": 1, "b": "2"}'}
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[0].content }}", "does not support tools"),
        ("{{ tools }}<function=f>", "cannot parse"),
        ("{{ tools }}", "cannot parse"),
    ],
)
async def test_a_model_that_cannot_call_tools_refuses_them(template: str, says: str) -> None:
    api = calling(template)
    asked = await answered(api)
    assert (asked.status, asked.error["param"]) == (400, "tools")
    assert says in asked.error["message"]
    assert not api.engine.requests
    assert api.serving.preparing == 0


async def test_markers_that_are_special_tokens_are_read_and_other_special_tokens_are_not_shown() -> None:
    api = calling()
    assert api.serving.text is not None
    assert api.serving.text.template is not None
    # The tokenizer at hand has these two as special tokens.
    api.serving.text.template.tool_calls = ToolCallFormat("<|im_start|>", "<|im_end|>")
    ids = [
        *TOKENIZER.encoding("<s>").ids, *ids_of("a"), *TOKENIZER.encoding("<|im_start|>").ids,
        *ids_of('{"name": "add"}'), *TOKENIZER.encoding("<|im_end|>").ids,
    ]  # fmt: skip
    body = {"messages": USER, "tools": [ADD], "max_tokens": 20}
    asked = Asked(api.app, "POST", "/v1/chat/completions").whole(body)
    await until(lambda: api.engine.has_requests(1))
    api.engine.delta(ids, finish_reason="stop")
    message = (await asked.done()).json["choices"][0]["message"]
    assert message["content"] == "a"
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
