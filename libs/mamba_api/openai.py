"""The OpenAI-compatible HTTP surface: requests that engine and gateway accept, and the error envelope.

Validated by the engine's API process; the gateway relays bodies and reads a few fields only. Strict: a wrong
type is an error, an unknown field is ignored (the caller logs it), a known one that would change the answer
and is not acted on is refused. Holds no behaviour beyond validation.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, FiniteFloat, Tag, field_validator, model_validator

from mamba_api.openai_fields import (
    FAIL_FAST,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    NOT_SUPPORTED_IN_CHATS,
    ChatMessage,
    LogitBias,
    Metadata,
    ResponseFormat,
    StopString,
    StopStrings,
    StreamOptions,
    Strict,
    StructuredOutputs,
    TokenId,
    TokenIds,
    refuse_unsupported,
)
from mamba_api.openai_tools import Tool, ToolSelection


class GenerationRequest(Strict):
    """What both generation endpoints share. Ranges follow the OpenAI reference where it has one."""

    model: str | None = None
    """Name of the served model; none = the one that is served."""
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    """Most tokens to generate; 0 is allowed with `echo` alone."""
    temperature: FiniteFloat | None = Field(None, ge=0, le=2)
    """0 = greedy; none = the model's generation_config.json, else 1."""
    top_p: FiniteFloat | None = Field(None, ge=0, le=1)
    """Sample from the smallest set of tokens with this probability mass; 0 = the most likely one alone."""
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    """Sample from the k most likely tokens; 0 and -1 = all."""
    min_p: FiniteFloat | None = Field(None, ge=0, le=1)
    """Drop tokens less likely than this share of the most likely one."""
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    """Choices per prompt."""
    stop: StopString | StopStrings | None = None
    """End a choice before any of these strings."""
    stop_token_ids: list[TokenId] | None = Field(None, max_length=MAX_STOPS, fail_fast=True)
    """End a choice at any of these tokens."""
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    """Same seed, same request, same answer; choice i uses seed + i."""
    presence_penalty: FiniteFloat | None = Field(None, ge=-2, le=2)
    """Subtracted from the logits of tokens generated before."""
    frequency_penalty: FiniteFloat | None = Field(None, ge=-2, le=2)
    """Subtracted from the logits of tokens generated before, times how often."""
    repetition_penalty: FiniteFloat | None = Field(None, gt=0, le=10)
    """Divides the logits of tokens seen in prompt or output."""
    logit_bias: LogitBias | None = None
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
    """Form of the answer; not together with `structured_outputs`."""
    structured_outputs: StructuredOutputs | None = None
    """Form of the answer, as vLLM has it."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text; none = true."""
    include_stop_str_in_output: bool | None = None
    """Show the stop string, or the stop token, that ended a choice; none = false."""
    truncate_prompt_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Keep only the last so many tokens of a prompt."""
    user: str | None = None
    """Ignored; accepted because clients send it."""
    metadata: Metadata | None = None
    """Ignored; accepted because clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_passed_over(cls, fields: Any) -> Any:
        return refuse_unsupported(fields)

    @field_validator("stop", mode="before")
    @classmethod
    def _nothing_is_no_stop(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings are allowed, got {len(value)}")
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

    @model_validator(mode="after")
    def _one_form(self) -> "GenerationRequest":
        if self.structured_outputs is not None and self.response_format is not None:
            raise ValueError("structured_outputs: not allowed together with response_format")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: str | Annotated[list[str], FAIL_FAST] | TokenIds | Annotated[list[TokenIds], FAIL_FAST]
    """A string, strings, token ids, or lists of token ids."""
    echo: bool | None = None
    """Put the prompt in front of each choice (best effort: the text of its tokens)."""
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Log-probabilities of the sampled tokens and of this many alternatives."""
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    """Only equal to `n`: choices are not ranked."""
    add_special_tokens: bool | None = None
    """Begin a prompt that is a string as the tokenizer does, such as with its bos token; none = true."""
    suffix: str | None = None
    """Not supported: must be left out."""

    @field_validator("prompt")
    @classmethod
    def _not_empty(cls, value: str | list[Any]) -> str | list[Any]:
        if isinstance(value, list) and (not value or [] in value):
            raise ValueError("must not be an empty list")
        return value

    @field_validator("suffix")
    @classmethod
    def _no_suffix(cls, value: str | None) -> str | None:
        if value:
            raise ValueError("is not supported; leave it out")
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


ToolChoice = Literal["auto", "none", "required"]
TOOL_CHOICES: tuple[str, ...] = get_args(ToolChoice)
WordOrSelection = Annotated[
    Annotated[ToolChoice, Tag("Word")] | Annotated[ToolSelection, Tag("Selection")],
    Discriminator(lambda value: "Word" if isinstance(value, str) else "Selection"),
]
"""Parted by what it is, so that an error speaks of that alone."""


class ChatCompletionRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    """The conversation so far."""
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Most tokens to generate; wins over `max_tokens`."""
    logprobs: bool | None = None
    """Return log-probabilities of the sampled tokens."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Alternatives per token; needs `logprobs`."""
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)
    """Functions and custom tools that the model may call; only for models whose chat template takes tools."""
    tool_choice: WordOrSelection | None = None
    """`auto`: the model decides; `none`: it is shown no tools; `required`: it calls some; a tool: it
    calls that one, once; allowed tools: it is shown these alone, and calls some if the mode is `required`."""
    parallel_tool_calls: bool | None = None
    """`false`: of several calls in an answer only the first is returned."""
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the chat template."""
    separate_reasoning: bool | None = None
    """Give what the model thinks before its answer as `reasoning_content`; `false`: leave it in `content`,
    with its markers; none = true."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """The chat template's variable of that name; a template without it makes the same prompt."""
    add_generation_prompt: bool | None = None
    """End the prompt with what opens an answer; none = true."""
    continue_final_message: bool | None = None
    """Continue the last message instead of answering it."""
    store: bool | None = None
    """Ignored; accepted because clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _nothing_of_completions(cls, fields: Any) -> Any:
        return refuse_unsupported(fields, NOT_SUPPORTED_IN_CHATS)

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _known_choice(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, dict | ToolSelection) and value not in TOOL_CHOICES:
            raise ValueError(f"must be one of {', '.join(TOOL_CHOICES)}, or an object that names tools")
        return value

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that the model is shown; none where it shall not call any."""
        if self.tool_choice == "none":
            return []
        if self.has_allowed_tools:
            return self._named_tools
        return list(self.tools or ())

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The same, as chat templates take them."""
        return [tool.in_templates() for tool in self.callable_tools]

    @property
    def has_allowed_tools(self) -> bool:
        """Whether the model may call some of its tools alone."""
        return isinstance(self.tool_choice, ToolSelection) and self.tool_choice.allowed_tools is not None

    @property
    def names_one_tool(self) -> bool:
        """Whether the model has to call one tool, once."""
        return isinstance(self.tool_choice, ToolSelection) and self.tool_choice.allowed_tools is None

    @property
    def _named_tools(self) -> list[Tool]:
        """The first tool of each type and name that the choice has, in the order of `tools`."""
        assert isinstance(self.tool_choice, ToolSelection)
        wanted = set(self.tool_choice.named)
        found: list[Tool] = []
        for tool in self.tools or ():
            if (tool.type, tool.name) in wanted:
                wanted.discard((tool.type, tool.name))
                found.append(tool)
        return found

    @property
    def forced_tools(self) -> list[Tool]:
        """The tools of which one has to be called; none where the model may do without."""
        if isinstance(self.tool_choice, ToolSelection):
            allowed = self.tool_choice.allowed_tools
            return self._named_tools if allowed is None or allowed.mode == "required" else []
        return list(self.tools or ()) if self.tool_choice == "required" else []

    @model_validator(mode="after")
    def _consistent(self) -> "ChatCompletionRequest":
        if self.tool_choice == "required" and not self.tools:
            raise ValueError("tool_choice: 'required' needs tools")
        names = [tool.name for tool in self.tools or ()]
        for tool in self.tools or ():
            if tool.custom is not None and names.count(tool.name) > 1:
                raise ValueError(f"tools: another tool has the name of the custom tool {tool.name[:64]!r}")
        if isinstance(self.tool_choice, ToolSelection):
            known = {(tool.type, tool.name) for tool in self.tools or ()}
            for kind, name in self.tool_choice.named:
                if (kind, name) not in known:
                    what = "function" if kind == "function" else "custom tool"
                    raise ValueError(f"tool_choice: tools has no {what} {name[:64]!r}")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only allowed together with 'logprobs': true")
        if self.max_tokens == 0:
            raise ValueError("max_tokens: must be at least 1")
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("add_generation_prompt: must be false together with 'continue_final_message'")
        return self


class ErrorBody(Strict):
    """What went wrong, in the words of the OpenAI API."""

    message: str
    """What is wrong and what to do."""
    type: str
    """Class of error: invalid_request_error, authentication_error, rate_limit_error, server_error, …"""
    param: str | None = None
    """The field of the request that is wrong."""
    code: str | None = None
    """Machine-readable reason."""


class ErrorEnvelope(Strict):
    """Body of every answer with a status of 400 or more, and of an error event inside a stream."""

    error: ErrorBody
    """The error."""
