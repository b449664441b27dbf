"""Reasoning reaches the client apart from the answer, with its tokens counted."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion

from asgi import Asked
from eventually import until
from mamba_api.openai_responses import ChatCompletionChunk, ChatCompletionResponse
from mamba_text.reasoning import ReasoningFormat
from scripted_engine import READY, TOKENIZER, Api, ids_of

TEMPLATE = (
    "{% if tools %}tools {{ tools | tojson }} call <tool_call>{...}</tool_call> {% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ (m.content or '').split('</think>')[-1] }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %} {% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
    "{% endif %}"
)
UNSAID = (
    "{% for m in messages %}{{ m.role }}: {{ (m.content or '').split('</think>')[-1] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
USER = [{"role": "user", "content": "x"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
THOUGHT = "\nLet me see.\n</think>\n\n"


async def answered(*parts: str, template: str = TEMPLATE, finish: str = "stop", **fields: Any) -> Asked:
    """Return the answer when the model writes `parts`."""
    api = Api(template=template)
    api.engine.send(msgspec.structs.replace(READY, max_model_len=2048))
    body = {"messages": USER, "max_tokens": 200, **fields}
    return await api.chat(body, parts, finish)


def message(asked: Asked) -> dict[str, Any]:
    ChatCompletionResponse.model_validate(asked.json)
    return dict(asked.json["choices"][0]["message"])


def deltas(asked: Asked) -> list[dict[str, Any]]:
    blocks = asked.body.decode().split("\n\n")
    events = [json.loads(block.removeprefix("data: ")) for block in blocks if block and "[DONE]" not in block]
    for event in events:
        ChatCompletionChunk.model_validate(event)
    return [event["choices"][0]["delta"] for event in events if event["choices"]]


@pytest.mark.parametrize(
    ("template", "begin"), [(TEMPLATE, ""), (UNSAID, "<think>")], ids=["opened by the prompt", "by the model"]
)
async def test_thoughts_and_answer_are_fields_of_their_own(template: str, begin: str) -> None:
    parts = (begin + THOUGHT[:9], THOUGHT[9:20], THOUGHT[20:] + "42")
    asked = await answered(*parts, template=template)
    made = message(asked)
    assert (made["reasoning_content"], made["content"]) == ("Let me see.", "42")
    usage = asked.json["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(ids_of(begin + THOUGHT.rstrip()))}
    details = ChatCompletion.model_validate(asked.json).usage
    assert details is not None
    assert details.completion_tokens_details is not None

    streamed = await answered(*parts, template=template, stream=True, stream_options={"include_usage": True})
    found = deltas(streamed)
    assert "".join(each.get("reasoning_content", "") for each in found) == "Let me see."
    assert "".join(each.get("content", "") for each in found) == "42"
    assert b'"completion_tokens_details":{"reasoning_tokens":' in streamed.body


async def test_a_model_that_is_told_not_to_think_answers() -> None:
    asked = await answered("42 <think>", chat_template_kwargs={"enable_thinking": False})
    assert message(asked)["content"] == "42 <think>"
    assert "reasoning_content" not in message(asked)
    assert asked.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_a_thought_that_is_cut_leaves_no_content() -> None:
    asked = await answered("Let me", " see", finish="length")
    assert (message(asked)["reasoning_content"], message(asked)["content"]) == ("Let me see", None)
    assert asked.json["choices"][0]["finish_reason"] == "length"


async def test_thoughts_stay_in_the_content_for_who_wants_them_there() -> None:
    asked = await answered(THOUGHT, "42", separate_reasoning=False)
    assert message(asked)["content"] == f"{THOUGHT}42"
    assert "reasoning_content" not in message(asked)
    assert "completion_tokens_details" not in asked.json["usage"]


async def test_calls_are_read_behind_the_thoughts_alone() -> None:
    asked = await answered(f"I could {CALL}", "</think>", f"\n{CALL}", tools=[ADD])
    made = message(asked)
    assert (made["reasoning_content"], made["content"]) == (f"I could {CALL}", None)
    assert [call["function"]["name"] for call in made["tool_calls"]] == ["add"]
    assert asked.json["choices"][0]["finish_reason"] == "tool_calls"


async def test_thoughts_of_earlier_turns_reach_the_template() -> None:
    api = Api(template=TEMPLATE)
    turns = [*USER, {"role": "assistant", "content": "42", "reasoning_content": "why"}, *USER]
    asked = Asked(api.app, "POST", "/v1/chat/completions").whole({"messages": turns, "max_tokens": 5})
    await until(lambda: api.engine.has_requests(1))
    api.engine.delta("a", finish_reason="stop")
    await asked.done()
    assert "assistant: 42(why)" in TOKENIZER.decode(list(api.engine.requests[0].token_ids))


@pytest.mark.parametrize("separate", [True, False])
async def test_markers_that_are_special_tokens_are_seen(separate: bool) -> None:
    api = Api(template=TEMPLATE)
    assert api.serving.text is not None
    assert api.serving.text.template is not None
    # The tokenizer at hand has these two as special tokens.
    api.serving.text.template.reasoning = ReasoningFormat("<|im_start|>", "<|im_end|>")
    ids = [
        *TOKENIZER.encoding("<|im_start|>").ids, *ids_of("a"), *TOKENIZER.encoding("<|im_end|>").ids,
        *ids_of("b"),
    ]  # fmt: skip
    body = {"messages": USER, "max_tokens": 20, "separate_reasoning": separate}
    asked = Asked(api.app, "POST", "/v1/chat/completions").whole(body)
    await until(lambda: api.engine.has_requests(1))
    api.engine.delta(ids, finish_reason="stop")
    made = message(await asked.done())
    wanted = ("a", "b") if separate else (None, "<|im_start|>a<|im_end|>b")
    assert (made.get("reasoning_content"), made["content"]) == wanted
