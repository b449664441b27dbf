"""Structured output of the shipped model: valid in every dialect, and streamed as it is whole."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import anthropic
import jsonschema_rs
import openai
import pytest

from matrix_size import LARGE
from servers import Server

pytestmark = pytest.mark.slow
MODEL, PROMPTS, AT_ONCE = "tiny-recall", 100 if LARGE else 25, 8
WORDS = ["red", "blue", "green", "lamp", "door", "anna", "fox", "owl", "river", "stone"]


def schema_of(rng: Random, depth: int = 0) -> dict[str, Any]:
    """Return a schema whose answers are short: objects, lists, words, numbers and booleans."""
    kinds = ["enum", "integer", "boolean", "const", "null", *(["object", "array"] if depth < 2 else [])]
    match rng.choice(kinds) if depth else "object":
        case "object":
            names = rng.sample(WORDS, rng.randint(1, 3))
            properties = {name: schema_of(rng, depth + 1) for name in names}
            required = rng.sample(names, rng.randint(1, len(names)))
            return {
                "type": "object", "properties": properties, "required": required,
                "additionalProperties": False,
            }  # fmt: skip
        case "array":
            most = rng.randint(1, 2)
            return {"type": "array", "items": schema_of(rng, depth + 1), "minItems": 1, "maxItems": most}
        case "enum":
            return {"type": "string", "enum": rng.sample(WORDS, rng.randint(1, 4))}
        case "integer":
            low = rng.randint(-20, 20)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 100)}
        case "const":
            return {"const": rng.choice(WORDS)}
        case kind:
            return {"type": kind}


CASES = [(f"What is {rng.choice(WORDS)}?", schema_of(rng)) for rng in map(Random, range(PROMPTS))]
WAYS = 5
"""Number of ways to ask for a schema beside that of `test_chats_follow_schemas`, which tries each schema.

Each of them has its own fifth of the schemas, and all with `make gates`.
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Server(f"builtin://{MODEL}") as running:
        yield running.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as made:
        yield made


@pytest.fixture(scope="module")
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none") as made:
        yield made


def all_valid(ask: Any, way: int | None = None) -> None:
    """Check the whole and the streamed answer of each case of this way; `ask` returns both as texts."""
    cases = CASES if LARGE or way is None else CASES[way::WAYS]

    def check(case: tuple[str, dict[str, Any]]) -> str:
        whole, streamed = ask(*case)
        if whole != streamed:
            return f"{case}: streamed {streamed!r}, whole {whole!r}"
        return "" if jsonschema_rs.is_valid(case[1], json.loads(whole)) else f"{case}: {whole!r}"

    with ThreadPoolExecutor(AT_ONCE) as threads:
        wrong = [failure for failure in threads.map(check, cases) if failure]
    assert len(cases) >= PROMPTS // WAYS
    assert wrong == []


def test_chats_follow_schemas(client: openai.OpenAI) -> None:
    def ask(text: str, schema: dict[str, Any]) -> tuple[str, str]:
        form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
        asked: dict[str, Any] = {
            "model": MODEL, "messages": [{"role": "user", "content": text}], "response_format": form,
            "temperature": 0,
        }  # fmt: skip
        whole = client.chat.completions.create(**asked).choices[0].message.content or ""
        chunks = client.chat.completions.create(**asked, stream=True)
        return whole, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    all_valid(ask)


def test_chats_call_tools(client: openai.OpenAI) -> None:
    def ask(text: str, schema: dict[str, Any]) -> tuple[str, str]:
        asked: dict[str, Any] = {
            "model": MODEL, "messages": [{"role": "user", "content": text}], "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": "act", "parameters": schema}}],
            "parallel_tool_calls": False, "temperature": 0,
        }  # fmt: skip
        (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls or ()
        chunks = client.chat.completions.create(**asked, stream=True)
        parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
        assert call.type == "function"
        assert [part.function.name for part in parts if part.function and part.function.name] == ["act"]
        pieces = (part.function.arguments or "" for part in parts if part.function)
        return call.function.arguments, "".join(pieces)

    all_valid(ask, 0)


def test_responses_follow_schemas(client: openai.OpenAI) -> None:
    def ask(text: str, schema: dict[str, Any]) -> tuple[str, str]:
        form: Any = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
        asked: dict[str, Any] = {
            "model": MODEL, "input": text, "text": form, "temperature": 0, "store": False,
        }  # fmt: skip
        whole = client.responses.create(**asked).output_text
        events = client.responses.create(**asked, stream=True)
        deltas = (event.delta for event in events if event.type == "response.output_text.delta")
        return whole, "".join(deltas)

    all_valid(ask, 1)


def test_responses_call_tools(client: openai.OpenAI) -> None:
    def ask(text: str, schema: dict[str, Any]) -> tuple[str, str]:
        asked: dict[str, Any] = {
            "model": MODEL, "input": text, "tool_choice": "required", "parallel_tool_calls": False,
            "tools": [{"type": "function", "name": "act", "parameters": schema, "strict": True}],
            "temperature": 0, "store": False,
        }  # fmt: skip
        (item,) = client.responses.create(**asked).output
        events = client.responses.create(**asked, stream=True)
        kind = "response.function_call_arguments.delta"
        assert item.type == "function_call"
        return item.arguments, "".join(event.delta for event in events if event.type == kind)

    all_valid(ask, 2)


def test_messages_follow_schemas(claude: anthropic.Anthropic) -> None:
    def ask(text: str, schema: dict[str, Any]) -> tuple[str, str]:
        asked: dict[str, Any] = {
            "model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": text}],
            "extra_body": {
                "temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": schema}},
            },
        }  # fmt: skip
        (block,) = claude.messages.create(**asked).content
        with claude.messages.stream(**asked) as stream:
            streamed = "".join(stream.text_stream)
        assert block.type == "text"
        return block.text, streamed

    all_valid(ask, 3)


def test_messages_call_tools(claude: anthropic.Anthropic) -> None:
    def ask(text: str, schema: dict[str, Any]) -> tuple[str, str]:
        asked: dict[str, Any] = {
            "model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": text}],
            "tools": [{"name": "act", "input_schema": schema}], "extra_body": {"temperature": 0},
            "tool_choice": {"type": "tool", "name": "act"},
        }  # fmt: skip
        (block,) = claude.messages.create(**asked).content
        with claude.messages.stream(**asked) as stream:
            (streamed,) = stream.get_final_message().content
        assert block.type == streamed.type == "tool_use"
        return json.dumps(block.input), json.dumps(streamed.input)

    all_valid(ask, 4)
