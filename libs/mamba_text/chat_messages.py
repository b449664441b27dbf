"""Converts the messages of a chat request to the form that chat templates expect. Pure."""

from typing import Any

from mamba_api.openai import ChatCompletionRequest
from mamba_api.openai_tools import INPUT
from mamba_text import strict_json


def template_messages(request: ChatCompletionRequest) -> list[dict[str, Any]]:
    """Return messages with content as one string, common roles only, and arguments of calls as objects."""
    return [_message(message.model_dump(exclude_none=True)) for message in request.messages]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or part.get("refusal", "") for part in content)
    role = "system" if message["role"] == "developer" else message["role"]
    converted = {**message, "role": role, "content": content or ""}
    if "tool_calls" in message:
        converted["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return converted


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object.

    Clients send arguments as the text that they received, while templates encode them or iterate over them.
    """
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        # Templates only know functions, and the tool is shown as one.
        name, written = custom.get("name", ""), custom.get(INPUT, "")
        kept = {key: value for key, value in call.items() if key != "custom"}
        return {**kept, "type": "function", "function": {"name": name, "arguments": {INPUT: written}}}
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    written = function.get("arguments")
    if written is None or (isinstance(written, str) and written.strip() in ("", "null")):
        return {**call, "function": {**function, "arguments": {}}}
    if not isinstance(written, str):
        return call
    try:
        arguments = strict_json.parse_whole(written)
    except (ValueError, RecursionError):
        return call  # a model may have written invalid JSON, which is shown unchanged
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
