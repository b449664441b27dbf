"""The answers of `POST /v1/messages`, for the OpenAPI documents; the engine's builder writes them. Pure."""

from typing import Any, Literal

from mamba_api.openai_fields import Strict
from mamba_api.openai_responses import EngineCost, Explanations


class AnsweredBlock(Strict):
    """A part of the answer: a text, reasoning, or a call of a tool."""

    type: Literal["text", "thinking", "tool_use"]
    """Kind of the block."""
    text: str | None = None
    """Text of a `text` block."""
    thinking: str | None = None
    """Reasoning of a `thinking` block."""
    signature: str | None = None
    """Always empty: reasoning that comes back is not checked."""
    id: str | None = None
    """Identifier of the call in a `tool_use` block."""
    name: str | None = None
    """Name of the tool in a `tool_use` block."""
    input: dict[str, Any] | None = None
    """Arguments of the call, written by the model: validate them before use."""


class MessagesUsage(Strict):
    """Numbers of tokens of the request.

    The tokens of the prompt are the sum of the first three.
    """

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were resumed from the cache."""
    cache_creation_input_tokens: int
    """Always 0: the cache keeps prefixes by itself, and no request pays for it."""
    output_tokens: int
    """Tokens of the answer, thoughts included."""
    engine_cost: EngineCost | None = None
    """Use of the engine; present with the header `X-Mambaserve-Cost: 1`."""


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessagesResponse(Strict):
    """Answer of `POST /v1/messages`."""

    id: str
    """Identifier of this answer."""
    type: Literal["message"]
    """Always `message`."""
    role: Literal["assistant"]
    """Always `assistant`."""
    model: str
    """Name of the served model."""
    content: list[AnsweredBlock]
    """Blocks of the answer."""
    stop_reason: StopReason | None
    """Cause of the end."""
    stop_sequence: str | None
    """The stop sequence that ended the answer."""
    usage: MessagesUsage
    """Tokens of the request."""
    mambaserve: Explanations | None = None
    """Explanation of what was resumed, with `X-Mambaserve-Explain: 1`."""


class MessagesEvent(Strict):
    """Data of one event of a streamed answer; the event has the name of its type."""

    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "ping", "error",
    ]  # fmt: skip
    """Kind of the event."""
    message: MessagesResponse | None = None
    """The message without its blocks, in `message_start`."""
    index: int | None = None
    """Position of the block, in events about a block."""
    content_block: AnsweredBlock | None = None
    """The empty block, in `content_block_start`."""
    delta: dict[str, Any] | None = None
    """Addition of the event: to a block a `text_delta`, `thinking_delta` or `input_json_delta`; to the
    message `stop_reason` and `stop_sequence`."""
    usage: MessagesUsage | None = None
    """Tokens of the request, in `message_delta`."""
    mambaserve: Explanations | None = None
    """Explanation of what was resumed, in `message_delta` with `X-Mambaserve-Explain: 1`."""
    error: "MessagesError | None" = None
    """Error that ended the stream, in `error`."""
    request_id: str | None = None
    """Identifier of the request, in `error`."""


class TokenCount(Strict):
    """Answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int
    """Number of tokens of the prompt."""


class MessagesError(Strict):
    """Description of an error in an answer of the Messages API."""

    type: str
    """Class of error: invalid_request_error, authentication_error, rate_limit_error, api_error, …"""
    message: str
    """Description of the problem and its remedy."""


class MessagesErrorEnvelope(Strict):
    """Body of every answer of these paths with a status of 400 or more, and of an `error` event."""

    type: Literal["error"]
    """Always `error`."""
    error: MessagesError
    """The error."""
    request_id: str
    """Identifier of the request, as in the header `request-id`."""
