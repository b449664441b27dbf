"""Reasoning of a model and structured output after it, by the official client from a real engine."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

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


@pytest.fixture(scope="module", params=["--overlap", "--no-overlap"])
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
