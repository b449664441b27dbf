"""Parts of the OpenAI-compatible requests: bounded texts and lists, messages, and what is refused.

Used by `openai`, which has the requests. Every list and table has a bound and fails at its first wrong
element: a body of a megabyte must not cost seconds of complaints. Pure.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 32
MAX_LOGIT_BIAS = 1024
MAX_METADATA = 64
MAX_MESSAGES = 8192
MAX_TOOLS = 128
MAX_ALTERNATIVES = 1024

FAIL_FAST = Field(fail_fast=True)
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
StopStrings = Annotated[list[StopString], FAIL_FAST]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], FAIL_FAST]
Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


def at_most(most: int) -> BeforeValidator:
    """Counts the entries of an object before it looks at any of them."""

    def check(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > most:
            raise ValueError(f"must have at most {most} entries, got {len(value)}")
        return value

    return BeforeValidator(check)


LogitBias = Annotated[dict[str, Bias], at_most(MAX_LOGIT_BIAS), Field(max_length=MAX_LOGIT_BIAS)]
Metadata = Annotated[dict[str, str], at_most(MAX_METADATA), Field(max_length=MAX_METADATA)]

GUIDES = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "regex", "ebnf",
    "grammar",
)  # fmt: skip
"""Fields that guide the form of an answer. An empty one does so, too: `{}` is the schema of any JSON."""
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(GUIDES, ()),
    "bad_words": (), "allowed_token_ids": (), "logits_processors": (), "custom_logit_processor": (),
    "stop_regex": (), "use_beam_search": (), "length_penalty": (1,), "prompt_embeds": (), "chat_template": (),
    "functions": (), "function_call": ("auto", "none"), "documents": (), "audio": (),
    "modalities": (["text"],), "web_search_options": (), "return_tokens_as_token_ids": (),
}  # fmt: skip
"""Fields other servers know that would change the answer and are not acted on: passing over them would give
another answer than was asked for. With each, the values that ask for nothing; null, false and empty ones
never do, but for `GUIDES`."""
NOT_SUPPORTED_IN_CHATS: Mapping[str, tuple[Any, ...]] = {
    "echo": (), "suffix": (), "best_of": (1,), "add_special_tokens": (),
}  # fmt: skip
"""The same, of chats alone."""


def refuse_unsupported(fields: Any, more: Mapping[str, tuple[Any, ...]] = NOT_SUPPORTED) -> Any:
    """Raises ValueError that begins with the name of a field in `more` which asks for something."""
    if isinstance(fields, dict):
        for name, neutral in more.items():
            value = fields.get(name)
            # 0 is no "nothing": of a penalty it is a value.
            nothing = value is None or value is False or (name not in GUIDES and value in ("", [], {}))
            if not nothing and value not in neutral:
                instead = "use structured_outputs" if name in GUIDES else "leave it out"
                raise ValueError(f"{name}: is not supported; {instead}")
    return fields


class Strict(BaseModel):
    """Nothing is converted; unknown fields are dropped."""

    model_config = ConfigDict(
        strict=True, extra="ignore", use_attribute_docstrings=True, protected_namespaces=(), frozen=True
    )


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """Send one more chunk, with the usage and no choices, before `[DONE]`."""
    continuous_usage_stats: bool | None = None
    """Put the usage so far into every chunk."""


class JsonSchema(Strict):
    """The schema of `response_format`."""

    name: str | None = None
    """Ignored; accepted because clients send it."""
    description: str | None = None
    """Ignored; accepted because clients send it."""
    schema_: dict[str, Any] = Field({}, alias="schema")
    """A JSON schema; none = any JSON."""
    strict: bool | None = None
    """`true`: a schema of which something cannot be enforced is refused; else that is left out, and named in
    the header `X-Mambaserve-Form-Left-Out`. Answers always follow the rest."""


class ResponseFormat(Strict):
    """Form of the answer, which it has from its first token on."""

    type: Literal["text", "json_object", "json_schema"]
    """`text`: any; `json_object`: a JSON object; `json_schema`: JSON that follows `json_schema`."""
    json_schema: JsonSchema | None = None
    """Of the type of that name."""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """Of the type `json_object`: the schema that the object follows, as llama.cpp has it."""

    @model_validator(mode="after")
    def _schema_where_wanted(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("'json_schema' belongs to the type 'json_schema', which needs it")
        if self.schema_ is not None and self.type != "json_object":
            raise ValueError("'schema' belongs to the type 'json_object'; use 'json_schema'")
        return self


class StructuredOutputs(Strict):
    """Form of the answer, as vLLM has it: one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    """JSON that follows this schema, which may be a string."""
    regex: str | None = None
    """A text that this regular expression matches as a whole."""
    choice: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, max_length=MAX_ALTERNATIVES, fail_fast=True
    )
    """One of these texts."""
    grammar: str | None = None
    """A text of this grammar, in Lark's notation."""
    json_object: bool | None = None
    """A JSON object."""

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        given = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(each is not None for each in given) != 1:
            raise ValueError("exactly one of json, regex, choice, grammar and json_object has to be there")
        return self


class ContentPart(Strict):
    """One part of a message's content; only text is supported."""

    type: str
    """`text`, or `refusal` of an earlier answer."""
    text: str | None = None
    """The text."""
    refusal: str | None = None
    """The text of a refusal."""

    @model_validator(mode="after")
    def _text_only(self) -> "ContentPart":
        if self.type == "refusal":
            if self.refusal is None:
                raise ValueError("a refusal content part needs 'refusal'")
            return self
        if self.type != "text":
            raise ValueError(f"type '{self.type[:40]}' is not supported: only text parts are")
        if self.text is None:
            raise ValueError("a text content part needs 'text'")
        return self


class ChatMessage(Strict):
    """One message of the conversation. Fields beyond these reach the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """Who speaks."""
    content: str | Annotated[list[ContentPart], FAIL_FAST] | None = None
    """Text, or a list of text parts; may be null for an assistant's tool calls, and for a tool that had
    nothing to say."""
    name: str | None = None
    """Name of the speaker or of the tool."""
    tool_calls: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)
    """Calls the assistant made."""
    tool_call_id: str | None = None
    """The call a tool message answers."""

    @model_validator(mode="after")
    def _content_needed(self) -> "ChatMessage":
        if self.content is None and self.role not in ("assistant", "tool"):
            raise ValueError(f"content: a message of role '{self.role}' needs content")
        return self
