"""Translates a request of `POST /v1/messages` into the chat request that stands for it. Pure.

Messages of one role in a row become one message, as in Anthropic's API, and the blocks of a message are
joined by line feeds. Results of tools become messages of their own, in the order in which they were sent.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from mamba_api.dialects.messages_request import (
    CountTokensRequest,
    InputMessage,
    MessageBlock,
    MessagesRequest,
    TextBlock,
    ToolDefinition,
    ToolUseChoice,
)
from mamba_api.openai import ChatCompletionRequest
from mamba_api.openai_fields import CacheControl

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
USAGE_IN_EVENTS = {"include_usage": True, "continuous_usage_stats": True}
"""Options with which each part of a stream comes with the usage so far, as the events of dialects need it."""
_SAME_FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "priority", "cache_salt")


def chat_of_messages(request: CountTokensRequest) -> ChatCompletionRequest:
    """Return the chat request for a message request. Raises pydantic's ValidationError."""
    fields: dict[str, Any] = {"model": request.model, "messages": _messages(request)}
    # Messages without content become none, which is refused below.
    if request.cache_control is not None and fields["messages"]:
        last = fields["messages"][-1]
        own = last.get("cache_control")
        last["cache_control"] = _longest([request.cache_control, *([own] if own is not None else [])])
    if request.messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.tools is not None:
        fields["tools"] = [_tool(tool.model_dump(exclude_none=True)) for tool in request.tools]
    if request.tool_choice is not None:
        fields |= _choice(request.tool_choice)
    if request.thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": request.thinking.type != "disabled"}
        fields["thinking_token_budget"] = request.thinking.budget_tokens
    if (config := request.output_config) is not None:
        fields["reasoning_effort"] = config.effort
        if config.format is not None:
            schema = {"name": "answer", "schema": config.format.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if isinstance(request, MessagesRequest):
        fields |= {name: getattr(request, name) for name in _SAME_FIELDS}
        fields["stop"] = request.stop_sequences
        if request.stream:
            fields |= {"stream": True, "stream_options": USAGE_IN_EVENTS}
    return ChatCompletionRequest.model_validate(fields)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.pop("input_schema")
    for name in ("type", "cache_control"):
        tool.pop(name, None)
    return {"type": "function", "function": {**tool, "parameters": schema}}


def _choice(choice: ToolUseChoice) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = _CHOICES[choice.type]
    return fields


def _messages(request: CountTokensRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system := _text(request.system):
        blocks_of_system = request.system if isinstance(request.system, list) else []
        pin = _pin([*(request.tools or ()), *blocks_of_system])
        messages.append({"role": "system", "content": system, **pin})
    names: dict[str, str] = {}
    for role, turns in groupby(request.messages, key=_role):
        blocks = [block for turn in turns for block in turn.blocks]
        if role == "assistant":
            messages.append(_assistant(blocks))
            names |= {block.id: block.name for block in blocks if block.id and block.name}
        else:
            messages += _user(blocks, names)
    return messages


def _role(message: InputMessage) -> str:
    return message.role


def _text(content: str | list[TextBlock] | None) -> str:
    """Return a text, or the texts of blocks joined by line feeds."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text or "" for block in content)


_Pinnable = TextBlock | MessageBlock | ToolDefinition


def _pin(blocks: Iterable[_Pinnable]) -> dict[str, CacheControl]:
    """Return the field `cache_control` of the chat message that `blocks` become; empty if no block has one.

    A block's `cache_control` asks for its prefix to be kept in the cache for some time. One message has one
    such field, so the longest time of all blocks counts.
    """
    controls = [block.cache_control for block in blocks if block.cache_control is not None]
    return {"cache_control": _longest(controls)} if controls else {}


def _longest(controls: Iterable[CacheControl]) -> CacheControl:
    return max(controls, key=lambda control: control.seconds)


def _assistant(blocks: list[MessageBlock]) -> dict[str, Any]:
    """Return the message of an earlier answer."""
    message: dict[str, Any] = {"role": "assistant", **_pin(blocks)}
    message["content"] = "\n".join(block.text for block in blocks if block.type == "text" and block.text)
    if thoughts := [block.thinking for block in blocks if block.type == "thinking" and block.thinking]:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls := [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if block.type == "tool_use"
    ]:
        message["tool_calls"] = calls
    return message


def _user(blocks: list[MessageBlock], names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the messages of a user's turn.

    `names` are the names of the tools by the identifiers of earlier calls.
    """
    messages: list[dict[str, Any]] = []
    for kind, run in groupby(blocks, key=lambda block: block.type):
        if kind == "text":
            texts = list(run)
            content = "\n".join(block.text or "" for block in texts)
            messages.append({"role": "user", "content": content, **_pin(texts)})
            continue
        for block in run:
            result, call = _text(block.content), block.tool_use_id or ""
            content = f"Error: {result}" if block.is_error else result
            name = {"name": names[call]} if call in names else {}
            messages.append(
                {"role": "tool", "tool_call_id": call, "content": content, **name, **_pin([block])}
            )
    return messages
