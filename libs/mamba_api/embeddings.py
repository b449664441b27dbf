"""Bodies and answers of `/v1/embeddings`, `/tokenize` and `/detokenize`. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from mamba_api.openai_fields import FAIL_FAST, MAX_MESSAGES, ChatMessage, Strict, TokenIds, refuse_unsupported
from mamba_api.openai_responses import EngineCost, Explanations
from mamba_api.openai_tools import Tool

MOST_INPUTS = 1024
"""Largest number of texts in one request."""
MOST_DETOKENIZED = 1 << 20
"""Largest number of tokens that one request turns into text."""
Pooling = Literal["mean", "last"]
_NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "messages": (), "input_type": (), "task": (), "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
}  # fmt: skip
"""Fields of other servers that would change an embedding, with the values that change nothing."""


@dataclass(frozen=True, slots=True)
class PooledTexts:
    """Texts of one request that the engine turns into one vector each."""

    inputs: list[str] | list[list[int]]
    """Texts, or lists of token ids."""
    names: Sequence[str]
    """Field of the body that each input comes from, by which an error names it."""
    most_tokens: Mapping[str, int] = field(default_factory=dict)
    """Number of tokens that are read from the beginning of an input, by its field; others are read whole."""


class PooledRequest(Strict):
    """Fields that all requests have whose texts become vectors: embeddings, rankings and scores."""

    NOT_SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of other servers that would change the answer, with the values that change nothing."""

    model: str | None = None
    """Name of the served model; defaults to the one that is served."""
    pooling: Pooling | None = None
    """`mean`: the mean of all tokens; `last`: the last token. Defaults to the setting of the server."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its special tokens, such as bos, to a text; defaults to true."""
    truncate_prompt_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    """Number of tokens of a text to keep, counted from its end."""
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    """Priority of the request; lower numbers run first."""
    cache_salt: str | None = Field(None, max_length=256)
    """Salt of the prefix cache: prefixes are shared only between requests with the same salt."""
    user: str | None = None
    """Ignored; accepted because clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, fields: Any) -> Any:
        return refuse_unsupported(fields, cls.NOT_SUPPORTED)


class EmbeddingsRequest(PooledRequest):
    """Body of `POST /v1/embeddings`."""

    NOT_SUPPORTED: ClassVar[Mapping[str, tuple[Any, ...]]] = _NOT_SUPPORTED
    REFUSED_FIELDS: ClassVar[frozenset[str]] = frozenset(_NOT_SUPPORTED)
    """Names of fields that are refused although the model has no such fields."""

    input: str | Annotated[list[str], FAIL_FAST] | TokenIds | Annotated[list[TokenIds], FAIL_FAST]
    """A text, texts, token ids, or lists of token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """`float`: numbers; `base64`: the bytes of float32 numbers, little-endian."""
    dimensions: int | None = Field(None, ge=1, le=2**16)
    """Number of dimensions to return, from the first on; for models that were trained for shorter vectors."""
    normalize: bool | None = None
    """Whether the vector has the length 1; defaults to true."""

    @model_validator(mode="after")
    def _some_inputs(self) -> "EmbeddingsRequest":
        if isinstance(self.input, list) and (not self.input or [] in self.input):
            raise ValueError("input: must not be an empty list")
        if len(self.inputs) > MOST_INPUTS:
            raise ValueError(f"input: at most {MOST_INPUTS} texts are allowed, got {len(self.inputs)}")
        return self

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """Inputs as a list, one entry each."""
        if isinstance(self.input, str):
            return [self.input]
        return [self.input] if isinstance(self.input[0], int) else self.input

    @property
    def texts(self) -> PooledTexts:
        """Inputs as the engine receives them."""
        return PooledTexts(self.inputs, ["input"] * len(self.inputs))


class Embedding(Strict):
    """The vector of one input."""

    object: Literal["embedding"]
    """Always `embedding`."""
    index: int
    """Position of the input."""
    embedding: list[float] | str
    """The vector: numbers, or base64 of float32 numbers."""


class EmbeddingsUsage(Strict):
    """Tokens of the request."""

    prompt_tokens: int
    """Tokens of all texts."""
    total_tokens: int
    """The same number."""
    engine_cost: EngineCost | None = None
    """Use of the engine; present with the header `X-Mambaserve-Cost: 1`."""


class EmbeddingsResponse(Strict):
    """Answer of `POST /v1/embeddings`."""

    object: Literal["list"]
    """Always `list`."""
    data: list[Embedding]
    """A vector for each input, in their order."""
    model: str
    """Name of the served model."""
    usage: EmbeddingsUsage
    """Tokens of the request."""
    mambaserve: Explanations | None = None
    """Explanations of what was resumed, with `X-Mambaserve-Explain: 1`."""


class TokenizeRequest(Strict):
    """Body of `POST /tokenize`: a text, or the messages of a chat."""

    model: str | None = None
    """Name of the served model; defaults to the one that is served."""
    prompt: str | None = None
    """A text."""
    messages: list[ChatMessage] | None = Field(None, min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    """Messages, as the chat template shows them."""
    tools: list[Tool] | None = Field(None, max_length=128, fail_fast=True)
    """Tools of the chat."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its special tokens, such as bos, to a text; defaults to true."""
    add_generation_prompt: bool | None = None
    """Whether the prompt of a chat ends with the opening of an answer; defaults to true."""
    continue_final_message: bool | None = None
    """Whether the prompt of a chat ends inside the last message, so that an answer would continue it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables for the chat template."""
    return_token_strs: bool | None = None
    """Whether to return the text of each token, too."""

    @model_validator(mode="after")
    def _one_source(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: send either 'prompt' or 'messages'")
        return self


class TokenizeResponse(Strict):
    """Answer of `POST /tokenize`."""

    count: int
    """Number of tokens."""
    max_model_len: int
    """Maximum number of tokens of prompt and answer together."""
    tokens: list[int]
    """Token ids."""
    token_strs: list[str] | None
    """Text of each token, if requested."""


class DetokenizeRequest(Strict):
    """Body of `POST /detokenize`."""

    model: str | None = None
    """Name of the served model; defaults to the one that is served."""
    tokens: Annotated[TokenIds, Field(max_length=MOST_DETOKENIZED)]
    """Token ids."""


class DetokenizeResponse(Strict):
    """Answer of `POST /detokenize`."""

    prompt: str
    """The text, with special tokens."""
