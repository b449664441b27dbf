"""The requests of `POST /v1/messages` and `/v1/messages/count_tokens`, in the format of Anthropic's API.

A wrong type is an error, an unknown field is ignored, and a known field that would change the answer but is
not implemented is refused by its name. `messages_chat` translates the requests. Pure.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, FiniteFloat, model_validator

from mamba_api.openai_fields import (
    FAIL_FAST,
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    CacheControl,
    StopStrings,
    Strict,
    refuse_unsupported,
)

_IGNORED = frozenset(("betas", "billing_policy", "user_profile_id", "workspace_id"))
"""Fields of Anthropic's API that change no answer."""
Required = Mapping[str, tuple[str, ...]]
_RESULT_PARTS: Required = {"text": ("text",)}
_USER_BLOCKS: Required = {"text": ("text",), "tool_result": ("tool_use_id",)}
_ASSISTANT_BLOCKS: Required = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "thinking": ("thinking",),
    "redacted_thinking": (),
}
_NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "mcp_servers": (),
    "container": (),
    "inference_geo": ("global",),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "diagnostics": (),
    "compaction": (),
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "fallbacks": (),
    "fallback_credit_token": (),
    "thread": (),
}
"""Fields of a message request that would change the answer, with the values that change nothing."""


def _check_type(block: Strict, kind: str, types: Required) -> None:
    """Check that a block's type is one of `types` and that the type's fields are set. Raises ValueError."""
    if kind not in types:
        raise ValueError(f"type '{kind[:40]}' is not supported here; send {', '.join(types)}")
    for name in types[kind]:
        if getattr(block, name) is None:
            raise ValueError(f"a block of the type '{kind}' needs '{name}'")


class TextBlock(Strict):
    """A text in a system prompt or in the result of a tool."""

    type: str
    """`text`; blocks of other types, such as `image` and `document`, are refused."""
    text: str | None = None
    """The text."""
    cache_control: CacheControl | None = None
    """Pins the prefix that ends with the message of the block."""

    @model_validator(mode="after")
    def _text_only(self) -> "TextBlock":
        _check_type(self, self.type, _RESULT_PARTS)
        return self


class MessageBlock(Strict):
    """A part of one message's content: a text, a call of a tool, its result, or earlier reasoning."""

    type: str
    """`text`; in a message of the user also `tool_result`; in a message of the assistant also `tool_use`,
    `thinking` and `redacted_thinking`, which is left out of the prompt."""
    text: str | None = None
    """The text, for the type `text`."""
    id: str | None = None
    """Identifier of the call, for the type `tool_use`."""
    name: str | None = None
    """Name of the tool, for the type `tool_use`."""
    input: dict[str, Any] | None = None
    """Arguments of the call, for the type `tool_use`."""
    tool_use_id: str | None = None
    """Identifier of the call that a `tool_result` answers."""
    content: str | Annotated[list[TextBlock], FAIL_FAST] | None = None
    """Result of the tool, as a text or blocks of text."""
    is_error: bool | None = None
    """Whether the tool failed: the prompt shows the result behind the word `Error:`."""
    thinking: str | None = None
    """Reasoning of an earlier answer, for the type `thinking`; its signature is not checked."""
    cache_control: CacheControl | None = None
    """Pins the prefix that ends with the message of the block."""


class InputMessage(Strict):
    """One message of the conversation, by the user or by the assistant."""

    role: Literal["user", "assistant"]
    """Role of the author."""
    content: str | Annotated[list[MessageBlock], FAIL_FAST]
    """A text, or blocks."""

    @model_validator(mode="after")
    def _blocks_of_the_role(self) -> "InputMessage":
        types = _USER_BLOCKS if self.role == "user" else _ASSISTANT_BLOCKS
        for block in self.blocks:
            _check_type(block, block.type, types)
        return self

    @property
    def blocks(self) -> list[MessageBlock]:
        """Content as blocks."""
        if isinstance(self.content, str):
            return [MessageBlock(type="text", text=self.content)]
        return self.content


class ToolDefinition(Strict):
    """A tool that the model may call, and that the client then runs."""

    type: str | None = None
    """`custom`, the default. Tools that a server would run, such as `web_search_20250305`, are refused."""
    name: str = Field(min_length=1, max_length=256)
    """Name of the tool."""
    description: str | None = None
    """Purpose of the tool."""
    input_schema: dict[str, Any]
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Same meaning as `strict` of a chat's function."""
    cache_control: CacheControl | None = None
    """Pins the prefix that ends with the system prompt, in front of which templates write the tools."""

    @model_validator(mode="before")
    @classmethod
    def _run_by_the_client(cls, tool: Any) -> Any:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise ValueError(
                f"the type '{kind[:40]}' is not supported; send 'custom' tools with an input_schema"
            )
        return tool


class ToolUseChoice(Strict):
    """Which of its tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    """`auto`: the model decides; `any`: it calls at least one tool; `tool`: it calls the tool `name` once;
    `none`: it gets no tools."""
    name: str | None = None
    """Name of the tool, for the type `tool`."""
    disable_parallel_tool_use: bool | None = None
    """`true`: only the first of several calls in an answer is returned."""

    @model_validator(mode="after")
    def _name_of_a_tool(self) -> "ToolUseChoice":
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("'name' belongs to the type 'tool', which needs it")
        return self


class ThinkingChoice(Strict):
    """Whether, and how long, the model reasons before it answers, if its chat template can switch that."""

    type: Literal["enabled", "disabled", "adaptive"]
    """`enabled` and `adaptive` switch the template's reasoning on, `disabled` switches it off."""
    budget_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Maximum number of tokens of the thoughts, which are ended there; the model goes on with its answer."""
    display: Literal["summarized"] | None = None
    """`summarized` is accepted, and the answer has the thoughts themselves; `omitted` is refused."""

    @model_validator(mode="after")
    def _budget_of_thoughts(self) -> "ThinkingChoice":
        if self.type == "disabled" and self.budget_tokens is not None:
            raise ValueError("budget_tokens: not allowed together with the type 'disabled'")
        return self


class OutputSchema(Strict):
    """A JSON schema that the answer has to follow."""

    type: Literal["json_schema"]
    """Always `json_schema`."""
    schema_: dict[str, Any] = Field(alias="schema")
    """JSON schema that the answer follows."""


class OutputConfig(Strict):
    """How much the model reasons, and which form its answer has."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Variable `reasoning_effort` for the chat template."""
    format: OutputSchema | None = None
    """Form of the answer, enforced from its first token behind the thoughts."""


class RequestMetadata(Strict):
    """Facts about the request, which change nothing."""

    user_id: str | None = None
    """Ignored; accepted because clients send it."""


class CountTokensRequest(Strict):
    """Body of `POST /v1/messages/count_tokens`: the part of a message request that its prompt is made of."""

    REFUSED_FIELDS: ClassVar[frozenset[str]] = frozenset(_NOT_SUPPORTED)
    """Names of fields that are refused although the model has no such fields."""
    IGNORED_FIELDS: ClassVar[frozenset[str]] = _IGNORED
    """Names of fields that change nothing, and that no log line mentions."""

    model: str | None = None
    """Name of the served model; defaults to the one that is served."""
    messages: list[InputMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    """The conversation so far. If the last message is the assistant's, the answer continues it."""
    system: str | Annotated[list[TextBlock], FAIL_FAST] | None = None
    """System prompt, as a text or blocks of text."""
    tools: list[ToolDefinition] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)
    """Tools that the model may call; only for models whose chat template accepts tools."""
    tool_choice: ToolUseChoice | None = None
    """The tools that the model may or must call; defaults to `auto`."""
    thinking: ThinkingChoice | None = None
    """Whether the model reasons before it answers; defaults to what its chat template does."""
    output_config: OutputConfig | None = None
    """Effort and form of the answer."""
    cache_control: CacheControl | None = None
    """Pins the whole prompt up to the end of its last message."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, fields: Any) -> Any:
        return refuse_unsupported(fields, _NOT_SUPPORTED)

    @model_validator(mode="after")
    def _results_of_calls(self) -> "CountTokensRequest":
        last = self.messages[-1]
        if last.role == "assistant" and any(block.type == "tool_use" for block in last.blocks):
            raise ValueError("messages: the last message calls tools; send their results behind it")
        return self


class MessagesRequest(CountTokensRequest):
    """Body of `POST /v1/messages`."""

    max_tokens: int = Field(ge=1, le=2**31 - 1)
    """Maximum number of tokens to generate, thoughts included."""
    stop_sequences: StopStrings | None = Field(None, max_length=MAX_STOPS)
    """Strings before which the answer ends."""
    temperature: FiniteFloat | None = Field(None, ge=0, le=2)
    """Sampling temperature; 0 = greedy. Defaults to the model's generation_config.json, else 1."""
    top_p: FiniteFloat | None = Field(None, ge=0, le=1)
    """Sample from the smallest set of tokens with this probability mass."""
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    """Sample from the k most likely tokens; 0 and -1 = all."""
    stream: bool | None = None
    """Whether to answer with server-sent events."""
    metadata: RequestMetadata | None = None
    """Facts about the request."""
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    """Priority of the request; lower numbers run first."""
    cache_salt: str | None = Field(None, max_length=256)
    """Salt of the prefix cache: prefixes are shared only between requests with the same salt."""
