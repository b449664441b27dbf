"""Parts of the OpenAI-compatible requests: bounded texts and lists, messages, and refused fields.

`openai` builds its requests from them. Every list and table has a bound and fails at its first wrong element,
because the list of all errors of a body of a megabyte would cost seconds. Pure.
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
MAX_ALLOWED_TOKENS = 8192
MAX_BAD_WORDS = 128

FAIL_FAST = Field(fail_fast=True)
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
StopStrings = Annotated[list[StopString], FAIL_FAST]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
BadWord = Annotated[str, Field(min_length=1, max_length=256)]
TokenIds = Annotated[list[TokenId], FAIL_FAST]
Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]


def at_most(limit: int) -> BeforeValidator:
    """Return a validator that counts the entries of an object before any of them is validated."""

    def check(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > limit:
            raise ValueError(f"must have at most {limit} entries, got {len(value)}")
        return value

    return BeforeValidator(check)


LogitBias = Annotated[dict[str, Bias], at_most(MAX_LOGIT_BIAS), Field(max_length=MAX_LOGIT_BIAS)]
Metadata = Annotated[dict[str, str], at_most(MAX_METADATA), Field(max_length=MAX_METADATA)]

GUIDES = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "regex", "ebnf",
    "grammar",
)  # fmt: skip
"""Fields that constrain the form of an answer. An empty one does so, too: `{}` is the schema of any JSON."""
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(GUIDES, ()),
    "logits_processors": (), "custom_logit_processor": (),
    "stop_regex": (), "use_beam_search": (), "length_penalty": (1,), "prompt_embeds": (), "chat_template": (),
    "functions": (), "function_call": ("auto", "none"), "documents": (), "audio": (),
    "modalities": (["text"],), "web_search_options": (), "return_tokens_as_token_ids": (),
    "service_tier": ("auto", "default"), "verbosity": ("medium",), "moderation": (),
}  # fmt: skip
"""Fields of other servers that would change the answer and are not implemented: ignoring them would give
another answer than the client requested. Each comes with the values that change nothing; null, false and
empty values never change anything, except for `GUIDES`."""
NOT_SUPPORTED_IN_CHATS: Mapping[str, tuple[Any, ...]] = {
    "echo": (), "suffix": (), "best_of": (1,), "add_special_tokens": (),
}  # fmt: skip
"""Further fields that chats refuse, in the form of `NOT_SUPPORTED`."""


IGNORED = frozenset(
    (
        "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier",
    )
)  # fmt: skip
"""Fields of OpenAI's API that change no answer, and that the log does not mention: prefixes are cached
without them, and nobody but the client knows its users."""


def refuse_unsupported(fields: Any, more: Mapping[str, tuple[Any, ...]] = NOT_SUPPORTED) -> Any:
    """Return `fields`, or raise ValueError if a field in `more` has an effect.

    The message begins with the name of the field.
    """
    if isinstance(fields, dict):
        for name, neutral in more.items():
            value = fields.get(name)
            # 0 counts as a value: it is a valid penalty.
            empty = value is None or value is False or (name not in GUIDES and value in ("", [], {}))
            if not empty and value not in neutral:
                advice = "use structured_outputs" if name in GUIDES else "leave it out"
                raise ValueError(f"{name}: is not supported; {advice}")
    return fields


class Strict(BaseModel):
    """A model without type conversion. Unknown fields are dropped."""

    model_config = ConfigDict(
        strict=True, extra="ignore", use_attribute_docstrings=True, protected_namespaces=(), frozen=True
    )


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """Whether to send one more chunk, with the usage and no choices, before `[DONE]`."""
    continuous_usage_stats: bool | None = None
    """Whether every chunk carries the usage so far."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningControl(Strict):
    """Controls whether, and how long, the model reasons before it answers."""

    max_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    """Same meaning as `thinking_token_budget`."""
    effort: Effort | None = None
    """Same meaning as `reasoning_effort`."""
    enabled: bool | None = None
    """Variable `enable_thinking` for the chat template."""
    exclude: bool | None = None
    """Not supported: the answer has the reasoning. Must be left out or false."""

    @model_validator(mode="after")
    def _never_excluded(self) -> "ReasoningControl":
        if self.exclude:
            raise ValueError("exclude: is not supported; leave it out, and ignore the reasoning")
        return self


class JsonSchema(Strict):
    """A JSON schema that the answer has to follow."""

    name: str | None = None
    """Ignored; accepted because clients send it."""
    description: str | None = None
    """Ignored; accepted because clients send it."""
    schema_: dict[str, Any] = Field({}, alias="schema")
    """A JSON schema; defaults to any JSON."""
    strict: bool | None = None
    """`true`: a schema with a keyword that cannot be enforced is refused. Otherwise the keyword is left out
    and named in the header `X-Mambaserve-Form-Left-Out`. Answers always follow the rest of the schema."""


class ResponseFormat(Strict):
    """The form that the answer has to have, enforced from its first token."""

    type: Literal["text", "json_object", "json_schema"]
    """`text`: any; `json_object`: a JSON object; `json_schema`: JSON that follows `json_schema`."""
    json_schema: JsonSchema | None = None
    """Schema for the type `json_schema`."""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """Schema for the type `json_object`, as in llama.cpp."""

    @model_validator(mode="after")
    def _schema_matches_type(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("'json_schema' belongs to the type 'json_schema', which needs it")
        if self.schema_ is not None and self.type != "json_object":
            raise ValueError("'schema' belongs to the type 'json_object'; use 'json_schema'")
        return self


class StructuredOutputs(Strict):
    """The form that the answer has to have, as in vLLM: exactly one of these fields."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    """JSON schema, as an object or a string, that the answer follows."""
    regex: str | None = None
    """Regular expression that matches the whole answer."""
    choice: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, max_length=MAX_ALTERNATIVES, fail_fast=True
    )
    """Texts of which the answer is one."""
    grammar: str | None = None
    """Grammar of the answer, in Lark's notation."""
    json_object: bool | None = None
    """Whether the answer is a JSON object."""

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        forms = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(form is not None for form in forms) != 1:
            raise ValueError("exactly one of json, regex, choice, grammar and json_object must be set")
        return self


class CacheControl(Strict):
    """Asks that the prefix of the prompt up to here stays cached."""

    type: Literal["ephemeral"]
    """Always `ephemeral`: the prefix stays for a time."""
    ttl: Literal["5m", "1h"] = "5m"
    """Time for which the prefix stays."""

    @property
    def seconds(self) -> float:
        """Time for which the prefix stays, in seconds."""
        return {"5m": 300.0, "1h": 3600.0}[self.ttl]


class ContentPart(Strict):
    """One part of a message's content; only text is supported."""

    type: str
    """`text`, or `refusal` for an earlier answer."""
    text: str | None = None
    """The text."""
    refusal: str | None = None
    """The text of a refusal."""
    cache_control: CacheControl | None = None
    """Keeps the prefix that ends with the message cached; allowed on the last part of the message only."""

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
    """One message of the conversation. Further fields reach the chat template unchanged."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """Role of the author."""
    content: str | Annotated[list[ContentPart], FAIL_FAST] | None = None
    """Text, or a list of text parts. May be null for an assistant message with tool calls and for a tool
    without a result."""
    name: str | None = None
    """Name of the speaker or of the tool."""
    tool_calls: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS, fail_fast=True)
    """Tool calls of the assistant."""
    tool_call_id: str | None = None
    """Identifier of the call that a tool message answers."""
    cache_control: CacheControl | None = None
    """Keeps the prefix that ends with this message cached."""

    @property
    def pin_seconds(self) -> float:
        """Seconds for which the prefix that ends with this message has to stay; 0 = it is not pinned."""
        parts = self.content if isinstance(self.content, list) else []
        controls = [self.cache_control, *(part.cache_control for part in parts)]
        return max((control.seconds for control in controls if control is not None), default=0.0)

    @model_validator(mode="after")
    def _content_needed(self) -> "ChatMessage":
        if self.content is None and self.role not in ("assistant", "tool"):
            raise ValueError(f"content: a message of role '{self.role}' needs content")
        if isinstance(self.content, list) and any(part.cache_control for part in self.content[:-1]):
            raise ValueError("cache_control: put it on the last part; a prefix ends with a whole message")
        return self
