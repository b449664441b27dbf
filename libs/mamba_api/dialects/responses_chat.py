"""Translates a request of `POST /v1/responses` into the chat request that stands for it. Pure.

Reasoning, text and calls of one answer, which are items of their own here, become one message of the
assistant.
"""

from typing import Any

from mamba_api.dialects.messages_chat import USAGE_IN_EVENTS
from mamba_api.dialects.responses_request import (
    FunctionSelection,
    InputItem,
    ItemPart,
    ResponsesRequest,
    TextFormat,
)
from mamba_api.openai import ChatCompletionRequest

_SAME_FIELDS = ("model", "temperature", "top_p", "parallel_tool_calls", "priority", "cache_salt")
Message = dict[str, Any]


def chat_of_responses(request: ResponsesRequest) -> ChatCompletionRequest:
    """Return the chat request for a response request. Raises pydantic's ValidationError."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _SAME_FIELDS}
    fields["messages"] = _messages(request)
    fields["max_completion_tokens"] = request.max_output_tokens
    if request.tools is not None:
        fields["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}
            for tool in request.tools
        ]
    choice = request.tool_choice
    fields["tool_choice"] = _selection(choice) if isinstance(choice, FunctionSelection) else choice
    if request.text is not None and request.text.format is not None:
        fields["response_format"] = _format(request.text.format)
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
        fields["thinking_token_budget"] = request.reasoning.max_tokens
    if request.stream:
        fields |= {"stream": True, "stream_options": USAGE_IN_EVENTS}
    return ChatCompletionRequest.model_validate(fields)


def repeated_settings(request: ResponsesRequest) -> dict[str, Any]:
    """Return the fields of a request that its answer repeats, with their defaults."""
    dumped = request.model_dump(by_alias=True)
    for name in ("input", "stream", "model", "include", "conversation"):
        del dumped[name]
    conversation = request.conversation
    if conversation is not None:
        dumped["conversation"] = {"id": conversation if isinstance(conversation, str) else conversation.id}
    tools = [] if request.tools is None else dumped["tools"]
    text = {"format": {"type": "text"}}
    if request.text is not None and request.text.format is not None:
        text = {"format": request.text.format.model_dump(by_alias=True, exclude_none=True)}
    return {
        **dumped,
        "tools": tools,
        "tool_choice": dumped["tool_choice"] or "auto",
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "text": text,
        "metadata": request.metadata or {},
        "truncation": "disabled",
        "store": request.store is not False,
    }


def _selection(choice: FunctionSelection) -> dict[str, Any]:
    if choice.type == "function":
        return {"type": "function", "function": {"name": choice.name}}
    tools = [{"type": "function", "function": {"name": tool.name}} for tool in choice.tools or ()]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}


def _format(form: TextFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    schema = {"name": form.name, "schema": form.schema_, "strict": form.strict}
    return {"type": "json_schema", "json_schema": schema}


def _messages(request: ResponsesRequest) -> list[Message]:
    messages: list[Message] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*messages, {"role": "user", "content": request.input}]
    answer: Message | None = None
    """Message of the assistant that further items may belong to."""
    names: dict[str, str] = {}
    for item in request.input:
        if item.type in ("function_call", "reasoning") or item.role == "assistant":
            if answer is None or (item.type != "function_call" and "tool_calls" in answer):
                answer = {"role": "assistant", "content": ""}
                messages.append(answer)
            _add_to_answer(answer, item)
            if item.call_id and item.name:
                names[item.call_id] = item.name
            continue
        answer = None
        if item.type == "function_call_output":
            call = item.call_id or ""
            name = {"name": names[call]} if call in names else {}
            messages.append({"role": "tool", "tool_call_id": call, "content": _text(item.output), **name})
        else:
            messages.append({"role": item.role, "content": _text(item.content)})
    return messages


def _add_to_answer(answer: Message, item: InputItem) -> None:
    """Add the reasoning, the text or the call of an item to a message of the assistant."""
    if item.type == "reasoning":
        name, text = "reasoning_content", _text(item.content) or _text(item.summary)
    elif item.type == "message":
        name, text = "content", _text(item.content)
    else:
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        answer.setdefault("tool_calls", []).append(call)
        return
    if text:
        answer[name] = f"{answer[name]}\n{text}" if answer.get(name) else text


def _text(content: str | list[ItemPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)
