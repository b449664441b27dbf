"""The OpenAI-compatible answers that engine and gateway send.

The OpenAPI document and the tests that compare real answers use these models. The API process encodes answers
from msgspec structs with the same fields; it never builds these models on the hot path.
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
    """How many of the prompt's tokens were not computed."""

    cached_tokens: int
    """Prompt tokens resumed from a checkpoint instead of computed."""


class CompletionTokensDetails(_Answer):
    """How many of the generated tokens were reasoning."""

    reasoning_tokens: int
    """Tokens of the reasoning before the answers, including markers."""


class EngineCost(_Answer):
    """How much of the engine one request used; sent with the header `X-Mambaserve-Cost: 1`."""

    device_seconds: float
    """Seconds of the device: the request's share of each step that computed for it."""
    slot_seconds: float
    """State slots times the seconds for which the request held them."""
    page_seconds: float
    """Attention pages times the seconds for which the request used them, shared ones included."""
    saved_device_seconds: float
    """Seconds of the device that the resumed tokens would have taken at the engine's measured speed."""
    cost: float | None = None
    """Price of the request; present where the gateway has prices."""
    saved_cost: float | None = None
    """Price of the saved seconds of the device; present where the gateway has prices."""
    currency: str | None = None
    """Currency of both costs."""


class Usage(_Answer):
    """Numbers of tokens of one request, over all its prompts and choices."""

    prompt_tokens: int
    """Tokens of the prompts."""
    completion_tokens: int
    """Generated tokens."""
    total_tokens: int
    """Sum of `prompt_tokens` and `completion_tokens`."""
    prompt_tokens_details: PromptTokensDetails
    """Origin of the prompt tokens; always present."""
    completion_tokens_details: CompletionTokensDetails | None = None
    """Breakdown of the generated tokens; present in chats with models whose reasoning is separated."""
    engine_cost: EngineCost | None = None
    """Use of the engine; present with the header `X-Mambaserve-Cost: 1`."""


class OtherEngine(_Answer):
    """The engine that could have resumed more of a prompt than the one that computed it."""

    name: str
    """Name of the engine."""
    tokens: int
    """Tokens of the prompt that it could have resumed."""


class ExplainedPrompt(_Answer):
    """How many tokens one prompt resumed, and why no more."""

    prompt: int
    """Position of the prompt in the request, from 0."""
    prompt_tokens: int
    """Tokens of the prompt."""
    resumed_tokens: int
    """Tokens resumed from a checkpoint instead of computed."""
    common_tokens: int
    """Number of first tokens that the prompt shares with the cached prompt nearest to it; only those of whole
    pages where the next cached tokens belong to another API key."""
    reason: Literal[
        "resumed_all", "too_short", "new_text", "parted", "nothing_cached", "caching_off", "being_computed",
        "no_checkpoint", "checkpoint_too_deep", "checkpoint_evicted", "flushed", "quarantined",
        "pages_evicted", "pinning", "no_memory", "prompt_read_whole", "transfer_failed", "other_engine",
    ]  # fmt: skip
    """Why no more tokens were resumed."""
    explanation: str
    """The reason in words."""
    shared_text: str | None
    """End of the text that the prompt and the cached prompt begin with; null where it explains nothing."""
    prompt_text: str | None
    """Text of the prompt behind `shared_text`, at most 40 characters."""
    cached_text: str | None
    """Text of the cached prompt behind `shared_text`; null if it ends there or belongs to another API key."""
    other_engine: OtherEngine | None
    """Engine that could have resumed more, with the reason `other_engine`."""


class Explanations(_Answer):
    """Says, for each prompt of one request, how many tokens came from the cache, and why not more of them."""

    explain: list[ExplainedPrompt]
    """One for each prompt."""


class CompletionLogprobs(_Answer):
    """Log-probabilities of one choice, with one entry per token."""

    text_offset: list[int]
    """Offset of each token's text, in characters."""
    token_logprobs: list[float | None]
    """Log-probability of each token; null for the first token of an echoed prompt."""
    tokens: list[str]
    """Text of each token."""
    top_logprobs: list[dict[str, float] | None] | None
    """Most likely tokens at each position."""


class CompletionChoice(_Answer):
    """One choice of a completion."""

    index: int
    """Prompt index times n plus the number of the choice."""
    text: str
    """Text of the choice; in a chunk, the new text."""
    logprobs: CompletionLogprobs | None = None
    """Log-probabilities, if requested."""
    finish_reason: Finish | None
    """Cause of the end; null in all chunks of a choice except its last one."""
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """Log-probabilities of the prompt, if requested."""
    prompt_token_ids: list[int] | None = None
    """Token ids of the prompt, with `return_token_ids`."""
    token_ids: list[int] | None = None
    """Token ids of the choice, with `return_token_ids`."""


class CompletionResponse(_Answer):
    """Answer, or one chunk, of `POST /v1/completions`."""

    id: str
    """Identifier of this answer."""
    object: Literal["text_completion"]
    """Always `text_completion`."""
    created: int
    """Unix time in seconds."""
    model: str
    """Name of the served model."""
    choices: list[CompletionChoice]
    """Choices; empty in the usage chunk."""
    usage: Usage | None = None
    """Tokens of the request; null in all chunks except the usage chunk."""
    system_fingerprint: str | None = None
    """Never set."""
    mambaserve: Explanations | None = None
    """Explanations of what was resumed, with `X-Mambaserve-Explain: 1`; of a stream in its last chunk."""


class TopLogprob(_Answer):
    """One of the most likely tokens at a position."""

    token: str
    """Text of the token."""
    logprob: float
    """Log-probability of the token."""
    bytes: list[int] | None
    """Bytes of the token, which may be part of a character."""


class TokenLogprob(TopLogprob):
    """The sampled token and its alternatives."""

    top_logprobs: list[TopLogprob]
    """Most likely tokens, best first."""


class ChatLogprobs(_Answer):
    """Log-probabilities of one choice."""

    content: list[TokenLogprob] | None
    """One entry per token."""
    refusal: None = None
    """Never set."""


class CalledFunction(_Answer):
    """A call of a function by the model."""

    name: str
    """Name of the function."""
    arguments: str
    """Arguments as JSON text written by the model: validate them before use."""


class CalledCustomTool(_Answer):
    """A call of a custom tool by the model."""

    name: str
    """Name of the tool."""
    input: str
    """Input text written by the model."""


class AnsweredToolCall(_Answer):
    """One call of a tool."""

    id: str
    """Identifier of the call, which the `tool` message with the result repeats."""
    type: Literal["function", "custom"]
    """Type of the tool."""
    function: CalledFunction | None = None
    """The call of a function."""
    custom: CalledCustomTool | None = None
    """The call of a custom tool."""


class ToolCallDelta(AnsweredToolCall):
    """One call in a chunk, always complete."""

    index: int
    """Position among the calls of the choice."""


class AnswerMessage(_Answer):
    """The assistant's message."""

    role: Literal["assistant"]
    """Always `assistant`."""
    content: str | None
    """Text of the message; null if it has only calls or reasoning."""
    refusal: None = None
    """Never set."""
    reasoning_content: str | None = None
    """Reasoning of the model before its answer, if any."""
    reasoning: str | None = None
    """The same under its other name."""
    tool_calls: list[AnsweredToolCall] | None = None
    """Calls by the model, if any."""


class ChatChoice(_Answer):
    """One choice of a chat completion."""

    index: int
    """Number of the choice."""
    message: AnswerMessage
    """Message of the choice."""
    logprobs: ChatLogprobs | None = None
    """Log-probabilities, if requested."""
    finish_reason: ChatFinish
    """Cause of the end; `tool_calls` if the choice ended by itself after calls."""
    token_ids: list[int] | None = None
    """Token ids of the choice, with `return_token_ids`."""


class ChatCompletionResponse(_Answer):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    """Identifier of this answer."""
    object: Literal["chat.completion"]
    """Always `chat.completion`."""
    created: int
    """Unix time in seconds."""
    model: str
    """Name of the served model."""
    choices: list[ChatChoice]
    """The `n` choices."""
    usage: Usage
    """Tokens of the request."""
    system_fingerprint: str | None = None
    """Never set."""
    mambaserve: Explanations | None = None
    """Explanations of what was resumed, with `X-Mambaserve-Explain: 1`; of a stream in its last chunk."""
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """Log-probabilities of the prompt, if requested."""
    prompt_token_ids: list[int] | None = None
    """Token ids of the prompt, with `return_token_ids`."""


class AnswerDelta(_Answer):
    """New part of the assistant's message."""

    role: Literal["assistant"] | None = None
    """Role, in the first chunk of a choice."""
    reasoning_content: str | None = None
    """New text of the reasoning."""
    reasoning: str | None = None
    """The same under its other name."""
    content: str | None = None
    """New text of the answer."""
    tool_calls: list[ToolCallDelta] | None = None
    """Calls completed since the last chunk."""


class ChatChunkChoice(_Answer):
    """One choice in a chunk."""

    index: int
    """Number of the choice."""
    delta: AnswerDelta
    """New part of the message."""
    logprobs: ChatLogprobs | None = None
    """Log-probabilities of the new tokens, if requested."""
    finish_reason: ChatFinish | None
    """Cause of the end; null in all chunks of a choice except its last one."""
    token_ids: list[int] | None = None
    """Token ids of the new tokens, with `return_token_ids`."""


class ChatCompletionChunk(_Answer):
    """One event of a streamed `POST /v1/chat/completions`."""

    id: str
    """Identifier of this answer, the same in every chunk."""
    object: Literal["chat.completion.chunk"]
    """Always `chat.completion.chunk`."""
    created: int
    """Unix time in seconds."""
    model: str
    """Name of the served model."""
    choices: list[ChatChunkChoice]
    """Choices; empty in the usage chunk."""
    usage: Usage | None = None
    """Tokens of the request; null in all chunks except the usage chunk."""
    system_fingerprint: str | None = None
    """Never set."""
    mambaserve: Explanations | None = None
    """Explanations of what was resumed, with `X-Mambaserve-Explain: 1`; of a stream in its last chunk."""
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    """Log-probabilities of the prompt in the first chunk, if requested."""
    prompt_token_ids: list[int] | None = None
    """Token ids of the prompt in the first chunk, with `return_token_ids`."""


class ModelCard(_Answer):
    """One served model."""

    id: str
    """Name of the model in the API."""
    object: Literal["model"]
    """Always `model`."""
    created: int
    """Unix time at which the server started, in seconds."""
    owned_by: str
    """Always `mambaserve`."""
    root: str
    """Source of the model or of the adapter."""
    parent: str | None = None
    """Name of the model that an adapter changes; null for the model itself."""
    fingerprint: str | None = None
    """Fingerprint of the files of an adapter; null for the model itself."""
    max_model_len: int | None
    """Maximum length of prompt plus output in tokens; null while loading."""


class ModelList(_Answer):
    """Answer of `GET /v1/models`."""

    object: Literal["list"]
    """Always `list`."""
    data: list[ModelCard]
    """The served models."""


class TransferStatus(_Answer):
    """Transfer server of an engine, from which other engines fetch states."""

    address: str
    """Address of the transfer server: IP:PORT."""
    incarnation: str
    """Random name of the engine process, which changes with every start."""
    role: Literal["unified", "prefill", "decode"]
    """Work that gateways give the engine."""
    credits: int
    """Number of states that the engine can take now."""


class Readiness(_Answer):
    """Body of `/readyz` and `/health`."""

    status: Literal["ready", "loading", "restarting", "draining", "failed"]
    """`ready` comes with status 200, all others with 503 and Retry-After."""
    reason: str
    """Explanation of the status in one sentence."""
    stage: str | None = None
    """Part of the model that is being loaded."""
    done: int | None = None
    """Finished units of the stage."""
    total: int | None = None
    """All units of the stage."""
    transfer: TransferStatus | None = None
    """Transfer server of the engine; null where the engine moves no states."""
    models_revision: int | None = None
    """Number that changes whenever the list of models does; null where it never changes."""
