"""Messages of a chat request as chat templates expect them. Pure."""

from typing import Any

from mamba_api.openai import ChatCompletionRequest
from mamba_api.openai_tools import INPUT
from mamba_text import strict_json


def template_messages(request: ChatCompletionRequest) -> list[dict[str, Any]]:
    """Content one string, no role that templates have never heard of, arguments of calls as objects."""
    return [_message(message.model_dump(exclude_none=True)) for message in request.messages]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or part.get("refusal", "") for part in content)
    role = "system" if message["role"] == "developer" else message["role"]
    made = {**message, "role": role, "content": content or ""}
    if "tool_calls" in message:
        made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return made


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Clients send arguments as the text that they got; templates encode them, or walk over them."""
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        # Templates know functions alone, and the tool is shown as one.
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
        return call  # what the model once wrote may be no JSON; then it is shown as it was
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
