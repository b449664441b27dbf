"""Answers of a form that was asked for, by the official client, from real engines."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from matrix_size import LARGE
from tiny_recall import client_of, tiny_recall

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }} <tool_call></tool_call>{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
USER: Any = [{"role": "user", "content": "Who are you?"}]
FORM: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": PERSON}}


@pytest.fixture(scope="module", params=["--overlap", "--no-overlap"] if LARGE else ["--overlap"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """Yield a client of a model whose template accepts tools."""
    model = tiny_recall(tmp_path_factory.mktemp("model"), TEMPLATE)
    with client_of(model, request.param) as client:
        yield client


def person(text: str | None) -> dict[str, Any]:
    found = json.loads(text or "")
    assert set(found) == set(PERSON["properties"])
    assert 0 <= found["age"] <= 120
    assert len(found["name"]) <= 12
    assert set(found["tags"]) <= {"a", "b"}
    return dict(found)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_follow_a_schema_streamed_and_whole(client: openai.OpenAI, temperature: float) -> None:
    asked: dict[str, Any] = {
        "model": "tiny", "messages": USER, "response_format": FORM, "max_tokens": 200,
        "temperature": temperature,
        "seed": 4,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    events = client.chat.completions.create(**asked, stream=True)
    streamed = "".join(event.choices[0].delta.content or "" for event in events if event.choices)

    assert whole.choices[0].finish_reason == "stop"
    assert person(whole.choices[0].message.content) == person(streamed)


def test_an_answer_that_is_cut_is_the_beginning_of_one(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(
        model="tiny", messages=USER, response_format=FORM, max_tokens=5
    ).choices
    assert choice.finish_reason == "length"
    assert '{"name": "'.startswith((choice.message.content or "")[:10])


def test_choices_of_one_request_each_follow_the_form(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="tiny", prompt="Hello", n=8, temperature=2.0, max_tokens=40,
        extra_body={"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    )  # fmt: skip
    assert [choice.finish_reason for choice in made.choices] == ["stop"] * 8
    assert {choice.text for choice in made.choices} <= {"yes", "no", "perhaps"}


def test_those_beside_it_get_what_they_get_alone(client: openai.OpenAI) -> None:
    def free(number: int) -> str:
        made = client.completions.create(
            model="tiny", prompt=f"{number} {number}", max_tokens=48, temperature=0,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        return made.choices[0].text

    def guided(number: int) -> str | None:
        made = client.chat.completions.create(
            model="tiny", messages=USER, response_format=FORM, max_tokens=200, temperature=1, seed=number
        )
        return made.choices[0].message.content

    alone = [free(number) for number in range(4)]
    persons = [person(guided(number)) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        texts, forms = [pool.submit(free, n) for n in range(4)], [pool.submit(guided, n) for n in range(4)]
        assert [each.result() for each in texts] == alone
        assert [person(each.result()) for each in forms] == persons


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_forced_is_made(client: openai.OpenAI, choice: Any) -> None:
    made = client.chat.completions.create(
        model="tiny", messages=USER, tools=[WEATHER], tool_choice=choice, max_tokens=400, temperature=1,
        seed=1, parallel_tool_calls=False,
    )  # fmt: skip
    (answer,) = made.choices
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "weather"
    person(call.function.arguments)


def test_a_form_that_no_text_has_is_refused_for_that(client: openai.OpenAI) -> None:
    endless: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=USER, response_format=endless)
    assert "no text has this form" in caught.value.message


def test_a_custom_tool_that_is_forced_gets_an_input_of_its_format(client: openai.OpenAI) -> None:
    form: Any = {"type": "grammar", "grammar": {"syntax": "regex", "definition": r"go (left|right)\n"}}
    tool: Any = {"type": "custom", "custom": {"name": "steer", "format": form}}
    allowed: Any = {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "steer"}}]}
    made = client.chat.completions.create(
        model="tiny", messages=USER, tools=[WEATHER, tool], max_tokens=400, temperature=1, seed=1,
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = made.choices[0].message.tool_calls or ()
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input in ("go left\n", "go right\n")) == ("steer", True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_names_what_of_a_schema_was_left_out(client: openai.OpenAI, stream: bool) -> None:
    tags = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2, "uniqueItems": True}
    loose = {**PERSON, "properties": {**PERSON["properties"], "tags": tags}, "not": {"required": ["none"]}}
    names = "x-mambaserve-form-left-out"

    def headers(of: dict[str, Any]) -> Any:
        form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": of}}
        return client.chat.completions.with_raw_response.create(
            model="tiny", messages=USER, response_format=form, max_tokens=200, stream=stream
        ).headers

    assert headers(loose)[names] == "not, uniqueItems"
    assert names not in headers(PERSON)


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_costs_too_much_on_the_way_is_the_clients_to_change(
    client: openai.OpenAI, stream: bool
) -> None:
    form = {"structured_outputs": {"regex": r"(((((\p{L}{1,10}){1,2}){1,10}){1,10}){1,10})"}}
    asked: Any = {"model": "tiny", "messages": USER, "max_tokens": 4, "extra_body": form, "stream": stream}
    with pytest.raises(openai.APIError) as caught:
        list(client.chat.completions.create(**asked))
    assert caught.value.code == "invalid_output_grammar"
    assert client.chat.completions.create(model="tiny", messages=USER, max_tokens=1).choices


def test_what_cannot_be_followed_is_refused_and_the_next_request_served(client: openai.OpenAI) -> None:
    bad: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "foo"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=USER, response_format=bad)
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_output_grammar")
    # What only the engine can know: there is no such token.
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(
            model="tiny", prompt="x", extra_body={"structured_outputs": {"grammar": "start: <|nowhere|>"}}
        )
    assert caught.value.code == "invalid_output_grammar"
    again = client.chat.completions.create(model="tiny", messages=USER, response_format=FORM, max_tokens=200)
    person(again.choices[0].message.content)
