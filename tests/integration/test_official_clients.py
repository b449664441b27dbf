"""The official clients, unmodified, against a live gateway in front of a live engine of the shipped model."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from servers import Command, Server

MODEL = "tiny-recall"


class Colour(BaseModel):
    """An answer that the clients parse."""

    name: Literal["red", "blue"]
    shade: Literal[1, 2]


PARAMETERS: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
USER: Any = [{"role": "user", "content": "lamp: red"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with (
        Server(f"builtin://{MODEL}") as engine,
        Command("gateway", "--backend", engine.url, "--port", "0") as gateway,
    ):
        found = gateway.wait_for(r"mambaserve gateway ready at (http://\S+)")
        yield found[1].removesuffix("/v1")


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as made:
        yield made


@pytest.fixture(scope="module")
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none") as made:
        yield made


def test_parsed_chats_and_responses(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(model=MODEL, messages=USER, response_format=Colour, max_tokens=60)
    assert isinstance(chat.choices[0].message.parsed, Colour)
    answer = client.responses.parse(model=MODEL, input="lamp?", text_format=Colour, max_output_tokens=60)
    assert isinstance(answer.output_parsed, Colour)


def test_streaming_helpers_of_openai(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=USER, response_format=Colour, max_tokens=60
    ) as chat:
        events = [event.type for event in chat]
        assert isinstance(chat.get_final_completion().choices[0].message.parsed, Colour)
    assert "content.delta" in events
    with client.responses.stream(
        model=MODEL, input="lamp?", text_format=Colour, max_output_tokens=60
    ) as made:
        kinds = [event.type for event in made]
        assert isinstance(made.get_final_response().output_parsed, Colour)
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_tools_of_openai_streamed_and_whole(client: openai.OpenAI) -> None:
    tool: Any = {
        "type": "function",
        "function": {"name": "weather", "parameters": PARAMETERS, "strict": True},
    }
    asked: dict[str, Any] = {
        "model": MODEL, "messages": USER, "tools": [tool], "tool_choice": "required", "max_tokens": 80,
        "temperature": 0,
    }  # fmt: skip
    (call,) = (
        client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0].message.tool_calls or ()
    )
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        pieces = [
            event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"
        ]
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert streamed.function.arguments == "".join(pieces) == call.function.arguments
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")


def test_a_conversation_of_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="lamp: red", max_output_tokens=20)
    second = client.responses.create(
        model=MODEL, input="What is lamp?", previous_response_id=first.id, max_output_tokens=20, temperature=0
    )
    assert second.output_text.strip() == "red"
    assert second.usage is not None
    assert client.responses.retrieve(second.id) == second


def test_embeddings_of_openai(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=["lamp", "door"])
    assert len(answer.data) == 2
    assert len(answer.data[0].embedding) > 16
    assert answer.usage.prompt_tokens > 0


def test_a_refused_request_has_the_client_s_own_error(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=USER)
    with pytest.raises(openai.BadRequestError, match="verbosity"):
        client.chat.completions.create(model=MODEL, messages=USER, verbosity="low")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=1, messages=USER)


def test_messages_of_anthropic(claude: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 20,
        "messages": USER,
        "extra_body": {"temperature": 0},
    }
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert message.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model=MODEL, messages=USER)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_tools_of_anthropic_streamed_and_whole(claude: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": MODEL, "max_tokens": 80, "messages": USER, "extra_body": {"temperature": 0},
        "tools": [{"name": "weather", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "tool", "name": "weather"},
    }  # fmt: skip
    (block,) = claude.messages.create(**asked).content
    with claude.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert block.type == streamed.type == "tool_use"
    assert block.input == streamed.input
    assert block.input["city"] in ("Oslo", "Rome")


def test_thinking_of_anthropic_is_accepted(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model=MODEL, max_tokens=2000, messages=USER, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert message.stop_reason == "end_turn"


def test_a_client_retries_until_the_gateway_has_an_engine() -> None:
    """The engine comes up while the client asks: the answers before are 503 with Retry-After."""
    with Command(
        "gateway", "--backend", "http://127.0.0.1:9", "--port", "0", "--hold-timeout", "0.05"
    ) as gateway:
        found = gateway.wait_for(r"mambaserve gateway ready at (http://\S+)")
        with openai.OpenAI(base_url=f"{found[1]}/v1", api_key="none", max_retries=1) as client:
            with pytest.raises(openai.InternalServerError) as refused:
                client.chat.completions.create(model=MODEL, messages=USER)
            assert refused.value.status_code == 503
            assert refused.value.response.headers["retry-after"]
            assert refused.value.response.request.headers["x-stainless-retry-count"] == "1"
