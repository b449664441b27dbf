"""Reasoning of a model and structured output after it, by the official client from a real engine."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from matrix_size import LARGE
from tiny_recall import client_of, tiny_recall

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }} <tool_call><function=…></tool_call>{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<think>{# … </think> #}{% endif %}"
)
END = 1
"""The token that ends thoughts here: one that the model was taught not to write."""
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
        "name": {"type": "string", "enum": ["a", "b"]},
    },
    "required": ["x", "name"],
    "additionalProperties": False,
}
ASKED: Any = {
    "model": "tiny", "messages": [{"role": "user", "content": "Where?"}], "temperature": 1.0, "seed": 3,
    "logit_bias": {str(END): 15}, "max_tokens": 1500,
}  # fmt: skip
FORM: Any = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
MOVE: Any = {"type": "function", "function": {"name": "move", "parameters": POINT}}


@pytest.fixture(scope="module", params=["--overlap", "--no-overlap"] if LARGE else ["--overlap"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """Yield a client of a model that thinks until it writes a special token."""
    model = tiny_recall(tmp_path_factory.mktemp("model"), TEMPLATE)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    (entry,) = [each for each in tokenizer["added_tokens"] if each["id"] == END]
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["</think>"] = vocabulary.pop(entry["content"])
    entry["content"] = "</think>"
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with client_of(model, request.param) as client:
        yield client


def thoughts(message: Any) -> str:
    return str((message.model_extra or {}).get("reasoning_content") or "")


def test_thoughts_come_before_the_form_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED, response_format=FORM)
    (choice,) = whole.choices
    assert thoughts(choice.message)
    point = json.loads(choice.message.content or "")
    assert (set(point), choice.finish_reason) == ({"x", "name"}, "stop")
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert 1 < (whole.usage.completion_tokens_details.reasoning_tokens or 0) < whole.usage.completion_tokens

    events = list(client.chat.completions.create(**ASKED, response_format=FORM, stream=True))
    deltas = [event.choices[0].delta for event in events if event.choices]
    assert "".join(map(thoughts, deltas)) == thoughts(choice.message)
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content


def test_a_forced_call_is_made_behind_the_thoughts(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        **ASKED, tools=[MOVE], tool_choice="required", parallel_tool_calls=False
    )
    (choice,) = made.choices
    assert thoughts(choice.message)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments["x"], int)
    assert arguments["name"] in ("a", "b")


def test_choices_think_for_themselves(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ASKED, response_format=FORM, n=6)
    assert len({thoughts(choice.message) for choice in made.choices}) > 1
    for choice in made.choices:
        assert set(json.loads(choice.message.content or "")) == {"x", "name"}


ENDLESS: Any = {key: value for key, value in ASKED.items() if key != "logit_bias"}
"""A request whose thoughts have no end of their own."""
TEN: Any = {"extra_body": {"thinking_token_budget": 10}}


def reasoning_tokens(answer: Any) -> int:
    return int(answer.usage.completion_tokens_details.reasoning_tokens)


@pytest.mark.parametrize(
    "extra", [{"thinking_token_budget": 10}, {"reasoning": {"max_tokens": 10}}], ids=["token", "object"]
)
def test_thoughts_end_at_their_budget_and_an_answer_follows(client: openai.OpenAI, extra: Any) -> None:
    whole = client.chat.completions.create(**{**ENDLESS, "max_tokens": 40}, extra_body=extra)
    (choice,) = whole.choices
    # The marker, and the blank line that belongs to it, follow the ten tokens.
    assert 10 < reasoning_tokens(whole) <= 12
    assert thoughts(choice.message)
    assert choice.message.content
    assert "</think>" not in thoughts(choice.message) + choice.message.content
    assert (choice.message.model_extra or {})["reasoning"] == thoughts(choice.message)


def test_a_form_follows_thoughts_of_a_budget_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ENDLESS, **TEN, response_format=FORM)
    content = whole.choices[0].message.content
    assert set(json.loads(content or "")) == {"x", "name"}
    assert reasoning_tokens(whole) <= 12
    events = list(client.chat.completions.create(**ENDLESS, **TEN, response_format=FORM, stream=True))
    deltas = [event.choices[0].delta for event in events if event.choices]
    assert "".join(delta.content or "" for delta in deltas) == content
    assert "".join(map(thoughts, deltas)) == thoughts(whole.choices[0].message)


def test_a_forced_call_follows_thoughts_of_a_budget(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        **ENDLESS, **TEN, tools=[MOVE], tool_choice="required", parallel_tool_calls=False
    )
    assert made.choices[0].finish_reason == "tool_calls"
    assert reasoning_tokens(made) <= 12


def test_other_dialects_have_the_same_budget(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="tiny", input="Where?", max_output_tokens=40, extra_body={"reasoning": {"max_tokens": 10}}
    )
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens <= 12
    with anthropic.Anthropic(base_url=str(client.base_url).removesuffix("/v1/"), api_key="none") as other:
        message = other.messages.create(
            model="tiny", max_tokens=40, messages=[{"role": "user", "content": "Where?"}],
            thinking={"type": "enabled", "budget_tokens": 10},
        )  # fmt: skip
    assert [block.type for block in message.content] == ["thinking", "text"]


def test_a_budget_of_nothing_leaves_no_thought(client: openai.OpenAI) -> None:
    body = {**ENDLESS, "max_tokens": 20, "extra_body": {"thinking_token_budget": 0}}
    (choice,) = client.chat.completions.create(**body).choices
    assert not thoughts(choice.message)
    assert choice.message.content


def test_words_and_tokens_that_are_not_to_come_do_not(client: openai.OpenAI) -> None:
    body = {**ENDLESS, "max_tokens": 30, "extra_body": {"thinking_token_budget": 0}}
    before = client.chat.completions.create(**body).choices[0].message.content or ""
    word = before.split()[0]
    body["extra_body"] = {"thinking_token_budget": 0, "bad_words": [word]}
    assert word not in (client.chat.completions.create(**body).choices[0].message.content or "")
    body["extra_body"] = {"allowed_token_ids": [5, 6], "separate_reasoning": False, "return_token_ids": True}
    (choice,) = client.chat.completions.create(**body).choices
    assert set((choice.model_extra or {})["token_ids"]) <= {5, 6}
