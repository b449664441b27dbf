"""The request of `POST /v1/responses`, in the format of OpenAI's Responses API.

A wrong type is an error, an unknown field is ignored, and a known field that would change the answer but is
not implemented is refused by its name. `responses_chat` translates the request. Pure.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, FiniteFloat, Tag, field_validator, model_validator

from mamba_api.openai_fields import (
    FAIL_FAST,
    IGNORED,
    MAX_MESSAGES,
    MAX_TOOLS,
    Effort,
    JsonSchema,
    Metadata,
    Strict,
    refuse_unsupported,
)
from mamba_api.openai_tools import ToolName

_NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "background": (), "prompt": (), "top_logprobs": (0,), "max_tool_calls": (),
    "truncation": ("disabled",), "moderation": (), "context_management": (),
    "service_tier": ("auto", "default"), "access_programs": (), "image": (),
}  # fmt: skip
"""Fields of a response request that would change the answer, with the values that change nothing."""
_ITEM_FIELDS: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}
_TEXT_PARTS = frozenset(("input_text", "output_text", "text", "summary_text", "reasoning_text"))


class ItemPart(Strict):
    """A part of the text of an item: of a message, a function's result, or reasoning."""

    type: str
    """`input_text` or `output_text`; in reasoning `summary_text` or `reasoning_text`. Parts of other types,
    such as `input_image` and `input_file`, are refused."""
    text: str | None = None
    """The text."""
    refusal: str | None = None
    """The text of a part of the type `refusal`."""

    @model_validator(mode="after")
    def _text_only(self) -> "ItemPart":
        name = "refusal" if self.type == "refusal" else "text"
        if name == "text" and self.type not in _TEXT_PARTS:
            raise ValueError(f"type '{self.type[:40]}' is not supported: only text is")
        if getattr(self, name) is None:
            raise ValueError(f"a part of the type '{self.type}' needs '{name}'")
        return self


Parts = Annotated[list[ItemPart], FAIL_FAST]


class InputItem(Strict):
    """A part of the conversation: a message, a call of a function, its result, or earlier reasoning."""

    type: str = "message"
    """`message`, `function_call`, `function_call_output` or `reasoning`."""
    role: Literal["user", "assistant", "system", "developer"] | None = None
    """Role of the author of a `message`."""
    content: str | Parts | None = None
    """Text of a `message`, or its parts; the thoughts of `reasoning`."""
    call_id: str | None = None
    """Identifier of the call, in `function_call` and `function_call_output`."""
    name: str | None = None
    """Name of the function, in a `function_call`."""
    arguments: str | None = None
    """Arguments as JSON text, in a `function_call`."""
    output: str | Parts | None = None
    """Result of a `function_call_output`."""
    summary: Parts | None = None
    """Summary of `reasoning`, which stands for thoughts without `content`."""

    @model_validator(mode="after")
    def _known_type(self) -> "InputItem":
        if self.type not in _ITEM_FIELDS:
            types = ", ".join(_ITEM_FIELDS)
            raise ValueError(f"type '{self.type[:40]}' is not supported; send items of the types {types}")
        for name in _ITEM_FIELDS[self.type]:
            if getattr(self, name) is None:
                raise ValueError(f"an item of the type '{self.type}' needs '{name}'")
        return self


class FunctionTool(Strict):
    """A function that the model may call, and that the client then runs."""

    type: Literal["function"]
    """Always `function`: the client runs the calls."""
    name: str = Field(min_length=1, max_length=256)
    """Name of the function."""
    description: str | None = None
    """Purpose of the function."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Same meaning as `strict` of a chat's function."""

    @model_validator(mode="before")
    @classmethod
    def _run_by_the_client(cls, tool: Any) -> Any:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise ValueError(f"the type '{kind[:40]}' is not supported; send tools of the type 'function'")
        return tool


class NamedFunction(ToolName):
    """Names one of the request's functions."""

    type: Literal["function"]
    """Always `function`."""


class FunctionSelection(Strict):
    """Restricts which of its functions the model must call, or may call."""

    type: Literal["function", "allowed_tools"]
    """`function`: one call of the function `name`; `allowed_tools`: calls of `tools` only."""
    name: str | None = None
    """Name of the function, for the type `function`."""
    mode: Literal["auto", "required"] | None = None
    """Whether the model may (`auto`) or must (`required`) call, for the type `allowed_tools`."""
    tools: list[NamedFunction] | None = Field(None, min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    """References to the functions, for the type `allowed_tools`."""

    @model_validator(mode="after")
    def _fields_of_the_type(self) -> "FunctionSelection":
        if self.type == "function" and self.name is None:
            raise ValueError("the type 'function' needs 'name'")
        if self.type == "allowed_tools" and (self.mode is None or self.tools is None):
            raise ValueError("the type 'allowed_tools' needs 'mode' and 'tools'")
        return self


ChoiceOrSelection = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("Word")]
    | Annotated[FunctionSelection, Tag("Selection")],
    Discriminator(lambda value: "Word" if isinstance(value, str) else "Selection"),
]


class TextFormat(JsonSchema):
    """The form that the text of the answer has to have."""

    type: Literal["text", "json_object", "json_schema"]
    """`text`: any; `json_object`: a JSON object; `json_schema`: JSON that follows `schema`."""


class TextOptions(Strict):
    """Options for the text of the answer."""

    format: TextFormat | None = None
    """Form of the text; defaults to any."""


class ConversationReference(Strict):
    """Names a kept conversation that the request goes on with."""

    id: str
    """Identifier of the conversation."""


class ReasoningOptions(Strict):
    """Options for the reasoning before the answer."""

    effort: Effort | None = None
    """Variable `reasoning_effort` for the chat template."""
    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    """Maximum number of tokens of the reasoning, which is ended there; the model goes on with its answer."""
    summary: str | None = None
    """Ignored: the answer has the reasoning itself."""


class ResponsesRequest(Strict):
    """Body of `POST /v1/responses`."""

    REFUSED_FIELDS: ClassVar[frozenset[str]] = frozenset(_NOT_SUPPORTED)
    """Names of fields that are refused although the model has no such fields."""
    IGNORED_FIELDS: ClassVar[frozenset[str]] = IGNORED | {"stream_options", "user"}
    """Names of fields that change nothing, and that no log line mentions."""

    model: str | None = None
    """Name of the served model; defaults to the one that is served."""
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    """A text of the user, or the items of the conversation so far."""
    instructions: str | None = None
    """System prompt before the input."""
    tools: list[FunctionTool] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)
    """Functions that the model may call; only for models whose chat template accepts tools."""
    tool_choice: ChoiceOrSelection | None = None
    """`auto`: the model decides; `none`: it gets no tools; `required`: it calls at least one tool; a
    function: it calls this function once; allowed tools: it gets only these, and calls at least one of them
    if the mode is `required`."""
    parallel_tool_calls: bool | None = None
    """`false`: only the first of several calls in an answer is returned."""
    text: TextOptions | None = None
    """Form of the answer."""
    reasoning: ReasoningOptions | None = None
    """Options of the reasoning."""
    max_output_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Maximum number of tokens to generate, reasoning included."""
    temperature: FiniteFloat | None = Field(None, ge=0, le=2)
    """Sampling temperature; 0 = greedy. Defaults to the model's generation_config.json, else 1."""
    top_p: FiniteFloat | None = Field(None, ge=0, le=1)
    """Sample from the smallest set of tokens with this probability mass."""
    stream: bool | None = None
    """Whether to answer with server-sent events."""
    metadata: Metadata | None = None
    """Returned with the answer."""
    include: list[str] | None = Field(None, max_length=16)
    """Accepted if empty or `reasoning.encrypted_content`: reasoning is always returned, as text."""
    store: bool | None = None
    """Whether the response is kept for later requests; defaults to true where the server keeps responses."""
    previous_response_id: str | None = None
    """Identifier of a kept response that the input continues."""
    conversation: str | ConversationReference | None = None
    """Conversation, by its identifier, that the input continues and that the turn is added to."""
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    """Priority of the request; lower numbers run first."""
    cache_salt: str | None = Field(None, max_length=256)
    """Salt of the prefix cache: prefixes are shared only between requests with the same salt."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, fields: Any) -> Any:
        return refuse_unsupported(fields, _NOT_SUPPORTED)

    @field_validator("include")
    @classmethod
    def _nothing_else_included(cls, value: list[str] | None) -> list[str] | None:
        if others := [name for name in value or () if name != "reasoning.encrypted_content"]:
            raise ValueError(f"'{others[0][:64]}' is not supported; leave it out")
        return value

    @model_validator(mode="after")
    def _one_beginning(self) -> "ResponsesRequest":
        if self.previous_response_id is not None and self.conversation is not None:
            raise ValueError("conversation: not allowed together with previous_response_id")
        return self
