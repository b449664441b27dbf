"""Coding agents in three dialects, by the official clients: each asks for calls, whole and streamed.

The tools are those of `tests/data/coding_agent_tools.yaml`. The shipped model never ends a free text by
itself, nor the digits of a number, so an agent bounds those of its tools or, where the dialect has one, ends
them by a bias.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import anthropic
import jsonschema_rs
import openai
import yaml

PUBLISHED: dict[str, dict[str, Any]] = {
    tool["name"]: tool
    for tool in yaml.safe_load((Path(__file__).parents[1] / "data/coding_agent_tools.yaml").read_text())
}
"""Tools by name, as agents publish them."""
TEXT_CHARS, LIST_ITEMS, MAX_TOKENS = 12, 2, 1500
QUOTE, BRACKET, BRACE, END = "6", "65", "97", "4"
"""Token ids of the shipped model, of `"`, `]`, `}` and the end of an answer."""
SHORT_TEXTS = {QUOTE: 100, BRACKET: 50, BRACE: 50}
"""Bias that ends texts first, then lists and objects."""
TASK = "lamp: red\nFix the lamp."


@dataclass(frozen=True)
class Call:
    """A call that the model has written."""

    id: str
    name: str
    arguments: str

    def is_valid(self, schema: Mapping[str, Any]) -> bool:
        """Return whether the arguments follow the schema of the tool."""
        return jsonschema_rs.is_valid(schema, json.loads(self.arguments))


@dataclass(frozen=True)
class Turn:
    """One answer: its calls, and the tokens of its prompt."""

    calls: tuple[Call, ...]
    prompt_tokens: int
    resumed_tokens: int


class Agent(Protocol):
    """A conversation of one dialect, whose turns are calls. As a context it closes its connections."""

    _client: openai.OpenAI | anthropic.Anthropic

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def schema(self, name: str) -> dict[str, Any]:
        """Return the schema of a tool as this agent sends it."""

    def whole(self, tool: str | None) -> Turn:
        """Ask for a call of `tool`, or of any (None), and return the whole answer."""

    def streamed(self, tool: str | None) -> Turn:
        """Ask for the same as a stream."""

    def answer(self, turn: Turn) -> None:
        """Add the calls of a turn and their results to the conversation."""


def bounded(schema: Any) -> Any:
    """Return the schema with a bound on each free text and each list, and with whole numbers."""
    if isinstance(schema, list):
        return [bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    limited = {key: bounded(value) for key, value in schema.items()}
    if limited.get("type") == "string" and "enum" not in limited:
        limited.setdefault("maxLength", TEXT_CHARS)
    if limited.get("type") == "number":
        limited |= {"type": "integer", "minimum": 0, "maximum": 600_000}
    if limited.get("type") == "array":
        limited.setdefault("maxItems", LIST_ITEMS)
    return limited


def result_of(call: Call) -> str:
    """Return what the tool says: the agent has no files and no shell."""
    return f"{call.name} has nothing to show."


class ChatAgent(Agent):
    """An agent of OpenAI's chat completions, with the tools as they are published."""

    def __init__(self, url: str, names: Iterable[str]) -> None:
        """Offer the tools `names`."""
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
        self._tools = [
            {
                "type": "function",
                "function": {"name": name, "description": tool["description"], "parameters": tool["schema"]},
            }
            for name, tool in PUBLISHED.items()
            if name in names
        ]

    def schema(self, name: str) -> dict[str, Any]:
        schema: dict[str, Any] = PUBLISHED[name]["schema"]
        return schema

    def _request(self, tool: str | None) -> dict[str, Any]:
        choice: Any = {"type": "function", "function": {"name": tool}}
        return {
            "model": "tiny", "messages": self._messages, "tools": self._tools, "max_tokens": MAX_TOKENS,
            "tool_choice": "required" if tool is None else choice, "temperature": 0,
            "logit_bias": SHORT_TEXTS,
        }  # fmt: skip

    def several(self, tokens: int) -> Turn:
        """Ask for as many calls as `tokens` take, and one at least."""
        request = self._request(None)
        request["logit_bias"] = {**SHORT_TEXTS, END: 100}
        return self._turn(self._client.chat.completions.create(**request, extra_body={"min_tokens": tokens}))

    def whole(self, tool: str | None) -> Turn:
        return self._turn(self._client.chat.completions.create(**self._request(tool)))

    def _turn(self, answer: Any) -> Turn:
        assert answer.choices[0].finish_reason == "tool_calls"
        calls = tuple(
            Call(call.id, call.function.name, call.function.arguments)
            for call in answer.choices[0].message.tool_calls
        )
        return Turn(calls, *_chat_tokens(answer.usage))

    def streamed(self, tool: str | None) -> Turn:
        parts: dict[int, list[str]] = {}
        chunks = self._client.chat.completions.create(
            **self._request(tool), stream=True, stream_options={"include_usage": True}
        )
        for chunk in chunks:
            for part in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                if part.id:
                    parts[part.index] = [part.id, part.function.name, ""]
                parts[part.index][2] += part.function.arguments or ""
        return Turn(tuple(Call(*fields) for fields in parts.values()), *_chat_tokens(chunk.usage))

    def answer(self, turn: Turn) -> None:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
        self._messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        self._messages += [
            {"role": "tool", "tool_call_id": call.id, "content": result_of(call)} for call in turn.calls
        ]


def _chat_tokens(usage: Any) -> tuple[int, int]:
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


class ResponsesAgent(Agent):
    """An agent of OpenAI's responses, which keeps its items itself, as coding agents do."""

    def __init__(self, url: str, names: Iterable[str]) -> None:
        """Offer the tools `names`."""
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        self._items: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
        self._tools = [
            {
                "type": "function", "name": name, "description": tool["description"], "strict": False,
                "parameters": bounded(tool["schema"]),
            }
            for name, tool in PUBLISHED.items() if name in names
        ]  # fmt: skip

    def schema(self, name: str) -> dict[str, Any]:
        schema: dict[str, Any] = bounded(PUBLISHED[name]["schema"])
        return schema

    def _request(self, tool: str | None) -> dict[str, Any]:
        return {
            "model": "tiny", "input": self._items, "tools": self._tools, "max_output_tokens": MAX_TOKENS,
            "tool_choice": "required" if tool is None else {"type": "function", "name": tool},
            "store": False, "temperature": 0,
        }  # fmt: skip

    def whole(self, tool: str | None) -> Turn:
        return self._turn(self._client.responses.create(**self._request(tool)))

    def streamed(self, tool: str | None) -> Turn:
        written: dict[int, str] = {}
        for event in self._client.responses.create(**self._request(tool), stream=True):
            if event.type == "response.function_call_arguments.delta":
                written[event.output_index] = written.get(event.output_index, "") + event.delta
        turn = self._turn(event.response)
        assert tuple(written.values()) == tuple(call.arguments for call in turn.calls)
        return turn

    def _turn(self, response: Any) -> Turn:
        assert response.status == "completed"
        calls = tuple(Call(item.call_id, item.name, item.arguments) for item in response.output)
        usage = response.usage
        return Turn(calls, usage.input_tokens, usage.input_tokens_details.cached_tokens)

    def answer(self, turn: Turn) -> None:
        for call in turn.calls:
            item = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
            self._items.append({"type": "function_call", **item})
        for call in turn.calls:
            result = {"call_id": call.id, "output": result_of(call)}
            self._items.append({"type": "function_call_output", **result})


class MessagesAgent(Agent):
    """An agent of Anthropic's messages."""

    def __init__(self, url: str, names: Iterable[str]) -> None:
        """Offer the tools `names`."""
        self._client = anthropic.Anthropic(base_url=url, api_key="none")
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
        self._tools = [
            {"name": name, "description": tool["description"], "input_schema": bounded(tool["schema"])}
            for name, tool in PUBLISHED.items()
            if name in names
        ]

    def schema(self, name: str) -> dict[str, Any]:
        schema: dict[str, Any] = bounded(PUBLISHED[name]["schema"])
        return schema

    def _request(self, tool: str | None) -> dict[str, Any]:
        return {
            "model": "tiny", "messages": self._messages, "tools": self._tools, "max_tokens": MAX_TOKENS,
            "tool_choice": {"type": "any"} if tool is None else {"type": "tool", "name": tool},
            "extra_body": {"temperature": 0},
        }  # fmt: skip

    def whole(self, tool: str | None) -> Turn:
        return self._turn(self._client.messages.create(**self._request(tool)))

    def streamed(self, tool: str | None) -> Turn:
        with self._client.messages.stream(**self._request(tool)) as stream:
            return self._turn(stream.get_final_message())

    def _turn(self, message: anthropic.types.Message) -> Turn:
        assert message.stop_reason == "tool_use"
        blocks = [block for block in message.content if block.type == "tool_use"]
        assert len(blocks) == len(message.content)
        calls = tuple(Call(block.id, block.name, json.dumps(block.input)) for block in blocks)
        resumed = message.usage.cache_read_input_tokens or 0
        return Turn(calls, message.usage.input_tokens + resumed, resumed)

    def answer(self, turn: Turn) -> None:
        calls: Sequence[dict[str, Any]] = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in turn.calls
        ]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result_of(call)} for call in turn.calls
        ]
        self._messages += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]


DIALECTS: dict[str, type[ChatAgent] | type[ResponsesAgent] | type[MessagesAgent]] = {
    "chat": ChatAgent,
    "messages": MessagesAgent,
    "responses": ResponsesAgent,
}
"""Agents by the names of their dialects."""
