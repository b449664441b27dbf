"""The answers of `POST /v1/responses`, for the OpenAPI documents; the engine's builder writes them. Pure."""

from typing import Any, Literal

from mamba_api.openai_fields import Strict
from mamba_api.openai_responses import EngineCost, Explanations


class AnsweredPart(Strict):
    """A part of the text of a message or of reasoning."""

    type: Literal["output_text", "reasoning_text"]
    """Kind of the part."""
    text: str
    """The text."""
    annotations: list[Any] | None = None
    """Always an empty list, in an `output_text`."""
    logprobs: list[Any] | None = None
    """Always an empty list, in an `output_text`."""


class OutputItem(Strict):
    """A part of the answer: a message, reasoning, or a call of a function."""

    id: str
    """Identifier of the item."""
    type: Literal["message", "reasoning", "function_call"]
    """Kind of the item."""
    status: Literal["in_progress", "completed", "incomplete"]
    """Whether the item is complete."""
    role: Literal["assistant"] | None = None
    """Role of a `message`."""
    content: list[AnsweredPart] | None = None
    """Text of a `message`, or the thoughts of `reasoning`."""
    summary: list[Any] | None = None
    """Always an empty list, in `reasoning`, whose thoughts are in `content`."""
    call_id: str | None = None
    """Identifier of the call in a `function_call`, which the item with the result repeats."""
    name: str | None = None
    """Name of the function, in a `function_call`."""
    arguments: str | None = None
    """Arguments as JSON text written by the model: validate them before use."""


class InputTokensDetails(Strict):
    """How many of the prompt's tokens were not computed."""

    cached_tokens: int
    """Tokens that were resumed from the cache."""


class OutputTokensDetails(Strict):
    """How many of the answer's tokens were reasoning."""

    reasoning_tokens: int
    """Tokens of the reasoning and its markers."""


class ResponsesUsage(Strict):
    """Numbers of tokens of the request."""

    input_tokens: int
    """Tokens of the prompt."""
    input_tokens_details: InputTokensDetails
    """Parts of the prompt's tokens."""
    output_tokens: int
    """Tokens of the answer, reasoning included."""
    output_tokens_details: OutputTokensDetails
    """Parts of the answer's tokens."""
    total_tokens: int
    """Sum of `input_tokens` and `output_tokens`."""
    engine_cost: EngineCost | None = None
    """Use of the engine; present with the header `X-Mambaserve-Cost: 1`."""


class ResponseError(Strict):
    """Says why an answer ended with an error."""

    code: str
    """Machine-readable reason."""
    message: str
    """Description of the problem and its remedy."""


class ResponsesResponse(Strict):
    """Answer of `POST /v1/responses`. Fields of the request that are not listed are returned as they came."""

    id: str
    """Identifier of this answer."""
    object: Literal["response"]
    """Always `response`."""
    created_at: int
    """Unix time in seconds."""
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    """Whether the answer is complete; `incomplete` if `max_output_tokens` or the context ended it."""
    error: ResponseError | None
    """Error that ended the answer, with the status `failed`."""
    incomplete_details: dict[str, str] | None
    """`{"reason": "max_output_tokens"}`, with the status `incomplete`."""
    model: str
    """Name of the served model."""
    output: list[OutputItem]
    """Items of the answer."""
    usage: ResponsesUsage | None
    """Tokens of the request; null while the answer is in progress."""
    store: bool
    """Whether the response is kept."""
    previous_response_id: str | None
    """Identifier of the response that the input continues."""
    conversation: dict[str, str] | None = None
    """Conversation that the turn was added to, by its `id`."""
    mambaserve: Explanations | None = None
    """Explanation of what was resumed, with `X-Mambaserve-Explain: 1`."""


class ResponsesEvent(Strict):
    """Data of one event of a streamed answer; the event has the name of its type."""

    type: str
    """Kind of the event, such as `response.created` or `response.output_text.delta`."""
    sequence_number: int | None = None
    """Position of the event in the stream; absent from an `error` that a gateway adds."""
    response: ResponsesResponse | None = None
    """The answer so far, in `response.created`, `in_progress`, `completed`, `incomplete` and `failed`."""
    item: OutputItem | None = None
    """The item, in `response.output_item.added` and `done`."""
    part: AnsweredPart | None = None
    """The part, in `response.content_part.added` and `done`."""
    item_id: str | None = None
    """Identifier of the item, in events about its parts."""
    output_index: int | None = None
    """Position of the item."""
    content_index: int | None = None
    """Position of the part."""
    delta: str | None = None
    """New text."""
