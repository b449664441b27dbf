"""The OpenAI-compatible answers: what engine and gateway send back.

Feeds the OpenAPI document, and the tests that hold real answers against it. The API process encodes answers
from msgspec structs of the same fields; it never builds these on the hot path.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Finish = Literal["stop", "length", "abort", "error"]
ChatFinish = Literal["stop", "length", "tool_calls", "abort", "error"]


class _Answer(BaseModel):
    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), frozen=True
    )


class PromptTokensDetails(_Answer):
    """Where the prompt's tokens came from."""

    cached_tokens: int
    """Prompt tokens resumed from a checkpoint instead of computed."""


class CompletionTokensDetails(_Answer):
    """What the generated tokens are."""

    reasoning_tokens: int
    """Tokens of what the model thought before its answers, markers included."""


class Usage(_Answer):
    """Tokens of one request, over all its prompts and choices."""

    prompt_tokens: int
    """Tokens of the prompts."""
    completion_tokens: int
    """Tokens generated."""
    total_tokens: int
    """Sum of the two."""
    prompt_tokens_details: PromptTokensDetails
    """Always there."""
    completion_tokens_details: CompletionTokensDetails | None = None
    """Of chats with models that think, where their thoughts are told apart."""


class CompletionLogprobs(_Answer):
    """Log-probabilities of one choice, one entry a token."""

    text_offset: list[int]
    """Where each token's text starts, in characters."""
    token_logprobs: list[float | None]
    """Log-probability of each token; null for the first of an echoed prompt."""
    tokens: list[str]
    """Text of each token."""
    top_logprobs: list[dict[str, float] | None] | None
    """The most likely tokens at each place."""


class CompletionChoice(_Answer):
    """One choice of a completion."""

    index: int
    """Prompt index times n plus the number of the choice."""
    text: str
    """The text; in a chunk, the new text."""
    logprobs: CompletionLogprobs | None = None
    """When asked for."""
    finish_reason: Finish | None
    """Null in all but a choice's last chunk."""
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """When asked for."""
    prompt_token_ids: list[int] | None = None
    """With `return_token_ids`."""
    token_ids: list[int] | None = None
    """With `return_token_ids`."""


class CompletionResponse(_Answer):
    """Answer, or one chunk, of `POST /v1/completions`."""

    id: str
    """Name of this answer."""
    object: Literal["text_completion"]
    """`text_completion`."""
    created: int
    """Unix time in seconds."""
    model: str
    """The served model."""
    choices: list[CompletionChoice]
    """Empty in the usage chunk."""
    usage: Usage | None = None
    """Null in chunks but the usage chunk."""
    system_fingerprint: str | None = None
    """Never set."""


class TopLogprob(_Answer):
    """One likely token."""

    token: str
    """Its text."""
    logprob: float
    """Its log-probability."""
    bytes: list[int] | None
    """Its bytes: a token may be a part of a character."""


class TokenLogprob(TopLogprob):
    """The sampled token and its rivals."""

    top_logprobs: list[TopLogprob]
    """The most likely tokens, best first."""


class ChatLogprobs(_Answer):
    """Log-probabilities of one choice."""

    content: list[TokenLogprob] | None
    """One entry a token."""
    refusal: None = None
    """Never set."""


class CalledFunction(_Answer):
    """A function that the model calls."""

    name: str
    """Its name."""
    arguments: str
    """JSON of its arguments, as the model wrote them: check them before use."""


class CalledCustomTool(_Answer):
    """A custom tool that the model calls."""

    name: str
    """Its name."""
    input: str
    """The text that the model gives it."""


class AnsweredToolCall(_Answer):
    """One call of a tool."""

    id: str
    """What the `tool` message with the result names."""
    type: Literal["function", "custom"]
    """Type of the tool."""
    function: CalledFunction | None = None
    """The call of a function."""
    custom: CalledCustomTool | None = None
    """The call of a custom tool."""


class ToolCallDelta(AnsweredToolCall):
    """One call in a chunk, always whole."""

    index: int
    """Its place among the calls of the choice."""


class AnswerMessage(_Answer):
    """The assistant's message."""

    role: Literal["assistant"]
    """`assistant`."""
    content: str | None
    """Its text; null when it has calls or thoughts alone."""
    refusal: None = None
    """Never set."""
    reasoning_content: str | None = None
    """What the model thought before, if it did."""
    tool_calls: list[AnsweredToolCall] | None = None
    """The calls it makes, if any."""


class ChatChoice(_Answer):
    """One choice of a chat completion."""

    index: int
    """Number of the choice."""
    message: AnswerMessage
    """The message."""
    logprobs: ChatLogprobs | None = None
    """When asked for."""
    finish_reason: ChatFinish
    """Why it ended; `tool_calls` where it ended by itself after calls."""
    token_ids: list[int] | None = None
    """With `return_token_ids`."""


class ChatCompletionResponse(_Answer):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    """Name of this answer."""
    object: Literal["chat.completion"]
    """`chat.completion`."""
    created: int
    """Unix time in seconds."""
    model: str
    """The served model."""
    choices: list[ChatChoice]
    """`n` of them."""
    usage: Usage
    """Tokens."""
    system_fingerprint: str | None = None
    """Never set."""
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """When asked for."""
    prompt_token_ids: list[int] | None = None
    """With `return_token_ids`."""


class AnswerDelta(_Answer):
    """New part of the assistant's message."""

    role: Literal["assistant"] | None = None
    """In the first chunk of a choice."""
    reasoning_content: str | None = None
    """New text of what the model thinks before its answer."""
    content: str | None = None
    """New text."""
    tool_calls: list[ToolCallDelta] | None = None
    """Calls that became complete."""


class ChatChunkChoice(_Answer):
    """One choice in a chunk."""

    index: int
    """Number of the choice."""
    delta: AnswerDelta
    """What is new."""
    logprobs: ChatLogprobs | None = None
    """When asked for."""
    finish_reason: ChatFinish | None
    """Null in all but a choice's last chunk."""
    token_ids: list[int] | None = None
    """With `return_token_ids`: the new ones."""


class ChatCompletionChunk(_Answer):
    """One event of a streamed `POST /v1/chat/completions`."""

    id: str
    """Name of this answer, the same in every chunk."""
    object: Literal["chat.completion.chunk"]
    """`chat.completion.chunk`."""
    created: int
    """Unix time in seconds."""
    model: str
    """The served model."""
    choices: list[ChatChunkChoice]
    """Empty in the usage chunk."""
    usage: Usage | None = None
    """Null but in the usage chunk."""
    system_fingerprint: str | None = None
    """Never set."""
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """In the first chunk, when asked for."""
    prompt_token_ids: list[int] | None = None
    """In the first chunk, with `return_token_ids`."""


class ModelCard(_Answer):
    """One served model."""

    id: str
    """Its name in the API."""
    object: Literal["model"]
    """`model`."""
    created: int
    """Unix time the server started."""
    owned_by: str
    """`mambaserve`."""
    root: str
    """Where the model came from."""
    parent: None = None
    """Never set."""
    max_model_len: int | None
    """Longest prompt plus output; null while loading."""


class ModelList(_Answer):
    """Answer of `GET /v1/models`."""

    object: Literal["list"]
    """`list`."""
    data: list[ModelCard]
    """The models."""


class Readiness(_Answer):
    """Body of `/readyz` and `/health`."""

    status: Literal["ready", "loading", "restarting", "draining", "failed"]
    """`ready` comes with 200, all others with 503 and Retry-After."""
    reason: str
    """One sentence."""
    stage: str | None = None
    """What is being loaded."""
    done: int | None = None
    """Units of the stage that are done."""
    total: int | None = None
    """Units of the stage."""
