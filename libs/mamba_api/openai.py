"""The OpenAI-compatible HTTP surface: requests that engine and gateway accept, and the error envelope.

The engine's API process validates with these models; the gateway relays bodies and reads a few fields only. A
wrong type is an error, an unknown field is ignored (the caller logs it), and a known field that would change
the answer but is not implemented is refused. Nothing here goes beyond validation.
"""

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, FiniteFloat, Tag, field_validator, model_validator

from mamba_api.openai_fields import (
    FAIL_FAST,
    IGNORED,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    NOT_SUPPORTED_IN_CHATS,
    BadWord,
    ChatMessage,
    Effort,
    LogitBias,
    Metadata,
    ReasoningControl,
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
    """Fields that both generation endpoints share. Ranges follow the OpenAI reference where it has one."""

    IGNORED_FIELDS: ClassVar[frozenset[str]] = IGNORED
    """Names of fields that change nothing, and that no log line mentions."""

    model: str | None = None
    """Name of the served model; defaults to the one that is served."""
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    """Maximum number of tokens to generate; 0 is allowed only with `echo`."""
    temperature: FiniteFloat | None = Field(None, ge=0, le=2)
    """Sampling temperature; 0 = greedy. Defaults to the model's generation_config.json, else 1."""
    top_p: FiniteFloat | None = Field(None, ge=0, le=1)
    """Sample from the smallest set of tokens with this probability mass; 0 = only the most likely one."""
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    """Sample from the k most likely tokens; 0 and -1 = all."""
    min_p: FiniteFloat | None = Field(None, ge=0, le=1)
    """Drop tokens less likely than this share of the most likely one."""
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    """Number of choices per prompt."""
    stop: StopString | StopStrings | None = None
    """Strings before which a choice ends."""
    stop_token_ids: list[TokenId] | None = Field(None, max_length=MAX_STOPS, fail_fast=True)
    """Token ids at which a choice ends."""
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    """Seed of the sampling: the same seed and request give the same answer; choice i uses seed + i."""
    presence_penalty: FiniteFloat | None = Field(None, ge=-2, le=2)
    """Number subtracted from the logits of tokens generated before."""
    frequency_penalty: FiniteFloat | None = Field(None, ge=-2, le=2)
    """Number subtracted from the logits of tokens generated before, once for each occurrence."""
    repetition_penalty: FiniteFloat | None = Field(None, gt=0, le=10)
    """Divisor of the logits of tokens that occur in prompt or output."""
    logit_bias: LogitBias | None = None
    """Map from token id (as a JSON string) to a number that is added to its logit."""
    ignore_eos: bool | None = None
    """Whether to continue after the end-of-sequence token."""
    min_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    """Minimum number of tokens before a choice may end."""
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Also return the log-probabilities of the prompt's tokens, with this many alternatives."""
    stream: bool | None = None
    """Whether to answer with server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of a stream; allowed only together with `stream`."""
    return_token_ids: bool | None = None
    """Whether choices also carry `prompt_token_ids` and `token_ids`."""
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    """Priority of the request; lower numbers run first."""
    cache_salt: str | None = Field(None, max_length=256)
    """Salt of the prefix cache: prefixes are shared only between requests with the same salt."""
    allowed_token_ids: list[TokenId] | None = Field(
        None, min_length=1, max_length=MAX_ALLOWED_TOKENS, fail_fast=True
    )
    """Token ids that the answer may consist of, the end token included."""
    bad_words: list[BadWord] | None = Field(None, max_length=MAX_BAD_WORDS, fail_fast=True)
    """Words that the model must not write: their tokens do not follow one another, with or without a blank in
    front."""
    response_format: ResponseFormat | None = None
    """Form of the answer; not together with `structured_outputs`."""
    structured_outputs: StructuredOutputs | None = None
    """Form of the answer, as in vLLM."""
    skip_special_tokens: bool | None = None
    """Whether to leave special tokens out of the text; defaults to true."""
    include_stop_str_in_output: bool | None = None
    """Whether to include the stop string or stop token that ended a choice; defaults to false."""
    truncate_prompt_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Number of tokens of a prompt to keep, counted from its end."""
    user: str | None = None
    """Ignored; accepted because clients send it."""
    metadata: Metadata | None = None
    """Ignored; accepted because clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, fields: Any) -> Any:
        return refuse_unsupported(fields)

    @field_validator("stop", mode="before")
    @classmethod
    def _drop_empty_stop(cls, value: Any) -> Any:
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
        """Stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`."""

    prompt: str | Annotated[list[str], FAIL_FAST] | TokenIds | Annotated[list[TokenIds], FAIL_FAST]
    """A string, strings, token ids, or lists of token ids."""
    echo: bool | None = None
    """Whether to put the prompt in front of each choice (best effort: the text of its tokens)."""
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Number of alternatives per sampled token in the returned log-probabilities."""
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    """Accepted only if equal to `n`: choices are not ranked."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its special tokens, such as bos, to a prompt that is a string; defaults to
    true."""
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
        """Prompts as a list, one entry each."""
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
"""Tool choice, discriminated by its JSON type, so that an error mentions only that type."""


class ChatCompletionRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    REFUSED_FIELDS: ClassVar[frozenset[str]] = frozenset(NOT_SUPPORTED_IN_CHATS)
    """Names of fields that are refused although the model has no such fields."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    """The conversation so far."""
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Maximum number of tokens to generate; wins over `max_tokens`."""
    logprobs: bool | None = None
    """Whether to return log-probabilities of the sampled tokens."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Number of alternatives per token; needs `logprobs`."""
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)
    """Functions and custom tools that the model may call; only for models whose chat template accepts
    tools."""
    tool_choice: WordOrSelection | None = None
    """`auto`: the model decides; `none`: it gets no tools; `required`: it calls at least one tool; a tool: it
    calls this tool once; allowed tools: it gets only these, and calls at least one of them if the mode is
    `required`."""
    parallel_tool_calls: bool | None = None
    """`false`: only the first of several calls in an answer is returned."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables for the chat template."""
    separate_reasoning: bool | None = None
    """Whether to return the model's reasoning as `reasoning_content`; `false` leaves it in `content`, with
    its markers. Defaults to true."""
    reasoning_effort: Effort | None = None
    """Variable of the same name for the chat template; it has no effect on a template that does not use
    it."""
    thinking_token_budget: int | None = Field(None, ge=0, le=2**31 - 1)
    """Maximum number of tokens of the reasoning, which is ended there; the model goes on with its answer. The
    budget has no effect on a model that does not reason."""
    reasoning: ReasoningControl | None = None
    """Budget and effort of the reasoning in one object."""
    add_generation_prompt: bool | None = None
    """Whether the prompt ends with the opening of an answer; defaults to true."""
    continue_final_message: bool | None = None
    """Whether to continue the last message instead of answering it."""
    store: bool | None = None
    """Ignored; accepted because clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_completion_fields(cls, fields: Any) -> Any:
        return refuse_unsupported(fields, NOT_SUPPORTED_IN_CHATS)

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _known_choice(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, dict | ToolSelection) and value not in TOOL_CHOICES:
            raise ValueError(f"must be one of {', '.join(TOOL_CHOICES)}, or an object that names tools")
        return value

    @property
    def thought_tokens(self) -> int | None:
        """Maximum number of tokens of the reasoning; None = no limit."""
        if self.thinking_token_budget is not None:
            return self.thinking_token_budget
        return None if self.reasoning is None else self.reasoning.max_tokens

    @property
    def effort(self) -> str | None:
        """Effort of the reasoning; None = the template's own."""
        if self.reasoning_effort is not None:
            return self.reasoning_effort
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def callable_tools(self) -> list[Tool]:
        """Tools that the model gets; empty if it must not call any."""
        if self.tool_choice == "none":
            return []
        if self.has_allowed_tools:
            return self._named_tools
        return list(self.tools or ())

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """Tools of `callable_tools` in the form that chat templates take."""
        return [tool.in_templates() for tool in self.callable_tools]

    @property
    def has_allowed_tools(self) -> bool:
        """Whether the model may call only some of its tools."""
        return isinstance(self.tool_choice, ToolSelection) and self.tool_choice.allowed_tools is not None

    @property
    def names_one_tool(self) -> bool:
        """Whether the model has to call one certain tool, once."""
        return isinstance(self.tool_choice, ToolSelection) and self.tool_choice.allowed_tools is None

    @property
    def _named_tools(self) -> list[Tool]:
        """First tool of each type and name in `tool_choice`, in the order of `tools`."""
        assert isinstance(self.tool_choice, ToolSelection)
        missing = set(self.tool_choice.named)
        tools: list[Tool] = []
        for tool in self.tools or ():
            if (tool.type, tool.name) in missing:
                missing.discard((tool.type, tool.name))
                tools.append(tool)
        return tools

    @property
    def forced_tools(self) -> list[Tool]:
        """Tools of which one has to be called; empty if the model may answer without a call."""
        if isinstance(self.tool_choice, ToolSelection):
            allowed = self.tool_choice.allowed_tools
            return self._named_tools if allowed is None or allowed.mode == "required" else []
        return list(self.tools or ()) if self.tool_choice == "required" else []

    @model_validator(mode="after")
    def _consistent_tools(self) -> "ChatCompletionRequest":
        if self.tool_choice == "required" and not self.tools:
            raise ValueError("tool_choice: 'required' needs tools")
        names = [tool.name for tool in self.tools or ()]
        for tool in self.tools or ():
            if tool.custom is not None and names.count(tool.name) > 1:
                raise ValueError(f"tools: another tool has the name of the custom tool {tool.name[:64]!r}")
        if isinstance(self.tool_choice, ToolSelection):
            offered = {(tool.type, tool.name) for tool in self.tools or ()}
            for kind, name in self.tool_choice.named:
                if (kind, name) not in offered:
                    what = "function" if kind == "function" else "custom tool"
                    raise ValueError(f"tool_choice: tools has no {what} {name[:64]!r}")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "ChatCompletionRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only allowed together with 'logprobs': true")
        if self.max_tokens == 0:
            raise ValueError("max_tokens: must be at least 1")
        if (control := self.reasoning) is not None:
            pairs = (
                ("thinking_token_budget", self.thinking_token_budget, control.max_tokens),
                ("reasoning_effort", self.reasoning_effort, control.effort),
            )
            for name, one, other in pairs:
                if one is not None and other is not None and one != other:
                    raise ValueError(f"reasoning: contradicts {name}; send only one of them")
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("add_generation_prompt: must be false together with 'continue_final_message'")
        return self


class ErrorBody(Strict):
    """Description of an error in the form of the OpenAI API."""

    message: str
    """Description of the problem and its remedy."""
    type: str
    """Class of error: invalid_request_error, authentication_error, rate_limit_error, server_error, …"""
    param: str | None = None
    """Field of the request that is wrong."""
    code: str | None = None
    """Machine-readable reason."""


class ErrorEnvelope(Strict):
    """Body of every answer with a status of 400 or more, and of an error event in a stream."""

    error: ErrorBody
    """The error."""
