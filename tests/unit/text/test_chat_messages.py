"""Messages of a request in the form that templates expect.

No earlier output of a model prevents a conversation from continuing.
"""

from typing import Any

import pytest

from mamba_api.openai import ChatCompletionRequest
from mamba_text.prompt import template_messages


def arguments(function: dict[str, Any]) -> Any:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", **function}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    (message,) = template_messages(ChatCompletionRequest.model_validate({"messages": messages}))
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("written", ["", " ", "\n", "null", " null\n", None])
def test_blank_arguments_are_none(written: str | None) -> None:
    assert arguments({"arguments": written}) == {}


def test_a_call_without_arguments_has_none() -> None:
    assert arguments({}) == {}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r'{"a": "\ud83d"}', {"a": "\ufffd"}),
        (r'{"\udc00": ["\ud83dx"]}', {"\ufffd": ["\ufffdx"]}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        ("[1]", "[1]"),
        ("{broken", "{broken"),
    ],
)
def test_halves_of_characters_are_replaced_and_what_is_no_object_stays(written: str, read: Any) -> None:
    assert arguments({"arguments": written}) == read
