"""The OpenAI-compatible HTTP surface: requests that engine and gateway accept, and the error envelope.

Validated by the engine's API process; the gateway relays bodies and reads a few fields only. Strict: a wrong
type is an error, an unknown field is ignored (the caller logs it). Holds no behaviour beyond validation.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 32
MAX_LOGIT_BIAS = 1024

StopString = Annotated[str, Field(min_length=1, max_length=1024)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="ignore", use_attribute_docstrings=True, protected_namespaces=(), frozen=True
    )


class StreamOptions(_Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """Send one more chunk, with the usage and no choices, before `[DONE]`."""
    continuous_usage_stats: bool | None = None
    """Put the usage so far into every chunk."""


class ResponseFormat(_Strict):
    """Shape of the answer; `text` is the only one so far."""

    type: Literal["text", "json_object", "json_schema"]
    """`text`; the other two are refused with a clear error."""


class GenerationRequest(_Strict):
    """What both generation endpoints share. Ranges follow the OpenAI reference where it has one."""

    model: str | None = None
    """Name of the served model; none = the one that is served."""
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    """Most tokens to generate; 0 is allowed with `echo` alone."""
    temperature: FiniteFloat | None = Field(None, ge=0, le=2)
    """0 = greedy; none = the model's generation_config.json, else 1."""
    top_p: FiniteFloat | None = Field(None, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability mass."""
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    """Sample from the k most likely tokens; 0 and -1 = all."""
    min_p: FiniteFloat | None = Field(None, ge=0, le=1)
    """Drop tokens less likely than this share of the most likely one."""
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    """Choices per prompt."""
    stop: StopString | list[StopString] | None = None
    """End a choice before any of these strings."""
    stop_token_ids: list[TokenId] | None = Field(None, max_length=MAX_STOPS)
    """End a choice at any of these tokens."""
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    """Same seed, same request, same answer; choice i uses seed + i."""
    presence_penalty: FiniteFloat | None = Field(None, ge=-2, le=2)
    """Subtracted from the logits of tokens generated before."""
    frequency_penalty: FiniteFloat | None = Field(None, ge=-2, le=2)
    """Subtracted from the logits of tokens generated before, times how often."""
    repetition_penalty: FiniteFloat | None = Field(None, gt=0, le=10)
    """Divides the logits of tokens seen in prompt or output."""
    logit_bias: dict[str, Bias] | None = Field(None, max_length=MAX_LOGIT_BIAS)
    """Token id (as a JSON string) to a number that is added to its logit."""
    ignore_eos: bool | None = None
    """Go on after the end-of-sequence token."""
    min_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    """Do not end before this many tokens."""
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Also return the log-probabilities of the prompt's tokens, with this many alternatives."""
    stream: bool | None = None
    """Answer with server-sent events."""
    stream_options: StreamOptions | None = None
    """Only together with `stream`."""
    return_token_ids: bool | None = None
    """Choices also carry `prompt_token_ids` and `token_ids`."""
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    """Lower runs first."""
    cache_salt: str | None = Field(None, max_length=256)
    """Prefixes are shared only between requests of one salt."""
    response_format: ResponseFormat | None = None
    """Only `{"type": "text"}` is supported."""
    user: str | None = None
    """Ignored; accepted because clients send it."""
    metadata: dict[str, str] | None = None
    """Ignored; accepted because clients send it."""

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings are allowed, got {len(value)}")
        return value

    @field_validator("response_format")
    @classmethod
    def _text_only(cls, value: ResponseFormat | None) -> ResponseFormat | None:
        if value is not None and value.type != "text":
            raise ValueError(f"'{value.type}' is not supported yet; leave response_format out or use 'text'")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _token_keys(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or ():
            if not (key.isascii() and key.isdigit() and len(key) <= 10):
                raise ValueError(f"keys are token ids, got {key[:40]!r}")
        return value

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed together with 'stream': true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    """A string, strings, token ids, or lists of token ids."""
    echo: bool | None = None
    """Put the prompt in front of each choice (best effort: the text of its tokens)."""
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Log-probabilities of the sampled tokens and of this many alternatives."""
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    """Only equal to `n`: choices are not ranked."""
    suffix: str | None = None
    """Not supported: must be left out."""

    @field_validator("prompt")
    @classmethod
    def _not_empty(cls, value: str | list[Any]) -> str | list[Any]:
        if isinstance(value, list) and (not value or any(item == [] for item in value)):
            raise ValueError("must not be an empty list")
        return value

    @field_validator("suffix")
    @classmethod
    def _no_suffix(cls, value: str | None) -> str | None:
        if value:
            raise ValueError("is not supported")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of: only the value of 'n' is supported")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 is allowed with 'echo': true alone")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts as a list, one entry each."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class ContentPart(_Strict):
    """One part of a message's content; only text is supported."""

    type: str
    """`text`."""
    text: str | None = None
    """The text."""

    @model_validator(mode="after")
    def _text_only(self) -> "ContentPart":
        if self.type != "text":
            raise ValueError(f"type '{self.type[:40]}' is not supported: only text parts are")
        if self.text is None:
            raise ValueError("a text content part needs 'text'")
        return self


class ChatMessage(_Strict):
    """One message of the conversation. Fields beyond these reach the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """Who speaks."""
    content: str | list[ContentPart] | None = None
    """Text, or a list of text parts; may be null for an assistant's tool calls."""
    name: str | None = None
    """Name of the speaker or of the tool."""
    tool_calls: list[dict[str, Any]] | None = None
    """Calls the assistant made."""
    tool_call_id: str | None = None
    """The call a tool message answers."""

    @model_validator(mode="after")
    def _content_needed(self) -> "ChatMessage":
        if self.content is None and self.role != "assistant":
            raise ValueError(f"content: a message of role '{self.role}' needs content")
        return self


class FunctionDefinition(_Strict):
    """A function the model may call."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1, max_length=256)
    """Its name."""
    description: str | None = None
    """What it does."""
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""


class Tool(_Strict):
    """A tool offered to the model."""

    type: Literal["function"]
    """`function`."""
    function: FunctionDefinition
    """The function."""


class ChatCompletionRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    """The conversation so far."""
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Most tokens to generate; wins over `max_tokens`."""
    logprobs: bool | None = None
    """Return log-probabilities of the sampled tokens."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Alternatives per token; needs `logprobs`."""
    tools: list[Tool] | None = None
    """Tools, shown to the model by its chat template."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto` or `none`; a call cannot be forced."""
    parallel_tool_calls: bool | None = None
    """Ignored; accepted because clients send it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the chat template."""
    store: bool | None = None
    """Ignored; accepted because clients send it."""

    @field_validator("tool_choice")
    @classmethod
    def _not_forced(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if value not in (None, "auto", "none"):
            raise ValueError("only 'auto' and 'none' are supported")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed together with 'logprobs': true")
        if self.max_tokens == 0:
            raise ValueError("max_tokens: must be at least 1")
        return self


class ErrorBody(_Strict):
    """What went wrong, in the words of the OpenAI API."""

    message: str
    """What is wrong and what to do."""
    type: str
    """Class of error: invalid_request_error, authentication_error, rate_limit_error, server_error, …"""
    param: str | None = None
    """The field of the request that is wrong."""
    code: str | None = None
    """Machine-readable reason."""


class ErrorEnvelope(_Strict):
    """Body of every answer with a status of 400 or more, and of an error event inside a stream."""

    error: ErrorBody
    """The error."""
